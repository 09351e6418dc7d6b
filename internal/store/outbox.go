package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/seckillgate/seckillgate/internal/order"
)

// The outbox: what an order has become is written down in the very transaction that made it so, once for each listener, and
// taken away once the listener has it. So no kill loses it, and nobody waits for a listener.

// Sink is a listener. Its number is in the outbox, and in the trigger that writes there.
type Sink int

// The listeners that there may be.
const (
	Results Sink = 1 // the results topic
	Webhook Sink = 2 // the shop's endpoint
)

// String is the listener's name, as in metrics and commands.
func (k Sink) String() string {
	switch k {
	case Results:
		return "results"
	case Webhook:
		return "webhook"
	}
	return fmt.Sprintf("sink%d", int(k))
}

// ParseSink is the inverse of String.
func ParseSink(name string) (Sink, error) {
	for _, k := range []Sink{Results, Webhook} {
		if name == k.String() {
			return k, nil
		}
	}
	return 0, fmt.Errorf("%w: listener %q: want %s or %s", ErrInvalid, name, Results, Webhook)
}

// sinksSuffix makes the name of the listeners' table from the outbox's.
const sinksSuffix = "_sinks"

// Event is one thing to tell.
type Event struct {
	// Seq grows in the order in which things happened to one order.
	Seq int64
	order.Result
	Extra json.RawMessage
	// Gone: somebody deleted the order's row, so that there is nothing to tell any more but what the event itself says.
	Gone bool
}

// Subscribe registers listeners: from its commit on every change is written down for them, by whichever process or trigger.
func (s *Store) Subscribe(ctx context.Context, sinks ...Sink) error {
	for _, k := range sinks {
		ctx, cancel := s.bound(ctx)
		//nolint:gosec // G202: the table's name comes from the configuration and is checked there
		_, err := s.db.ExecContext(ctx, "INSERT INTO "+s.sql.sinks+" (sink, name) SELECT ?, ? FROM (SELECT 1) AS one WHERE NOT EXISTS (SELECT 1 FROM "+
			s.sql.sinks+" WHERE sink = ?)", int(k), k.String(), int(k))
		cancel()
		if err != nil && number(err) != errDuplicate {
			return fmt.Errorf("subscribe %s to the outbox: %w", k, explain(err))
		}
	}
	return nil
}

// Unsubscribe removes a listener and what it has not been told, and says how much that was.
func (s *Store) Unsubscribe(ctx context.Context, k Sink) (dropped int64, err error) {
	err = s.again(ctx, func(x *session) error {
		_, err := x.exec(ctx, "DELETE FROM "+s.sql.sinks+" WHERE sink = ?", int(k))
		return err
	})
	for n := int64(slice); err == nil && n == slice; dropped += n {
		n = 0
		err = s.again(ctx, func(x *session) (err error) {
			n, err = x.exec(ctx, "DELETE FROM "+s.sql.outbox+" WHERE sink = ? ORDER BY seq LIMIT ?", int(k), slice)
			return err
		})
	}
	if err != nil {
		return dropped, fmt.Errorf("remove %s from the outbox: %w", k, explain(err))
	}
	return dropped, nil
}

// Subscribed lists the listeners.
func (s *Store) Subscribed(ctx context.Context) (all []Sink, err error) {
	err = s.query(ctx, func(r *sql.Rows) error {
		var k int
		err := r.Scan(&k)
		all = append(all, Sink(k))
		return err
	}, "SELECT sink FROM "+s.sql.sinks+" ORDER BY sink")
	if err != nil {
		return nil, fmt.Errorf("read who listens to the outbox: %w", migrateFirst(explain(err)))
	}
	return all, nil
}

// Events gives up to limit events of a listener with numbers above after, in their order. A number below one that was seen may
// still come: its transaction was slower.
func (s *Store) Events(ctx context.Context, k Sink, after int64, limit int) (all []Event, err error) {
	err = s.query(ctx, func(r *sql.Rows) error {
		var e Event
		var activity, item, quantity sql.NullInt64
		var user, extra sql.NullString
		err := r.Scan(&e.Seq, &e.ID, &e.Status, &e.Reason, &e.AtMs, &activity, &user, &item, &quantity, &extra)
		e.V, e.Gone = order.SchemaVersion, !activity.Valid
		e.Activity, e.User, e.Item, e.Quantity = activity.Int64, user.String, item.Int64, quantity.Int64
		if extra.Valid && json.Valid([]byte(extra.String)) {
			e.Extra = json.RawMessage(extra.String)
		}
		all = append(all, e)
		return err
	}, s.sql.events, int(k), after, limit)
	if err != nil {
		return nil, fmt.Errorf("read the outbox for %s: %w", k, explain(err))
	}
	return all, nil
}

