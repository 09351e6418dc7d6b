package store

import (
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

// The old primary turns read-only under the connections that are open: batches wait, none is decided, and all land once a
// primary answers again.
func TestE68_ReadOnly(t *testing.T) {
	t.Parallel()
	server := testenv.StartMySQL(t)
	admin := setupOn(t, server.DSN("shop"), 10)
	admin.exec("CREATE USER worker@127.0.0.1 IDENTIFIED BY 'x'") // an administrator may write to a read-only server
	admin.exec("GRANT SELECT, INSERT, UPDATE ON shop.* TO worker@127.0.0.1")
	d, err := mysql.ParseDSN(server.DSN("shop"))
	if err != nil {
		t.Fatal(err)
	}
	d.User, d.Passwd = "worker", "x"
	b := &bench{Store: openStore(t, d.FormatDSN(), func(c *Config) { c.Tries = 2 }), t: t, item: admin.item, activity: admin.activity}
	want(t, b.land(b.orders(1, 1)...), "CONFIRMED")
	admin.exec("SET GLOBAL read_only = 1")
	orders := b.orders(3, 1)
	if _, err := b.Land(t.Context(), b.item, orders); err == nil || !IsTransient(err) {
		t.Fatalf("a read-only server decided orders: %v", err)
	}
	if got := admin.check(); got != "read_only" {
		t.Fatalf("the check says %q", got)
	}
	admin.exec("SET GLOBAL read_only = 0")
	want(t, b.land(orders...), "CONFIRMED", "CONFIRMED", "CONFIRMED")

	// And with the server killed in the middle.
	server.Kill()
	more := b.orders(2, 1)
	if _, err := b.Land(t.Context(), b.item, more); err == nil || !IsTransient(err) {
		t.Fatalf("a dead server decided orders: %v", err)
	}
	server.Restart()
	testenv.Eventually(t, time.Minute, "orders land again", func() bool {
		_, err := b.Land(t.Context(), b.item, append(more, orders...))
		return err == nil
	})
	admin.exact(10)
	if n := admin.count("SELECT COUNT(*) FROM orders WHERE live = 1"); n != 6 {
		t.Fatalf("%d live orders, want 6", n)
	}
}

// The promoted replica is behind, by commits and perhaps by its clock: a touch moves the version past everything that Redis may
// have seen, and landing the lost orders again is exact.
func TestE103_LostCommits(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	kept, lost := b.orders(2, 1), b.orders(3, 1)
	b.land(kept...)
	seen := b.land(lost...).Version
	// What replication had not delivered.
	b.exec("DELETE FROM orders WHERE order_id IN (?, ?, ?)", lost[0].ID, lost[1].ID, lost[2].ID)
	b.exec("DROP TRIGGER inventory_seckill_bu")
	b.exec("UPDATE inventory SET stock = 8, version = version - 1000000")
	if err := b.Migrate(t.Context(), MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	stock, version, err := b.Touch(t.Context(), b.item)
	if err != nil || stock != 8 || version <= seen {
		t.Fatalf("stock %d at version %d, Redis has %d: %v", stock, version, seen, err)
	}
	ahead := version + time.Hour.Microseconds() // written by a primary whose clock ran an hour early
	if _, version, err = b.TouchPast(t.Context(), b.item, ahead); err != nil || version <= ahead {
		t.Fatalf("version %d is not past %d: %v", version, ahead, err)
	}
	// The buyer of a lost order bought again meanwhile; the replay must not give him two.
	again := b.order(lost[0].User, 1)
	want(t, b.land(again), "CONFIRMED")
	l := b.land(append(kept, lost...)...)
	want(t, l, "CONFIRMED", "CONFIRMED", "FAILED already_ordered", "CONFIRMED", "CONFIRMED")
	if l.Version <= version {
		t.Fatalf("version %d after %d", l.Version, version)
	}
	b.exact(10)
}
