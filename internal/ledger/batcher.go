package ledger

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// BatcherOptions bounds a Batcher.
type BatcherOptions struct {
	// MaxBatch is the most members of one call. Default 64.
	MaxBatch int
	// MaxQueue is how many members of one activity may wait; more are refused at once. Default 10,000.
	MaxQueue int
	// CallTimeout bounds one call; what has not answered by then is unknown. Default 1 s.
	CallTimeout time.Duration
	// Observe, if set, is told of each call.
	Observe func(activity int64, members int, took time.Duration, err error)
}

// Batcher is group commit for reservations: while one call of an activity is under way the next batch gathers, so a lone
// buyer never waits for company and a flood shares its round trips. There are no timers.
type Batcher struct {
	reserve func(ctx context.Context, activity int64, members []Reservation) ([]Decision, error)
	o       BatcherOptions

	mu     sync.Mutex
	lanes  map[int64]*lane
	closed bool
	calls  sync.WaitGroup
}

// lane is the queue of one activity. It exists while somebody waits in it or its call is under way.
type lane struct {
	waiting []*member
}

type member struct {
	r     Reservation
	state atomic.Int32
	done  chan struct{} // closed once the answer is there
	answer
}

// A member waits until either its call takes it or its caller gives up, whichever is first.
const (
	waiting int32 = iota
	taken
	abandoned
)

type answer struct {
	d   Decision
	err error
}

// NewBatcher makes a Batcher on a Ledger.
func NewBatcher(l *Ledger, o BatcherOptions) *Batcher { return newBatcher(l.Reserve, o) }

func newBatcher(reserve func(context.Context, int64, []Reservation) ([]Decision, error), o BatcherOptions) *Batcher {
	if o.MaxBatch <= 0 {
		o.MaxBatch = 64
	}
	if o.MaxQueue <= 0 {
		o.MaxQueue = 10_000
	}
	if o.CallTimeout <= 0 {
		o.CallTimeout = time.Second
	}
	return &Batcher{reserve: reserve, o: o, lanes: make(map[int64]*lane)}
}

// Reserve joins the next call of the activity and waits for its answer. When ctx ends while the member still waits for a
// call the error is ErrNotExecuted; when it ends later, ErrUnknown.
func (b *Batcher) Reserve(ctx context.Context, activity int64, r Reservation) (Decision, error) {
	m := &member{r: r, done: make(chan struct{})}
	if err := b.join(activity, m); err != nil {
		return Decision{}, err
	}
	select {
	case <-m.done:
		return m.d, m.err
	case <-ctx.Done():
		if m.state.CompareAndSwap(waiting, abandoned) {
			return Decision{}, fmt.Errorf("%w: activity %d: %w", ErrNotExecuted, activity, context.Cause(ctx))
		}
		select {
		case <-m.done: // it had just been answered
			return m.d, m.err
		default:
			return Decision{}, fmt.Errorf("%w: activity %d: %w", ErrUnknown, activity, context.Cause(ctx))
		}
	}
}

func (b *Batcher) join(activity int64, m *member) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return fmt.Errorf("%w: activity %d: closed", ErrNotExecuted, activity)
	}
	q := b.lanes[activity]
	if q == nil {
		q = &lane{}
		b.lanes[activity] = q
		b.calls.Add(1)
		defer func() { go b.run(activity, q) }()
	}
	if len(q.waiting) >= b.o.MaxQueue {
		return fmt.Errorf("%w: activity %d: %d reservations are waiting already", ErrNotExecuted, activity, len(q.waiting))
	}
	q.waiting = append(q.waiting, m)
	return nil
}

// run makes one call after the other until nobody waits.
func (b *Batcher) run(activity int64, q *lane) {
	defer b.calls.Done()
	batch := make([]*member, 0, b.o.MaxBatch)
	for {
		// Whoever is about to join gets the chance to, since one call is cheaper than two. A lone buyer does not wait: with
		// nobody else ready to run this returns at once.
		runtime.Gosched()
		batch = b.next(activity, q, batch[:0])
		if batch == nil {
			return
		}
		if len(batch) > 0 {
			b.call(activity, batch)
		}
	}
}

// next takes the members of the next call. nil: nobody waits and the lane is gone; empty: all of them gave up.
func (b *Batcher) next(activity int64, q *lane, batch []*member) []*member {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(q.waiting) == 0 {
		delete(b.lanes, activity)
		return nil
	}
	n := 0
	for _, m := range q.waiting {
		if len(batch) == b.o.MaxBatch {
			break
		}
		n++
		if m.state.CompareAndSwap(waiting, taken) {
			batch = append(batch, m)
		}
	}
	rest := copy(q.waiting, q.waiting[n:])
	clear(q.waiting[rest:])
	q.waiting = q.waiting[:rest]
	return batch
}

func (b *Batcher) call(activity int64, batch []*member) {
	members := make([]Reservation, len(batch))
	for i, m := range batch {
		members[i] = m.r
	}
	// Not the context of any member: one that hangs up must not take the others' answers along.
	ctx, cancel := context.WithTimeout(context.Background(), b.o.CallTimeout)
	defer cancel()
	began := time.Now()
	decisions, err := b.reserve(ctx, activity, members)
	if b.o.Observe != nil {
		b.o.Observe(activity, len(batch), time.Since(began), err)
	}
	for i, m := range batch {
		if err != nil {
			m.err = err
		} else {
			m.d = decisions[i]
		}
		close(m.done)
	}
}

// Close refuses new members and waits until everybody who waits has been answered.
func (b *Batcher) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.calls.Wait()
}
