package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/store"
)

// The errors of the real sections name keys and variables that exist.
func TestErrorsOfTheRealSections(t *testing.T) {
	type shape struct {
		Redis redisconn.Config `yaml:"redis"`
		MySQL store.Config     `yaml:"mysql"`
	}
	const good = "redis: {addrs: ['a:1']}\nmysql: {dsn: 'u:p@tcp(h:1)/d'}\n"
	for _, c := range []struct{ name, yaml, env, value, want string }{
		{"nothing", "", "", "", "redis.addrs: no address: want host:port, several for a cluster or for sentinels (it is set nowhere; its variable is SECKILL_REDIS_ADDRS)"},
		{"variable", "", "SECKILL_REDIS_ADDRS", "here", `SECKILL_REDIS_ADDRS: redis.addrs: "here" is not host:port`},
		{"file", "redis:\n  addrs: ['a:1']\n  pool_size: -1\n", "", "", "test.yaml:3: redis.pool_size: -1 is negative"},
		{"no dsn", "redis: {addrs: ['a:1']}\n", "", "", "mysql.dsn: it is empty: want user:password@tcp(host:3306)/database (it is set nowhere; its variable is SECKILL_MYSQL_DSN)"},
		{"no database", "redis: {addrs: ['a:1']}\n", "SECKILL_MYSQL_DSN", "u:p@tcp(h:1)/", "SECKILL_MYSQL_DSN: mysql.dsn: it names no database: want user:password@tcp(host:3306)/database"},
		{
			"url", "redis: {addrs: ['a:1']}\n", "SECKILL_MYSQL_DSN", "mysql://u:p@h:1/d",
			"SECKILL_MYSQL_DSN: mysql.dsn: default addr for network 'h:1' unknown: want user:password@tcp(host:3306)/database",
		},
		{"table", "redis: {addrs: ['a:1']}\nmysql:\n  dsn: 'u:p@tcp(h:1)/d'\n  tables:\n    orders: 'a b'\n", "", "", `test.yaml:5: mysql.tables.orders: "a b": want 1 to 40 letters, digits, _ or $`},
		{"good", good, "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, name := range []string{"SECKILL_REDIS_ADDRS", "SECKILL_MYSQL_DSN"} {
				t.Setenv(name, "")
			}
			if c.env != "" {
				t.Setenv(c.env, c.value)
			}
			t.Chdir(t.TempDir())
			if err := os.WriteFile(filepath.Join(".", "test.yaml"), []byte(c.yaml), 0o600); err != nil {
				t.Fatal(err)
			}
			got := ""
			if err := Load("test.yaml", new(shape)); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// Of the DSN, whose place in a log is often all that is asked for, only the password is hidden.
func TestExplainShowsWhereMySQLIs(t *testing.T) {
	var s struct {
		MySQL store.Config `yaml:"mysql"`
	}
	for dsn, want := range map[string]string{
		"u:s3cret/@s3cret@tcp(h:1)/d": "dsn: u:***@tcp(h:1)/d # SECKILL_MYSQL_DSN",
		"u:s3cret/s3cret@tcp(h:1)":    "dsn: '***' # SECKILL_MYSQL_DSN",
	} {
		s.MySQL.DSN = dsn
		var out strings.Builder
		if err := Explain(&s, &out); err != nil || !strings.Contains(out.String(), want) || strings.Contains(out.String(), "s3cret") {
			t.Errorf("%v, want %s in\n%s", err, want, &out)
		}
	}
}
