package store

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// fresh is an empty database.
func fresh(t *testing.T, change ...func(*Config)) *bench {
	t.Helper()
	dsn := testenv.MySQL(t)
	return &bench{Store: openStore(t, dsn, change...), t: t, dsn: dsn, item: 7, activity: 70}
}

func shopTables(c *Config) {
	c.Tables = Tables{Orders: "sk_orders", Activity: "sk_sales", Inventory: "goods_stock", Item: "sku", Stock: "qty", Version: "sk_version", Migrations: "sk_migrations"}
}

func unsafeNames(f []Finding) string {
	var all []string
	for _, x := range f {
		if x.Level == Unsafe {
			all = append(all, x.Name)
		}
	}
	return strings.Join(all, " ")
}

func (b *bench) check() string {
	b.t.Helper()
	f, err := b.Check(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	for _, x := range f {
		if strings.Contains(x.Text, "\n") {
			b.t.Errorf("a finding of several lines: %q", x.Text)
		}
	}
	return unsafeNames(f)
}

func TestMigrateAgainstAShop(t *testing.T) {
	t.Parallel()
	b := fresh(t, shopTables)
	b.exec("CREATE TABLE orders (id INT PRIMARY KEY, live INT)")
	b.exec("CREATE TABLE goods_stock (sku INT UNSIGNED NOT NULL PRIMARY KEY, name VARCHAR(20) NOT NULL, qty INT UNSIGNED NOT NULL) ENGINE=InnoDB")
	b.exec("INSERT INTO goods_stock VALUES (7, 'lamp', 10), (8, 'desk', 4294967295)")
	if got := b.check(); got != "schema" {
		t.Fatalf("before migrate the check says %q", got)
	}
	var out strings.Builder
	if err := b.Migrate(t.Context(), MigrateOptions{DryRun: true, Out: &out}); err != nil {
		t.Fatal(err)
	}
	if n := b.count("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()"); n != 2 {
		t.Fatalf("a dry run left %d tables, want 2", n)
	}
	for _, part := range []string{"CREATE TABLE `sk_orders`", "CREATE TABLE `sk_sales`", "ALTER TABLE `goods_stock`", "CREATE TRIGGER `goods_stock_seckill_bu`"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("the dry run does not show %q:\n%s", part, out.String())
		}
	}
	for range 2 {
		if err := b.Migrate(t.Context(), MigrateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.check(); got != "" {
		t.Fatalf("after migrate the check says %q", got)
	}
	// The shop's statements go on as before, and its data is what it was.
	b.exec("INSERT INTO goods_stock VALUES (9, 'cup', 3)")
	b.exec("REPLACE INTO goods_stock VALUES (9, 'mug', 4)")
	if n := b.count("SELECT qty FROM goods_stock WHERE sku = 8 AND name = 'desk'"); n != 4294967295 {
		t.Fatalf("stock became %d", n)
	}
	o := b.order("u1", 3)
	want(t, b.land(o, b.order("u2", 8)), "CONFIRMED", "FAILED sold_out")
	b.exec("UPDATE sk_orders SET status = 'CANCELLED' WHERE order_id = ?", o.ID)
	b.exact(10)
	// A column that the shop must fill cannot be guessed.
	stock := int64(5)
	if err := b.CreateActivity(t.Context(), ledger.Activity{ID: 1, Item: 55, StartsAtMs: 1, EndsAtMs: 2}, &stock); number(err) == 0 {
		t.Fatal(err)
	}
	if err := b.CreateActivity(t.Context(), ledger.Activity{ID: 1, Item: 7, StartsAtMs: 1, EndsAtMs: 2}, nil); err != nil {
		t.Fatal(err)
	}
}

func TestMigrateRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	inventory := func(text string) func(*bench) {
		return func(b *bench) { b.exec("CREATE TABLE inventory " + text) }
	}
	migrated := func(then ...string) func(*bench) {
		return func(b *bench) {
			if err := b.Migrate(t.Context(), MigrateOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, s := range then {
				b.exec(s)
			}
		}
	}
	type refused struct {
		before func(*bench)
		says   string
	}
	cases := map[string]refused{
		"the shop's orders":  {func(b *bench) { b.exec("CREATE TABLE orders (id INT PRIMARY KEY)") }, "mysql.tables.orders"},
		"a foreign activity": {func(b *bench) { b.exec("CREATE TABLE activity (id INT PRIMARY KEY)") }, "mysql.tables.activity"},
		"no item column":     {inventory("(id BIGINT PRIMARY KEY, stock INT)"), "item_column"},
		"no stock column":    {inventory("(item_id BIGINT PRIMARY KEY, n INT)"), "stock_column"},
		"decimal stock":      {inventory("(item_id BIGINT PRIMARY KEY, stock DECIMAL(10,2))"), "stock_column"},
		"several rows":       {inventory("(item_id BIGINT, shop INT, stock INT, PRIMARY KEY (item_id, shop))"), "unique key"},
		"engine":             {inventory("(item_id BIGINT PRIMARY KEY, stock INT) ENGINE=MyISAM"), "InnoDB"},
		"another version":    {inventory("(item_id BIGINT PRIMARY KEY, stock INT, version VARCHAR(9))"), "version_column"},
		"computed stock":     {inventory("(item_id BIGINT PRIMARY KEY, n INT, sold INT, stock INT AS (n - sold) STORED)"), "computes its column stock"},
		"dirty":              {migrated("UPDATE seckill_schema_migrations SET dirty = 1"), "dirty"},
		"newer":              {migrated("UPDATE seckill_schema_migrations SET version = 99"), "newer build"},
		"computed later":     {migrated("ALTER TABLE inventory DROP stock", "ALTER TABLE inventory ADD stock BIGINT AS (item_id) VIRTUAL"), "computes its column stock"},
		"orders gone":        {migrated("DROP TABLE orders"), "missing"},
		"version gone":       {migrated("DROP TRIGGER inventory_seckill_bi", "DROP TRIGGER inventory_seckill_bu", "ALTER TABLE inventory DROP version"), "missing"},
		"dead statuses":      {migrated("ALTER TABLE orders DROP KEY one_live_order, DROP COLUMN live", "ALTER TABLE orders ADD live TINYINT AS (CASE WHEN status IN ('FAILED', 'GONE') THEN NULL ELSE 1 END) VIRTUAL"), "mysql.dead_statuses"},
	}
	if testenv.OnMariaDB(t, testenv.MySQL(t)) {
		cases["with its history"] = refused{migrated("ALTER TABLE inventory ADD SYSTEM VERSIONING"), "ALTER TABLE inventory DROP SYSTEM VERSIONING"}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := fresh(t)
			b.t = t
			c.before(b)
			err := b.Migrate(t.Context(), MigrateOptions{})
			if !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("want one line with %q: %v", c.says, err)
			}
			if got := b.check(); got == "" {
				t.Fatal("the check is content")
			}
		})
	}
}

