package edge

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/ratelimit"
)

const (
	healEvery     = 3 * time.Second // and up to twice that: a waiter looks again in case it missed an event
	positionEvery = 2 * time.Second // a stream tells a new position no more often
)

// hub wakes those who wait for an order when an event says that it was decided. All of them live on the gate's one
// subscription.
type hub struct {
	heal ratelimit.Limiter

	mu   sync.Mutex
	most int
	n    int
	m    map[string][]*Watch
}

func newHub(most, healRate int) *hub {
	heal, err := ratelimit.New(ratelimit.Options{
		Rate: ratelimit.Rate{Limit: int64(max(healRate, 1)), Per: time.Second}, Burst: int64(max(healRate/10, 1)), MaxKeys: 1,
	})
	if err != nil {
		panic(err) // a rate of 1 to 2^31 per second is always valid
	}
	return &hub{heal: heal, most: most, m: map[string][]*Watch{}}
}

func (h *hub) join(w *Watch) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n >= h.most {
		return false
	}
	h.n++
	h.m[w.q.OrderID] = append(h.m[w.q.OrderID], w)
	return true
}

func (h *hub) leave(w *Watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.m[w.q.OrderID]
	for i, x := range list {
		if x == w {
			h.n--
			list[i] = list[len(list)-1]
			list[len(list)-1] = nil
			if list = list[:len(list)-1]; len(list) == 0 {
				delete(h.m, w.q.OrderID)
			} else {
				h.m[w.q.OrderID] = list
			}
			return
		}
	}
}

func (h *hub) take(ev ledger.Event) {
	if len(ev.Outcomes) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n == 0 {
		return
	}
	for _, o := range ev.Outcomes {
		for _, w := range h.m[o.Order] {
			select {
			case w.wake <- struct{}{}:
			default:
			}
		}
	}
}

func (h *hub) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

// Watch is one follower of an order, for one goroutine.
type Watch struct {
	e    *Edge
	q    Query
	wake chan struct{}

	last    OrderView
	looked  bool
	healAt  time.Time
	closed  bool
	shownAt time.Time
}

// Watch follows an order. The first Next answers at once. Close the watch when done. The reason is Unavailable when there are
// too many followers, or one of Status's.
func (e *Edge) Watch(q Query) (*Watch, Reason) {
	if r := validQuery(q.User); r != Accepted {
		return nil, r
	}
	if q.Activity <= 0 || !order.ValidID(q.OrderID) {
		return nil, NotFound
	}
	w := &Watch{e: e, q: q, wake: make(chan struct{}, 1)}
	// Before the first look: an event between the two must not be missed.
	if !e.hub.join(w) {
		return nil, Unavailable
	}
	return w, Accepted
}

// Close ends the watch. It may be called twice.
func (w *Watch) Close() {
	if !w.closed {
		w.closed = true
		w.e.hub.leave(w)
	}
}

// Next waits until what the buyer sees has changed, at most d. It returns the view as it is and whether it changed; a stream
// sends a heartbeat when it did not. After a final view, when ctx ends or the edge closes, done is true: nothing more will
// come. A reason other than Accepted comes from the first look only; later ones wait for Redis to be back.
func (w *Watch) Next(ctx context.Context, d time.Duration) (v OrderView, changed, done bool, reason Reason) {
	if !w.looked {
		if v, reason = w.firstLook(ctx, min(max(d, lookupTimeout), crowdTimeout)); reason != Accepted {
			return v, false, true, reason
		}
		w.looked = true
		w.show(v)
		return v, true, v.Final, Accepted
	}
	if w.last.Final {
		return w.last, false, true, Accepted
	}
	end := time.NewTimer(d)
	defer end.Stop()
	heal := time.NewTimer(time.Until(w.healAt))
	defer heal.Stop()
	tick := time.NewTimer(time.Until(w.shownAt.Add(positionEvery + rand.N(positionEvery/4))))
	defer tick.Stop()
	for {
		select {
		case <-w.wake:
			if w.look(ctx) {
				return w.last, true, w.last.Final, Accepted
			}
		case <-heal.C:
			if !w.e.hub.heal.Allow(ctx, "").OK {
				w.healAt = healTime()
			} else if w.look(ctx) {
				return w.last, true, w.last.Final, Accepted
			}
			heal.Reset(time.Until(w.healAt))
		case <-tick.C:
			v := w.last
			if v.Position = w.e.position(ctx, &v); v.Position >= 0 && v != w.last {
				w.last, w.shownAt = v, time.Now()
				return v, true, false, Accepted
			}
			tick.Reset(positionEvery)
		case <-end.C:
			return w.last, false, false, Accepted
		case <-ctx.Done():
			return w.last, false, true, Accepted
		case <-w.e.closing:
			return w.last, false, true, Accepted
		}
	}
}

// firstLook tries for a while: a browser does not come back to a stream that was refused, and when all streams are opened in one
// moment, as after a reload, there may be more of them than Redis has connections.
func (w *Watch) firstLook(ctx context.Context, patience time.Duration) (v OrderView, reason Reason) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		v, reason = w.e.status(ctx, w.q, patience)
		if reason != Unavailable || w.e.isClosing() || !wait(ctx, jitter(crowdBackoff)) {
			return v, reason
		}
	}
}

// look asks Redis again and says whether the view has changed. An order that is not found any more may be one that Redis
// forgot, so its follower keeps waiting for what becomes of it.
func (w *Watch) look(ctx context.Context) bool {
	w.healAt = healTime()
	v, reason := w.e.status(ctx, w.q, crowdTimeout)
	if reason != Accepted || v == w.last {
		return false
	}
	w.show(v)
	return true
}

func (w *Watch) show(v OrderView) {
	w.last, w.shownAt, w.healAt = v, time.Now(), healTime()
}

func healTime() time.Time { return time.Now().Add(healEvery + rand.N(healEvery)) }
