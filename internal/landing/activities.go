package landing

import (
	"context"
	"errors"
	"sync"

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
// differs from a message's, is looked for a few times: its row may be on its way.
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
			var item int64
			var ok bool
			if err := l.until(ctx, stepMySQL, tryMySQL, nil, func(ctx context.Context) (err error) {
				item, ok, err = l.activities.look(ctx, id)
				return err
			}); err != nil {
				return nil, err
			}
			if ok { // whether or not it agrees with the message: an item never changes once its activity is loaded
				items[id] = item
				delete(doubt, id)
			}
		}
	}
	return items, nil
}
