// Package edge is the gateway's side of the reservation protocol: it takes a buyer's request through gate, reservation and
// publication, and shows an order's fate. It knows nothing of HTTP servers: outcomes carry a status and a reason, and the
// caller writes them.
//
// What it never does: call something sold out that is unknown, publish an order whose reservation is unknown, or take back
// an order that may have been published.
package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/gate"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// Ledger is what the edge asks of the reservation ledger beside Reserve; *ledger.Ledger is one.
type Ledger interface {
	NotAfter(ctx context.Context, d time.Duration) (int64, error)
	Release(ctx context.Context, activity int64, r ledger.Reservation, maxAge time.Duration) (ledger.Released, error)
	MarkQueued(ctx context.Context, activity int64, acks []ledger.Ack) error
	Lookup(ctx context.Context, activity int64, orderID string) (ledger.View, error)
	Mine(ctx context.Context, activity int64, user string) (ledger.View, error)
	Landed(ctx context.Context) (map[int32]ledger.LandedAt, error)
	Catalogue(ctx context.Context) (*ledger.Catalogue, error)
	Inspect(ctx context.Context, activities ...int64) ([]ledger.Snapshot, error)
}

// Reserver makes reservations; *ledger.Batcher is one.
type Reserver interface {
	// Join has a reservation made, without waiting, and its member answered. Its error means that nothing will be done.
	Join(activity int64, m *ledger.Member) error
}

// Ack is where Kafka keeps a published order.
type Ack struct {
	Partition int32
	Offset    int64 // -1: not known
}

// ErrNotSent is the kind of an Enqueue error that proves that the order never was handed to Kafka. Every other error means
// that it may be there.
var ErrNotSent = errors.New("order not sent to kafka")

// Publisher puts orders on Kafka.
type Publisher interface {
	// Enqueue sends an order without waiting, and calls done once: with the acknowledgement of all in-sync replicas, or an
	// error. done does not block. What has not been sent by until is not sent at all, and no copy of the order may go out
	// later than Options.PublishTakes after the call.
	Enqueue(o *order.Order, headers map[string]string, until time.Time, done func(Ack, error))
	// HealthyFor is nil, or why orders of an activity should not be taken now. It is asked for each request.
	HealthyFor(activity int64) error
}

// Options of New; the zero value has the defaults.
type Options struct {
	// RequestBudget is how long a buyer waits for an answer at most. What is not decided by then is `processing`.
	// Default: 1 s.
	RequestBudget time.Duration
	// ReserveBudget is how much of it the reserve call and its repeats may take. It must be well below the protocol's
	// reserve deadline. Default: 80 % of RequestBudget.
	ReserveBudget time.Duration
	// PublishTakes is the longest time between a call of Enqueue and the last copy that the producer may send for it: the
	// producer's own budget. Orders are published only while that fits into the protocol's publish budget, counted from
	// before the reserve call. Default: 3 s.
	PublishTakes time.Duration
	// MaxOpen bounds the orders in work, undecided ones included; beyond it requests are refused before they reserve.
	// Default: 20,000.
	MaxOpen int
	// MaxWaiters bounds long-polls and streams; beyond it a long-poll answers at once. Default: 50,000.
	MaxWaiters int
	// Repeats bounds the requests per second that carry an Idempotency-Key and are let past a sold-out or ended sale,
	// because they may repeat an order that stands. Those whose first try this gateway took are let past in any case.
	// Default: 500.
	Repeats int
	// HealRate bounds the look-ups per second that make good for events which waiters may have missed. Default: 500.
	HealRate int
	// ReleaseGrace is how long an unknown order id counts as undecided, beyond the reserve deadline. Default: 3 s.
	ReleaseGrace time.Duration
	// Logger gets what needs a person's eye, never one line per request. Default: none.
	Logger *zap.Logger
	// ObservePublish is called after each publication. Default: none.
	ObservePublish func(activity int64, took time.Duration, err error)
}

