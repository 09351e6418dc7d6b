package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

const window = 15 * time.Minute

// age makes orders as old as that, counted from their landing. All of them, when none is given.
func (b *bench) age(by time.Duration, orders ...*order.Order) {
	b.t.Helper()
	where := ""
	if len(orders) > 0 {
		where = " WHERE order_id IN " + list(len(orders))
	}
	b.exec("UPDATE "+b.sql.orders+" SET updated_at_ms = "+micros+" DIV 1000 - ?"+where, append([]any{by.Milliseconds()}, anys(ids(orders))...)...)
}

// due is what Unpaid lists, in pages of that size.
func (b *bench) due(page int) []string {
	b.t.Helper()
	var all []string
	var at Unpaid
	for {
		got, err := b.Unpaid(b.t.Context(), window, at, page)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, u := range got {
			if u.Item != b.item || u.SinceMs < at.SinceMs {
				b.t.Fatalf("%+v after %+v", u, at)
			}
			all = append(all, u.Order)
		}
		if len(got) < page {
			return all
		}
		at = got[len(got)-1]
	}
}

func (b *bench) expire(orders ...*order.Order) Expired {
	b.t.Helper()
	e, err := b.Expire(b.t.Context(), window, b.item, ids(orders))
	if err != nil {
		b.t.Fatal(err)
	}
	return e
}

// state is "EXPIRED unpaid".
func (b *bench) state(o *order.Order) string {
	b.t.Helper()
	rows, err := b.Orders(b.t.Context(), []string{o.ID})
	if err != nil {
		b.t.Fatal(err)
	}
	return strings.TrimSpace(string(rows[o.ID].Status) + " " + rows[o.ID].Reason)
}

// with runs a test on both kinds of schema.
func with(t *testing.T, stock int64, do func(t *testing.T, b *bench), change ...func(*Config)) {
	t.Parallel()
	for name, without := range map[string]bool{"triggers": false, "no triggers": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			do(t, setup(t, stock, append(change, func(c *Config) { c.NoTriggers = without })...))
		})
	}
}

// Orders past the window expire, once, and their stock and their buyers' places are free again; no other order is touched.
func TestExpire(t *testing.T) {
	with(t, 100, func(t *testing.T, b *bench) {
		old, young, paid, cancelled := b.order("old", 3), b.order("young", 4), b.order("paid", 5), b.order("cancelled", 6)
		big := b.order("big", 1000)
		b.land(old, young, paid, cancelled, big)
		b.exec("UPDATE orders SET status = 'PAID' WHERE order_id = ?", paid.ID)
		cancel := "UPDATE orders SET status = 'CANCELLED' WHERE order_id = ?"
		b.exec(cancel, cancelled.ID)
		if b.cfg.NoTriggers { // the shop's part
			b.exec("UPDATE inventory SET stock = stock + 6 WHERE item_id = ?", b.item)
		}
		b.age(window+time.Second, old, paid, cancelled, big)
		b.age(window-time.Minute, young)
		if got := b.due(10); !slices.Equal(got, ids([]*order.Order{old})) {
			t.Fatalf("due: %v, want only %s", got, old.ID)
		}
		_, was, _, err := b.Inventory(t.Context(), b.item)
		if err != nil {
			t.Fatal(err)
		}
		all := []*order.Order{old, young, paid, cancelled, big}
		if got, want := b.expire(all...), (Expired{Orders: 1, Units: 3, Skipped: 4}); got != want {
			t.Fatalf("%+v, want %+v", got, want)
		}
		stock, version, _, err := b.Inventory(t.Context(), b.item)
		if err != nil || stock != 100-4-5 || version <= was {
			t.Fatalf("stock %d at %d after %d, %v", stock, version, was, err)
		}
		for o, want := range map[*order.Order]string{old: "EXPIRED unpaid", young: "CONFIRMED", paid: "PAID", cancelled: "CANCELLED", big: "FAILED sold_out"} {
			if got := b.state(o); got != want {
				t.Errorf("order of %s is %s, want %s", o.User, got, want)
			}
		}
		if n := b.count("SELECT "+micros+" DIV 1000 - updated_at_ms FROM orders WHERE order_id = ?", old.ID); n < 0 || n > 60_000 {
			t.Errorf("updated_at_ms is %d ms ago", n)
		}
		if got := b.expire(all...); got.Orders != 0 || got.Units != 0 {
			t.Errorf("a second time: %+v", got)
		}
		b.exact(100)
		want(t, b.land(b.order("old", 1)), "CONFIRMED")
		b.exact(100)
	})
}

