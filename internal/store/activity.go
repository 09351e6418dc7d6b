package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// States that MySQL knows.
var states = []ledger.State{ledger.Open, ledger.Paused, ledger.Closed}

func scanActivity(r *sql.Rows) (a ledger.Activity, err error) {
	err = r.Scan(&a.ID, &a.Item, &a.Title, &a.StartsAtMs, &a.EndsAtMs, &a.MaxPerUser, &a.State)
	return a, err
}

// Activities gives every row of the activity table, by id.
func (s *Store) Activities(ctx context.Context) (all []ledger.Activity, err error) {
	err = s.query(ctx, func(r *sql.Rows) error {
		a, err := scanActivity(r)
		all = append(all, a)
		return err
	}, s.sql.activities+" ORDER BY activity_id")
	if err != nil {
		return nil, fmt.Errorf("read activities: %w", migrateFirst(err))
	}
	return all, nil
}

// Activity gives one row, or ErrNoActivity.
func (s *Store) Activity(ctx context.Context, id int64) (ledger.Activity, error) {
	return oneActivity(ctx, s, &s.sql, id, "")
}

// ActivityNow gives one row under its lock, or ErrNoActivity. The binlog shows a transaction before a plain read sees it; the lock is had
// only once it can be seen. It waits for LockWait at most: IsContention says that somebody holds the row.
func (s *Store) ActivityNow(ctx context.Context, id int64) (ledger.Activity, error) {
	return oneActivity(ctx, s, &s.sql, id, " FOR UPDATE")
}

func oneActivity(ctx context.Context, x rowReader, t *texts, id int64, suffix string) (a ledger.Activity, err error) {
	found := false
	err = x.query(ctx, func(r *sql.Rows) error {
		found = true
		var err error
		a, err = scanActivity(r)
		return err
	}, t.activities+" WHERE activity_id = ?"+suffix, id)
	switch {
	case err != nil:
		return a, fmt.Errorf("read activity %d: %w", id, migrateFirst(err))
	case !found:
		return a, fmt.Errorf("%w: %d", ErrNoActivity, id)
	}
	return a, nil
}

// ValidActivity refuses a row that Redis cannot hold (ErrInvalid): the table takes more.
func ValidActivity(a ledger.Activity) error {
	switch {
	case a.ID <= 0:
		return fmt.Errorf("%w: activity %d: want a positive id", ErrInvalid, a.ID)
	case a.Item <= 0:
		return fmt.Errorf("%w: activity %d: item %d: want a positive id", ErrInvalid, a.ID, a.Item)
	case a.StartsAtMs <= 0 || a.EndsAtMs <= a.StartsAtMs || a.EndsAtMs > ledger.MaxNumber:
		return fmt.Errorf("%w: activity %d: starts at %d and ends at %d: want epoch milliseconds below 2^53, the end after the start", ErrInvalid, a.ID, a.StartsAtMs, a.EndsAtMs)
	case a.MaxPerUser < 1 || a.MaxPerUser > order.MaxQuantity:
		return fmt.Errorf("%w: activity %d: at most %d units in one order: want 1 to %d", ErrInvalid, a.ID, a.MaxPerUser, order.MaxQuantity)
	}
	return validState(a.ID, a.State)
}

func validState(id int64, state ledger.State) error {
	if !slices.Contains(states, state) {
		return fmt.Errorf("%w: activity %d: state %q: want one of %v", ErrInvalid, id, state, states)
	}
	return nil
}

// CreateActivity adds an activity. An empty state means open, MaxPerUser 0 means 1. With initialStock the item's inventory row is
// made where there is none; a stock that is there and differs is left alone and refused (ErrInvalid), since only the shop knows
// whether it may change. Without it the row must exist (ErrNoInventory). An item that another activity, not closed, sells at the same
// time is refused (ErrOverlap), and so is an id that is taken (ErrActivityExists).
func (s *Store) CreateActivity(ctx context.Context, a ledger.Activity, initialStock *int64) error {
	if a.State == "" {
		a.State = ledger.Open
	}
	if a.MaxPerUser == 0 {
		a.MaxPerUser = 1
	}
	if err := ValidActivity(a); err != nil {
		return err
	}
	if initialStock != nil && *initialStock < 0 {
		return fmt.Errorf("%w: activity %d: stock %d: want 0 or more", ErrInvalid, a.ID, *initialStock)
	}
	err := s.again(ctx, func(x *session) error { return x.createActivity(ctx, a, initialStock) })
	if err != nil {
		return fmt.Errorf("create activity %d: %w", a.ID, migrateFirst(err))
	}
	return nil
}

