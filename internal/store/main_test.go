package store

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.KnownLeaks()...) }

// bench is a migrated database of the test's own, with one item in it.
type bench struct {
	*Store
	t        testing.TB
	dsn      string
	item     int64
	activity int64
}

func setup(t testing.TB, stock int64, change ...func(*Config)) *bench {
	t.Helper()
	return setupOn(t, testenv.MySQL(t), stock, change...)
}

func setupOn(t testing.TB, dsn string, stock int64, change ...func(*Config)) *bench {
	t.Helper()
	b := &bench{Store: openStore(t, dsn, change...), t: t, dsn: dsn, item: 7, activity: 70}
	if err := b.Migrate(t.Context(), MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.exec("INSERT INTO "+b.sql.inventory+" ("+quote(b.cfg.Tables.Item)+", "+quote(b.cfg.Tables.Stock)+") VALUES (?, ?)", b.item, stock)
	return b
}

func openStore(t testing.TB, dsn string, change ...func(*Config)) *Store {
	t.Helper()
	cfg := Config{DSN: dsn, LockWait: time.Second}
	for _, c := range change {
		c(&cfg)
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (b *bench) exec(text string, args ...any) {
	b.t.Helper()
	if _, err := b.db.ExecContext(b.t.Context(), text, args...); err != nil {
		b.t.Fatalf("%s: %v", text, err)
	}
}

func (b *bench) count(text string, args ...any) (n int64) {
	b.t.Helper()
	var v sql.NullInt64
	if err := b.db.QueryRowContext(b.t.Context(), text, args...).Scan(&v); err != nil {
		b.t.Fatalf("%s: %v", text, err)
	}
	return v.Int64
}

// order makes a fresh order of the bench's item and activity.
func (b *bench) order(user string, quantity int64) *order.Order {
	b.t.Helper()
	id, err := order.NewID()
	if err != nil {
		b.t.Fatal(err)
	}
	return &order.Order{
		V: order.SchemaVersion, ID: id, Activity: b.activity, User: user, Item: b.item, Quantity: quantity,
		CreatedAtMs: time.Now().UnixMilli(),
	}
}

var users atomic.Int64

// orders makes n orders of n buyers.
func (b *bench) orders(n int, quantity int64) []*order.Order {
	b.t.Helper()
	all := make([]*order.Order, n)
	for i := range all {
		all[i] = b.order(fmt.Sprintf("buyer%d", users.Add(1)), quantity)
	}
	return all
}

func (b *bench) land(orders ...*order.Order) Landing {
	b.t.Helper()
	l, err := b.Land(b.t.Context(), b.item, orders)
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

// want compares what became of orders: "CONFIRMED", "FAILED sold_out".
func want(t testing.TB, l Landing, outcomes ...string) {
	t.Helper()
	got := make([]string, len(l.Outcomes))
	for i, o := range l.Outcomes {
		got[i] = string(o.Status)
		if o.Reason != "" {
			got[i] += " " + o.Reason
		}
		if o.Dead != (o.Status != order.Confirmed && o.Status != order.Paid) {
			t.Errorf("outcome %d is %s and dead=%v", i, o.Status, o.Dead)
		}
	}
	if !slices.Equal(got, outcomes) {
		t.Fatalf("outcomes %v, want %v", got, outcomes)
	}
}

// exact checks I1 and I3 in MySQL: stock plus what live orders hold is what there was, and no buyer holds two.
func (b *bench) exact(initial int64) {
	b.t.Helper()
	stock, version, found, err := b.Inventory(b.t.Context(), b.item)
	if err != nil || !found {
		b.t.Fatalf("inventory: found %v, %v", found, err)
	}
	live := b.count("SELECT COALESCE(SUM(quantity), 0) FROM "+b.sql.orders+" WHERE item_id = ? AND live = 1", b.item)
	if stock+live != initial || stock < 0 {
		b.t.Fatalf("stock %d and %d units in live orders, want %d in all", stock, live, initial)
	}
	if n := b.count("SELECT COUNT(*) FROM (SELECT user_id FROM " + b.sql.orders + " WHERE live = 1 GROUP BY activity_id, user_id HAVING COUNT(*) > 1) AS d"); n != 0 {
		b.t.Fatalf("%d buyers hold more than one live order", n)
	}
	if version <= 0 || version > ledger.MaxNumber {
		b.t.Fatalf("version %d", version)
	}
}

// unlocked waits until nobody holds the item's row.
func (b *bench) unlocked() {
	b.t.Helper()
	began := time.Now()
	defer func() { b.t.Logf("the row was free after %s", time.Since(began)) }()
	testenv.Eventually(b.t, 5*time.Second, "the inventory row is free", func() bool {
		l, err := b.LockInventory(context.Background(), b.item, time.Second)
		if err != nil {
			return false
		}
		return l.Release() == nil
	})
}

func ids(orders []*order.Order) []string {
	all := make([]string, len(orders))
	for i, o := range orders {
		all[i] = o.ID
	}
	return all
}

func keys(m map[string]ledger.Outcome) []string { return slices.Sorted(maps.Keys(m)) }
