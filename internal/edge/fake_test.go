package edge

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/internal/gate"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	saleID = int64(42)
	itemID = int64(7)
	buyer  = "u1"
)

var errLost = errors.New("i/o timeout")

// reply is what a fake answers to one call, and after how long.
type reply struct {
	d    ledger.Decision
	rel  ledger.Released
	ack  Ack
	err  error
	late time.Duration
}

// world is Redis and Kafka with exact faults: each kind of call is answered from its script, the last reply again and
// again. Everything that was called is kept.
type world struct {
	mu sync.Mutex

	reserves, releases, publishes []reply
	unhealthy                     map[int64]error // by activity
	views                         map[string]ledger.View
	mine                          ledger.View
	landed                        map[int32]ledger.LandedAt
	down                          error // of every other call
	snap                          ledger.Snapshot
	inspected                     func() // between two looks
	catalogue                     *ledger.Catalogue
	catalogueErr                  error

	reserved  []ledger.Reservation
	released  []ledger.Reservation
	published []order.Order
	until     []time.Time // deadlines of publications
	marked    []ledger.Ack
	lookups   int
	landeds   int
	events    chan ledger.Event
}

func newWorld() *world {
	now := time.Now().UnixMilli()
	a := ledger.Activity{ID: saleID, Item: itemID, StartsAtMs: now - 60_000, EndsAtMs: now + 3_600_000, MaxPerUser: 3, State: ledger.Open}
	return &world{
		reserves: []reply{{d: ledger.Decision{Code: ledger.Reserved, Available: 5}}},
		releases: []reply{{rel: ledger.ReleasedNow}}, publishes: []reply{{ack: Ack{Partition: 2, Offset: 100}}},
		views: map[string]ledger.View{}, landed: map[int32]ledger.LandedAt{2: {Offset: 90}},
		catalogue: &ledger.Catalogue{Activities: map[int64]ledger.Activity{saleID: a}},
		snap:      ledger.Snapshot{Activity: a, Exists: true, Loaded: true, SameServer: true, State: ledger.Open, Available: 5},
		events:    make(chan ledger.Event),
	}
}

func at(script []reply, n int) reply { return script[min(n, len(script))-1] }

func pass(ctx context.Context, r reply) error {
	if r.late > 0 && !wait(ctx, r.late) {
		if r.err != nil {
			return r.err
		}
		return errors.Join(ledger.ErrUnknown, context.Cause(ctx))
	}
	return r.err
}

// Join implements Reserver. A call that is not answered in time is broken off as the request's budget ends.
func (w *world) Join(_ int64, m *ledger.Member) error {
	go func() {
		if m.Take() {
			m.Settle(w.reserve(context.Background(), m.Reservation))
		}
	}()
	return nil
}

func (w *world) reserve(ctx context.Context, r ledger.Reservation) (ledger.Decision, error) {
	w.mu.Lock()
	w.reserved = append(w.reserved, r)
	a := at(w.reserves, len(w.reserved))
	w.mu.Unlock()
	if err := pass(ctx, a); err != nil {
		return ledger.Decision{}, err
	}
	d := a.d
	d.Order, d.Item = r.Order, itemID
	if d.NowMs == 0 {
		d.NowMs = time.Now().UnixMilli()
	}
	if d.Code == ledger.Reserved {
		d.ReservedAtMs = d.NowMs
	}
	if d.Code == ledger.Again {
		d.ReservedAtMs += d.NowMs
	}
	if d.LiveOrder == "own" {
		d.LiveOrder = r.Order
	}
	return d, nil
}

func (w *world) Release(ctx context.Context, _ int64, r ledger.Reservation, _ time.Duration) (ledger.Released, error) {
	w.mu.Lock()
	w.released = append(w.released, r)
	a := at(w.releases, len(w.released))
	w.mu.Unlock()
	return a.rel, pass(ctx, a)
}

func (w *world) Publish(ctx context.Context, o *order.Order, _ map[string]string) (Ack, error) {
	w.mu.Lock()
	w.published = append(w.published, *o)
	until, _ := ctx.Deadline()
	w.until = append(w.until, until)
	a := at(w.publishes, len(w.published))
	w.mu.Unlock()
	return a.ack, pass(ctx, a)
}

// Enqueue implements Publisher.
func (w *world) Enqueue(o *order.Order, headers map[string]string, until time.Time, done func(Ack, error)) {
	go func() {
		ctx, cancel := context.WithDeadline(context.Background(), until)
		defer cancel()
		done(w.Publish(ctx, o, headers))
	}()
}

func (w *world) HealthyFor(activity int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unhealthy[activity]
}

func (w *world) NotAfter(_ context.Context, d time.Duration) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(d).UnixMilli(), w.down
}

func (w *world) MarkQueued(_ context.Context, _ int64, acks []ledger.Ack) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marked = append(w.marked, acks...)
	return w.down
}

func (w *world) Lookup(ctx context.Context, _ int64, id string) (ledger.View, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lookups++
	if err := ctx.Err(); err != nil {
		return ledger.View{}, err
	}
	if v, ok := w.views[id]; ok {
		v.Order = id
		return v, w.down
	}
	if v, ok := w.views["any"]; ok {
		v.Order = id
		return v, w.down
	}
	return ledger.View{Order: id, Partition: -1}, w.down
}

func (w *world) Mine(context.Context, int64, string) (ledger.View, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mine, w.down
}

func (w *world) Landed(context.Context) (map[int32]ledger.LandedAt, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.landeds++
	return w.landed, w.down
}

func (w *world) Catalogue(context.Context) (*ledger.Catalogue, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.catalogue, errors.Join(w.catalogueErr, w.down)
}

func (w *world) Inspect(_ context.Context, ids ...int64) ([]ledger.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]ledger.Snapshot, len(ids))
	for i, id := range ids {
		if id == saleID {
			out[i] = w.snap
		}
		out[i].NowMs = time.Now().UnixMilli()
	}
	if w.inspected != nil {
		w.inspected()
	}
	return out, w.down
}

func (w *world) Subscribe(ctx context.Context) <-chan ledger.Event {
	out := make(chan ledger.Event)
	go func() {
		defer close(out)
		for {
			select {
			case ev := <-w.events:
				out <- ev
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// bubble runs a test in fake time over a world, with gate and edge running, and ends them.
func bubble(t *testing.T, o Options, change func(*world), test func(t *testing.T, w *world, e *Edge)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		if change != nil {
			change(w)
		}
		g := gate.New(w, gate.Options{})
		g.Start()
		e := New(w, w, w, g, o)
		e.Start()
		e.Start()
		<-g.Ready()
		advance(100 * time.Millisecond) // the first look at the sale
		synctest.Wait()
		test(t, w, e)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := e.Close(ctx); err != nil {
			t.Errorf("close again: %v", err)
		}
		g.Stop()
		if s := e.Stats(); s.Open != 0 || s.Undecided != 0 || s.Waiters != 0 {
			t.Errorf("left behind: %+v", s)
		}
	})
}

func wish() Request { return Request{Activity: saleID, User: buyer, Quantity: 1} }

func gateOf(w *world) *gate.Gate { return gate.New(w, gate.Options{}) }

// advance lets fake time pass, for all goroutines of the bubble.
func advance(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // in a bubble this is the clock's hand, and takes no time
}
