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
	waiting []*Member
}

// Member is a reservation that waits for its part of a call. One is good for one Join.
type Member struct {
	Reservation
	// Answered is called when the answer is there: once, by the goroutine that answers the whole batch, so it must not block.
	// After Leave has succeeded it is not called.
	Answered func()

	state atomic.Int32
	d     Decision
	err   error
}

// A member waits until a call takes it and then until that is answered, or until its caller leaves, whichever is first.
const (
	waiting int32 = iota
	taken
	answered
	left
)

// Answer is what the call said, for Answered and once Leave was refused. The error is ErrNotExecuted or ErrUnknown.
func (m *Member) Answer() (Decision, error) { return m.d, m.err }

// Leave gives up waiting. Its error says what is known of the reservation then: ErrNotExecuted while no call has taken it, else
// ErrUnknown. Where it is nil it was too late: the answer is there, and Answered is called or has been.
func (m *Member) Leave() error {
	switch {
	case m.state.CompareAndSwap(waiting, left):
		return fmt.Errorf("%w: gave up waiting for a call", ErrNotExecuted)
	case m.state.CompareAndSwap(taken, left):
		return fmt.Errorf("%w: gave up waiting for the answer of a call", ErrUnknown)
	}
	return nil
}

// Take is for who serves the member: it is false when the member has left.
func (m *Member) Take() bool { return m.state.CompareAndSwap(waiting, taken) }

// Settle is for who serves the member, after Take: it gives the answer, unless the member has left.
func (m *Member) Settle(d Decision, err error) {
	m.d, m.err = d, err
	if m.state.CompareAndSwap(taken, answered) {
		m.Answered()
	}
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

// Join has a reservation take part in the next call of its activity. When its error, which is ErrNotExecuted, is not nil, the
// member never waits. Else its answer comes, within twice CallTimeout and what the calls before it take.
func (b *Batcher) Join(activity int64, m *Member) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return fmt.Errorf("%w: activity %d: closed", ErrNotExecuted, activity)
	}
	q := b.lanes[activity]
	if q == nil {
		q = &lane{}
		b.lanes[activity] = q
		b.serve(activity, q)
	}
	if len(q.waiting) >= b.o.MaxQueue {
		return fmt.Errorf("%w: activity %d: %d reservations are waiting already", ErrNotExecuted, activity, len(q.waiting))
	}
	q.waiting = append(q.waiting, m)
	return nil
}

// serve has the next call of a lane made.
func (b *Batcher) serve(activity int64, q *lane) {
	b.calls.Add(1)
	go func() {
		defer b.calls.Done()
		b.run(activity, q)
	}()
}

// run makes a call and answers its members while the next one is under way already.
func (b *Batcher) run(activity int64, q *lane) {
	for {
		// Whoever is about to join gets the chance to, since one call is cheaper than two. A lone buyer does not wait: with
		// nobody else ready to run this returns at once.
		runtime.Gosched()
		batch, more := b.next(activity, q)
		if !more {
			return
		}
		if len(batch) == 0 {
			continue
		}
		decisions, err := b.call(activity, batch)
		b.serve(activity, q)
		for i, m := range batch {
			if err != nil {
				m.Settle(Decision{}, err)
			} else {
				m.Settle(decisions[i], nil)
			}
		}
		return
	}
}

// next takes the members of the next call. false: nobody waits and the lane is gone; none of them: all gave up.
func (b *Batcher) next(activity int64, q *lane) (batch []*Member, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(q.waiting) == 0 {
		delete(b.lanes, activity)
		return nil, false
	}
	batch = make([]*Member, 0, min(len(q.waiting), b.o.MaxBatch))
	n := 0
	for _, m := range q.waiting {
		if len(batch) == b.o.MaxBatch {
			break
		}
		n++
		if m.Take() {
			batch = append(batch, m)
		}
	}
	rest := copy(q.waiting, q.waiting[n:])
	clear(q.waiting[rest:])
	q.waiting = q.waiting[:rest]
	return batch, true
}

func (b *Batcher) call(activity int64, batch []*Member) ([]Decision, error) {
	members := make([]Reservation, len(batch))
	for i, m := range batch {
		members[i] = m.Reservation
	}
	// Not the context of any member: one that hangs up must not take the others' answers along.
	ctx, cancel := context.WithTimeout(context.Background(), b.o.CallTimeout)
	defer cancel()
	began := time.Now()
	decisions, err := b.reserve(ctx, activity, members)
	if b.o.Observe != nil {
		b.o.Observe(activity, len(batch), time.Since(began), err)
	}
	return decisions, err
}

// Close refuses new members and waits until everybody who waits has been answered.
func (b *Batcher) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.calls.Wait()
}
