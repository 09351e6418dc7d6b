package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seckillgate/seckillgate/internal/order"
)

// Unpaid is an order that its buyer has not paid in time. It is also a place in the walk over all of them.
type Unpaid struct {
	Order   string
	Item    int64
	SinceMs int64 // when it got the success status, by MySQL's clock
}

// Expired is what became of unpaid orders.
type Expired struct {
	Orders  int   // EXPIRED now
	Units   int64 // given back to the stock
	Skipped int   // paid or cancelled in between, or locked by somebody who is doing so
}

// Unpaid lists up to limit orders that have been in the success status for longer than window, the oldest first, beginning behind
// the place `after`; its zero value is the beginning. It takes no lock, so what it says is a proposal for Expire. Time is counted
// from orders.updated_at_ms by MySQL's clock: from the landing, so that a backlog in Kafka is not at the buyers' cost.
func (s *Store) Unpaid(ctx context.Context, window time.Duration, after Unpaid, limit int) ([]Unpaid, error) {
	var all []Unpaid
	err := s.query(ctx, func(r *sql.Rows) error {
		var u Unpaid
		err := r.Scan(&u.Order, &u.Item, &u.SinceMs)
		all = append(all, u)
		return err
	}, s.sql.unpaid, string(s.cfg.SuccessStatus), after.SinceMs, window.Milliseconds(), after.SinceMs, after.Order, limit)
	if err != nil {
		return nil, fmt.Errorf("read unpaid orders: %w", explain(err))
	}
	return all, nil
}

// Expire gives unpaid orders of one item the status EXPIRED and their stock back, in one transaction: both, or neither. Orders that
// are no longer due are left alone, and so are those that somebody else has under lock: a payment that is being noted wins, one
// that comes later finds EXPIRED. Any number of workers may expire the same orders at once. An error means that nothing is certain;
// the next call finds out what is left. The end of ctx is heeded between tries and before COMMIT.
func (s *Store) Expire(ctx context.Context, window time.Duration, item int64, orders []string) (Expired, error) {
	if len(orders) == 0 {
		return Expired{}, nil
	}
	var e Expired
	// A statement that has begun is let end, within lock_wait and statement_timeout: breaking it off takes a KILL, and a session that
	// is killed while MariaDB reads a trigger can leave it unreadable to others (error 1064) until FLUSH TABLES.
	err := s.again(context.WithoutCancel(ctx), func(x *session) (err error) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if e, err = x.expire(context.WithoutCancel(ctx), window, item, orders); err != nil {
			return err
		}
		return ctx.Err()
	})
	if err != nil {
		return Expired{}, fmt.Errorf("expire %d unpaid orders of item %d: %w", len(orders), item, explain(err))
	}
	return e, nil
}

func (x *session) expire(ctx context.Context, window time.Duration, item int64, orders []string) (e Expired, err error) {
	s := x.s
	var due []string
	for part := range slices.Chunk(orders, slice) {
		args := append(anys(part), string(s.cfg.SuccessStatus), window.Milliseconds(), item)
		if err := x.query(ctx, func(r *sql.Rows) error {
			var id string
			var quantity int64
			err := r.Scan(&id, &quantity)
			due = append(due, id)
			e.Units += quantity
			return err
		}, s.sql.dueForUpdate(len(part)), args...); err != nil {
			return Expired{}, err
		}
	}
	e.Orders, e.Skipped = len(due), len(orders)-len(due)
	if len(due) == 0 {
		return e, nil
	}
	// Under the row's lock the stock shows whether it came back, and once: triggers may have been dropped, or be there unexpectedly.
	before, _, found, err := x.inventory(ctx, s.sql.stockForUpdate, item)
	if err != nil {
		return Expired{}, err
	}
	var changed int64
	for part := range slices.Chunk(due, slice) {
		args := append([]any{string(order.Expired), order.ReasonUnpaid}, anys(part)...)
		n, err := x.exec(ctx, s.sql.expire(len(part)), append(args, string(s.cfg.SuccessStatus))...)
		if err != nil {
			return Expired{}, err
		}
		changed += n
	}
	if changed != int64(len(due)) {
		return Expired{}, fmt.Errorf("%d of %d locked orders changed", changed, len(due))
	}
	if s.cfg.NoTriggers {
		if err := x.tell(ctx, due); err != nil {
			return Expired{}, err
		}
	}
	if !found {
		return e, nil // the shop has taken the item out: there is no stock to give back to
	}
	if s.cfg.NoTriggers {
		if _, err := x.exec(ctx, s.sql.giveBack, e.Units, item); err != nil {
			return Expired{}, err
		}
	}
	after, _, _, err := x.inventory(ctx, s.sql.stock, item)
	if err != nil {
		return Expired{}, err
	}
	if after-before != e.Units {
		return Expired{}, fmt.Errorf("%w: %d units of item %d went back in place of %d (mysql.no_triggers is %v): run seckill-worker config check",
			ErrStockNotReturned, after-before, item, e.Units, s.cfg.NoTriggers)
	}
	return e, nil
}

// CheckUnpaid looks at what expiring unpaid orders needs beyond landing. Its names: privilege_unpaid, unpaid.
func (s *Store) CheckUnpaid(ctx context.Context) ([]Finding, error) {
	var all findings
	orders, success := s.cfg.Tables.Orders, string(s.cfg.SuccessStatus)
	for _, q := range []struct {
		text string
		args []any
	}{ // the server wants the same privileges for explaining a statement as for running it
		{s.sql.unpaid, []any{success, 0, 0, 0, "", 1}},
		{s.sql.dueForUpdate(1), []any{"", success, 0, 0}},
		{s.sql.expire(1), []any{string(order.Expired), order.ReasonUnpaid, "", success}},
	} {
		err := s.query(ctx, func(*sql.Rows) error { return nil }, "EXPLAIN "+q.text, q.args...)
		switch n := number(err); {
		case err == nil:
			continue
		case n == errTableDenied || n == errColumnDenied:
			grants, _ := s.missing(ctx, &all, []need{{orders, s.rightsToExpire()}})
			if len(grants) == 0 { // of some column alone
				grants = []string{s.grants(ctx, "SELECT, UPDATE", orders)}
			}
			all.add(Unsafe, "privilege_unpaid", "unpaid orders are to expire and this user may not do that: %s", strings.Join(grants, "; "))
		case n == errSyntax:
			all.add(Unsafe, "unpaid", "unpaid orders are to expire and this server does not know SKIP LOCKED: it takes MySQL 8.0 or MariaDB 10.6")
		case n == errNoIndex:
			all.add(Unsafe, "unpaid", "unpaid orders are to expire and table %s has lost its index %s (status, updated_at_ms): create it again", orders, keyUpdated)
		case n == errNoTable: // the finding "schema" tells
		default:
			return nil, fmt.Errorf("check the expiry of unpaid orders: %w", explain(err))
		}
		break
	}
	return all, nil
}
