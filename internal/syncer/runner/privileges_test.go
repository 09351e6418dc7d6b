package runner_test

import (
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// The syncer works with exactly the privileges that docs/sql.md names for it.
func TestLeastPrivileges(t *testing.T) {
	t.Parallel()
	server := testenv.StartMySQL(t)
	b := synctest.NewOn(t, server.DSN("shop"))
	binlog := "REPLICATION SLAVE, REPLICATION CLIENT"
	if testenv.OnMariaDB(t, b.Cfg.MySQL.DSN) {
		binlog = "REPLICATION SLAVE, BINLOG MONITOR"
	}
	for _, grant := range []string{
		"CREATE USER syncer@'127.0.0.1' IDENTIFIED BY 'secret'",
		"GRANT SELECT ON shop.orders TO syncer@'127.0.0.1'",
		"GRANT SELECT ON shop.seckill_schema_migrations TO syncer@'127.0.0.1'",
		"GRANT SELECT, INSERT, UPDATE ON shop.activity TO syncer@'127.0.0.1'",
		"GRANT SELECT, INSERT, UPDATE ON shop.inventory TO syncer@'127.0.0.1'",
		"GRANT " + binlog + " ON *.* TO syncer@'127.0.0.1'",
	} {
		b.Exec(grant)
	}
	dsn, err := mysql.ParseDSN(b.Cfg.MySQL.DSN)
	if err != nil {
		t.Fatal(err)
	}
	dsn.User, dsn.Passwd = "syncer", "secret"
	cfg := b.Cfg
	cfg.MySQL.DSN = dsn.FormatDSN()
	p := b.OpenParts(cfg)
	a := b.Activity(10)
	_, h := b.SyncerOn(p)
	b.Loaded(a, "")
	b.Ready(h)
	b.Buy(a, "u", 2)
	b.Land(false)
	b.Restock(a, 1)
	b.Equal(a)
	if _, err := p.Loader.Force(t.Context(), a.ID, 0); err != nil {
		t.Fatalf("force: %v", err)
	}
	if _, _, err := p.Store.Touch(t.Context(), a.Item); err != nil {
		t.Fatalf("touch: %v", err)
	}
	next := a
	next.ID, next.Item = testenv.ID(), testenv.ID()
	stock := int64(5)
	if err := p.Store.CreateActivity(t.Context(), next, &stock); err != nil {
		t.Fatalf("create: %v", err)
	}
	b.Loaded(next, "")
	b.Ready(h)
}
