package testenv

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// MySQL creates a database on the shared server and returns its DSN in the form of go-sql-driver/mysql. It is dropped
// when the test ends.
func MySQL(t testing.TB) string {
	t.Helper()
	given := address(t, "MYSQL_DSN")
	cfg, err := mysql.ParseDSN(given)
	if err != nil {
		t.Fatalf("parse MYSQL_DSN %q: %v; it reads user:password@tcp(host:port)/database", given, err)
	}
	if cfg.Net == "tcp" {
		reachable(t, "MYSQL_DSN", cfg.Addr)
	}
	name := "seckill_test_" + unique()
	if err := exec1(t.Context(), cfg, "CREATE DATABASE `"+name+"` CHARACTER SET utf8mb4"); err != nil {
		t.Fatalf("create database %s on %s: %v; the user of MYSQL_DSN needs the right to", name, cfg.Addr, err)
	}
	t.Cleanup(func() {
		// The test's own context is over by now.
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := exec1(ctx, cfg, "DROP DATABASE IF EXISTS `"+name+"`"); err != nil {
			t.Logf("drop database %s: %v", name, err)
		}
	})
	cfg.DBName = name
	return cfg.FormatDSN()
}

// exec1 runs one statement on the server of cfg, in no database, on a connection of its own.
func exec1(ctx context.Context, cfg *mysql.Config, query string) error {
	c := cfg.Clone()
	c.DBName = ""
	c.Logger = &mysql.NopLogger{} // a server that is not up yet is no news
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	_, err = db.ExecContext(ctx, query)
	return err
}

// MariaDB is a private MariaDB or MySQL with a data directory of its own. Kill it, restart it, pause it: it is the test's own.
type MariaDB struct {
	*process

	// Addr is host:port, the same over restarts.
	Addr string
	// Dir is the data directory, binlogs included; it goes with the test.
	Dir string

	mu      sync.Mutex
	created map[string]bool
}

// StartMySQL starts a private server, durable and with a full row binlog as `make services` does it (scripts/database.sh):
// MariaDB, or MySQL with MYSQL_SERVER=mysql in the environment. args are options as on its command line and override
// these. It is gone when the test ends.
func StartMySQL(t testing.TB, args ...string) *MariaDB {
	t.Helper()
	m := &MariaDB{Dir: filepath.Join(t.TempDir(), "data"), created: map[string]bool{}}
	script := databaseScript(t)
	if out, err := exec.Command(script, "datadir", m.Dir).CombinedOutput(); err != nil {
		t.Fatalf("make a data directory: %v\n%s", err, out)
	}
	var port int
	m.process = &process{
		t: t, name: "mysql", log: filepath.Join(filepath.Dir(m.Dir), "log"),
		command: func() *exec.Cmd {
			options := append([]string{"run", m.Dir, strconv.Itoa(port), "--innodb-buffer-pool-size=64M"}, args...)
			return exec.Command(script, options...)
		},
		answers: func() error { return greetMySQL(m.Addr) },
	}
	startOnFreePort(t, m.process, func(p int) { port, m.Addr = p, loopback(p) })
	return m
}

// OnMariaDB says whether the server behind a DSN is a MariaDB, for what the two spell differently.
func OnMariaDB(t testing.TB, dsn string) bool {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatalf("open %s: %v", dsn, err)
	}
	defer db.Close()
	var version string
	if err := db.QueryRowContext(t.Context(), "SELECT VERSION()").Scan(&version); err != nil {
		t.Fatalf("ask for the version of MySQL: %v", err)
	}
	return strings.Contains(version, "MariaDB")
}

// DSN returns the DSN of a database on this server; the first call for a name creates it. An empty name is the server
// without a database.
func (m *MariaDB) DSN(db string) string {
	m.t.Helper()
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr = "seckill", "seckill", "tcp", m.Addr
	m.mu.Lock()
	defer m.mu.Unlock()
	if db != "" && !m.created[db] {
		if err := exec1(m.t.Context(), cfg, "CREATE DATABASE IF NOT EXISTS `"+db+"` CHARACTER SET utf8mb4"); err != nil {
			m.t.Fatalf("create database %s on %s: %v", db, m.Addr, err)
		}
		m.created[db] = true
	}
	cfg.DBName = db
	return cfg.FormatDSN()
}

// greetMySQL reads the greeting with which the server opens; an error packet in its place is no greeting.
func greetMySQL(addr string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	var head [5]byte // length, sequence number, protocol version
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	if head[4] != 10 {
		return fmt.Errorf("greets with protocol version %d, not 10", head[4])
	}
	return nil
}

func databaseScript(t testing.TB) string {
	t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatalf("get working directory: %v", err)
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		if script := filepath.Join(dir, "scripts", "database.sh"); isFile(script) {
			return script
		}
		if dir == filepath.Dir(dir) {
			t.Fatalf("find scripts/database.sh: not in any folder above %s", wd)
		}
	}
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
