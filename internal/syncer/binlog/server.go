package binlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"

	"github.com/seckillgate/seckillgate/internal/store"
)

// Derived server ids come from this range, far above what people assign by hand.
const (
	lowestDerivedID  = 0x7000_0000
	highestDerivedID = 0xEFFF_FFFF
)

// serverID is the configured id, or one drawn at random that no replica registered with the server uses.
func (s *Stream) serverID(ctx context.Context) (uint32, error) {
	// Needs a privilege that reading the log does not. At random, two of a hundred replicas meet once in 10^5 years of daily
	// restarts.
	replicas, _ := store.Replicas(ctx, s.db)
	if s.cfg.ServerID != 0 && !s.clashed.Load() {
		return s.cfg.ServerID, nil
	}
	for range 100 {
		id := lowestDerivedID + rand.Uint32N(highestDerivedID-lowestDerivedID)
		if !slices.ContainsFunc(replicas, func(r store.Replica) bool { return r.ServerID == id }) {
			return id, nil
		}
	}
	return 0, errors.New("found no free server id: set binlog.server_id")
}

// newerThan says whether a version is at or above another, "8.0.36-log" style.
func newerThan(version, other string) bool {
	c, err := mysql.CompareServerVersions(version, other)
	return err == nil && c >= 0
}

// showPosition reads the file and offset at which the server will write next. The statement has had three names.
func showPosition(ctx context.Context, db *sql.DB, srv server) (string, uint32, error) {
	query := "SHOW MASTER STATUS"
	if srv.flavor == mysql.MySQLFlavor && newerThan(srv.version, "8.4.0") {
		query = "SHOW BINARY LOG STATUS"
	}
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return "", 0, fmt.Errorf("read the binlog position (needs REPLICATION CLIENT, BINLOG MONITOR on mariadb): %w", err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return "", 0, err
	}
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return "", 0, err
		}
		return "", 0, errors.New("mysql writes no binlog: set log_bin and binlog_format=ROW, then restart it")
	}
	var file string
	var offset uint32
	into := make([]any, len(columns))
	into[0], into[1] = &file, &offset
	for i := 2; i < len(into); i++ {
		into[i] = new(sql.RawBytes)
	}
	if err := rows.Scan(into...); err != nil {
		return "", 0, err
	}
	return file, offset, rows.Err()
}

// errSlaveSameID is MariaDB's own number for what MySQL tells by the words of another error.
const errSlaveSameID = 4052

// sameServerID recognizes the error by which a server ends the older of two readers with one server id.
func sameServerID(err *mysql.MyError) bool {
	m := strings.ToLower(err.Message)
	return err.Code == errSlaveSameID || (err.Code == mysql.ER_MASTER_FATAL_ERROR_READING_BINLOG &&
		(strings.Contains(m, "same server_uuid") || strings.Contains(m, "same server_id") || strings.Contains(m, "same server-id")))
}

// conns are the connections of one run. The library bounds neither its handshake nor its queries, and takes no context: a
// server that says nothing would hold it for ever. So every read and write here has a deadline, and the end of the run's
// context closes what is open.
type conns struct {
	stream *Stream
	mu     sync.Mutex
	open   []net.Conn
	closed bool
}

func (c *conns) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	c.open = append(c.open, conn)
	return &timedConn{Conn: conn, stream: c.stream}, nil
}

// close ends every connection, and every one to come.
func (c *conns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conn := range c.open {
		_ = conn.Close()
	}
	c.open = nil
}

// timedConn also notes when the server last said anything, heartbeats included, which the library does not report.
type timedConn struct {
	net.Conn
	stream *Stream
}

// SetReadDeadline of a connection that is closed already is no error: the library answers one by closing its side while its
// reader still runs, which is a data race. The reader finds out by itself.
func (c *timedConn) SetReadDeadline(t time.Time) error {
	if err := c.Conn.SetReadDeadline(t); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func (c *timedConn) Read(b []byte) (int, error) {
	if err := c.Conn.SetReadDeadline(time.Now().Add(c.stream.cfg.ReadTimeout)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.stream.lastRead.Store(time.Now().UnixNano())
	}
	return n, err
}

func (c *timedConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.stream.cfg.ReadTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