// The walk meets every due order once, whatever the size of its pages and however many became due in the same millisecond.
func TestUnpaidIsOneWalk(t *testing.T) {
	t.Parallel()
	b := setup(t, 1000)
	all := b.orders(50, 1)
	b.land(all...)
	for i, o := range all {
		b.exec("UPDATE orders SET updated_at_ms = ? WHERE order_id = ?", int64(1000+i/20), o.ID)
	}
	wanted := ids(all)
	slices.Sort(wanted) // ids ascend with time, so the order of the walk is the same
	for _, page := range []int{1, 7, 20, 50, 51} {
		if got := b.due(page); !slices.Equal(got, wanted) {
			t.Errorf("pages of %d: %d orders, want %d", page, len(got), len(wanted))
		}
	}
}

// A payment and the end of the window at the same instant, with two releasers: exactly one wins each order, both are told which, and the
// stock comes back once for each order that died.
func TestE96_PaymentRacesExpiry(t *testing.T) {
	with(t, 1000, func(t *testing.T, b *bench) {
		second := &bench{Store: openStore(t, b.dsn, func(c *Config) { c.NoTriggers = b.cfg.NoTriggers }), t: t, item: b.item, activity: b.activity}
		var all []*order.Order
		for range 300 {
			o := b.orders(1, 1+rand.Int64N(3))
			all = append(all, o...)
		}
		b.land(all...)
		b.age(window + time.Second)
		var expired, units, paid atomic.Int64
		var wg sync.WaitGroup
		start := make(chan struct{})
		for _, s := range []*bench{b, second} {
			wg.Go(func() {
				<-start
				for part := range slices.Chunk(all, 20) {
					e, err := s.Expire(t.Context(), window, s.item, ids(part))
					if err != nil {
						t.Error(err)
					}
					expired.Add(int64(e.Orders))
					units.Add(e.Units)
				}
			})
		}
		for p := range 3 {
			wg.Go(func() {
				<-start
				for i := range all {
					if i%3 != p {
						continue
					}
					res, err := b.db.ExecContext(t.Context(), "UPDATE orders SET status = 'PAID' WHERE order_id = ? AND status = 'CONFIRMED'", all[i].ID)
					if err != nil {
						t.Error(err)
						continue
					}
					n, _ := res.RowsAffected()
					paid.Add(n)
				}
			})
		}
		close(start)
		wg.Wait()
		for _, s := range []*bench{b, second} { // whatever both passed by
			e := s.expire(all...)
			expired.Add(int64(e.Orders))
			units.Add(e.Units)
		}
		counted := func(status string) int64 { return b.count("SELECT COUNT(*) FROM orders WHERE status = ?", status) }
		if expired.Load() != counted("EXPIRED") || paid.Load() != counted("PAID") || expired.Load()+paid.Load() != int64(len(all)) {
			t.Errorf("told %d expired and %d paid of %d, MySQL has %d and %d", expired.Load(), paid.Load(), len(all), counted("EXPIRED"), counted("PAID"))
		}
		if got := b.count("SELECT SUM(quantity) FROM orders WHERE status = 'EXPIRED'"); got != units.Load() {
			t.Errorf("told of %d units, MySQL has %d", units.Load(), got)
		}
		if counted("EXPIRED") == 0 || counted("PAID") == 0 {
			t.Logf("no race: %d expired, %d paid", counted("EXPIRED"), counted("PAID"))
		}
		b.exact(1000)
	})
}

