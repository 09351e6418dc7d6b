package outbox

import (
	"container/heap"
	"time"

	"github.com/seckillgate/seckillgate/internal/store"
)

// window holds the events that are being told: one chain for each order, of which only the first event may be under way. It is
// used by one goroutine.
type window struct {
	known  map[int64]bool // events in a chain, or told and not yet taken away; false: somebody else has taken it out of the outbox
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
	round  int64     // how often others had been told when it failed last
	own    bool      // it failed twice while others were told in between: this is not for want of the listener
}

func newWindow() *window {
	return &window{known: make(map[int64]bool), chains: make(map[string]*chain)}
}

// add takes in an event, unless it is known.
func (w *window) add(e store.Event) {
	if _, ok := w.known[e.Seq]; ok {
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
	for len(w.ready) > 0 {
		c := w.ready[0]
		w.ready = w.ready[1:]
		id := c.events[0].ID
		for len(c.events) > 0 && !w.known[c.events[0].Seq] {
			delete(w.known, c.events[0].Seq)
			c.events, c.tries, c.own = c.events[1:], 0, false
		}
		if len(c.events) > 0 {
			return c
		}
		delete(w.chains, id)
	}
	return nil
}

// missing forgets what is known with numbers above from and up to upto, and is not in the outbox any more: it was given up, or its
// listener is not to be told. What is under way ends by itself.
func (w *window) missing(from, upto int64, there map[int64]bool) {
	found := false
	for n, still := range w.known {
		if still && n > from && n <= upto && !there[n] {
			w.known[n], found = false, true
		}
	}
	if !found {
		return
	}
	for _, c := range w.later {
		if !w.known[c.events[0].Seq] {
			c.at = time.Time{}
		}
	}
	heap.Init(&w.later)
}

// done ends the first event of a chain.
func (w *window) done(c *chain) {
	e := c.events[0]
	w.told = append(w.told, e.Seq)
	c.events, c.tries, c.own = c.events[1:], 0, false
	if len(c.events) == 0 {
		delete(w.chains, e.ID)
		return
	}
	w.ready = append(w.ready, c)
}

// postpone puts a chain back, to be tried again at its time.
func (w *window) postpone(c *chain) { heap.Push(&w.later, c) }

// hurry makes what waits because the listener was down due now: it answers again. What fails while others are told keeps its pause.
func (w *window) hurry() {
	var rest laters
	for _, c := range w.later {
		if c.own {
			rest = append(rest, c)
		} else {
			w.ready = append(w.ready, c)
		}
	}
	w.later = rest
	heap.Init(&w.later)
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
