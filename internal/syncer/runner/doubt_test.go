package runner_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// following starts a syncer that only follows the binlog, with one activity loaded.
func following(t *testing.T, b *synctest.Bench, stock int64) (ledger.Activity, *runner.Syncer, *synctest.Health) {
	t.Helper()
	a := b.Activity(stock)
	s, h := b.Syncer()
	b.Loaded(a, "")
	b.Ready(h)
	return a, s, h
}

// caughtUp waits until the kept position has caught up with MySQL.
func caughtUp(b *synctest.Bench) {
	b.Helper()
	testenv.Eventually(b, 20*time.Second, "the kept position to catch up", func() bool {
		st, err := b.All.Status(b.Context())
		return err == nil && st.Binlog.CaughtUp
	})
}

// the columns change while the syncer is down, after a sale that it has not seen.
func TestE45ColumnsChangedWhileDown(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	a, s, _ := following(t, b, 10)
	caughtUp(b)
	s.Stop()
	b.Restock(a, -1)
	// Both columns are BIGINT: by position, the stock is now read from the version.
	b.Exec("ALTER TABLE inventory MODIFY version BIGINT NOT NULL DEFAULT 0 AFTER item_id")
	b.Restock(a, -1)
	_, h := b.Syncer()
	b.Ready(h)
	b.Equal(a)
	if s := b.Look(a); s.Stock != 8 {
		t.Fatalf("stock %d, want 8", s.Stock)
	}
}

// E46: DDL that the library's parser does not know, while running; and some that it does.
func TestE46ColumnsChangedWhileRunning(t *testing.T) {
	t.Parallel()
	statements := map[string]string{
		"unknown type":    "ALTER TABLE inventory ADD COLUMN place POINT NULL FIRST",
		"ordinary":        "ALTER TABLE inventory ADD COLUMN note BIGINT NOT NULL DEFAULT 7 AFTER item_id",
		"same types swap": "ALTER TABLE inventory MODIFY version BIGINT NOT NULL DEFAULT 0 AFTER item_id",
	}
	if testenv.OnMariaDB(t, testenv.MySQL(t)) {
		statements["unknown syntax"] = "ALTER ONLINE TABLE inventory ADD COLUMN note BIGINT NOT NULL DEFAULT 7 FIRST"
		statements["wait"] = "ALTER TABLE inventory WAIT 5 ADD COLUMN note BIGINT NOT NULL DEFAULT 7 AFTER item_id"
		statements["uuid"] = "ALTER TABLE inventory ADD COLUMN tag UUID NULL FIRST"
		statements["unseen swap"] = "ALTER ONLINE TABLE inventory MODIFY version BIGINT NOT NULL DEFAULT 0 AFTER item_id"
	}
	for name, ddl := range statements {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := synctest.New(t, synctest.Quiet)
			a, _, _ := following(t, b, 10)
			epoch := b.Look(a).Epoch
			b.Exec(ddl)
			b.Restock(a, -3)
			b.Loaded(a, epoch)
			b.Equal(a)
			b.Restock(a, 1)
			b.Equal(a)
			if s := b.Look(a); s.Stock != 8 {
				t.Fatalf("stock %d, want 8", s.Stock)
			}
		})
	}
}

// A statement that the parser does not know and that changes nothing of ours closes no sale.
func TestForeignStatementsCloseNothing(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	a, _, h := following(t, b, 10)
	epoch := b.Look(a).Epoch
	b.Exec("CREATE TABLE shop_orders (id INT PRIMARY KEY, place POINT)")
	b.Exec("ALTER TABLE shop_orders ADD COLUMN inventory INT, ADD COLUMN other_place POINT")
	if testenv.OnMariaDB(t, b.Cfg.MySQL.DSN) {
		b.Exec("ALTER ONLINE TABLE shop_orders ADD COLUMN activity INT")
	}
	b.Exec("CREATE TRIGGER shop_t BEFORE INSERT ON shop_orders FOR EACH ROW SET NEW.inventory = 1")
	b.Exec("TRUNCATE TABLE shop_orders")
	b.Restock(a, 1)
	b.Equal(a)
	if got := b.Look(a).Epoch; got != epoch || h.Err() != nil {
		t.Fatalf("epoch %s became %s, health %v", epoch, got, h.Err())
	}
}