func (x *session) createActivity(ctx context.Context, a ledger.Activity, initialStock *int64) error {
	t := x.s.cfg.Tables
	_, err := x.exec(ctx, x.s.sql.newActivity+"(?, ?, ?, ?, ?, ?, ?)",
		a.ID, a.Item, a.Title, a.StartsAtMs, a.EndsAtMs, a.MaxPerUser, string(a.State))
	if number(err) == errDuplicate {
		return ErrActivityExists
	}
	if err != nil {
		return err
	}
	if err := x.overlap(ctx, a); err != nil {
		return err
	}
	stock, _, found, err := x.inventory(ctx, x.s.sql.stockForUpdate, a.Item)
	switch {
	case err != nil:
		return err
	case !found && initialStock == nil:
		return fmt.Errorf("%w: item %d in table %s: give the initial stock, or add the row first", ErrNoInventory, a.Item, t.Inventory)
	case found && initialStock != nil && stock != *initialStock:
		return fmt.Errorf("%w: item %d has a stock of %d already, not %d: leave the initial stock out, or change the stock by SQL first", ErrInvalid, a.Item, stock, *initialStock)
	case !found:
		_, err := x.exec(ctx, x.s.sql.newStock+"(?, ?, "+micros+")", a.Item, *initialStock)
		return err
	}
	return nil
}

// overlap refuses a when another activity sells its item at the same time. The read locks what it finds: of two that are made at
// once, one waits for the other or is the victim of a deadlock and tries again, and then sees it.
func (x *session) overlap(ctx context.Context, a ledger.Activity) error {
	if a.State == ledger.Closed {
		return nil
	}
	var other ledger.Activity
	err := x.query(ctx, func(r *sql.Rows) (err error) {
		other, err = scanActivity(r)
		return err
	}, x.s.sql.activities+" WHERE item_id = ? AND activity_id <> ? AND state <> 'closed' AND starts_at_ms < ? AND ends_at_ms > ? LIMIT 1 FOR UPDATE",
		a.Item, a.ID, a.EndsAtMs, a.StartsAtMs)
	if err != nil {
		return err
	}
	if other.ID != 0 {
		return fmt.Errorf("%w: item %d is sold by activity %d (%s) from %d to %d: close that one, or choose other times",
			ErrOverlap, a.Item, other.ID, other.State, other.StartsAtMs, other.EndsAtMs)
	}
	return nil
}

// SetActivityState opens, pauses or closes an activity. Opening or pausing a closed one checks for overlaps again.
func (s *Store) SetActivityState(ctx context.Context, id int64, state ledger.State) error {
	return s.setActivityState(ctx, id, state, true)
}

// ChangeActivityState does the same, but does not reopen what is closed (ErrClosed): to end a sale is more than to pause it.
func (s *Store) ChangeActivityState(ctx context.Context, id int64, state ledger.State) error {
	return s.setActivityState(ctx, id, state, false)
}

func (s *Store) setActivityState(ctx context.Context, id int64, state ledger.State, reopen bool) error {
	if err := validState(id, state); err != nil {
		return err
	}
	err := s.again(ctx, func(x *session) error {
		a, err := oneActivity(ctx, x, &s.sql, id, " FOR UPDATE")
		if err != nil {
			return err
		}
		was := a.State
		a.State = state
		if was == ledger.Closed && state != ledger.Closed {
			if !reopen {
				return ErrClosed
			}
			if err := x.overlap(ctx, a); err != nil {
				return err
			}
		}
		_, err = x.exec(ctx, "UPDATE "+s.sql.activity+" SET state = ? WHERE activity_id = ?", string(state), id)
		return err
	})
	if err != nil {
		return fmt.Errorf("set activity %d to %s: %w", id, state, migrateFirst(err))
	}
	return nil
}

// again runs a small transaction, again where it lost a race.
func (s *Store) again(ctx context.Context, do func(*session) error) error {
	once := func() error {
		x, err := s.session(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = x.close(ctx) }()
		if err := x.begin(ctx); err != nil {
			return err
		}
		if err := do(x); err != nil {
			return err
		}
		return x.commit(ctx)
	}
	for tries := 1; ; tries++ {
		err := once()
		if err == nil || !lostRace(err) || errors.Is(err, errCommitUnknown) || tries >= s.cfg.Tries {
			return err
		}
		if e := pause(ctx, tries); e != nil {
			return errors.Join(err, e)
		}
	}
}