func (o *Options) setDefaults() {
	o.RequestBudget = cmp.Or(o.RequestBudget, time.Second)
	o.ReserveBudget = cmp.Or(o.ReserveBudget, o.RequestBudget*4/5)
	o.PublishTakes = cmp.Or(o.PublishTakes, 3*time.Second)
	o.MaxOpen = cmp.Or(o.MaxOpen, 20_000)
	o.MaxWaiters = cmp.Or(o.MaxWaiters, 50_000)
	o.Repeats = cmp.Or(o.Repeats, 500)
	o.HealRate = cmp.Or(o.HealRate, 500)
	o.ReleaseGrace = cmp.Or(o.ReleaseGrace, 3*time.Second)
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.ObservePublish == nil {
		o.ObservePublish = func(int64, time.Duration, error) {}
	}
}

// Edge takes orders and shows them.
type Edge struct {
	led  Ledger
	res  Reserver
	pub  Publisher
	gate *gate.Gate
	o    Options
	log  *zap.Logger

	open      *open
	undecided *undecided
	releaser  *releaser
	marker    *marker
	repeats   *repeats
	hub       *hub
	turns     *turns
	noRedis   *complaint
	noKafka   *complaint
	landed    landed
	firstSeen *aging[string]

	budget budget

	closing chan struct{} // closed when Close begins

	mu      sync.Mutex // guards what follows
	started bool
	closed  bool
	stop    context.CancelFunc
	running sync.WaitGroup
	unhear  func()

	republished, fenced atomic.Int64
	shortBudget         sync.Once
}

// New makes an edge over its parts. Nothing runs and nothing dials before Start.
func New(l Ledger, r Reserver, p Publisher, g *gate.Gate, o Options) *Edge {
	o.setDefaults()
	e := &Edge{
		led: l, res: r, pub: p, gate: g, o: o, log: o.Logger,
		open: newOpen(o.MaxOpen), undecided: newUndecided(), repeats: newRepeats(o.Repeats), closing: make(chan struct{}),
		hub: newHub(o.MaxWaiters, o.HealRate), firstSeen: newAging[string](16_384), budget: budget{d: o.ReserveBudget},
		turns:   newTurns(),
		noRedis: newComplaint(o.Logger, "orders are refused: redis takes no reservations"),
		noKafka: newComplaint(o.Logger, "orders are refused: kafka takes no records"),
	}
	e.releaser = newReleaser(e)
	e.marker = newMarker(l)
	return e
}

// Start begins the background work; it returns at once and may be called twice. It does not start the gate. After Close it
// does nothing.
func (e *Edge) Start() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.started || e.closed {
		return
	}
	e.started = true
	ctx, cancel := context.WithCancel(context.Background())
	e.stop = cancel
	e.running.Go(func() { e.releaser.run(ctx) })
	e.running.Go(func() { e.marker.run(ctx) })
	e.unhear = e.gate.Listen(e.hub.take)
}

// Close refuses new orders, wakes every waiter, and waits until ctx ends for the orders in work to be published and the
// undecided ones to be decided. Clients may be closed after it. It may be called twice.
//
// What it gives up waiting for is not lost: a reservation stands in the ledger, and the syncer's sweep publishes it.
func (e *Edge) Close(ctx context.Context) error {
	e.mu.Lock()
	first := !e.closed
	e.closed = true
	started := e.started
	e.mu.Unlock()
	if first {
		close(e.closing)
		if started {
			e.unhear()
		}
	}
	var err error
	select {
	case <-e.open.close():
	case <-ctx.Done():
		err = fmt.Errorf("close with %d orders in work, %d of them undecided; the sweep will settle them: %w",
			e.open.len(), e.undecided.len(), context.Cause(ctx))
	}
	if started {
		e.stop()
	}
	e.running.Wait()
	if err == nil {
		e.budget.end()
	}
	return err
}

func (e *Edge) isClosing() bool {
	select {
	case <-e.closing:
		return true
	default:
		return false
	}
}

// Stats are figures for metrics and the admin page.
type Stats struct {
	Open           int // orders in work, undecided included
	Undecided      int // reservations whose outcome is not known yet
	Waiters        int
	AcksDropped    int64 // offsets that were not kept, for want of room or of Redis: their buyers see no position
	Republished    int64 // orders published again by a repeat of their request
	FencedRefusals int64 // refusals that had to be fenced before they were told
}

// Stats gives current figures.
func (e *Edge) Stats() Stats {
	return Stats{
		Open: e.open.len(), Undecided: e.undecided.len(), Waiters: e.hub.len(), AcksDropped: e.marker.dropped.Load(),
		Republished: e.republished.Load(), FencedRefusals: e.fenced.Load(),
	}
}
