// Package edge is the gateway's side of the reservation protocol: it takes a buyer's request through gate, reservation and
// publication, and shows an order's fate. It knows nothing of HTTP servers: outcomes carry a status and a reason, and the
// caller writes them.
package edge

import (
	"context"
	"encoding/json"
	"errors"
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
	Reserve(ctx context.Context, activity int64, r ledger.Reservation) (ledger.Decision, error)
}

// Ack is where Kafka keeps a published order.
type Ack struct {
	Partition int32
	Offset    int64
}

// ErrNotSent is the kind of a Publish error that proves that the order never was handed to Kafka. Every other error means
// that it may be there.
var ErrNotSent = errors.New("order not sent to kafka")

// Publisher puts orders on Kafka. Publish must not let a message go out after ctx's deadline.
type Publisher interface {
	Publish(ctx context.Context, o *order.Order, headers map[string]string) (Ack, error)
	// Healthy is nil, or why orders should not be taken now.
	Healthy() error
}

// Options of New; the zero value has the defaults.
type Options struct {
	// RequestBudget is how long a buyer waits for an answer at most. What is not decided by then is `processing`.
	// Default: 1 s.
	RequestBudget time.Duration
	// ReserveBudget is how much of it the reserve call and its repeats may take. Default: 80 % of RequestBudget.
	ReserveBudget time.Duration
	// PublishTakes is the longest time between a call of Publish and the last copy that the producer may send for it.
	// Orders are published only while that fits into the publish budget. Default: 2 s.
	PublishTakes time.Duration
	// MaxOpen bounds the orders in work, undecided ones included; beyond it requests are refused before they reserve.
	// Default: 20,000.
	MaxOpen int
	// MaxWaiters bounds long-polls and streams; beyond it a long-poll answers at once. Default: 50,000.
	MaxWaiters int
	// Logger gets what needs a person's eye, never one line per request. Default: none.
	Logger *zap.Logger
	// ObservePublish is called after each publication. Default: none.
	ObservePublish func(activity int64, took time.Duration, err error)
	// Now is the clock. Default: time.Now.
	Now func() time.Time
}

// Edge takes orders and shows them.
type Edge struct{}

// New makes an edge over its parts. Nothing runs and nothing dials before Start.
func New(l Ledger, r Reserver, p Publisher, g *gate.Gate, o Options) *Edge { panic("stub") }

// Start begins the background work; it returns at once and may be called twice. It does not start the gate.
func (e *Edge) Start() { panic("stub") }

// Close refuses new orders, wakes every waiter, and waits until ctx ends for the orders in work to be published and the
// undecided ones to be decided. Clients may be closed after it. It may be called twice.
func (e *Edge) Close(ctx context.Context) error { panic("stub") }

// Admit is the gate as it stands before authentication: it refuses from memory. A request with an Idempotency-Key may be a
// repeat of an order that stands, so it passes a sold-out or ended sale, a bounded number of times per second.
func (e *Edge) Admit(activity int64, idempotencyKey string) gate.Verdict { panic("stub") }

// Request is one buyer's wish, as the caller read it: Order validates it.
type Request struct {
	Activity       int64
	User           string
	Quantity       int64 // 0: 1
	Extra          json.RawMessage
	IdempotencyKey string            // at most 64 bytes; empty: none
	Window         time.Duration     // user window; 0: none
	Headers        map[string]string // Kafka headers, e.g. traceparent
}

// Outcome is the answer to a request. Reason is empty when the order was accepted.
type Outcome struct {
	HTTP         int
	Reason       Reason
	Activity     int64
	OrderID      string       // accepted, and AlreadyOrdered
	Status       order.Status // accepted: Queued, Processing, or what became of an earlier order
	StatusReason string       // why an earlier order failed
	Item         int64
	Quantity     int64
	StartsAtMs   int64         // NotStarted
	RetryAfter   time.Duration // TooFrequent, Unavailable
	Cause        string        // for logs and metrics, a bounded set of words: e.g. "reserve_unknown", "producer"
}

// Order takes a buyer's request to its outcome within the request budget. Once it has reserved, the caller's ctx no longer
// matters.
func (e *Edge) Order(ctx context.Context, r Request) Outcome { panic("stub") }

// Query names an order and who asks.
type Query struct {
	Activity int64
	User     string
	OrderID  string // ignored by Mine
}

// OrderView is what its buyer sees of an order.
type OrderView struct {
	OrderID  string
	Activity int64
	Item     int64
	Quantity int64
	Status   order.Status
	Reason   string
	Position int64 // orders ahead of it; -1: not known
	Final    bool  // it has landed or failed: nothing more to wait for
}

// Status shows an order to its own buyer. The reason is empty, or NotFound, NoUser, BadRequest or Unavailable.
func (e *Edge) Status(ctx context.Context, q Query) (OrderView, Reason) { panic("stub") }

// Mine shows the caller's live order, else the last one that died.
func (e *Edge) Mine(ctx context.Context, activity int64, user string) (OrderView, Reason) {
	panic("stub")
}

// Wait is Status that waits up to d for the order to be final.
func (e *Edge) Wait(ctx context.Context, q Query, d time.Duration) (OrderView, Reason) { panic("stub") }

// Watch follows an order. The first Next answers at once. Close the watch when done. The reason is Unavailable when there are too many.
func (e *Edge) Watch(q Query) (*Watch, Reason) { panic("stub") }

// Watch is one follower of an order, for one goroutine.
type Watch struct{}

// Next waits until what the buyer sees has changed, at most d. It returns the view as it is and whether it changed; a
// stream sends a heartbeat when it did not. After a final view, when ctx ends or the edge closes, done is true.
func (w *Watch) Next(ctx context.Context, d time.Duration) (v OrderView, changed, done bool, reason Reason) {
	panic("stub")
}

// Close ends the watch.
func (w *Watch) Close() { panic("stub") }

// Stats are figures for metrics and the admin page.
type Stats struct {
	Open           int // orders in work, undecided included
	Undecided      int // reservations whose outcome is not known yet
	Waiters        int
	AcksDropped    int64 // offsets not kept for want of room: their buyers see no position
	Republished    int64
	FencedRefusals int64
}

// Stats gives current figures.
func (e *Edge) Stats() Stats { panic("stub") }

// ProducerHealth is the publisher's health, for the admin page.
func (e *Edge) ProducerHealth() error { panic("stub") }
