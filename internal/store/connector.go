package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/go-sql-driver/mysql"
)

// sessionIdle is how long the server keeps a session that says nothing. A worker that vanished behind a cut network holds
// the lock on a hot row no longer than this.
const sessionIdle = time.Minute

// sessionSettings is what every statement of this package relies on. The server's own defaults differ between versions,
// flavors and installations.
func sessionSettings(lockWait time.Duration) []string {
	secs := int(lockWait / time.Second)
	return []string{
		"SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO', time_zone = '+00:00', " +
			"autocommit = 1, unique_checks = 1, foreign_key_checks = 1, " +
			// A COMMIT that begins the next transaction, reads that end early and updates that are refused: all of it is somebody's default.
			"completion_type = 0, sql_select_limit = 18446744073709551615, sql_safe_updates = 0, " +
			fmt.Sprintf("innodb_lock_wait_timeout = %d, lock_wait_timeout = %d, wait_timeout = %d", secs, secs, sessionIdle/time.Second),
		"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", // the variable's name differs between MySQL and MariaDB
	}
}

// connector opens connections whose session is set up and whose id is known, so that a session that was left behind can be
// ended from another one.
type connector struct {
	driver.Connector
	settings []string
}

func newConnector(cfg *mysql.Config, settings []string) (*connector, error) {
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("mysql.dsn: %w", err)
	}
	return &connector{c, settings}, nil
}

// driverConn is everything that database/sql looks for in a connection and that the driver offers.
type driverConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
}

// conn is a connection that knows who it is.
type conn struct {
	driverConn
	who identity
}

// identity names a session of a server. Connection ids alone do not: after a fail-over the same number is somebody else's.
type identity struct {
	server string
	id     uint64
}

// Connect opens and sets up one connection.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	raw, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to mysql: %w", err)
	}
	dc, ok := raw.(driverConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("mysql driver %T lacks an interface", raw), raw.Close())
	}
	who, err := setUp(ctx, dc, c.settings)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set up the session: %w", err), dc.Close())
	}
	return &conn{dc, who}, nil
}

func setUp(ctx context.Context, dc driverConn, settings []string) (who identity, err error) {
	for _, set := range settings {
		if _, err := dc.ExecContext(ctx, set, nil); err != nil {
			return who, fmt.Errorf("%s: %w", set, err)
		}
	}
	rows, err := dc.QueryContext(ctx, "SELECT CONCAT_WS('/', @@hostname, @@port, @@server_id), CONNECTION_ID()", nil)
	if err != nil {
		return who, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	row := make([]driver.Value, 2)
	if err := rows.Next(row); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return who, err
	}
	who.server = text(row[0])
	who.id, err = strconv.ParseUint(text(row[1]), 10, 64)
	return who, err
}

func text(v driver.Value) string {
	if b, ok := v.([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(v)
}
