package store

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestLand(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	o := b.order("u1", 3)
	o.Extra = json.RawMessage(`{"addr":"测试"}`)
	l := b.land(o)
	want(t, l, "CONFIRMED")
	stock, version, _, err := b.Inventory(t.Context(), b.item)
	if err != nil || l.Stock != 7 || stock != 7 || l.Version != version || l.Item != b.item {
		t.Fatalf("landed %+v, inventory %d at %d, %v", l, stock, version, err)
	}
	if off := time.Since(time.UnixMicro(version)).Abs(); off > time.Minute {
		t.Fatalf("version %d is %s off the clock", version, off)
	}
	var extra string
	var created, updated int64
	if err := b.db.QueryRow("SELECT extra, created_at_ms, updated_at_ms FROM orders WHERE order_id = ?", o.ID).Scan(&extra, &created, &updated); err != nil {
		t.Fatal(err)
	}
	if extra != string(o.Extra) || created != o.CreatedAtMs || time.Since(time.UnixMilli(updated)).Abs() > time.Minute {
		t.Fatalf("row has extra %s, created %d, updated %d", extra, created, updated)
	}
	b.exact(10)
}

// TestLandTakesEveryTextAsAValue: what a buyer may put into an order is never part of a statement, though the driver writes the
// values into its text.
func TestLandTakesEveryTextAsAValue(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	for _, text := range []string{"x'); DROP TABLE orders; -- ", `\', 0, 1); DELETE FROM orders; #`, `" OR ""="`, "?", "\u00bf\u005c' OR 1=1", "𝓊/**/"} {
		o := b.order(strings.TrimSpace(text), 1)
		extra, err := json.Marshal(map[string]string{"address": text})
		if err != nil {
			t.Fatal(err)
		}
		o.Extra = extra
		want(t, b.land(o), "CONFIRMED")
		var user, got string
		if err := b.db.QueryRow("SELECT user_id, extra FROM orders WHERE order_id = ?", o.ID).Scan(&user, &got); err != nil {
			t.Fatal(err)
		}
		if user != o.User || got != string(extra) {
			t.Errorf("%q landed as user %q, extra %s", text, user, got)
		}
	}
	b.exact(10)
}

func TestLandOrdersOfSeveralActivities(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	one, two := b.order("u1", 1), b.order("u1", 2)
	two.Activity++
	want(t, b.land(one, two), "CONFIRMED", "CONFIRMED")
	b.exact(10)
}

func TestLandWiderThanOneStatement(t *testing.T) {
	t.Parallel()
	b := setup(t, 5000)
	all := b.orders(2500, 1)
	l := b.land(all...)
	if len(l.Outcomes) != 2500 || l.Stock != 2500 {
		t.Fatalf("%d outcomes, stock %d", len(l.Outcomes), l.Stock)
	}
	l2 := b.land(all...)
	if !slices.Equal(l.Outcomes, l2.Outcomes) || l2.Stock != l.Stock || l2.Version != l.Version {
		t.Fatal("a redelivery changed something")
	}
	b.exact(5000)
}

func TestLandUnknownItem(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	o := b.order("u1", 1)
	o.Item = 8
	_, err := b.Land(t.Context(), 8, []*order.Order{o})
	if !errors.Is(err, ErrNoInventory) || IsTransient(err) {
		t.Fatal(err)
	}
	if n := b.count("SELECT COUNT(*) FROM orders"); n != 0 {
		t.Fatalf("%d rows were written", n)
	}
	// What has landed stays landed even when the shop takes the item off its books.
	done := b.order("u2", 1)
	b.land(done)
	b.exec("DELETE FROM inventory")
	l := b.land(done)
	want(t, l, "CONFIRMED")
	if l.Version != 0 {
		t.Fatalf("version %d of a row that is gone", l.Version)
	}
	want(t, b.land(done), "CONFIRMED") // again, now that the stock is known to be none

	t.Log("the stock is no number, which is known from another order")
	b.exec("ALTER TABLE inventory MODIFY stock BIGINT NULL")
	b.exec("INSERT INTO inventory (item_id, stock, version) VALUES (?, NULL, 0)", b.item)
	for range 2 {
		if _, err := b.Land(t.Context(), b.item, []*order.Order{b.order("u3", 1)}); !errors.Is(err, ErrNoStock) {
			t.Fatal(err)
		}
		if l := b.land(done); l.Version != 0 {
			t.Errorf("%+v, want no version, since there is no stock", l)
		} else {
			want(t, l, "CONFIRMED")
		}
	}
}

