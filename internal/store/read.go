package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// slice is how many rows or keys one statement deals with.
const slice = 1000

// ordersByID builds the WHERE clauses that find orders by id.
func ordersByID(ids []string, run func(text string, args []any) error) error {
	for part := range slices.Chunk(ids, slice) {
		if err := run(" WHERE order_id IN "+list(len(part)), anys(part)); err != nil {
			return err
		}
	}
	return nil
}

// liveByUsers builds the WHERE clauses that find live orders by buyer. One activity at a time: MariaDB does not use an index
// for lists of pairs.
func liveByUsers(activity int64, users []string, run func(text string, args []any) error) error {
	for part := range slices.Chunk(users, slice) {
		args := append([]any{activity}, anys(part)...)
		if err := run(" WHERE activity_id = ? AND user_id IN "+list(len(part))+" AND live = 1", args); err != nil {
			return err
		}
	}
	return nil
}

func anys(s []string) []any {
	a := make([]any, len(s))
	for i, v := range s {
		a[i] = v
	}
	return a
}

// Orders gives the rows of those ids that have one.
func (s *Store) Orders(ctx context.Context, ids []string) (map[string]ledger.Outcome, error) {
	found := make(map[string]ledger.Outcome, len(ids))
	err := ordersByID(ids, func(text string, args []any) error {
		return s.query(ctx, func(r *sql.Rows) error {
			o, err := scanOutcome(r)
			found[o.Order] = o
			return err
		}, s.sql.orderColumns+text, args...)
	})
	if err != nil {
		return nil, fmt.Errorf("read %d orders: %w", len(ids), err)
	}
	return found, nil
}

// LiveByUsers gives the live order of each user that has one.
func (s *Store) LiveByUsers(ctx context.Context, activity int64, users []string) (map[string]ledger.Outcome, error) {
	found := make(map[string]ledger.Outcome, len(users))
	err := liveByUsers(activity, users, func(text string, args []any) error {
		return s.query(ctx, func(r *sql.Rows) error {
			o, err := scanOutcome(r)
			found[o.User] = o
			return err
		}, s.sql.orderColumns+text, args...)
	})
	if err != nil {
		return nil, fmt.Errorf("read live orders of %d users in activity %d: %w", len(users), activity, err)
	}
	return found, nil
}

// rowReader is the pool, or one session of it.
type rowReader interface {
	query(ctx context.Context, scan func(*sql.Rows) error, text string, args ...any) error
}

// after reads a slice of an activity's orders by id. Left alone, the optimizer may prefer the primary key, which is ordered
// alike but holds all other activities too.
func after(ctx context.Context, x rowReader, t *texts, and string, activity int64, id string, limit int) (part []ledger.Outcome, err error) {
	err = x.query(ctx, func(r *sql.Rows) error {
		o, err := scanOutcome(r)
		part = append(part, o)
		return err
	}, t.orderColumns+" FORCE INDEX ("+keyActivity+") WHERE activity_id = ? AND order_id > ?"+and+" ORDER BY order_id LIMIT ?", activity, id, limit)
	if err != nil {
		return nil, fmt.Errorf("read orders of activity %d after %q: %w", activity, id, err)
	}
	return part, nil
}

// LiveOrders gives up to limit live orders of an activity with ids above afterOrderID, by id. "" starts; fewer than limit: the end.
func (s *Store) LiveOrders(ctx context.Context, activity int64, afterOrderID string, limit int) ([]ledger.Outcome, error) {
	return after(ctx, s, &s.sql, " AND live = 1", activity, afterOrderID, limit)
}

// Inventory reads an item's stock and version together.
func (s *Store) Inventory(ctx context.Context, item int64) (stock, version int64, found bool, err error) {
	err = s.query(ctx, func(r *sql.Rows) error {
		found = true
		stock, version, err = scanStock(r)
		return err
	}, s.sql.stock, item)
	if err != nil {
		return 0, 0, false, fmt.Errorf("read inventory of item %d: %w", item, err)
	}
	return stock, version, found, nil
}

// Touch moves an item's version forward and leaves its stock. It gives the pair that it wrote.
func (s *Store) Touch(ctx context.Context, item int64) (stock, version int64, err error) {
	return s.TouchPast(ctx, item, 0)
}

// TouchPast is Touch to a version above past, also where MySQL's clock is behind it, as after the promotion of a replica
// whose clock runs late.
func (s *Store) TouchPast(ctx context.Context, item, past int64) (stock, version int64, err error) {
	if past >= ledger.MaxNumber-1 {
		return 0, 0, fmt.Errorf("%w: touch item %d past version %d: want less than %d", ErrInvalid, item, past, int64(ledger.MaxNumber-1))
	}
	x, err := s.session(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("touch item %d: %w", item, err)
	}
	defer func() { _ = x.close(ctx) }()
	err = func() error {
		if err := x.begin(ctx); err != nil {
			return err
		}
		if _, err := x.exec(ctx, s.sql.touch, past, item); err != nil {
			return err
		}
		var found bool
		if stock, version, found, err = x.inventory(ctx, s.sql.stock, item); err != nil {
			return err
		}
		if !found {
			return ErrNoInventory
		}
		return x.commit(ctx)
	}()
	if err != nil {
		return 0, 0, fmt.Errorf("touch item %d: %w", item, err)
	}
	return stock, version, nil
}

// Record writes a row with a dead status for an order that was refused before it could land, where no row exists. A row that
// exists is the truth and stays as it is; Orders tells. What cannot be stored is cut to fit, since such orders are here
// because something is wrong with them; an order id that is not one is refused (ErrInvalid), and what a key, check or trigger of the
// shop's own refuses is *ErrRowRefused.
func (s *Store) Record(ctx context.Context, o order.Order, status order.Status, reason string) error {
	if !order.ValidID(o.ID) {
		return fmt.Errorf("%w: record order %.64q: want a lower-case UUID", ErrInvalid, o.ID)
	}
	if !status.In(s.cfg.Dead) {
		return fmt.Errorf("%w: record order %s as %s: want one of %v, which hold no stock", ErrInvalid, o.ID, status, s.cfg.Dead)
	}
	o.User = cut(o.User, order.MaxUserBytes)
	if order.ValidExtra(o.Extra) != nil {
		o.Extra = nil
	}
	out := ledger.Outcome{Status: status, Reason: cut(reason, maxReason)}
	err := s.again(ctx, func(x *session) error {
		if _, err := x.exec(ctx, s.sql.insert(1), rowArgs(&o, out)...); err != nil {
			return err
		}
		return x.tell(ctx, []string{o.ID})
	})
	switch {
	case err == nil, number(err) == errDuplicate && s.ownKey(err):
		return nil
	case number(err) == errDuplicate, refusesRow(err): // by a key, a check or a trigger that the shop added
		return fmt.Errorf("record order %s as %s: %w", o.ID, status, &ErrRowRefused{Err: err})
	}
	return fmt.Errorf("record order %s as %s: %w", o.ID, status, explain(err))
}

// maxReason is the width of orders.reason, in bytes at most.
const maxReason = 255

// cut makes s valid UTF-8 of at most n bytes.
func cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