// Told takes events away.
func (s *Store) Told(ctx context.Context, k Sink, seqs []int64) error {
	for part := range slices.Chunk(seqs, slice) {
		args := make([]any, 0, len(part)+1)
		args = append(args, int(k))
		for _, n := range part {
			args = append(args, n)
		}
		err := s.again(ctx, func(x *session) error {
			_, err := x.exec(ctx, "DELETE FROM "+s.sql.outbox+" WHERE sink = ? AND seq IN "+list(len(part)), args...)
			return err
		})
		if err != nil {
			return fmt.Errorf("take %d events of %s from the outbox: %w", len(part), k, explain(err))
		}
	}
	return nil
}

// backlogMost is how far Backlog counts: it is asked often, and what is far behind needs no exact figure.
const backlogMost = 100_000

// Backlog is what a listener has still to be told: how much, counted up to 100,000, and the age of the oldest by MySQL's clock.
func (s *Store) Backlog(ctx context.Context, k Sink) (events int64, oldestMs int64, err error) {
	err = s.query(ctx, func(r *sql.Rows) error {
		var oldest sql.NullInt64
		err := r.Scan(&events, &oldest)
		oldestMs = oldest.Int64
		return err
	}, s.sql.backlog, int(k), backlogMost, int(k))
	if err != nil {
		return 0, 0, fmt.Errorf("look at the backlog of %s: %w", k, explain(err))
	}
	return events, oldestMs, nil
}

// Lead is the right to tell a listener: one process at a time has it, so that nothing is told twice in vain and the order of an
// order's events holds. It ends with its connection, so a process that is killed gives it back at once.
type Lead struct {
	x    *session
	name string
}

// Lead asks for the right to tell a listener. nil: another process has it.
func (s *Store) Lead(ctx context.Context, k Sink) (*Lead, error) {
	x, err := s.session(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for the lead of %s: %w", k, explain(err))
	}
	l := &Lead{x: x}
	var got sql.NullInt64
	err = x.query(ctx, func(r *sql.Rows) error { return r.Scan(&l.name, &got) },
		"SELECT n.name, GET_LOCK(n.name, 0) FROM (SELECT CONCAT('seckill_', ?, '_', LEFT(SHA2(CONCAT(DATABASE(), '.', ?), 256), 32)) AS name) AS n", k.String(), s.cfg.Tables.Outbox)
	if err != nil {
		x.drop()
		return nil, fmt.Errorf("ask for the lead of %s: %w", k, explain(err))
	}
	if got.Int64 != 1 {
		return nil, x.close(ctx)
	}
	return l, nil
}

var errLeadLost = errors.New("another process leads now")

// Held is nil as long as this process has the lead. It must be asked more often than once in half a minute, or the server ends the
// connection for idleness, and the lead with it.
func (l *Lead) Held(ctx context.Context) error {
	var mine sql.NullBool
	err := l.x.query(ctx, func(r *sql.Rows) error { return r.Scan(&mine) }, "SELECT IS_USED_LOCK(?) = CONNECTION_ID()", l.name)
	if err == nil && !mine.Bool {
		err = errLeadLost
	}
	return err
}

// Close gives the lead back.
func (l *Lead) Close() {
	_ = l.x.c.Raw(func(any) error { return driver.ErrBadConn }) // the lock goes with its session
	_ = l.x.c.Close()
}

// tell writes down for every listener what has become of orders whose rows this transaction wrote.
func (x *session) tell(ctx context.Context, ids []string) error {
	for part := range slices.Chunk(ids, slice) {
		if _, err := x.exec(ctx, x.s.sql.tell(len(part)), anys(part)...); err != nil {
			return err
		}
	}
	return nil
}