// A statement fails half-way while another session holds the key: COMMIT must not keep the other half.
func TestE61_LockTimeoutKeepsNoHalf(t *testing.T) {
	t.Parallel()
	b := setup(t, 10, func(c *Config) { c.Tries = 1 })
	rival := b.order("u1", 1)
	tx, err := b.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(b.sql.insert(1), rival.ID, rival.Activity, rival.User, rival.Item, 1, "CONFIRMED", "", nil, 1); err != nil {
		t.Fatal(err)
	}
	orders := append(b.orders(2, 1), b.order("u1", 1))
	_, err = b.Land(t.Context(), b.item, orders)
	if number(err) != errLockTimeout || !IsTransient(err) {
		t.Fatalf("want 1205, transient: %v", err)
	}
	stock, _, _, _ := b.Inventory(t.Context(), b.item)
	if n := b.count("SELECT COUNT(*) FROM orders"); n != 0 || stock != 10 {
		t.Fatalf("%d rows and stock %d are left of a failed batch", n, stock)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	// The other half: the rows are in, and the stock is locked.
	held, err := b.LockInventory(t.Context(), b.item, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Land(t.Context(), b.item, orders); number(err) != errLockTimeout || !IsTransient(err) {
		t.Fatalf("want 1205, transient: %v", err)
	}
	if n := b.count("SELECT COUNT(*) FROM orders"); n != 0 {
		t.Fatalf("%d rows are left of a failed batch", n)
	}
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	want(t, b.land(orders...), "CONFIRMED", "CONFIRMED", "CONFIRMED")
	b.exact(10)
}

func TestE62_Duplicates(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	first := b.order("u1", 2)
	l := b.land(first)

	again := b.land(first) // redelivered: no change
	want(t, again, "CONFIRMED")
	if again.Stock != l.Stock || again.Version != l.Version {
		t.Fatalf("a redelivery moved %+v to %+v", l, again)
	}

	second, other := b.order("u1", 1), b.order("u2", 1) // the same buyer again, among others
	l = b.land(other, second, first)
	want(t, l, "CONFIRMED", "FAILED already_ordered", "CONFIRMED")
	if l.Stock != 7 {
		t.Fatalf("stock %d, want 7", l.Stock)
	}
	want(t, b.land(second), "FAILED already_ordered") // and its fate stays, also once the place is free
	b.exec("UPDATE orders SET status = 'CANCELLED' WHERE order_id = ?", first.ID)
	want(t, b.land(second, first), "FAILED already_ordered", "CANCELLED")
	want(t, b.land(b.order("u1", 1)), "CONFIRMED")

	x, y := b.order("u9", 1), b.order("u9", 1) // twice within one batch
	want(t, b.land(x, y, x), "CONFIRMED", "FAILED already_ordered")
	b.exact(10)
}

// Rows first, stock after: what has landed is told again without waiting for the hot row, whoever holds it.
func TestE62_RedeliveryDoesNotWaitForTheStock(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	orders := b.orders(3, 1)
	b.land(orders...)
	held, err := b.LockInventory(t.Context(), b.item, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	l := b.land(orders...)
	want(t, l, "CONFIRMED", "CONFIRMED", "CONFIRMED")
	if l.Races != 0 {
		t.Errorf("%d tries were lost to the lock on the stock", l.Races)
	}
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
}

// The row is the truth, whatever a message with the same id says.
func TestLandRowDiffersFromMessage(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	o := b.order("u1", 2)
	b.land(o)
	liar := *o
	liar.User, liar.Quantity = "u2", 5
	l := b.land(&liar)
	if got := l.Outcomes[0]; got.User != "u1" || got.Quantity != 2 {
		t.Fatalf("%+v", got)
	}
	b.exact(10)
}

func TestE64_ClientFoundRowsDoesNotMatter(t *testing.T) {
	t.Parallel()
	for _, found := range []string{"true", "false"} {
		b := setup(t, 3)
		b.dsn += "&clientFoundRows=" + found
		if !strings.Contains(b.dsn, "?") {
			b.dsn = strings.Replace(b.dsn, "&", "?", 1)
		}
		pinned := openStore(t, b.dsn)
		d, err := pinned.cfg.driver()
		if err != nil || d.ClientFoundRows {
			t.Fatalf("clientFoundRows=%s in the DSN is not pinned to false: %v", found, err)
		}
		// A proxy between may turn it on all the same.
		s, err := open(Config{DSN: b.dsn}, func(d *mysql.Config) { d.ClientFoundRows = found == "true" })
		if err != nil {
			t.Fatal(err)
		}
		b.Store = s
		o := b.order("u1", 2)
		for range 3 {
			want(t, b.land(o), "CONFIRMED")
		}
		want(t, b.land(b.order("u2", 2)), "FAILED sold_out")
		if stock, version, err := s.Touch(t.Context(), b.item); err != nil || stock != 1 || version == 0 {
			t.Fatal(stock, version, err)
		}
		b.exact(3)
		_ = s.Close()
	}
}

// A shop's stock column may be UNSIGNED, where stock - 1 raises 1690 at 0.
func TestE65_UnsignedStock(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.exec("DROP TABLE inventory")
	b.exec("CREATE TABLE inventory (item_id INT UNSIGNED PRIMARY KEY, stock INT UNSIGNED NOT NULL, version BIGINT NOT NULL)")
	b.exec("INSERT INTO inventory VALUES (7, 0, 1)")
	want(t, b.land(b.order("u1", 1)), "FAILED sold_out")
	b.exec("UPDATE inventory SET stock = 1")
	want(t, b.land(b.order("u1", 1), b.order("u2", 1)), "CONFIRMED", "FAILED sold_out")
	b.exact(1)
}

// Many workers, one hot row, duplicates among them: deadlocks are retried, nothing is lost, the stock is exact.
func TestE66_DeadlocksOnTheHotRow(t *testing.T) {
	t.Parallel()
	const workers, batches, size = 32, 4, 10
	b := setup(t, 1000, func(c *Config) {
		c.MaxConns, c.LockWait, c.Tries = workers, 10*time.Second, 50
		c.StatementTimeout = 30 * time.Second
	})
	shared := b.orders(workers, 1)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range batches {
				orders := b.orders(size, 1)
				for _, i := range rand.Perm(len(shared))[:3] { // in any order: this is what deadlocks
					orders = append(orders, shared[i])
				}
				orders = append(orders, b.order(shared[w].User, 1)) // another id of a buyer who may have one
				rand.Shuffle(len(orders), func(i, j int) { orders[i], orders[j] = orders[j], orders[i] })
				if _, err := b.Land(t.Context(), b.item, orders); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b.exact(1000)
	if n := b.count("SELECT COUNT(*) FROM orders"); n < workers*batches*(size+1) {
		t.Errorf("%d rows, want at least %d", n, workers*batches*(size+1))
	}
}

// Landing says how many tries it lost to others, and whether it was given back for that: the caller's batches shrink by it.
func TestLandTellsOfContention(t *testing.T) {
	t.Parallel()
	b := setup(t, 10, func(c *Config) { c.Tries = 3 })
	if l := b.land(b.order("alone", 1)); l.Races != 0 {
		t.Errorf("%d tries lost with nobody there", l.Races)
	}
	lock, err := b.LockInventory(t.Context(), b.item, 2500*time.Millisecond) // longer than one lock wait, of which MySQL looks once a second, shorter than three
	if err != nil {
		t.Fatal(err)
	}
	if l := b.land(b.order("waits", 1)); l.Races == 0 {
		t.Error("no try was lost although the row was locked")
	}
	_ = lock.Release()
	if lock, err = b.LockInventory(t.Context(), b.item, time.Minute); err != nil {
		t.Fatal(err)
	}
	_, err = b.Land(t.Context(), b.item, b.orders(1, 1))
	if !IsContention(err) || !IsTransient(err) {
		t.Errorf("given back with %v, want contention", err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	b.exact(10)
}

// Two workers hold the same partition for a while and land overlapping batches until the stock is gone.
func TestE34_OverlappingWorkers(t *testing.T) {
	t.Parallel()
	const stock, orders = 150, 400
	b := setup(t, stock)
	second := &bench{Store: openStore(t, b.dsn), t: t, item: b.item, activity: b.activity}
	all := b.orders(orders, 1)
	for _, o := range all {
		o.Quantity = 1 + rand.Int64N(3)
	}
	told := [2]map[string]order.Status{{}, {}}
	var wg sync.WaitGroup
	for w, s := range []*bench{b, second} {
		wg.Go(func() {
			for begin := 0; begin < orders; {
				end := min(orders, begin+1+rand.IntN(40))
				l, err := s.Land(t.Context(), s.item, all[begin:end])
				if err != nil {
					t.Error(err)
					return
				}
				for _, o := range l.Outcomes {
					told[w][o.Order] = o.Status
				}
				begin = max(begin+1, end-rand.IntN(10)) // and some of it again
			}
		})
	}
	wg.Wait()
	b.exact(stock)
	rows, err := b.Orders(t.Context(), ids(all))
	if err != nil || len(rows) != orders {
		t.Fatalf("%d rows, want %d: %v", len(rows), orders, err)
	}
	for _, o := range all {
		if told[0][o.ID] != rows[o.ID].Status || told[1][o.ID] != rows[o.ID].Status {
			t.Fatalf("order %s is %s and the workers heard %s and %s", o.ID, rows[o.ID].Status, told[0][o.ID], told[1][o.ID])
		}
	}
	if got, _, _, _ := b.Inventory(t.Context(), b.item); got > 2 {
		t.Errorf("%d units are left although smaller orders wanted them", got)
	}
}

func TestE67_CancelAnywhereKeepsBothOrNeither(t *testing.T) {
	const stock = 100000
	b := setup(t, stock)
	var began time.Time
	b.land(b.orders(20, 1)...) // warm
	began = time.Now()
	b.land(b.orders(20, 1)...)
	usual := time.Since(began)
	cancelled := 0
	for range 150 {
		orders := b.orders(20, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.Int64N(int64(2*usual))))
		l, err := b.Land(ctx, b.item, orders)
		cancel()
		rows, e := b.Orders(t.Context(), ids(orders))
		if e != nil {
			t.Fatal(e)
		}
		switch {
		case err == nil && (len(rows) != 20 || len(l.Outcomes) != 20):
			t.Fatalf("landed, and %d rows are there", len(rows))
		case err != nil && len(rows) != 0 && len(rows) != 20:
			t.Fatalf("%d rows of a batch of 20: %v", len(rows), err)
		case err != nil:
			cancelled++
			if !IsTransient(err) {
				t.Fatalf("a cancelled batch was decided: %v", err)
			}
		}
	}
	if cancelled == 0 {
		t.Error("no batch was cancelled: the test tried nothing")
	}
	b.exact(stock)
	b.unlocked()
}

// A cancelled worker was waiting for a lock, holding others: they are free within a second, not when its wait would have ended.
func TestE67_CancelFreesLocksAtOnce(t *testing.T) {
	b := setup(t, 10, func(c *Config) { c.LockWait, c.StatementTimeout = 20*time.Second, 30*time.Second })
	held, err := b.LockInventory(t.Context(), b.item, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	orders := b.orders(2, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := b.Land(ctx, b.item, orders)
		done <- err
	}()
	waitForLockWait(t, b)
	cancel()
	if err := <-done; err == nil {
		t.Fatal("landed although the row was locked")
	}
	// The order rows that it had inserted are locked no more.
	tx, err := b.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	began := time.Now()
	if _, err := tx.Exec(b.sql.insert(1), rowArgs(orders[0], b.plan1(orders[0]))...); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	if took > b.cfg.LockWait/2 {
		t.Fatalf("the rows of a cancelled batch stayed locked for %s", took)
	}
	t.Logf("the rows of a cancelled batch were free after %s", took)
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
}

// TestE67_CancelLeavesTriggersReadable: landings are cancelled at random points on a server that reads triggers anew all the time; a
// session that is killed while it reads one spoils it for the others.
func TestE67_CancelLeavesTriggersReadable(t *testing.T) {
	t.Parallel()
	// With room for few open tables the server opens them, and reads their triggers, for nearly every statement.
	b := setupOn(t, testenv.StartMySQL(t, "--table-open-cache=10").DSN("shop"), 1_000_000)
	end := time.Now().Add(4 * time.Second)
	var wg sync.WaitGroup
	wg.Go(func() {
		for time.Now().Before(end) {
			if _, err := b.db.Exec("FLUSH TABLES orders, inventory"); err != nil && !lostRace(err) {
				t.Error(err)
				return
			}
		}
	})
	for range 6 {
		wg.Go(func() {
			for time.Now().Before(end) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.Int64N(int64(6*time.Millisecond))))
				_, err := b.Land(ctx, b.item, b.orders(2, 1))
				cancel()
				if number(err) == errSyntax {
					t.Errorf("a trigger was spoilt: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	want(t, b.land(b.orders(1, 1)...), "CONFIRMED")
	b.exact(1_000_000)
}

func TestE110_UsersAndIdsAreComparedAsBytes(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	want(t, b.land(b.order("u1", 1), b.order("U1", 1), b.order("ü1", 1)), "CONFIRMED", "CONFIRMED", "CONFIRMED")
	// Ids differ in case only in the database's eyes; the contract allows lower case alone.
	o := b.order("u2", 1)
	b.land(o)
	rows, err := b.Orders(t.Context(), []string{strings.ToUpper(o.ID)})
	if err != nil || len(rows) != 0 {
		t.Fatalf("%v, %v", rows, err)
	}
	_, err = b.Land(t.Context(), b.item, []*order.Order{b.order("u3 ", 1)})
	var row *ErrRowRefused
	if !errors.As(err, &row) || row.Index != 0 {
		t.Fatalf("a trailing blank: %v", err)
	}
	b.exact(10)
}

func TestE111_BatchThatDoesNotFit(t *testing.T) {
	t.Parallel()
	for range 2 { // the second time with the hint that stock is scarce
		b := setup(t, 2)
		want(t, b.land(b.order("u1", 1), b.order("u2", 3), b.order("u3", 1)), "CONFIRMED", "FAILED sold_out", "CONFIRMED")
		b.exact(2)
		l := b.land(b.order("u4", 1))
		want(t, l, "FAILED sold_out")
		if l.Stock != 0 {
			t.Fatalf("stock %d", l.Stock)
		}
		b.exec("UPDATE inventory SET stock = stock + 5 WHERE item_id = 7") // a restock that nobody told this process of
		want(t, b.land(b.order("u2", 3), b.order("u4", 1)), "CONFIRMED", "CONFIRMED")
		b.exact(7)
		// A buyer whose first order did not fit may still get a smaller one in the same batch.
		want(t, b.land(b.order("u5", 3), b.order("u5", 1)), "FAILED sold_out", "CONFIRMED")
		b.exact(7)
	}
}

// TestPatientOrdersAreLeft: what does not fit and may wait gets no row and takes nothing, the others of its batch land or fail.
func TestPatientOrdersAreLeft(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	orders := []*order.Order{b.order("u1", 1), b.order("u2", 3), b.order("u3", 1), b.order("u4", 1), b.order("u1", 1)}
	orders[1].Patient, orders[0].Patient, orders[4].Patient = true, true, true
	for range 2 {
		l := b.land(orders...)
		want(t, l, "CONFIRMED", "CONFIRMED", "FAILED sold_out", "FAILED already_ordered")
		if !slices.Equal(l.Left, []string{orders[1].ID}) || l.Outcomes[1].Order != orders[2].ID || l.Stock != 0 {
			t.Fatalf("%+v", l)
		}
	}
	if l := b.land(orders[1]); len(l.Outcomes) != 0 || len(l.Left) != 1 {
		t.Fatalf("%+v", l)
	}
	b.exact(2)
	b.exec("UPDATE inventory SET stock = stock + 5")
	want(t, b.land(orders[1]), "CONFIRMED")
	b.exact(7)
}

func TestE42_RowRefusedForGood(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	b.exec("ALTER TABLE orders ADD CONSTRAINT shop_rule CHECK (user_id <> 'banned'), MODIFY extra VARCHAR(20) NULL")
	check := func(name string, bad *order.Order) {
		t.Helper()
		orders := append(b.orders(3, 1), bad, b.order("u"+name, 1))
		_, err := b.Land(t.Context(), b.item, orders)
		var row *ErrRowRefused
		if !errors.As(err, &row) || row.Index != 3 || IsTransient(err) {
			t.Fatalf("%s: %v", name, err)
		}
		if n := b.count("SELECT COUNT(*) FROM orders"); n != 0 {
			t.Fatalf("%s: %d rows stayed", name, n)
		}
	}
	check("check", b.order("banned", 1))
	long := b.order("long", 1)
	long.Extra = json.RawMessage(`"` + strings.Repeat("x", 100) + `"`)
	check("long", long)
	b.exec("CREATE UNIQUE INDEX shop_key ON orders (quantity, created_at_ms)")
	orders := b.orders(2, 1)
	orders[1].CreatedAtMs = orders[0].CreatedAtMs
	_, err := b.Land(t.Context(), b.item, orders)
	var row *ErrRowRefused
	if !errors.As(err, &row) || row.Index != 1 {
		t.Fatalf("a key of the shop's: %v", err)
	}
	b.exact(10)
}

func TestSchemaTroubleIsNeverADecision(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	b.exec("DROP TABLE orders")
	_, err := b.Land(t.Context(), b.item, b.orders(1, 1))
	if err == nil || !IsTransient(err) {
		t.Fatalf("a missing table decided an order: %v", err)
	}
	dead := openStore(t, "u@tcp(127.0.0.1:1)/none", func(c *Config) { c.Tries = 2 })
	_, err = dead.Land(t.Context(), b.item, b.orders(1, 1))
	if err == nil || !IsTransient(err) {
		t.Fatalf("a server that is not there decided an order: %v", err)
	}
}

// waitForLockWait returns once some session of this database waits for a row lock.
func waitForLockWait(t testing.TB, b *bench) {
	t.Helper()
	// InnoDB shows a copy of its locks that it renews only when nobody has looked for a tenth of a second.
	tick := time.NewTicker(150 * time.Millisecond)
	defer tick.Stop()
	for range 60 {
		<-tick.C
		if b.count("SELECT COUNT(*) FROM information_schema.innodb_trx x JOIN information_schema.processlist p ON p.id = x.trx_mysql_thread_id WHERE x.trx_state = 'LOCK WAIT' AND p.db = DATABASE()") > 0 {
			return
		}
	}
	t.Fatal("nobody waits for a lock")
}

func (b *bench) plan1(o *order.Order) ledger.Outcome {
	p := (&batch{item: o.Item, orders: []*order.Order{o}}).plan(nil, nil, enough, order.Confirmed)
	return p.outcomes[0]
}