// E47: minimal row images of one session.
func TestE47MinimalRowImage(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	a, _, _ := following(t, b, 10)
	o := b.Buy(a, "u", 2)
	b.Land(true)
	epoch := b.Look(a).Epoch
	db := b.OpenDB()
	for _, image := range []string{"MINIMAL", "NOBLOB"} {
		for _, text := range []string{
			"SET SESSION binlog_row_image = " + image,
			fmt.Sprintf("UPDATE inventory SET stock = stock + 5 WHERE item_id = %d", a.Item),
			fmt.Sprintf("UPDATE activity SET title = CONCAT(title, '!') WHERE activity_id = %d", a.ID),
			fmt.Sprintf("UPDATE activity SET state = 'paused' WHERE activity_id = %d", a.ID),
			"UPDATE orders SET status = 'CANCELLED' WHERE order_id = '" + o.ID + "'",
		} {
			if _, err := db.ExecContext(t.Context(), text); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
		}
		b.Equal(a)
	}
	testenv.Eventually(t, 20*time.Second, "the pause", func() bool { return b.Look(a).State == ledger.Paused })
	if s := b.Look(a); s.Stock != 20 || s.BuyersLen != 0 || s.Epoch != epoch {
		t.Fatalf("stock %d, %d buyers, epoch %s (before %s); want 20, none, and no load", s.Stock, s.BuyersLen, s.Epoch, epoch)
	}
}

// E48 on a real server: whatever kind of integer the shop's stock is, it arrives; a decimal is read again from MySQL.
func TestE48OddTypes(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]struct {
		kind string
		set  string
		want int64
	}{
		"int unsigned": {"INT UNSIGNED", "3000000000", 3_000_000_000},
		"bigint":       {"BIGINT UNSIGNED", "9007199254740991", 1<<53 - 1},
		"mediumint":    {"MEDIUMINT UNSIGNED", "16000000", 16_000_000},
		"tinyint":      {"TINYINT UNSIGNED", "200", 200},
		"decimal":      {"DECIMAL(20,2)", "7.00", 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := synctest.New(t, synctest.Quiet)
			a, _, _ := following(t, b, 10)
			epoch := b.Look(a).Epoch
			b.Exec("ALTER TABLE inventory MODIFY stock " + change.kind + " NOT NULL")
			epoch = b.Loaded(a, epoch).Epoch
			b.Exec("UPDATE inventory SET stock = " + change.set)
			b.Equal(a)
			if s := b.Look(a); s.Stock != change.want {
				t.Fatalf("stock %d in epoch %s, want %d", s.Stock, epoch, change.want)
			}
		})
	}
}

// TRUNCATE and DELETE of the orders: there is no row event for the first.
func TestTruncate(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	a, _, _ := following(t, b, 10)
	b.Buy(a, "u", 2)
	b.Land(true)
	epoch := b.Look(a).Epoch
	b.Exec("TRUNCATE TABLE orders")
	b.Loaded(a, epoch)
	b.Equal(a)
	if s := b.Look(a); s.BuyersLen != 0 {
		t.Fatalf("%d buyers after TRUNCATE, want none", s.BuyersLen)
	}
}

