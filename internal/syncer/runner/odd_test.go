package runner_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// The table takes times that Redis cannot count with. Such a sale stays closed, its load says why and is not begun again all the time, and
// the others go on.
func TestTimesThatRedisCannotHold(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	p, logs := observed(b, b.Cfg)
	a := b.Activity(10)
	_, h := b.SyncerOn(p)
	b.Loaded(a, "")
	b.Ready(h)
	item := testenv.ID()
	b.Exec("INSERT INTO inventory (item_id, stock) VALUES (?, 5)", item)
	b.Exec("INSERT INTO activity (activity_id, item_id, starts_at_ms, ends_at_ms) VALUES (9223372036854775807, ?, ?, 9223372036854775807)",
		item, time.Now().UnixMilli())
	testenv.Eventually(t, 20*time.Second, "the load to say why it fails", func() bool {
		return slices.ContainsFunc(logs.All(), func(e observer.LoggedEntry) bool {
			err, _ := e.ContextMap()["error"].(string)
			return e.Level == zapcore.ErrorLevel && strings.Contains(err, "ends at 9223372036854775807: want epoch milliseconds below 2^53")
		})
	})
	if err := h.Of("loaded"); err == nil {
		t.Error("health says that all is loaded")
	}
	b.Buy(a, "u", 2)
	b.Land(false)
	b.Restock(a, 3)
	b.Equal(a)
	b.Exec("UPDATE activity SET ends_at_ms = ? WHERE activity_id = 9223372036854775807", a.EndsAtMs)
	b.Ready(h)
}

// MySQL compares words without the blanks at their ends: to it "CANCELLED " is dead, and the stock is back. So it is to everybody else.
func TestBlanksBehindAWord(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	a := b.Activity(2)
	_, h := b.Syncer()
	b.Loaded(a, "")
	b.Ready(h)
	o := b.Buy(a, "u1", 2)
	b.Land(true)
	b.Equal(a)
	b.Exec("UPDATE orders SET status = 'CANCELLED ' WHERE order_id = ?", o.ID)
	b.Equal(a)
	if v, err := b.Ledger.Lookup(t.Context(), a.ID, o.ID); err != nil || v.Status != order.Cancelled {
		t.Errorf("the buyer sees %q (%v), want CANCELLED", v.Status, err)
	}
	b.MustReserve(a, "u1", 2) // I6
	for _, word := range []string{"paused", "open", "closed"} {
		b.Exec("UPDATE activity SET state = ? WHERE activity_id = ?", word+" ", a.ID)
		testenv.Eventually(t, 20*time.Second, "the sale to be "+word, func() bool {
			c, err := b.Ledger.Catalogue(t.Context())
			return err == nil && b.Look(a).State == ledger.State(word) && c.Activities[a.ID].State == ledger.State(word)
		})
	}
}

// The server knows names in lower case only, whatever the configuration writes, and its binlog has them so.
func TestNamesInAnotherCase(t *testing.T) {
	t.Parallel()
	dsn, ddl := testenv.MySQL(t), "inventory"
	tables := store.Tables{Stock: "STOCK"}
	if testenv.OnMariaDB(t, dsn) { // MySQL lets nobody choose that once it has data; there only columns are in another case
		server := testenv.StartMySQL(t, "--lower-case-table-names=1")
		dsn, ddl = strings.Replace(server.DSN("flashsale"), "/flashsale", "/FlashSale", 1), "INVENTORY"
		tables = store.Tables{Orders: "SeckillOrders", Activity: "Activity", Inventory: "Inventory", Stock: "STOCK"}
	}
	b := synctest.NewOn(t, dsn, synctest.Quiet, func(c *runner.Config) { c.MySQL.Tables = tables })
	a := b.Activity(10)
	_, h := b.Syncer()
	b.Loaded(a, "")
	b.Ready(h)
	b.Buy(a, "u", 2)
	b.Land(false)
	b.Restock(a, 3)
	b.Equal(a)
	b.Exec("UPDATE activity SET state = 'paused' WHERE activity_id = ?", a.ID)
	testenv.Eventually(t, 20*time.Second, "the sale to be paused", func() bool { return b.Look(a).State == ledger.Paused })
	epoch := b.Look(a).Epoch
	b.Exec("ALTER TABLE " + ddl + " ADD COLUMN shelf BIGINT NOT NULL DEFAULT 7 FIRST, CHANGE COLUMN STOCK Stock BIGINT NOT NULL")
	b.Loaded(a, epoch)
	b.Restock(a, 1)
	b.Equal(a)
	b.Ready(h)
	if err := b.Store.Migrate(t.Context(), store.MigrateOptions{}); err != nil {
		t.Errorf("migrate once more: %v", err)
	}
	found, err := b.Store.Check(t.Context())
	if err != nil || slices.ContainsFunc(found, func(f store.Finding) bool { return f.Level == store.Unsafe }) {
		t.Errorf("the check says %v, %v", found, err)
	}
}
