package edge

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// Bounds of the releases that are tried until they are answered.
const (
	releaseCalls      = 8 // at a time
	releaseBackoff    = 50 * time.Millisecond
	releaseBackoffMax = 2 * time.Second
)

// handOver gives an order of which nobody knows whether it is reserved to the releaser. It is never published from here; its buyer
// polls `processing` until a release has answered. As he was given the order's id, that release has the tombstone say so, whatever
// an earlier one wrote.
func (e *Edge) handOver(t *task, c Cause) Outcome {
	t.kept = true
	e.undecide(t)
	return e.accept(t, order.Processing, "", c)
}

// undecide is handOver for an order whose place in open is kept already, and whose buyer somebody else answers.
func (e *Edge) undecide(t *task) {
	e.undecided.add(t.res().Order, doubt{user: t.User, quantity: t.Quantity, item: t.item})
	e.releaser.add(&pending{activity: t.Activity, res: *t.res(), maxAge: t.publishBudget(), due: time.Now()})
}

// release takes back a task's order, again and again until that is answered or ctx ends. refused says that its buyer will hear a
// refusal, if it is released, and so its tombstone does. One lost reply must not decide what he hears: the tombstone may stand by
// then, and behind one that says `refused` his Idempotency-Key makes another order.
func (e *Edge) release(ctx context.Context, t *task, refused bool) (ledger.Released, error) {
	res := *t.res()
	res.Refused = refused
	for n := 0; ; n++ {
		released, err := e.led.Release(ctx, t.Activity, res, t.publishBudget())
		if err == nil || !wait(ctx, jitter(min(releaseBackoff<<min(n, 10), releaseBackoffMax))) {
			return released, err
		}
	}
}

// releaseGiveUp is the number of tries after which nobody is asked any more: minutes, in which every copy of the reserve call
// has passed its deadline. A reservation that was made all the same is old by then, and the sweep's to decide.
const releaseGiveUp = 300

// pending is an order to be released.
type pending struct {
	activity int64
	res      ledger.Reservation
	maxAge   time.Duration
	due      time.Time
	tries    int
}

// releaser releases undecided orders, each until it is answered. The number of orders is bounded by open, of which each
// holds a place; the calls under way are bounded too, and an order whose release fails waits its turn without holding up
// the others.
type releaser struct {
	e     *Edge
	wake  chan struct{}
	calls chan struct{}

	mu    sync.Mutex
	queue byDue
}

func newReleaser(e *Edge) *releaser {
	return &releaser{e: e, wake: make(chan struct{}, 1), calls: make(chan struct{}, releaseCalls)}
}

func (r *releaser) add(p *pending) {
	r.mu.Lock()
	heap.Push(&r.queue, p)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// next takes the first order that is due, or gives the time until one will be; negative: there is none.
func (r *releaser) next(now time.Time) (*pending, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		return nil, -1
	}
	if d := r.queue[0].due.Sub(now); d > 0 {
		return nil, d
	}
	return heap.Pop(&r.queue).(*pending), 0
}

// run works until ctx ends, and then waits for the calls under way.
func (r *releaser) run(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		p, until := r.next(time.Now())
		if p != nil {
			select {
			case r.calls <- struct{}{}:
			case <-ctx.Done():
				return
			}
			calls.Go(func() {
				defer func() { <-r.calls }()
				r.release(ctx, p)
			})
			continue
		}
		var due <-chan time.Time
		if until > 0 {
			timer.Reset(until)
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-due:
		}
	}
}

func (r *releaser) release(ctx context.Context, p *pending) {
	cctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	_, err := r.e.led.Release(cctx, p.activity, p.res, p.maxAge)
	if err == nil || p.tries == releaseGiveUp {
		// Released: it holds nothing. Kept: another request has met it, or it is so old that the sweep decides it. Either way
		// Redis now knows what its buyer will hear.
		r.e.undecided.drop(p.res.Order)
		r.e.open.leave()
		return
	}
	if p.tries++; p.tries == 10 {
		r.e.log.Warn("an order stays undecided: redis does not answer its release", zap.Int64("activity", p.activity),
			zap.String("order", p.res.Order), zap.Error(err))
	}
	p.due = time.Now().Add(jitter(min(releaseBackoff<<min(p.tries, 10), releaseBackoffMax)))
	r.add(p)
}

// byDue is a heap.
type byDue []*pending

func (q byDue) Len() int           { return len(q) }
func (q byDue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q byDue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *byDue) Push(x any)        { *q = append(*q, x.(*pending)) }
func (q *byDue) Pop() any {
	old := *q
	last := len(old) - 1
	p := old[last]
	old[last] = nil
	*q = old[:last]
	return p
}