// E104: the row is written anew, in one statement or in two, and by an older dump.
func TestE104RowWrittenAnew(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	a, _, _ := following(t, b, 10)
	epoch := b.Look(a).Epoch
	b.Exec("REPLACE INTO inventory (item_id, stock) VALUES (?, 7)", a.Item)
	b.Equal(a)
	b.Exec("DELETE FROM inventory WHERE item_id = ?", a.Item)
	testenv.Eventually(t, 20*time.Second, "nothing to be on sale", func() bool { return b.Look(a).Available == 0 })
	b.Exec("INSERT INTO inventory (item_id, stock) VALUES (?, 5)", a.Item)
	b.Equal(a)
	b.Exec("REPLACE INTO inventory (item_id, stock, version) VALUES (?, 4, 1)", a.Item)
	b.Equal(a)
	if s := b.Look(a); s.Stock != 4 || s.Epoch != epoch {
		t.Fatalf("stock %d, want 4; epoch %s, was %s", s.Stock, s.Epoch, epoch)
	}
}

// E52: the binlog at the kept position is purged while the syncer is down.
func TestE52PurgedBinlog(t *testing.T) {
	t.Parallel()
	server := testenv.StartMySQL(t)
	b := synctest.NewOn(t, server.DSN("shop"), synctest.Quiet)
	a, s, _ := following(t, b, 10)
	caughtUp(b)
	s.Stop()
	epoch := b.Look(a).Epoch
	b.Restock(a, -2)
	b.Exec("FLUSH BINARY LOGS")
	b.Restock(a, -2)
	b.Exec("FLUSH BINARY LOGS")
	st, err := b.All.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.Exec("PURGE BINARY LOGS TO '" + st.Binlog.Server.File + "'")
	_, h := b.Syncer()
	b.Loaded(a, epoch)
	b.Ready(h)
	b.Equal(a)
	b.Restock(a, 1)
	b.Equal(a)
}

// E49: positions are kept late and read again; a crash replays and never skips. The stale one is put back by hand.
func TestE49ReplayChangesNothing(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	a, s, _ := following(t, b, 100)
	caughtUp(b)
	old, err := b.Ledger.Position(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		o := b.Buy(a, fmt.Sprintf("u%d", i), 1)
		b.Land(i%2 == 0)
		if i%3 == 0 {
			b.Exec("UPDATE orders SET status = 'CANCELLED' WHERE order_id = ?", o.ID)
		}
	}
	b.Equal(a)
	s.Stop()
	epoch := b.Look(a).Epoch
	if err := b.Client().Set(t.Context(), "seckill:{syncer}:binlog", old, 0).Err(); err != nil {
		t.Fatal(err)
	}
	b.Buy(a, "last", 5)
	b.Land(false)
	_, h := b.Syncer()
	b.Ready(h)
	caughtUp(b)
	b.Equal(a)
	if got := b.Look(a).Epoch; got != epoch {
		t.Fatal("a replay led to a load")
	}
}

// E60: the dump connection is cut again and again during updates; no update is lost, and none closes the sale.
func TestE60CutConnections(t *testing.T) {
	t.Parallel()
	proxy, dsn := synctest.Through(t, testenv.MySQL(t))
	b := synctest.NewOn(t, dsn, synctest.Quiet)
	a, _, _ := following(t, b, 100)
	epoch := b.Look(a).Epoch
	direct := b.OpenDirect(proxy.Target())
	for i := range 300 {
		if _, err := direct.ExecContext(t.Context(), "UPDATE inventory SET stock = stock + 1 WHERE item_id = ?", a.Item); err != nil {
			t.Fatal(err)
		}
		if i%50 == 49 {
			proxy.Reset()
		}
	}
	testenv.Eventually(t, 15*time.Second, "all updates to reach redis", func() bool { return b.Look(a).Stock == 400 })
	if got := b.Look(a).Epoch; got != epoch {
		t.Fatal("a lost connection led to a load")
	}
}