// The two ways that the race can go, step by step. A payment that is being noted is passed by, not waited for; one that comes while the
// expiry is being committed waits, and hears that it came too late.
func TestE96_WhoeverIsFirstWins(t *testing.T) {
	with(t, 100, func(t *testing.T, b *bench) {
		pay := "UPDATE orders SET status = 'PAID' WHERE order_id = ? AND status = 'CONFIRMED'"
		first, then := b.order("first", 2), b.order("then", 3)
		b.land(first, then)
		b.age(window + time.Second)

		tx, err := b.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.ExecContext(t.Context(), pay, first.ID); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if got := b.expire(first); got != (Expired{Skipped: 1}) {
			t.Errorf("%+v, want the order that is being paid skipped", got)
		}
		took := time.Since(began)
		if took > b.cfg.LockWait/2 {
			t.Errorf("took %s: waited for the payment", took)
		}
		t.Logf("passed by after %s", took)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if got := b.state(first); got != "PAID" {
			t.Errorf("order is %s, want it paid", got)
		}

		// The expiry's own steps, with the payment in between.
		x, err := b.session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = x.close(context.Background()) }()
		if err := x.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if e, err := x.expire(t.Context(), window, b.item, []string{then.ID}); err != nil || e.Orders != 1 {
			t.Fatal(e, err)
		}
		late := make(chan int64, 1)
		go func() {
			var n int64 = -1
			if res, err := b.db.ExecContext(t.Context(), pay, then.ID); err == nil {
				n, _ = res.RowsAffected()
			}
			late <- n
		}()
		testenv.Eventually(t, 8*time.Second, "the payment waits for the lock", func() bool {
			return b.count("SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'UPDATE orders SET status = ''PAID''%'") == 1
		})
		if err := x.commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := <-late; n != 0 {
			t.Errorf("the late payment changed %d rows, want 0", n)
		}
		if got := b.state(then); got != "EXPIRED unpaid" {
			t.Errorf("order is %s, want it expired", got)
		}
		b.exact(100)
	}, func(c *Config) { c.LockWait, c.StatementTimeout = 10*time.Second, 30*time.Second })
}

// Several workers expire the same orders while others land new ones of the same buyers and item: each order expires once.
func TestExpireByManyWhileLanding(t *testing.T) {
	with(t, 2000, func(t *testing.T, b *bench) {
		old := b.orders(400, 2)
		b.land(old...)
		b.age(window + time.Second)
		var expired atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				parts := slices.Collect(slices.Chunk(old, 50))
				rand.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
				for _, part := range parts {
					e, err := b.Expire(t.Context(), window, b.item, ids(part))
					if err != nil {
						t.Error(err)
					}
					expired.Add(int64(e.Orders))
				}
			})
		}
		for range 2 {
			wg.Go(func() {
				for range 20 {
					var again []*order.Order
					for _, i := range rand.Perm(len(old))[:10] {
						again = append(again, b.order(old[i].User, 1)) // lands if the old one is dead by then
					}
					if _, err := b.Land(t.Context(), b.item, again); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		expired.Add(int64(b.expire(old...).Orders)) // what a rival had locked and then gave back
		if n := b.count("SELECT COUNT(*) FROM orders WHERE status = 'EXPIRED'"); n != 400 || expired.Load() != n {
			t.Errorf("%d expired, told %d, want 400", n, expired.Load())
		}
		b.exact(2000)
	}, func(c *Config) { c.LockWait, c.StatementTimeout, c.Tries = 10*time.Second, 30*time.Second, 50 })
}

// A run that is broken off anywhere has expired an order and returned its stock, or neither.
func TestExpireCancelledAnywhere(t *testing.T) {
	with(t, 1000, func(t *testing.T, b *bench) {
		all := b.orders(200, 1)
		b.land(all...)
		b.age(window + time.Second)
		for part := range slices.Chunk(all, 10) {
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(8*time.Millisecond))
			_, _ = b.Expire(ctx, window, b.item, ids(part))
			cancel()
		}
		b.unlocked()
		b.exact(1000)
		b.expire(all...)
		if n := b.count("SELECT COUNT(*) FROM orders WHERE status = 'EXPIRED'"); n != 200 {
			t.Errorf("%d expired, want 200", n)
		}
		b.exact(1000)
	})
}

