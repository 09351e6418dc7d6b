package edge

import (
	"context"
	"sync"
)

// turnsPerSale is how many look-ups of one sale's orders are under way at a time. Far below the client's pool: when ten thousand
// that waited come back in one moment they wait for their turn here, where it may take its time, and not for a connection,
// where it may not; and a shard that hangs holds up its own sales only.
const turnsPerSale = 16

// turns has look-ups wait for each other, sale by sale.
type turns struct {
	mu sync.Mutex
	m  map[int64]*saleTurns
}

type saleTurns struct {
	users int // that have a turn or wait for one
	slots chan struct{}
}

func newTurns() *turns { return &turns{m: map[int64]*saleTurns{}} }

// take waits for a turn; false: ctx ended first. Who has a turn gives it back by the function that comes with it.
func (t *turns) take(ctx context.Context, activity int64) (back func(), ok bool) {
	t.mu.Lock()
	s := t.m[activity]
	if s == nil {
		s = &saleTurns{slots: make(chan struct{}, turnsPerSale)}
		t.m[activity] = s
	}
	s.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		if s.users--; s.users == 0 {
			delete(t.m, activity)
		}
		t.mu.Unlock()
	}
	select {
	case s.slots <- struct{}{}:
		return func() {
			<-s.slots
			leave()
		}, true
	case <-ctx.Done():
		leave()
		return nil, false
	}
}
