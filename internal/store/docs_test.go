package store

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// document is the SQL of a page for shops, by heading.
type document map[string]string

func readDocument(t *testing.T, name string) document {
	t.Helper()
	page, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	d := document{}
	for _, part := range strings.Split(string(page), "\n## ")[1:] {
		title, rest, _ := strings.Cut(part, "\n")
		if _, rest, ok := strings.Cut(rest, "```sql\n"); ok {
			d[title], _, _ = strings.Cut(rest, ";\n```")
		}
	}
	return d
}

var parameter = regexp.MustCompile(`:[a-z_]+`)

// run executes a documented statement as the shop would and gives the affected rows.
func (d document) run(b *bench, title string, values map[string]any) int64 {
	b.t.Helper()
	text, ok := d[title]
	if !ok {
		b.t.Fatalf("no SQL under %q", title)
	}
	var args []any
	text = parameter.ReplaceAllStringFunc(text, func(p string) string {
		v, ok := values[p[1:]]
		if !ok {
			b.t.Fatalf("%s: no value for %s", title, p)
		}
		args = append(args, v)
		return "?"
	})
	res, err := b.db.ExecContext(b.t.Context(), text, args...)
	if err != nil {
		b.t.Fatalf("%s: %v", title, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

func TestDocumentedSQL(t *testing.T) {
	t.Parallel()
	for page, without := range map[string]bool{"sql.md": false, "sql-without-triggers.md": true} {
		t.Run(page, func(t *testing.T) {
			d := readDocument(t, page)
			b := setup(t, 10, func(c *Config) { c.NoTriggers = without })
			version := func() int64 {
				_, v, _, err := b.Inventory(t.Context(), b.item)
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			step := func(title string, values map[string]any, affected, stock int64) {
				t.Helper()
				was := version()
				before, _, _, _ := b.Inventory(t.Context(), b.item)
				if n := d.run(b, title, values); (n > 0) != (affected > 0) {
					t.Errorf("%s: %d affected rows", title, n)
				}
				got, is, _, _ := b.Inventory(t.Context(), b.item)
				if got != stock {
					t.Errorf("%s: stock %d, want %d", title, got, stock)
				}
				if got != before && is <= was {
					t.Errorf("%s: version %d after %d", title, is, was)
				}
			}
			paid, cancelled, unpaid := b.order("u1", 2), b.order("u2", 3), b.order("u3", 1)
			b.land(paid, cancelled, unpaid)
			at := func(o *order.Order) map[string]any { return map[string]any{"order": o.ID, "before_ms": int64(1) << 50} }
			step("Pay", at(paid), 1, 4)
			step("Pay", at(paid), 0, 4)
			step("Cancel", at(paid), 0, 4)
			step("Cancel", at(cancelled), 1, 7)
			step("Cancel", at(cancelled), 0, 7)
			if !without {
				step("More time to pay", map[string]any{"order": unpaid.ID, "more_ms": 60_000}, 1, 7)
				step("More time to pay", map[string]any{"order": paid.ID, "more_ms": 60_000}, 0, 7)
			}
			step("Expire unpaid orders", at(unpaid), 1, 8)
			step("Expire unpaid orders", at(unpaid), 0, 8)
			step("Pay", at(unpaid), 0, 8)
			step("Late payment", at(unpaid), 1, 8)
			step("Refund", at(paid), 1, 10)
			step("Refund", at(paid), 0, 10)
			b.exact(10)
			want(t, b.land(b.order("u2", 3)), "CONFIRMED")
			step("Restock", map[string]any{"item": b.item, "units": 5}, 1, 12)
			step("Write off", map[string]any{"item": b.item, "units": 13}, 0, 12)
			step("Write off", map[string]any{"item": b.item, "units": 5}, 1, 7)
			b.exact(10)
			if without {
				d.run(b, "A new item", map[string]any{"item": 99, "units": 4})
				return
			}
			d.run(b, "Create an activity", map[string]any{
				"activity": 5, "item": b.item, "title": "sale", "starts_at_ms": 1000, "ends_at_ms": 2000, "max_per_user": 2,
			})
			if n := d.run(b, "Move the times", map[string]any{"activity": 5, "starts_at_ms": 3000, "ends_at_ms": 4000}); n != 1 {
				t.Errorf("Move the times: %d affected rows", n)
			}
			d.run(b, "Pause, resume, close", map[string]any{"activity": 5, "state": "paused"})
			a, err := b.Activity(t.Context(), 5)
			if err != nil || a.State != ledger.Paused || a.MaxPerUser != 2 || a.StartsAtMs != 3000 || a.EndsAtMs != 4000 {
				t.Fatalf("%+v, %v", a, err)
			}
			d.run(b, "Look", map[string]any{"activity": b.activity, "user": "u2"})
		})
	}
}

// The accounts of docs/sql.md can do their work with exactly those privileges.
func TestDocumentedPrivileges(t *testing.T) {
	t.Parallel()
	server := testenv.StartMySQL(t, "--log-bin-trust-function-creators=1")
	admin := &bench{Store: openStore(t, server.DSN("shop")), t: t, item: 7, activity: 70}
	as := func(user string, grants ...string) *bench {
		t.Helper()
		admin.exec("CREATE USER " + user + "@127.0.0.1 IDENTIFIED BY 'x'")
		for _, g := range grants {
			admin.exec("GRANT " + g + " TO " + user + "@127.0.0.1")
		}
		d, err := mysql.ParseDSN(server.DSN("shop"))
		if err != nil {
			t.Fatal(err)
		}
		d.User, d.Passwd = user, "x"
		return &bench{Store: openStore(t, d.FormatDSN()), t: t, item: 7, activity: 70}
	}
	migrator := as("migrate", "CREATE, ALTER, INDEX, TRIGGER, SELECT, INSERT, UPDATE, DELETE ON shop.*")
	if err := migrator.Migrate(t.Context(), MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	admin.exec("DROP TRIGGER orders_seckill_au")
	if err := migrator.Migrate(t.Context(), MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	const version = "SELECT ON shop.seckill_schema_migrations"
	binlog := "REPLICATION SLAVE, REPLICATION CLIENT ON *.*"
	if testenv.OnMariaDB(t, server.DSN("shop")) {
		binlog = "REPLICATION SLAVE, BINLOG MONITOR ON *.*"
	}
	syncer := as("syncer", version, "SELECT ON shop.orders", "SELECT, INSERT, UPDATE ON shop.activity", "SELECT, INSERT, UPDATE ON shop.inventory",
		binlog)
	stock := int64(10)
	if err := syncer.CreateActivity(t.Context(), ledger.Activity{ID: 70, Item: 7, StartsAtMs: 1, EndsAtMs: 2}, &stock); err != nil {
		t.Fatal(err)
	}
	if err := syncer.SetActivityState(t.Context(), 70, ledger.Paused); err != nil {
		t.Fatal(err)
	}
	if _, err := syncer.BinlogPosition(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := syncer.Touch(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	l, err := syncer.LockInventory(t.Context(), 7, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	worker := as("worker", version, "SELECT, INSERT, UPDATE ON shop.orders", "SELECT ON shop.activity", "SELECT, UPDATE ON shop.inventory",
		"SELECT, INSERT, DELETE ON shop.seckill_outbox", "SELECT, INSERT, DELETE ON shop.seckill_outbox_sinks")
	o := worker.order("u1", 2)
	want(t, worker.land(o, worker.order("u2", 9)), "CONFIRMED", "FAILED sold_out")
	for name, b := range map[string]*bench{"worker": worker, "syncer": syncer} {
		// Each lacks only what the other one needs.
		if got := b.check(); got != map[string]string{"worker": "privilege_sync privilege_binlog", "syncer": "privilege_land"}[name] {
			t.Errorf("%s: the check says %q", name, got)
		}
	}
	unpaid := worker.order("u3", 1)
	want(t, worker.land(unpaid), "CONFIRMED")
	admin.exec("UPDATE orders SET updated_at_ms = 1 WHERE order_id = ?", unpaid.ID)
	if got := worker.expire(unpaid); got.Units != 1 {
		t.Errorf("the worker let expire %+v", got)
	}
	for name, b := range map[string]*bench{"worker": worker, "syncer": syncer} {
		found, err := b.CheckUnpaid(t.Context())
		if err != nil || len(found) != map[string]int{"worker": 0, "syncer": 1}[name] {
			t.Errorf("%s: the check of expiry says %v, %v", name, found, err)
		}
	}
	shop := as("shop", "SELECT, UPDATE ON shop.orders")
	if got := shop.check(); got != "schema privilege_land privilege_sync privilege_binlog" {
		t.Errorf("shop: the check says %q", got)
	}
	if err := worker.Subscribe(t.Context(), Results, Webhook); err != nil {
		t.Fatal(err)
	}
	shop.exec("UPDATE orders SET status = 'CANCELLED' WHERE order_id = ?", o.ID)
	told, err := worker.Events(t.Context(), Webhook, 0, 10)
	if err != nil || len(told) != 1 || told[0].Status != order.Cancelled {
		t.Errorf("the worker reads %+v of the shop's change, %v", told, err)
	}
	if n, err := worker.Unsubscribe(t.Context(), Webhook); n != 1 || err != nil {
		t.Errorf("%d events dropped, %v", n, err)
	}
	admin.exact(10)
	v, err := syncer.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
}
