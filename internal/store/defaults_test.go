package store

import (
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// A server whose defaults for new sessions are legal, and unlike those of every other one.
func TestUnfriendlyDefaults(t *testing.T) {
	t.Parallel()
	server := testenv.StartMySQL(t, "--log-bin-trust-function-creators=1")
	root := &bench{Store: openStore(t, server.DSN("shop")), t: t}
	for _, set := range []string{
		"completion_type = 'CHAIN'", "autocommit = 0", "sql_select_limit = 3", "sql_safe_updates = 1", "time_zone = '-11:00'",
		"sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,ONLY_FULL_GROUP_BY,NO_UNSIGNED_SUBTRACTION,PAD_CHAR_TO_FULL_LENGTH'",
		"innodb_lock_wait_timeout = 1", "wait_timeout = 2", "character_set_server = 'latin1'", "div_precision_increment = 0",
	} {
		root.exec("SET GLOBAL " + set)
	}
	b := setupOn(t, server.DSN("shop"), 100)
	if got := b.check(); got != "" {
		t.Errorf("the check says %q", got)
	}
	stock := int64(5)
	now := time.Now().UnixMilli()
	for id := range int64(6) {
		a := ledger.Activity{ID: 100 + id, Item: 100 + id, Title: `it's a "back\slash" ‖`, StartsAtMs: now, EndsAtMs: now + 1000}
		if err := b.CreateActivity(t.Context(), a, &stock); err != nil {
			t.Fatal(err)
		}
		if err := b.SetActivityState(t.Context(), a.ID, ledger.Paused); err != nil {
			t.Fatal(err)
		}
		if got, err := b.Activity(t.Context(), a.ID); err != nil || got.Title != a.Title || got.State != ledger.Paused {
			t.Errorf("%+v, %v; want %+v, paused", got, err, a)
		}
	}
	if all, err := b.Activities(t.Context()); err != nil || len(all) != 6 {
		t.Errorf("%d activities, %v; want 6", len(all), err)
	}
	orders := append(b.orders(20, 2), b.order(`o'\ "u" ‖`, 3))
	b.land(orders...)
	b.land(orders...)
	b.exec("UPDATE orders SET status = 'CANCELLED' WHERE order_id = ?", orders[0].ID)
	b.exact(100)
	other := &bench{Store: openStore(t, server.DSN("shop")), t: t, item: b.item, activity: b.activity} // sees only what is committed
	if rows, err := other.Orders(t.Context(), ids(orders)); err != nil || len(rows) != 21 || rows[orders[20].ID].User != orders[20].User {
		t.Errorf("%d rows, %v; want 21", len(rows), err)
	}
	if s, _, _, err := other.Inventory(t.Context(), b.item); s != 59 || err != nil {
		t.Errorf("a stock of %d, %v; want 59", s, err)
	}
	v, err := other.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	err = v.Orders(t.Context(), b.activity, func(part []ledger.Outcome) error { n += len(part); return nil })
	if err != nil || n != 21 {
		t.Errorf("a snapshot has %d orders, %v; want 21", n, err)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	if _, err := other.ActivityNow(t.Context(), 100); err != nil { // leaves no lock behind
		t.Error(err)
	}
	if err := b.SetActivityState(t.Context(), 100, ledger.Closed); err != nil {
		t.Errorf("after a locking read: %v", err)
	}
	b.unlocked()
}
