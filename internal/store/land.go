package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/seckillgate/seckillgate/internal/crashpoint"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// Landing is what became of a batch.
type Landing struct {
	Item    int64
	Stock   int64 // with Version, a committed pair that includes every outcome below
	Version int64 // 0: the inventory row is gone, or has no number of units, and nothing was taken from it
	// Races is how many tries were lost to deadlocks and lock timeouts before this one: a smaller batch would stand in fewer ways.
	Races int
	// Outcomes has one entry per distinct order id of the batch, in the order of its first appearance.
	Outcomes []ledger.Outcome
	// Left are the ids of patient orders that did not fit: they have neither a row nor an outcome.
	Left []string
}

// Land lands orders of one item in one transaction: either every order has its row, live or FAILED, and the stock is lower
// by what the live ones took, or nothing has changed. It may be called with the same orders any number of times, by any number of
// workers at once: an order that has a row keeps it, and its outcome says what the row says. Orders of several activities
// may share a batch.
//
// An order that does not fit is recorded as FAILED, sold_out, or is left as it is where it is patient (order.Order.Patient), and
// smaller ones behind it are still admitted; one whose buyer has another
// live order in the activity is recorded as FAILED, already_ordered.
//
// Errors: *ErrRowRefused names an order that can never land; *ErrUnsold names those that cannot be decided while the item has no row
// (ErrNoInventory) or a row without a number of units (ErrNoStock). Nothing was written then.
// Every other error is transient and leaves the outcome unknown to the caller: call again with the same orders.
func (s *Store) Land(ctx context.Context, item int64, orders []*order.Order) (Landing, error) {
	b, err := newBatch(item, orders)
	if err != nil {
		return Landing{}, err
	}
	// Most batches are new and fit, so the first try asks nothing first. Whatever stands in its way is looked at in the next.
	m := manner{scarce: s.scarce(b)}
	lost := 0
	for tries, races := 1, 1; ; {
		l, err := s.landOnce(ctx, b, m)
		if lostRace(err) && !errors.Is(err, errCommitUnknown) {
			lost++
		}
		switch {
		case err == nil:
			l.Races = lost
			s.stocks.Store(item, l.Stock)
			return l, nil
		case errors.Is(err, errScarce):
			m.scarce = true
			continue
		case errors.Is(err, errTaken):
			m.look = true
			if races++; races > 20 {
				return Landing{}, fmt.Errorf("land %d orders of item %d: others were faster %d times: %w", len(b.orders), item, races-1, err)
			}
		case errors.Is(err, errCommitUnknown):
			m.look, m.wait = true, true
			tries++
		case !(m.look && m.scarce) && (errors.Is(err, ErrNoStock) || errors.Is(err, ErrNoInventory)):
			m.look, m.scarce = true, true // to tell which orders need a stock
			continue
		case errors.Is(err, ErrNoStock):
			s.stocks.Store(item, int64(0)) // look at it first from now on
			return Landing{}, err
		case !IsTransient(err):
			return Landing{}, err
		case lostRace(err), lostConnection(err), ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			m.look = true
			tries++
		default:
			return Landing{}, err
		}
		if tries > s.cfg.Tries || ctx.Err() != nil {
			return Landing{}, fmt.Errorf("land %d orders of item %d: given back after %d tries: %w", len(b.orders), item, tries-1, explain(err))
		}
		if err := pause(ctx, tries); err != nil {
			return Landing{}, fmt.Errorf("land %d orders of item %d: %w", len(b.orders), item, err)
		}
	}
}

// manner is how carefully a batch is landed.
type manner struct {
	look   bool // read existing rows and live orders first
	wait   bool // an earlier COMMIT may still be under way: let the look wait for it
	scarce bool // lock the stock first and admit by it
}

var (
	errScarce = errors.New("the batch does not fit")
	errTaken  = errors.New("an order id or a buyer's place is taken")
)

func (s *Store) scarce(b *batch) bool {
	stock, ok := s.stocks.Load(b.item)
	return ok && stock.(int64) < b.sum
}