// Where the stock would not come back, or twice, nothing is done: a schema other than the configuration says must not leak or oversell.
func TestExpireRefusesToLoseStock(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(b *bench){
		"trigger dropped":      func(b *bench) { b.exec("DROP TRIGGER orders_seckill_au") },
		"trigger not expected": func(b *bench) { b.cfg.NoTriggers = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, 10)
			o := b.order("u", 3)
			b.land(o)
			b.age(window + time.Second)
			spoil(b)
			if _, err := b.Expire(t.Context(), window, b.item, []string{o.ID}); !errors.Is(err, ErrStockNotReturned) {
				t.Fatalf("%v, want %v", err, ErrStockNotReturned)
			}
			if got := b.state(o); got != "CONFIRMED" {
				t.Errorf("order is %s", got)
			}
			b.exact(10)
		})
	}
}

// An item that the shop has taken out of its table has no stock to return to; its orders expire all the same.
func TestExpireWithoutInventoryRow(t *testing.T) {
	with(t, 10, func(t *testing.T, b *bench) {
		o := b.order("u", 3)
		b.land(o)
		b.age(window + time.Second)
		b.exec("DELETE FROM inventory")
		if got := b.expire(o); got.Orders != 1 {
			t.Errorf("%+v", got)
		}
	})
}

// The plans that servers choose with most orders unpaid, which is when an optimizer likes to read the whole table.
func TestUnpaidUsesItsIndexes(t *testing.T) {
	t.Parallel()
	b := setup(t, 1_000_000)
	for range 5 {
		b.land(b.orders(1000, 1)...)
	}
	b.exec("UPDATE orders SET status = 'PAID' WHERE order_id IN (SELECT order_id FROM (SELECT order_id FROM orders LIMIT 500) AS some)")
	b.exec("ANALYZE TABLE orders")
	plan := func(text string, args ...any) map[string]string {
		t.Helper()
		// As a table on each: MySQL 9 draws a tree otherwise, and MariaDB does not know the word.
		explain := "EXPLAIN "
		if flavor, err := b.Flavor(t.Context()); err != nil {
			t.Fatal(err)
		} else if flavor == "mysql" {
			explain += "FORMAT=TRADITIONAL "
		}
		rows, err := b.db.QueryContext(t.Context(), explain+text, args...)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		cols, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		vals := make([]any, len(cols))
		for i := range vals {
			vals[i] = new([]byte)
		}
		if !rows.Next() {
			t.Fatal("no plan: ", rows.Err())
		}
		if err := rows.Scan(vals...); err != nil {
			t.Fatal(err)
		}
		got := make(map[string]string)
		for i, c := range cols {
			got[strings.ToLower(c)] = string(*vals[i].(*[]byte))
		}
		return got
	}
	some := anys(ids(b.orders(200, 1)))
	for name, c := range map[string]struct {
		text string
		args []any
		key  string
	}{
		"walk, nothing due": {b.sql.unpaid, []any{"CONFIRMED", 0, window.Milliseconds(), 0, "", 500}, keyUpdated},
		"walk, all due":     {b.sql.unpaid, []any{"CONFIRMED", 0, -window.Milliseconds(), 0, "", 500}, keyUpdated},
		"lock":              {b.sql.dueForUpdate(200), append(slices.Clone(some), "CONFIRMED", -window.Milliseconds(), b.item), "PRIMARY"},
		"expire":            {b.sql.expire(200), append(append([]any{"EXPIRED", "unpaid"}, some...), "CONFIRMED"), "PRIMARY"},
	} {
		got := plan(c.text, c.args...)
		if got["key"] != c.key || got["type"] != "range" || strings.Contains(got["extra"], "filesort") {
			t.Errorf("%s: %v, want a range of %s without a sort", name, got, c.key)
		}
	}
}

// What expiry needs beyond landing is named before a sale, not by it.
func TestCheckUnpaid(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	names := func() string {
		t.Helper()
		found, err := b.CheckUnpaid(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(found)
	}
	if got := names(); got != "[]" {
		t.Errorf("a sound schema: %s", got)
	}
	b.exec("ALTER TABLE orders DROP INDEX " + keyUpdated)
	if got := names(); !strings.Contains(got, "unpaid") || !strings.Contains(got, keyUpdated) {
		t.Errorf("without the index: %s", got)
	}
	b.exec("DROP TABLE orders")
	if got := names(); got != "[]" {
		t.Errorf("without the table: %s, want it left to the check of the schema", got)
	}
}
