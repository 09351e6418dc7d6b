package store

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Locked is an inventory row under lock, with the values that the locking read gave.
type Locked struct {
	Stock   int64
	Version int64

	x     *session
	timer *time.Timer
	done  chan struct{}
	once  sync.Once
	err   error
}

// LockInventory locks an item's row against every writer for at most maxHold: then the lock is given back whatever its holder is
// doing, since all landing of the item waits for it. ErrNoInventory: there is no row.
func (s *Store) LockInventory(ctx context.Context, item int64, maxHold time.Duration) (*Locked, error) {
	x, err := s.session(ctx)
	if err != nil {
		return nil, fmt.Errorf("lock inventory of item %d: %w", item, err)
	}
	l := &Locked{x: x, done: make(chan struct{})}
	err = func() error {
		if err := x.begin(ctx); err != nil {
			return err
		}
		var found bool
		if l.Stock, l.Version, found, err = x.inventory(ctx, s.sql.stockForUpdate, item); err != nil {
			return err
		}
		if !found {
			return ErrNoInventory
		}
		return nil
	}()
	if err != nil {
		_ = x.close(ctx)
		return nil, fmt.Errorf("lock inventory of item %d: %w", item, explain(err))
	}
	l.timer = time.AfterFunc(maxHold, func() { l.end(ctx, fmt.Errorf("%w: held longer than %s", ErrLockLost, maxHold)) })
	return l, nil
}

// Done is closed once the lock is gone, by Release or by maxHold.
func (l *Locked) Done() <-chan struct{} { return l.done }

// Release gives the lock back. It returns ErrLockLost if the row was not locked until now, so that what was done under the
// lock must not be trusted. It may be called twice and gives the same answer.
func (l *Locked) Release() error {
	l.timer.Stop()
	l.end(context.Background(), nil)
	return l.err
}

func (l *Locked) end(ctx context.Context, why error) {
	l.once.Do(func() {
		l.err = why
		// A connection that is gone took the lock with it, at a time that nobody knows.
		if err := l.x.close(ctx); err != nil && why == nil {
			l.err = fmt.Errorf("%w: %w", ErrLockLost, err)
		}
		close(l.done)
	})
}