func (s *Store) landOnce(ctx context.Context, b *batch, m manner) (l Landing, err error) {
	x, err := s.session(ctx)
	if err != nil {
		return l, err
	}
	// Any error, of whatever kind, undoes the whole transaction; a statement that failed never takes COMMIT with it (E61, E62).
	// What ROLLBACK itself says changes nothing: the error that led to it is the one to tell.
	defer func() { _ = x.close(ctx) }()
	if err := x.begin(ctx); err != nil {
		return l, err
	}
	l.Item = b.item
	stock := int64(enough)
	var unsold error // why there is nothing to sell from
	if m.scarce {
		var found bool
		stock, l.Version, found, err = x.inventory(ctx, s.sql.stockForUpdate, b.item)
		switch {
		case errors.Is(err, ErrNoStock):
			unsold = s.setStock(b.item, err)
		case err != nil:
			return l, err
		case !found:
			unsold = fmt.Errorf("%w: item %d in table %s", ErrNoInventory, b.item, s.cfg.Tables.Inventory)
		}
		l.Stock = stock
	}
	var rows map[string]ledger.Outcome
	var live map[buyer]bool
	if m.look {
		if rows, live, err = x.look(ctx, b, m.wait); err != nil {
			return l, err
		}
	}
	p := b.plan(rows, live, stock, s.cfg.SuccessStatus)
	if unsold != nil {
		if ids := p.soldOut(b); len(ids) > 0 {
			return l, &ErrUnsold{ids, unsold}
		}
	}
	crashpoint.Here("before_insert")
	if err := x.insert(ctx, b, p); err != nil {
		return l, err
	}
	if err := x.tell(ctx, p.ids(b)); err != nil { // before the stock is touched, so that its lock is not held longer for it
		return l, err
	}
	crashpoint.Here("after_insert")
	if p.sum > 0 {
		changed, err := x.exec(ctx, s.sql.take, p.sum, b.item, p.sum)
		if err != nil {
			return l, err
		}
		if changed == 0 {
			return l, errScarce
		}
		crashpoint.Here("after_update")
	}
	if !m.scarce || p.sum > 0 {
		// Where nothing is taken the stock need not be a number: the rows that are there say what became of their orders.
		l.Stock, l.Version, _, err = x.inventory(ctx, s.sql.stock, b.item)
		switch {
		case errors.Is(err, ErrNoStock) && p.sum == 0:
		case errors.Is(err, ErrNoStock): // less than a whole unit is left, say
			return l, s.setStock(b.item, err)
		case err != nil:
			return l, err
		}
	}
	l.Outcomes = p.decided()
	for _, i := range p.left {
		l.Left = append(l.Left, b.orders[i].ID)
	}
	if len(p.fresh) == 0 {
		return l, nil // only rows that were there: nothing to commit
	}
	if err := ctx.Err(); err != nil {
		return Landing{}, err
	}
	crashpoint.Here("before_commit")
	if err := x.commit(ctx); err != nil {
		return Landing{}, err
	}
	crashpoint.Here("after_commit")
	return l, nil
}

// setStock says how a stock that is no number of units is mended.
func (s *Store) setStock(item int64, why error) error {
	t := s.cfg.Tables
	return fmt.Errorf("%w (UPDATE %s SET %s = … WHERE %s = %d)", why, t.Inventory, t.Stock, t.Item, item)
}

func (x *session) inventory(ctx context.Context, text string, item int64) (stock, version int64, found bool, err error) {
	err = x.query(ctx, func(r *sql.Rows) error {
		found = true
		stock, version, err = scanStock(r)
		return err
	}, text, item)
	return stock, version, found, err
}

// scanStock reads a stock and a version. The shop's column may allow what is no count of units, NULL for one: ErrNoStock.
func scanStock(r *sql.Rows) (stock, version int64, err error) {
	var text sql.NullString
	if err := r.Scan(&text, &version); err != nil {
		return 0, 0, err
	}
	if !text.Valid {
		return 0, 0, fmt.Errorf("%w: it is NULL", ErrNoStock)
	}
	whole, fraction, _ := strings.Cut(text.String, ".")
	stock, err = strconv.ParseInt(whole, 10, 64)
	if err != nil || stock < 0 || stock > ledger.MaxNumber || strings.Trim(fraction, "0") != "" {
		return 0, 0, fmt.Errorf("%w: it is %.40q", ErrNoStock, text.String)
	}
	return stock, version, nil
}

// look reads the rows that exist, and which of the other orders' buyers hold a live order.
func (x *session) look(ctx context.Context, b *batch, wait bool) (rows map[string]ledger.Outcome, live map[buyer]bool, err error) {
	suffix := ""
	if wait { // spelt as both MySQL and MariaDB know it
		suffix = " LOCK IN SHARE MODE"
	}
	rows = make(map[string]ledger.Outcome)
	if err := ordersByID(b.ids(), func(text string, args []any) error {
		return x.query(ctx, func(r *sql.Rows) error {
			o, err := scanOutcome(r)
			rows[o.Order] = o
			return err
		}, x.s.sql.orderColumns+text+suffix, args...)
	}); err != nil {
		return nil, nil, err
	}
	users := make(map[int64][]string)
	for _, o := range b.orders {
		if _, ok := rows[o.ID]; !ok {
			users[o.Activity] = append(users[o.Activity], o.User)
		}
	}
	live = make(map[buyer]bool)
	for activity, names := range users {
		if err := liveByUsers(activity, names, func(text string, args []any) error {
			return x.query(ctx, func(r *sql.Rows) error {
				o, err := scanOutcome(r)
				live[buyer{activity, o.User}] = true
				return err
			}, x.s.sql.orderColumns+text, args...)
		}); err != nil {
			return nil, nil, err
		}
	}
	return rows, live, nil
}

// explain says what a bare "bad connection" may mean.
func explain(err error) error {
	if errors.Is(err, driver.ErrBadConn) {
		return fmt.Errorf("connection lost, or the server is read-only (a demoted primary): %w", err)
	}
	return err
}

// pause waits a little longer after each try, jittered so that rivals do not meet again.
func pause(ctx context.Context, tries int) error {
	most := min(5*time.Millisecond<<min(tries, 8), 500*time.Millisecond)
	t := time.NewTimer(most/4 + rand.N(most))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
