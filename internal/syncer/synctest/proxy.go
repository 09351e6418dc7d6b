package synctest

import (
	"database/sql"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
)

// Through puts a fault proxy before the MySQL of a DSN.
func Through(t testing.TB, dsn string) (*faultproxy.Proxy, string) {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	p := faultproxy.New(t, cfg.Addr)
	cfg.Addr = p.Addr()
	return p, cfg.FormatDSN()
}

// OpenDirect opens a connection to the shop's database at another address.
func (b *Bench) OpenDirect(addr string) *sql.DB {
	b.Helper()
	cfg, err := mysql.ParseDSN(b.Cfg.MySQL.DSN)
	if err != nil {
		b.Fatal(err)
	}
	cfg.Addr = addr
	db, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	return db
}
