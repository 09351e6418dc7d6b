package edge

import (
	"sync"
	"time"
)

// open counts the orders in work: from before the reservation until it is published, refused or decided. It bounds them, and
// lets Close wait for them without the races of a WaitGroup that is added to while it is waited for.
type open struct {
	mu     sync.Mutex
	n, max int
	closed bool
	empty  chan struct{} // closed once closed and empty
}

func newOpen(most int) *open { return &open{max: most, empty: make(chan struct{})} }

func (o *open) enter() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.n >= o.max {
		return false
	}
	o.n++
	return true
}

func (o *open) leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n--
	if o.closed && o.n == 0 {
		close(o.empty)
	}
}

// close refuses newcomers and gives what is closed when the last one has left.
func (o *open) close() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		if o.n == 0 {
			close(o.empty)
		}
	}
	return o.empty
}

func (o *open) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.n
}

// doubt is what is known of an order whose reserve call got no answer.
type doubt struct {
	user     string
	quantity int64
	item     int64
}

// undecided holds the orders whose outcome is unknown, so that their buyers hear `processing` and not 404. Its size is
// bounded by open.
type undecided struct {
	mu sync.Mutex
	m  map[string]doubt
}

func newUndecided() *undecided { return &undecided{m: map[string]doubt{}} }

func (u *undecided) add(id string, d doubt) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.m[id] = d
}

func (u *undecided) drop(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.m, id)
}

func (u *undecided) get(id string) (doubt, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	d, ok := u.m[id]
	return d, ok
}

func (u *undecided) len() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.m)
}

// aging remembers when keys were first seen, in two generations: when the young one is full it becomes the old one, and the
// old one is forgotten. So memory is bounded and the newest keys are always known.
type aging[K comparable] struct {
	mu         sync.Mutex
	most       int
	young, old map[K]time.Time
}

func newAging[K comparable](most int) *aging[K] {
	return &aging[K]{most: most, young: map[K]time.Time{}, old: map[K]time.Time{}}
}

// first gives when the key was seen first, which is now if it was not.
func (a *aging[K]) first(k K, now time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t, ok := a.young[k]; ok {
		return t
	}
	if t, ok := a.old[k]; ok {
		return t
	}
	if len(a.young) >= a.most {
		a.old, a.young = a.young, make(map[K]time.Time, a.most/4)
	}
	a.young[k] = now
	return now
}

func (a *aging[K]) has(k K) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.young[k]; ok {
		return true
	}
	_, ok := a.old[k]
	return ok
}
