package landing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/store"
)

// activities remembers the item of each activity that MySQL has. What it does not have is never remembered: a flood of
// unknown ids costs one look per batch and id, and cannot fill the memory.
type activities struct {
	store Store

	mu    sync.Mutex
	items map[int64]int64
}

func newActivities(s Store) *activities { return &activities{store: s, items: make(map[int64]int64)} }

func (a *activities) known(id int64) (item int64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	item, ok = a.items[id]
	return item, ok
}

// look asks MySQL. A missing activity is (0, false, nil).
func (a *activities) look(ctx context.Context, id int64) (item int64, ok bool, err error) {
	got, err := a.store.Activity(ctx, id)
	if errors.Is(err, store.ErrNoActivity) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.items[id] = got.Item
	return got.Item, true, nil
}

// itemsOf gives the item of every activity of the messages that MySQL knows. An activity that is not there, or whose item
// differs from a message's, is looked for a few times: its row may be on its way. One that Redis has was there before, and is
// waited for as long as MissingWait says.
func (l *Lander) itemsOf(ctx context.Context, messages []message) (map[int64]int64, error) {
	items := make(map[int64]int64, 1)
	doubt := make(map[int64]bool)
	for _, m := range messages {
		item, ok := l.activities.known(m.order.Activity)
		if ok {
			items[m.order.Activity] = item
		}
		if item != m.order.Item {
			doubt[m.order.Activity] = true
		}
	}
	for try := 0; len(doubt) > 0 && try < l.cfg.UnknownTries; try++ {
		if try > 0 {
			if err := sleep(ctx, 4*l.cfg.RetryMin); err != nil {
				return nil, err
			}
		}
		for id := range doubt {
			ok, err := l.itemOf(ctx, id, items)
			if err != nil {
				return nil, err
			}
			if ok {
				delete(doubt, id)
			}
		}
	}
	for id := range items {
		delete(doubt, id) // seen earlier: it is the message that is wrong
	}
	return items, l.awaitSold(ctx, doubt, items)
}

// itemOf notes the item of an activity if MySQL has it, whether or not it agrees with the message: an item never changes once
// its activity is loaded.
func (l *Lander) itemOf(ctx context.Context, id int64, items map[int64]int64) (ok bool, err error) {
	err = l.until(ctx, stepMySQL, tryMySQL, nil, func(ctx context.Context) error {
		item, found, err := l.activities.look(ctx, id)
		if ok = found; ok {
			items[id] = item
		}
		return err
	})
	return ok, err
}

// awaitSold waits for the rows of those activities that Redis has. Redis keeps an activity at least until nothing of it is open,
// whatever becomes of its row.
func (l *Lander) awaitSold(ctx context.Context, gone map[int64]bool, items map[int64]int64) error {
	if len(gone) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(gone))
	var looks []ledger.Snapshot
	if err := l.until(ctx, stepRedis, tryRedis, nil, func(ctx context.Context) (err error) {
		looks, err = l.ledger.Inspect(ctx, ids...)
		return err
	}); err != nil {
		return err
	}
	ids = ids[:0]
	for _, look := range looks {
		if look.Exists {
			ids = append(ids, look.Activity.ID)
			l.missing.missed(row{"activity", look.Activity.ID}, l.cfg.MissingWait) // all at once, not one after the other
		}
	}
	for _, id := range ids {
		if err := l.awaitActivity(ctx, id, items); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lander) awaitActivity(ctx context.Context, id int64, items map[int64]int64) error {
	absent := wait{l: l, row: row{"activity", id}, n: l.cfg.UnknownTries}
	defer absent.end()
	for {
		ok, err := l.itemOf(ctx, id, items)
		if err != nil {
			return err
		}
		if ok {
			absent.found()
			return nil
		}
		if more, err := absent.again(ctx, fmt.Errorf("activity_id %d: %w", id, errUnknownActivity)); err != nil || !more {
			return err
		}
	}
}
