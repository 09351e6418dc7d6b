package edge

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seckillgate/seckillgate/internal/gate"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

const (
	lookupTimeout = time.Second
	// crowdTimeout is how long one who is going to wait anyway may wait for a look.
	crowdTimeout  = 10 * time.Second
	crowdBackoff  = 200 * time.Millisecond
	landedFor     = time.Second // how old the landed offsets may be that a position is told from
	landedTimeout = 300 * time.Millisecond
	// clockSkew is how far another gateway's clock, whose time an order id carries, may be ahead of this one's.
	clockSkew = 3 * time.Second
	// retired is how long after its end a sale's keys may be missing because Redis lost them; later, because they were
	// removed.
	retired = time.Hour
)

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
	Quantity int64 // 0: not known yet
	Status   order.Status
	Reason   string
	Position int64 // orders ahead of it; -1: not known
	Final    bool  // it has landed or failed: nothing more to wait for

	partition int32
	offset    int64
}

// Status shows an order to its own buyer. The reason is empty, or NotFound, NoUser, BadRequest or Unavailable.
func (e *Edge) Status(ctx context.Context, q Query) (OrderView, Reason) {
	if r := validQuery(q.User); r != Accepted {
		return OrderView{}, r
	}
	if q.Activity <= 0 || !order.ValidID(q.OrderID) {
		return OrderView{}, NotFound
	}
	return e.status(ctx, q, lookupTimeout)
}

// status is Status with a bound on the wait for a turn.
func (e *Edge) status(ctx context.Context, q Query, patience time.Duration) (OrderView, Reason) {
	back, ok := e.turn(ctx, q.Activity, patience)
	if !ok {
		return OrderView{}, Unavailable
	}
	defer back()
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	look := func() (ledger.View, error) { return e.led.Lookup(ctx, q.Activity, q.OrderID) }
	v, err := look()
	if err != nil {
		return OrderView{}, Unavailable
	}
	if !v.Found {
		if v, found := e.inDoubt(q); found {
			return v, Accepted
		}
		var r Reason
		if v, r = e.found(ctx, q.Activity, look); r != Accepted {
			return OrderView{}, r
		}
	}
	if v.User != q.User {
		return OrderView{}, NotFound
	}
	return e.view(ctx, q.Activity, v), Accepted
}

func (e *Edge) turn(ctx context.Context, activity int64, patience time.Duration) (back func(), ok bool) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return e.turns.take(ctx, activity)
}

// Mine shows the caller's live order, else the last one that died.
func (e *Edge) Mine(ctx context.Context, activity int64, user string) (OrderView, Reason) {
	if r := validQuery(user); r != Accepted {
		return OrderView{}, r
	}
	if activity <= 0 {
		return OrderView{}, NotFound
	}
	back, ok := e.turn(ctx, activity, lookupTimeout)
	if !ok {
		return OrderView{}, Unavailable
	}
	defer back()
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	look := func() (ledger.View, error) { return e.led.Mine(ctx, activity, user) }
	v, err := look()
	if err != nil {
		return OrderView{}, Unavailable
	}
	if !v.Found {
		var r Reason
		if v, r = e.found(ctx, activity, look); r != Accepted {
			return OrderView{}, r
		}
	}
	if v.User != user {
		return OrderView{}, NotFound
	}
	return e.view(ctx, activity, v), Accepted
}

// found looks once more for what a first look did not find where that means that there is none: a load that put it back may have
// ended between the look and the question whether the activity is loaded.
func (e *Edge) found(ctx context.Context, activity int64, look func() (ledger.View, error)) (ledger.View, Reason) {
	if r := e.absent(ctx, activity); r != NotFound {
		return ledger.View{}, r
	}
	v, err := look()
	switch {
	case err != nil:
		return ledger.View{}, Unavailable
	case !v.Found:
		return ledger.View{}, NotFound
	}
	return v, Accepted
}

func validQuery(user string) Reason {
	if user == "" {
		return NoUser
	}
	if order.ValidUser(user) != nil {
		return BadRequest
	}
	return Accepted
}

