package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// DefaultLockBound is the longest that Force holds the inventory row: landing waits that long at most.
const DefaultLockBound = 200 * time.Millisecond

// ErrAborted: the row lock could not be had, or held for the one step it is needed for. The activity was opened again as
// by an ordinary load, where Redis answered.
var ErrAborted = errors.New("force aborted")

// Force loads an activity whatever state it is in, and opens it with the stock of a locking read, under the row lock, so
// that MySQL cannot change between the two. bound is how long the row may be locked.
func (l *Loader) Force(ctx context.Context, activity int64, bound time.Duration) (Report, error) {
	if bound <= 0 || bound > DefaultLockBound {
		bound = DefaultLockBound
	}
	return l.locked(ctx, activity, func(ctx context.Context, a ledger.Activity) (Report, error) {
		p, err := l.prepare(ctx, a, true)
		if err != nil {
			return Report{}, err
		}
		cause := p.underLock(ctx, bound)
		if cause == nil {
			return p.report, nil
		}
		if errors.Is(cause, ledger.ErrFenced) {
			return p.report, cause
		}
		l.Log.Error("force is aborted; the activity is opened as by an ordinary load", zap.Int64("activity", activity), zap.Error(cause))
		if err := p.reopen(ctx); err != nil {
			return p.report, fmt.Errorf("%w: %w; the activity stays closed until it is loaded (a running syncer does it by itself): %w",
				ErrAborted, cause, err)
		}
		return p.report, fmt.Errorf("%w: %w; the activity is open again with the values of an ordinary load", ErrAborted, cause)
	})
}

// reopen ends the load without the lock, unless the step under the lock was done after all and only its answer is missing.
func (p *prepared) reopen(ctx context.Context) error {
	looks, err := p.l.Ledger.Inspect(ctx, p.activity.ID)
	if err != nil {
		return err
	}
	if looks[0].Loaded && looks[0].Epoch == p.epoch {
		return nil
	}
	return p.finish(ctx, p.version, p.stock)
}

// underLock does the last step of a load while the row is locked. What it writes is gated by version, so a write that
// arrives after the lock is gone harms nothing.
func (p *prepared) underLock(ctx context.Context, bound time.Duration) error {
	now, err := p.l.Store.Activity(ctx, p.activity.ID)
	if err != nil {
		return err
	}
	defer p.checkState(ctx)
	locked, err := p.l.Store.LockInventory(ctx, p.activity.Item, bound)
	if err != nil {
		return fmt.Errorf("lock the inventory of item %d: %w", p.activity.Item, err)
	}
	at := time.Now()
	step, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	stop := context.AfterFunc(step, func() { _ = locked.Release() }) // even if Redis holds us longer
	err = p.open(step, locked.Version, locked.Stock, now.State)
	stop()
	released := locked.Release()
	p.report.LockMs = since(at)
	switch {
	case err != nil:
		return fmt.Errorf("redis did not answer while the inventory of item %d was locked (at most %s): %w", p.activity.Item, bound, err)
	case released != nil:
		return fmt.Errorf("the lock on the inventory of item %d did not last: %w", p.activity.Item, released)
	}
	return nil
}
