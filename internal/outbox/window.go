package outbox

import (
	"container/heap"
	"time"

	"github.com/seckillgate/seckillgate/internal/store"
)

// window holds the events that are being told: one chain for each order, of which only the first event may be under way. It is
// used by one goroutine.
type window struct {
	known  map[int64]bool // events in a chain, or told and not yet taken away
	chains map[string]*chain
	ready  []*chain // to be told now, first come first served
	later  laters   // after a pause
	told   []int64
}

// chain is what there is to tell of one order, in order.
type chain struct {
	events []store.Event
	tries  int       // of the first event
	at     time.Time // when to try it again
}

func newWindow() *window {
	return &window{known: make(map[int64]bool), chains: make(map[string]*chain)}
}

// add takes in an event, unless it is known.
func (w *window) add(e store.Event) {
	if w.known[e.Seq] {
		return
	}
	w.known[e.Seq] = true
	c := w.chains[e.ID]
	if c == nil {
		c = &chain{}
		w.chains[e.ID] = c
		w.ready = append(w.ready, c)
	}
	c.events = append(c.events, e)
}

// next gives a chain whose first event may be told now.
func (w *window) next(now time.Time) *chain {
	for len(w.later) > 0 && !w.later[0].at.After(now) {
		w.ready = append(w.ready, heap.Pop(&w.later).(*chain))
	}
	if len(w.ready) == 0 {
		return nil
	}
	c := w.ready[0]
	w.ready = w.ready[1:]
	return c
}

// done ends the first event of a chain.
func (w *window) done(c *chain) {
	e := c.events[0]
	w.told = append(w.told, e.Seq)
	c.events, c.tries = c.events[1:], 0
	if len(c.events) == 0 {
		delete(w.chains, e.ID)
		return
	}
	w.ready = append(w.ready, c)
}

// postpone puts a chain back, to be tried again at its time.
func (w *window) postpone(c *chain) { heap.Push(&w.later, c) }

// hurry makes all that waits after failures due now: the listener answers again.
func (w *window) hurry() {
	w.ready = append(w.ready, w.later...)
	w.later = nil
}

// taken forgets the events that were told, once they are out of the outbox.
func (w *window) taken() {
	for _, n := range w.told {
		delete(w.known, n)
	}
	w.told = w.told[:0]
}

// laters is a heap by time.
type laters []*chain

func (l laters) Len() int           { return len(l) }
func (l laters) Less(i, j int) bool { return l[i].at.Before(l[j].at) }
func (l laters) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }

// Push is heap.Push's.
func (l *laters) Push(x any) { *l = append(*l, x.(*chain)) }

// Pop is heap.Pop's.
func (l *laters) Pop() any {
	old := *l
	c := old[len(old)-1]
	old[len(old)-1] = nil
	*l = old[:len(old)-1]
	return c
}