func TestMigrateGoesOnAfterARefusedStatement(t *testing.T) {
	t.Parallel()
	b := fresh(t)
	files := []migration{{1, "orders", "CREATE TABLE orders (order_id INT PRIMARY KEY)"}, {2, "broken", "CREATE TABLE x (y NOTYPE)"}}
	db, err := b.migrationPool()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if err := b.up(t.Context(), db, files, 0); number(err) == 0 {
		t.Fatal(err)
	}
	f, err := b.inspect(t.Context())
	if err != nil || f.dirty || f.version != 1 {
		t.Fatalf("version %d, dirty %v: %v", f.version, f.dirty, err)
	}
	files[1].text = "CREATE TABLE x (y INT)"
	if err := b.up(t.Context(), db, files, 1); err != nil {
		t.Fatal(err)
	}
}

func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	b := fresh(t)
	done := make(chan error)
	for range 4 {
		go func() { done <- b.Migrate(t.Context(), MigrateOptions{}) }()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := b.check(); got != "" {
		t.Fatal(got)
	}
}

func TestMigrateWithoutTriggers(t *testing.T) {
	t.Parallel()
	b := fresh(t, func(c *Config) { c.NoTriggers = true })
	if err := b.Migrate(t.Context(), MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := b.count("SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = DATABASE()"); n != 0 {
		t.Fatalf("%d triggers", n)
	}
	if got := b.check(); got != "" {
		t.Fatal(got)
	}
	if has, err := b.Triggers(t.Context()); err != nil || has {
		t.Fatal(has, err)
	}
	b.exec("INSERT INTO inventory (item_id, stock) VALUES (7, 10)")
	_, was, _, _ := b.Inventory(t.Context(), 7)
	l := b.land(b.order("u1", 2))
	if l.Version <= was {
		t.Fatal("the worker depends on the trigger for its version")
	}
	b.exact(10)
	b.exec("REPLACE INTO inventory (item_id, stock) VALUES (7, 5)") // moves forward by the column's default
	if _, v, _, _ := b.Inventory(t.Context(), 7); v <= l.Version {
		t.Fatalf("version %d after %d", v, l.Version)
	}

	with := openStore(t, b.dsn)
	if err := with.Migrate(t.Context(), MigrateOptions{}); err != nil { // changed their mind
		t.Fatal(err)
	}
	if has, err := with.Triggers(t.Context()); err != nil || !has {
		t.Fatal(has, err)
	}
	if got := b.check(); got != "triggers_unused" {
		t.Fatal(got)
	}
	if err := b.Migrate(t.Context(), MigrateOptions{}); !errors.Is(err, ErrSchema) {
		t.Fatalf("documented SQL beside triggers returns stock twice: %v", err)
	}
}

// Versions are UTC whatever the session's time zone, and activities are epoch milliseconds.
func TestE70_TimeZones(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	for _, zone := range []string{"+00:00", "+08:00", "-11:30"} {
		c, err := b.db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"SET time_zone = '" + zone + "'", "UPDATE inventory SET stock = stock"} {
			if _, err := c.ExecContext(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		_ = c.Raw(func(any) error { return errors.New("not for the pool") })
		_ = c.Close()
		_, v, _, _ := b.Inventory(t.Context(), b.item)
		if off := time.Since(time.UnixMicro(v)).Abs(); off > time.Minute {
			t.Errorf("in time zone %s a version is off by %s", zone, off)
		}
	}
	beijing := time.Date(2026, 11, 11, 0, 0, 0, 0, time.FixedZone("CST", 8*3600))
	a := ledger.Activity{ID: 1, Item: b.item, StartsAtMs: beijing.UnixMilli(), EndsAtMs: beijing.Add(time.Hour).UnixMilli()}
	for _, more := range []string{"loc=Local", "loc=Asia%2FShanghai&parseTime=true", "time_zone=%27%2B08%3A00%27"} {
		sep := "?"
		if strings.Contains(b.dsn, "?") {
			sep = "&"
		}
		s := openStore(t, b.dsn+sep+more)
		if err := s.CreateActivity(t.Context(), a, nil); err != nil && !errors.Is(err, ErrActivityExists) {
			t.Fatal(err)
		}
		got, err := s.Activity(t.Context(), 1)
		if err != nil || !time.UnixMilli(got.StartsAtMs).Equal(beijing) {
			t.Errorf("with %s the sale starts at %s, want %s: %v", more, time.UnixMilli(got.StartsAtMs), beijing, err)
		}
	}
	b.land(b.order("u1", 1))
	if n := b.count("SELECT updated_at_ms FROM orders"); time.Since(time.UnixMilli(n)).Abs() > time.Minute {
		t.Errorf("updated_at_ms is %s", time.UnixMilli(n))
	}
}

// The version moves forward whatever way the shop writes the row.
func TestE104_StockRowWrittenAnew(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	_, last, _, _ := b.Inventory(t.Context(), b.item)
	for _, text := range []string{
		"UPDATE inventory SET stock = 9",
		"UPDATE inventory SET stock = stock",
		"UPDATE inventory SET version = 5",
		"UPDATE inventory SET version = 9223372036854775807",
		"REPLACE INTO inventory VALUES (7, 10, 3)",
		"REPLACE INTO inventory (item_id, stock) VALUES (7, 11)",
		"INSERT INTO inventory (item_id, stock) VALUES (7, 1) ON DUPLICATE KEY UPDATE stock = 12",
		"DELETE FROM inventory; INSERT INTO inventory VALUES (7, 13, 1)",
		"TRUNCATE inventory; INSERT INTO inventory VALUES (7, 14, 9223372036854775807)",
	} {
		for part := range strings.SplitSeq(text, "; ") {
			b.exec(part)
		}
		_, is, _, err := b.Inventory(t.Context(), b.item)
		if err != nil || is <= last || is > ledger.MaxNumber {
			t.Fatalf("%s: version %d after %d: %v", text, is, last, err)
		}
		last = is
	}
}

func TestE109_DeadOrdersStayDead(t *testing.T) {
	t.Parallel()
	b := setup(t, 5)
	o := b.order("u1", 2)
	b.land(o)
	b.exec("UPDATE orders SET status = 'PAID' WHERE order_id = ?", o.ID)
	if stock, _, _, _ := b.Inventory(t.Context(), b.item); stock != 3 {
		t.Fatalf("paying changed the stock to %d", stock)
	}
	_, was, _, _ := b.Inventory(t.Context(), b.item)
	b.exec("UPDATE orders SET status = 'EXPIRED', updated_at_ms = updated_at_ms WHERE order_id = ?", o.ID)
	stock, is, _, _ := b.Inventory(t.Context(), b.item)
	if stock != 5 || is <= was {
		t.Fatalf("stock %d at version %d after %d, want 5 and later", stock, is, was)
	}
	want(t, b.land(b.order("u2", 5)), "CONFIRMED") // sold again
	_, err := b.db.Exec("UPDATE orders SET status = 'PAID' WHERE order_id = ?", o.ID)
	if number(err) != errSignal || !strings.Contains(err.Error(), o.ID) || !strings.Contains(err.Error(), "EXPIRED") || !strings.Contains(err.Error(), "refund") {
		t.Fatalf("a late payment: %v", err)
	}
	b.exec("UPDATE orders SET status = 'REFUNDED' WHERE order_id = ?", o.ID) // the documented path
	for _, text := range []string{"quantity = 9", "item_id = 8"} {
		if _, err := b.db.Exec("UPDATE orders SET " + text + " WHERE live = 1"); number(err) != errSignal {
			t.Errorf("%s of a live order: %v", text, err)
		}
	}
	b.exact(5)
	// A late payment and an expiry at once: one wins, the stock agrees with it (E96).
	b.exec("UPDATE inventory SET stock = stock + 50")
	for range 20 {
		o := b.orders(1, 1)[0]
		b.land(o)
		done := make(chan error, 2)
		for _, status := range []string{"PAID", "EXPIRED"} {
			go func() {
				_, err := b.db.Exec("UPDATE orders SET status = ? WHERE order_id = ? AND status = 'CONFIRMED'", status, o.ID)
				done <- err
			}()
		}
		if err := errors.Join(<-done, <-done); err != nil {
			t.Fatal(err)
		}
	}
	b.exact(55)
}

func TestE109_LongestStatusesStillGiveTheMessage(t *testing.T) {
	t.Parallel()
	b := setup(t, 5, func(c *Config) { c.Dead = []order.Status{order.Failed, "ABCDEFGHIJKLMNOP"} })
	o := b.order("u1", 2)
	b.land(o)
	b.exec("UPDATE orders SET status = 'ABCDEFGHIJKLMNOP' WHERE order_id = ?", o.ID)
	if _, err := b.db.Exec("UPDATE orders SET status = 'QRSTUVWXYZ012345' WHERE order_id = ?", o.ID); number(err) != errSignal {
		t.Fatal(err)
	}
	if got := b.check(); got != "" {
		t.Fatal(got)
	}
}

// The privilege for triggers is missing, and the account that made them goes.
func TestE114_Triggers(t *testing.T) {
	t.Parallel()
	server := testenv.StartMySQL(t)
	admin := &bench{Store: openStore(t, server.DSN("shop")), t: t}
	for _, text := range []string{
		"CREATE USER shop@127.0.0.1 IDENTIFIED BY 'x'", "GRANT ALL ON shop.* TO shop@127.0.0.1",
		"CREATE USER late@127.0.0.1 IDENTIFIED BY 'x'", "GRANT ALL ON shop.* TO late@127.0.0.1",
		"CREATE USER plain@127.0.0.1 IDENTIFIED BY 'x'", "GRANT SELECT, INSERT, UPDATE, DELETE ON shop.* TO plain@127.0.0.1",
		"CREATE USER reader@127.0.0.1 IDENTIFIED BY 'x'", "GRANT SELECT ON shop.* TO reader@127.0.0.1",
	} {
		admin.exec(text)
	}
	as := func(user string) *bench {
		d, err := mysql.ParseDSN(server.DSN("shop"))
		if err != nil {
			t.Fatal(err)
		}
		d.User, d.Passwd = user, "x"
		return &bench{Store: openStore(t, d.FormatDSN()), t: t, item: 7, activity: 70}
	}
	shop := as("shop")
	err := shop.Migrate(t.Context(), MigrateOptions{})
	if number(err) != errNeedSuper || !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "log_bin_trust_function_creators = 1") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("want one clear line on 1419: %v", err)
	}
	if got := shop.check(); !strings.Contains(got, "triggers") {
		t.Fatalf("the check says %q", got)
	}
	admin.exec("SET GLOBAL log_bin_trust_function_creators = 1")
	admin.exec("REVOKE TRIGGER ON shop.* FROM shop@127.0.0.1")
	err = as("shop").Migrate(t.Context(), MigrateOptions{})
	for _, table := range []string{"orders", "inventory"} {
		if text := "GRANT TRIGGER ON `shop`.`" + table + "` TO 'shop'@'127.0.0.1'"; err == nil || !strings.Contains(err.Error(), text) {
			t.Fatalf("migrate without the privilege for triggers: %v, want %q", err, text)
		}
	}
	admin.exec("GRANT TRIGGER ON shop.* TO shop@127.0.0.1")
	if err := shop.Migrate(t.Context(), MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	admin.exec("INSERT INTO shop.inventory (item_id, stock) VALUES (7, 10)")
	for _, user := range []string{"shop", "late"} {
		if got := as(user).check(); got != "privilege_binlog" {
			t.Fatalf("%s: the check says %q", user, got)
		}
	}
	plain := as("plain") // is not shown triggers, and sees that they work
	if got := plain.check(); got != "privilege_binlog" {
		t.Fatalf("the check says %q", got)
	}
	if got := as("reader").check(); !strings.Contains(got, "privilege_land") {
		t.Fatalf("the check says %q", got)
	}
	want(t, plain.land(plain.order("u1", 1)), "CONFIRMED")

	admin.exec("DROP USER shop@127.0.0.1")
	if _, err := admin.db.Exec("UPDATE shop.inventory SET stock = stock + 1"); number(err) != errDefiner {
		t.Fatalf("the fault is not there: %v", err)
	}
	for name, b := range map[string]*bench{"all may see": admin, "may not see accounts": as("late"), "may not see triggers": plain} {
		if got := b.check(); !strings.Contains(got, "trigger_definer") {
			t.Errorf("%s: the check says %q", name, got)
		}
	}
	if _, err := plain.Land(t.Context(), 7, []*order.Order{plain.order("u2", 1)}); err == nil || !IsTransient(err) {
		t.Fatalf("a dropped account decided an order: %v", err)
	}
	if err := admin.Migrate(t.Context(), MigrateOptions{Out: io.Discard}); err != nil { // the remedy
		t.Fatal(err)
	}
	if got := as("late").check(); got != "privilege_binlog" {
		t.Fatalf("the check says %q", got)
	}
	want(t, plain.land(plain.order("u2", 1)), "CONFIRMED")
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for key, change := range map[string]func(*Config){
		"dsn: ":                     func(c *Config) { c.DSN = "" },
		"dsn: it names no database": func(c *Config) { c.DSN = "root@tcp(127.0.0.1:1)/" },
		"tables.orders: ":           func(c *Config) { c.Tables.Orders = "a`b" },
		"tables.inventory: ":        func(c *Config) { c.Tables.Inventory = c.Tables.Orders },
		"dead_statuses: ":           func(c *Config) { c.Dead = []order.Status{order.Closed} },
		"success_status: ":          func(c *Config) { c.SuccessStatus = order.Failed },
		"success_status: \"paid\"":  func(c *Config) { c.SuccessStatus = "paid" },
		"lock_wait: ":               func(c *Config) { c.LockWait = time.Millisecond },
		"statement_timeout: ":       func(c *Config) { c.StatementTimeout = time.Second },
		"max_conns: ":               func(c *Config) { c.MaxConns = 1 },
		"ca_file: ":                 func(c *Config) { c.CAFile = "/nowhere" },
	} {
		c := Config{DSN: "u:secret@tcp(127.0.0.1:1)/x"}
		c.SetDefaults()
		change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), key) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", key, err)
		}
	}
	c := Config{DSN: "u:p@tcp(127.0.0.1:1)/x?multiStatements=true&clientFoundRows=true&rejectReadOnly=false&loc=Local&collation=utf8mb4_general_ci"}
	c.SetDefaults()
	d, err := c.driver()
	if err != nil || d.MultiStatements || d.ClientFoundRows || !d.RejectReadOnly || d.Loc != time.UTC || d.Collation != "utf8mb4_bin" {
		t.Fatalf("%+v, %v", d, err)
	}
}

