package store

import (
	"context"
	"fmt"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// viewIdle is how long a view or a locked row may stand still while its caller is busy elsewhere, in seconds.
const viewIdle = 600

// Snapshot is one consistent view of all tables. It uses one connection until Close and is not safe for concurrent use. Its
// first error is its last word: the view is gone with the connection, and a new one shows another moment.
type Snapshot struct{ x *session }

// Snapshot begins a consistent view. Everything committed before it began is in it and nothing later.
func (s *Store) Snapshot(ctx context.Context) (*Snapshot, error) {
	x, err := s.session(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin a snapshot: %w", err)
	}
	for _, text := range []string{
		fmt.Sprintf("SET SESSION wait_timeout = %d", viewIdle),
		"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", // of the next transaction only
		"START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
	} {
		if _, err := x.exec(ctx, text); err != nil {
			x.drop()
			return nil, fmt.Errorf("begin a snapshot: %s: %w", text, explain(err))
		}
	}
	return &Snapshot{x}, nil
}

// Inventory reads an item's stock and version in the view.
func (v *Snapshot) Inventory(ctx context.Context, item int64) (stock, version int64, found bool, err error) {
	stock, version, found, err = v.x.inventory(ctx, v.x.s.sql.stock, item)
	if err != nil {
		return 0, 0, false, fmt.Errorf("read inventory of item %d: %w", item, err)
	}
	return stock, version, found, nil
}

// Activity reads one activity in the view, or gives ErrNoActivity.
func (v *Snapshot) Activity(ctx context.Context, id int64) (ledger.Activity, error) {
	return oneActivity(ctx, v.x, &v.x.s.sql, id, "")
}

// Orders gives all orders of an activity, live and dead, to fn in slices of at most 1000, by id. The view may be kept waiting in fn
// for minutes; the slice is fn's to keep.
func (v *Snapshot) Orders(ctx context.Context, activity int64, fn func([]ledger.Outcome) error) error {
	for id := ""; ; {
		part, err := after(ctx, v.x, &v.x.s.sql, "", activity, id, slice)
		if err != nil {
			return err
		}
		if len(part) > 0 {
			if err := fn(part); err != nil {
				return err
			}
		}
		if len(part) < slice {
			return nil
		}
		id = part[len(part)-1].Order
	}
}

// Close ends the view. It may be called twice.
func (v *Snapshot) Close() error {
	if !v.x.gone {
		v.x.drop() // its settings differ from those of the pool's other sessions
	}
	return nil
}