func (e *Edge) view(ctx context.Context, activity int64, v ledger.View) OrderView {
	out := OrderView{
		OrderID: v.Order, Activity: activity, Item: v.Item, Quantity: v.Quantity, Status: v.Status, Reason: v.Reason, Position: -1,
		Final: v.Status != order.Queued && v.Status != order.Processing, partition: v.Partition, offset: v.Offset,
	}
	out.Position = e.position(ctx, &out)
	return out
}

// position is how many orders are ahead of a queued one in its partition.
func (e *Edge) position(ctx context.Context, v *OrderView) int64 {
	if v.Status != order.Queued || v.partition < 0 || v.offset < 0 {
		return -1
	}
	at, known := e.landed.get(ctx, e.led)[v.partition]
	if !known {
		return -1
	}
	return max(v.offset-at.Offset, 0)
}

// inDoubt says whether an order that Redis does not know may still be on its way there: its reserve call got no answer, here
// or on another gateway, and its release has not answered yet.
func (e *Edge) inDoubt(q Query) (OrderView, bool) {
	v := OrderView{OrderID: q.OrderID, Activity: q.Activity, Status: order.Processing, Position: -1, partition: -1, offset: -1}
	if d, ok := e.undecided.get(q.OrderID); ok {
		v.Item, v.Quantity = d.item, d.quantity
		return v, d.user == q.User
	}
	now := time.Now()
	sale, known := e.gate.View(q.Activity, now)
	if known == gate.Pass {
		v.Item = sale.Activity.Item
	}
	made := order.IDTime(q.OrderID)
	// An id that was derived from an Idempotency-Key carries no time; it was made before it was first asked for.
	if known == gate.Pass && order.IsDerived(q.OrderID) {
		made = e.firstSeen.first(q.OrderID, now)
	}
	age := now.Sub(made)
	grace := time.Duration(e.gate.Timings().ReserveDeadlineMs)*time.Millisecond + e.o.ReleaseGrace
	return v, age > -clockSkew && age < grace
}

// absent tells "there is none" from "Redis has forgotten": only a loaded activity, or one that is not offered at all, makes
// an order that was not found one that does not exist. It must be asked after the look-up.
func (e *Edge) absent(ctx context.Context, activity int64) Reason {
	snaps, err := e.led.Inspect(ctx, activity)
	if err != nil {
		return Unavailable
	}
	if len(snaps) == 1 && snaps[0].Loaded && snaps[0].SameServer {
		return NotFound
	}
	c, err := e.led.Catalogue(ctx)
	if err != nil { // ErrNoCatalogue too
		return Unavailable
	}
	if a, listed := c.Activities[activity]; listed && time.Now().Before(time.UnixMilli(a.EndsAtMs).Add(retired)) {
		return Unavailable
	}
	return NotFound
}

// Wait is Status that waits up to d for the order to be final.
func (e *Edge) Wait(ctx context.Context, q Query, d time.Duration) (OrderView, Reason) {
	w, r := e.Watch(q)
	if r == Unavailable { // no room for one more waiter
		return e.Status(ctx, q)
	}
	if r != Accepted {
		return OrderView{}, r
	}
	defer w.Close()
	end := time.Now().Add(d)
	for {
		v, _, done, r := w.Next(ctx, time.Until(end))
		if r != Accepted || done || !time.Now().Before(end) {
			return v, r
		}
	}
}

// landed keeps the landed offsets, read at most once a second however many ask.
type landed struct {
	reading sync.Mutex

	mu sync.Mutex
	at map[int32]ledger.LandedAt
	on time.Time
}

func (l *landed) get(ctx context.Context, led Ledger) map[int32]ledger.LandedAt {
	now := time.Now()
	l.mu.Lock()
	at, fresh := l.at, now.Sub(l.on) < landedFor
	l.mu.Unlock()
	if fresh || !l.reading.TryLock() {
		return at
	}
	defer l.reading.Unlock()
	ctx, cancel := context.WithTimeout(ctx, landedTimeout)
	defer cancel()
	next, err := led.Landed(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.at = next
	}
	if err == nil || !errors.Is(err, context.Canceled) {
		l.on = now // after an error too: one try a second
	}
	return l.at
}