// A shop may have allowed NULL for its stock: the check says so in a word and works on, and nobody takes NULL for a number.
func TestNullStock(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	b.exec("ALTER TABLE inventory MODIFY stock BIGINT NULL")
	b.exec("INSERT INTO inventory (item_id, stock) VALUES (1, NULL)") // the first row, which the triggers are tried on
	f, err := b.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var warned int
	for _, x := range f {
		if x.Name == "stock_nullable" && x.Level == Warning && strings.Contains(x.Text, "inventory.stock may be NULL") {
			warned++
		}
		if x.Level == Unsafe {
			t.Errorf("%+v", x)
		}
	}
	if warned != 1 {
		t.Errorf("warned %d times: %+v", warned, f)
	}
	if _, _, _, err := b.Inventory(t.Context(), 1); !errors.Is(err, ErrNoStock) || !IsTransient(err) {
		t.Errorf("read: %v", err)
	}
	if _, err := b.LockInventory(t.Context(), 1, time.Second); !errors.Is(err, ErrNoStock) {
		t.Errorf("lock: %v", err)
	}

	// Orders that are there are told of whatever the stock is; new ones are not decided, and the error says what mends it.
	old, fresh, patient := b.order("old", 1), b.order("fresh", 1), b.order("patient", 1)
	b.land(old)
	patient.Patient = true
	b.exec("UPDATE inventory SET stock = NULL WHERE item_id = ?", b.item)
	if l := b.land(old); len(l.Outcomes) != 1 || l.Outcomes[0].Status != order.Confirmed || l.Version != 0 {
		t.Errorf("landed again: %+v, want its row, and no version", l)
	}
	for range 2 {
		if _, err := b.Land(t.Context(), b.item, []*order.Order{old, fresh}); !errors.Is(err, ErrNoStock) || !strings.Contains(err.Error(), "UPDATE inventory SET stock = … WHERE item_id = 7") {
			t.Errorf("land: %v", err)
		}
	}
	b.exec("UPDATE inventory SET stock = ? WHERE item_id = ?", int64(ledger.MaxNumber+1), b.item)
	if _, err := b.Land(t.Context(), b.item, []*order.Order{old, fresh}); !errors.Is(err, ErrNoStock) {
		t.Errorf("land with more units than redis can count: %v", err)
	}
	b.exec("UPDATE inventory SET stock = NULL WHERE item_id = ?", b.item)
	if l := b.land(patient); len(l.Left) != 1 || len(l.Outcomes) != 0 {
		t.Errorf("a patient order: %+v, want it left", l)
	}
	var unsold *ErrUnsold
	again := b.order("old", 1) // this buyer has an order, so that no stock is needed to refuse another
	if _, err := b.Land(t.Context(), b.item, []*order.Order{old, fresh, patient, again}); !errors.As(err, &unsold) || !slices.Equal(unsold.Orders, []string{fresh.ID}) {
		t.Errorf("land: %v, want it to name the fresh order alone", err)
	}
	if n := b.count("SELECT COUNT(*) FROM orders"); n != 1 {
		t.Errorf("%d rows, want the old one alone", n)
	}
	if l := b.land(old, patient, again); len(l.Left) != 1 || len(l.Outcomes) != 2 || l.Outcomes[1].Reason != order.ReasonDuplicate {
		t.Errorf("what needs no stock: %+v, want it decided", l)
	}
	b.exec("UPDATE inventory SET stock = 5 WHERE item_id = ?", b.item)
	if l := b.land(fresh); l.Stock != 4 || l.Version == 0 {
		t.Errorf("once it is mended: %+v, want it landed", l)
	}
	b.exec("ALTER TABLE inventory MODIFY stock DECIMAL(10,2) NULL")
	b.exec("UPDATE inventory SET stock = 1.5 WHERE item_id = ?", b.item)
	if _, err := b.Land(t.Context(), b.item, []*order.Order{b.order("fraction", 1)}); !errors.Is(err, ErrNoStock) {
		t.Errorf("land on a fraction: %v", err)
	}
	other := b.order("other", 1)
	patient.Quantity = 2
	if _, err := b.Land(t.Context(), b.item, []*order.Order{other, patient}); !errors.As(err, &unsold) || !slices.Equal(unsold.Orders, []string{other.ID}) {
		t.Errorf("land on a fraction: %v, want it to name the order that is not patient", err)
	}
	if n := b.count("SELECT COUNT(*) FROM inventory WHERE item_id = ? AND stock = 1.5", b.item); n != 1 {
		t.Error("something was taken of it")
	}
}
