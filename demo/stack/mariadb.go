package stack

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// MariaDB is a private mariadbd with an empty database, a row-based binlog, and one user who may do what the product and
// a shop need.
type MariaDB struct {
	Addr string
	DSN  string // of go-sql-driver/mysql
}

// Names in the demo's MariaDB.
const (
	database = "shop"
	user     = "seckill"
)

// StartMariaDB makes a fresh data folder below dir and runs mariadbd on it.
func StartMariaDB(ctx context.Context, p *Procs, prog Program, dir string) (*MariaDB, error) {
	data := filepath.Join(dir, "data")
	for _, d := range []string{data, temporary(data)} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return nil, fmt.Errorf("make mariadb folder: %w", err)
		}
	}
	if err := bootstrap(ctx, prog, data); err != nil {
		return nil, err
	}
	password, err := randomWord()
	if err != nil {
		return nil, err
	}
	// mariadbd runs this file at every start, one statement a line.
	initial := filepath.Join(dir, "init.sql")
	statements := []string{
		"CREATE DATABASE IF NOT EXISTS " + database + " CHARACTER SET utf8mb4",
		fmt.Sprintf("CREATE OR REPLACE USER '%s'@'%%' IDENTIFIED BY '%s'", user, password),
		fmt.Sprintf("GRANT ALL ON %s.* TO '%s'@'%%'", database, user),
		fmt.Sprintf("GRANT REPLICATION SLAVE, REPLICATION CLIENT, RELOAD ON *.* TO '%s'@'%%'", user),
	}
	if err := os.WriteFile(initial, []byte(strings.Join(statements, ";\n")+";\n"), 0o600); err != nil {
		return nil, fmt.Errorf("write mariadb's first statements: %w", err)
	}
	m := &MariaDB{}
	err = onFreePort(p, func(port int) (*Child, error) {
		m.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		return p.Start(Spec{
			Name: "mariadb", Path: prog.Path, Env: prog.Env, Dir: dir,
			Args: append(base(prog, data),
				"--bind-address=127.0.0.1", "--port="+strconv.Itoa(port),
				// Relative to the data folder, since a socket's path may have no more than about 100 bytes, which a
				// deep checkout exceeds.
				"--socket=mariadb.sock", "--pid-file="+filepath.Join(dir, "mariadb.pid"),
				"--init-file="+initial, "--skip-name-resolve", "--max-connections=200",
				"--log-bin=binlog", "--binlog-format=ROW", "--server-id=1", "--log-bin-trust-function-creators=1"),
		})
	}, func(c *Child) error {
		cfg := mysql.NewConfig()
		cfg.User, cfg.Passwd, cfg.Net, cfg.Addr, cfg.DBName = user, password, "tcp", m.Addr, database
		m.DSN = cfg.FormatDSN()
		return c.Wait(ctx, 30*time.Second, func(ctx context.Context) error { return pingMySQL(ctx, m.DSN) })
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// temporary is the folder of temporary tables. A server that starts deletes what looks like leftovers in it: in /tmp, the
// live temporary tables of every other server on the machine.
func temporary(data string) string { return filepath.Join(filepath.Dir(data), "tmp") }

// base holds the options that setting up and running have in common: small files and little memory.
func base(prog Program, data string) []string {
	args := []string{
		"--no-defaults", "--datadir=" + data, "--tmpdir=" + temporary(data), "--lc-messages-dir=" + prog.Share,
		"--character-sets-dir=" + filepath.Join(prog.Share, "charsets"),
		"--innodb-log-file-size=16M", "--innodb-buffer-pool-size=64M", "--performance-schema=0",
	}
	if os.Getuid() == 0 {
		args = append(args, "--user=root") // it refuses root unless told so
	}
	return args
}

// bootstrap lays the system tables, as mariadb-install-db does, but needs neither that script nor its folders.
func bootstrap(ctx context.Context, prog Program, data string) error {
	input := bytes.NewBufferString("CREATE DATABASE mysql;\nUSE mysql;\n")
	for _, name := range []string{"system_tables.sql", "performance_tables.sql", "system_tables_data.sql"} {
		file, ok := sqlFile(prog.Share, name)
		if !ok {
			return fmt.Errorf("set up mariadb: %s has no mariadb_%s", prog.Share, name)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("set up mariadb: %w", err)
		}
		input.Write(b)
		input.WriteByte('\n')
	}
	cmd := exec.CommandContext(ctx, prog.Path, append(base(prog, data), "--bootstrap", "--skip-log-bin")...)
	cmd.Env = append(os.Environ(), prog.Env...)
	cmd.Stdin = input
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("set up mariadb: %s --bootstrap: %w: %s", prog.Path, err, lastLines(out.String(), 8))
	}
	return nil
}

func pingMySQL(ctx context.Context, dsn string) error {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return db.PingContext(ctx)
}

func randomWord() (string, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("make a password: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}
