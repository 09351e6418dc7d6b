package binlog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-mysql-org/go-mysql/canal"
	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"go.uber.org/zap"
)

// flushOrders bounds the orders gathered of one transaction. What the log holds is committed, so a larger one may be
// applied in parts.
const flushOrders = 5000

// handler gathers the rows of a transaction and hands them on when it ends. The library calls it from one goroutine, but
// for OnPosSynced from Close.
type handler struct {
	canal.DummyEventHandler

	ctx              context.Context //nolint:containedctx // of one connection; the library's callbacks carry none
	stop             context.CancelCauseFunc
	stream           *Stream
	sink             Sink
	flavor, identity string
	schema           string
	lower            bool          // see server
	gtid             mysql.GTIDSet // everything up to the last transaction that ended
	next             string        // GTID of the transaction that is being read
	tx               *Transaction
	started          func() // tells, once, that the server accepted the position
	committedMs      int64
	file             string // the place of gtid in the log of this server; "" while that is not known
	offset           uint32
	fatal            atomic.Pointer[error]
}

// fail ends the stream. The library wraps what a handler returns, so the reason is kept here.
func (h *handler) fail(err error) error {
	if h.fatal.CompareAndSwap(nil, &err) && h.stop != nil {
		h.stop(err)
	}
	return err
}

func (h *handler) failure() error {
	if e := h.fatal.Load(); e != nil {
		return *e
	}
	return nil
}

// unparsed is called for a statement that the library could not parse and therefore passed over. It does not say in which
// database, so a statement that may concern a watched table is held against the columns as they are now: the server shows a
// DDL only once it is done.
func (h *handler) unparsed(query string) {
	switch h.judge(query) {
	case unconcerned:
		return
	case columnsOnly:
		ctx, cancel := context.WithTimeout(h.ctx, 5*time.Second)
		defer cancel()
		tables, err := readTables(ctx, h.stream.db, h.stream.dsn.DBName, h.stream.tables)
		switch {
		case errors.Is(err, errNoTable):
		case err != nil: // not known now: the stream begins again before the statement
			_ = h.fail(fmt.Errorf("read the columns after a statement that was not understood: %w", err))
			return
		case fingerprint(tables) == h.schema:
			return
		}
	case emptying:
	}
	h.sink.Doubt("", fmt.Errorf("statement not understood: %.200s", query))
	_ = h.fail(fmt.Errorf("%w: a statement that names a watched table was not understood: %.200s", ErrLoadAgain, query))
}

func (h *handler) OnRotate(*replication.EventHeader, *replication.RotateEvent) error {
	h.started()
	return h.failure()
}

func (h *handler) OnTableChanged(_ *replication.EventHeader, database, table string) error {
	if !h.same(database, h.stream.dsn.DBName) || !h.watched(table) {
		return h.failure()
	}
	h.sink.Doubt(table, errors.New("ddl"))
	return h.fail(fmt.Errorf("%w: table %s.%s was created, changed, truncated or dropped", ErrLoadAgain, database, table))
}

func (h *handler) OnTableNotFound(_ *replication.EventHeader, e *replication.RowsEvent) error {
	table := string(e.Table.Table)
	h.sink.Doubt(table, errors.New("table not found"))
	return h.fail(fmt.Errorf("%w: the binlog has rows of table %s, which does not exist", ErrLoadAgain, table))
}

func (h *handler) watched(table string) bool {
	for _, t := range h.stream.tables.names() {
		if h.same(t, table) {
			return true
		}
	}
	return false
}

// same compares names as the server does.
func (h *handler) same(a, b string) bool { return a == b || h.lower && strings.EqualFold(a, b) }

func (h *handler) OnGTID(_ *replication.EventHeader, e mysql.BinlogGTIDEvent) error {
	h.started()
	if err := h.failure(); err != nil {
		return err
	}
	if err := h.ended(); err != nil { // a statement that was passed over has no other end
		return err
	}
	if !h.tx.empty() {
		// Rows whose transaction did not end, as of XA PREPARE: nobody knows yet what becomes of them.
		h.tx.distrust()
		if err := h.flush(time.Now()); err != nil {
			return err
		}
	}
	if g, ok := e.(*replication.GTIDEvent); ok && g.GNO == 0 {
		return nil // anonymous: this server has no GTIDs
	}
	set, err := e.GTIDNext()
	if err != nil {
		return h.fail(fmt.Errorf("read the gtid of a transaction: %w", err))
	}
	h.next = set.String()
	return nil
}

func (h *handler) OnRow(e *canal.RowsEvent) error {
	if err := h.failure(); err != nil {
		return err
	}
	if err := h.rows(e); err != nil {
		return h.fail(err)
	}
	if len(h.tx.Orders) >= flushOrders {
		return h.flush(eventTime(e.Header))
	}
	return nil
}

func (h *handler) OnXID(header *replication.EventHeader, _ mysql.Position) error {
	if err := h.failure(); err != nil {
		return err
	}
	return h.flush(eventTime(header))
}

// OnPosSynced follows the end of every transaction, and of statements outside of one. header is nil when Close calls.
func (h *handler) OnPosSynced(header *replication.EventHeader, pos mysql.Position, set mysql.GTIDSet, _ bool) error {
	if header == nil {
		return nil
	}
	if err := h.failure(); err != nil {
		return err
	}
	if err := h.flush(eventTime(header)); err != nil { // tables without transactions end with COMMIT instead of an XID
		return err
	}
	if err := h.ended(); err != nil {
		return err
	}
	if set != nil && !set.IsEmpty() {
		h.gtid = set
	}
	// What has no time is not in the log: a stream that begins by GTID is told the head of the file in which the server looks for it.
	// Without GTIDs it is the next file, after a crash that ended the one before: a stream would begin there.
	if header.Timestamp > 0 {
		h.committedMs = int64(header.Timestamp) * 1000
	}
	if header.Timestamp > 0 || h.gtid.IsEmpty() {
		h.file, h.offset = pos.Name, pos.Pos
	}
	h.sink.Synced(Position{
		Flavor: h.flavor, File: h.file, Offset: h.offset, Server: h.identity, Schema: h.schema, GTID: h.gtid.String(),
		CommittedAtMs: h.committedMs,
	})
	return nil
}

// ended adds the transaction that was being read to those that have been seen.
func (h *handler) ended() error {
	if h.next == "" {
		return nil
	}
	if err := h.gtid.Update(h.next); err != nil {
		return h.fail(fmt.Errorf("add gtid %s to %s: %w", h.next, h.gtid, err))
	}
	h.next = ""
	return nil
}

func (h *handler) flush(at time.Time) error {
	if h.tx.empty() {
		return nil
	}
	tx := h.tx
	h.tx = &Transaction{}
	tx.CommittedAt = at
	if err := h.sink.Apply(h.ctx, tx); err != nil {
		return h.fail(err)
	}
	return nil
}

func (h *handler) doubt(table string, why error) {
	h.stream.log.Warn("a row of the binlog is not certain and will be read from mysql", zap.String("table", table), zap.Error(why))
	h.sink.Doubt(table, why)
}

func (h *handler) String() string { return "seckill-syncer" }

func eventTime(h *replication.EventHeader) time.Time {
	if h == nil || h.Timestamp == 0 {
		return time.Now()
	}
	return time.Unix(int64(h.Timestamp), 0)
}