// E54: the connection is dead and says nothing.
func TestE54HalfOpenConnection(t *testing.T) {
	t.Parallel()
	proxy, dsn := synctest.Through(t, testenv.MySQL(t))
	b := synctest.NewOn(t, dsn, synctest.Quiet, func(c *runner.Config) {
		c.Binlog.Heartbeat, c.Binlog.ReadTimeout = 200*time.Millisecond, 600*time.Millisecond
	})
	a, _, h := following(t, b, 100)
	direct := b.OpenDirect(proxy.Target())
	proxy.HalfOpen()
	if _, err := direct.ExecContext(t.Context(), "UPDATE inventory SET stock = 7 WHERE item_id = ?", a.Item); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 15*time.Second, "health to tell", func() bool { return h.Of("binlog") != nil })
	proxy.Heal()
	testenv.Eventually(t, 30*time.Second, "the update to reach redis", func() bool { return b.Look(a).Stock == 7 })
}

// E56: a wrong flavor is an error that says so; the right one need not be given.
func TestE56WrongFlavor(t *testing.T) {
	t.Parallel()
	dsn := testenv.MySQL(t)
	wrong := "mariadb"
	if testenv.OnMariaDB(t, dsn) {
		wrong = "mysql"
	}
	b := synctest.NewOn(t, dsn, func(c *runner.Config) { c.Binlog.Flavor = wrong })
	_, h := b.Syncer()
	testenv.Eventually(t, 20*time.Second, "health to tell", func() bool {
		err := h.Of("binlog")
		return err != nil && strings.Contains(err.Error(), "flavor is "+wrong+" but the server is")
	})
}

// Servers that compress their binlog, as MySQL does by transaction and MariaDB by event, are followed like any other.
func TestCompressedBinlog(t *testing.T) {
	t.Parallel()
	options := []string{"--binlog-transaction-compression=ON"}
	if testenv.OnMariaDB(t, testenv.MySQL(t)) {
		options = []string{"--log-bin-compress=1", "--log-bin-compress-min-len=10"}
	}
	b := synctest.NewOn(t, testenv.StartMySQL(t, options...).DSN("shop"), synctest.Quiet)
	a, _, _ := following(t, b, 10)
	epoch := b.Look(a).Epoch
	o := b.Buy(a, "u1", 2)
	b.Buy(a, "u2", 3)
	b.Land(false)
	b.Equal(a)
	b.Exec("UPDATE orders SET status = 'CANCELLED', reason = REPEAT('long ', 20) WHERE order_id = ?", o.ID)
	b.Restock(a, 1)
	b.Equal(a)
	caughtUp(b)
	if s := b.Look(a); s.Stock != 8 || s.BuyersLen != 1 || s.Epoch != epoch {
		t.Errorf("%+v; want stock 8, one buyer and no load", s)
	}
}

// E47: MySQL can also write rows in parts, which the library does not read. A session that does so costs a load; a server that
// does so for all is told of, in place of a load at every change. MariaDB knows nothing of the kind.
func TestE47RowsInParts(t *testing.T) {
	t.Parallel()
	server := testenv.StartMySQL(t)
	b := synctest.NewOn(t, server.DSN("shop"), func(c *runner.Config) { c.CompareInterval = time.Second })
	a, s, h := following(t, b, 10)
	epoch := b.Look(a).Epoch
	db := b.OpenDB()
	_, err := db.ExecContext(t.Context(), "SET SESSION binlog_row_value_options = PARTIAL_JSON")
	if testenv.OnMariaDB(t, server.DSN("shop")) {
		if err == nil {
			t.Error("mariadb writes rows in parts: read them")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), "UPDATE inventory SET stock = stock + 5 WHERE item_id = ?", a.Item); err != nil {
		t.Fatal(err)
	}
	b.Loaded(a, epoch)
	b.Equal(a)
	b.Ready(h)
	s.Stop()
	b.Exec("SET GLOBAL binlog_row_value_options = PARTIAL_JSON")
	_, h = b.Syncer()
	testenv.Eventually(t, 20*time.Second, "health to tell", func() bool {
		err := h.Of("binlog")
		return err != nil && strings.Contains(err.Error(), "SET PERSIST binlog_row_value_options = ''")
	})
	b.Restock(a, 1) // comes by comparing, meanwhile
	b.Equal(a)
	b.Exec("SET GLOBAL binlog_row_value_options = ''")
	b.Ready(h)
}
