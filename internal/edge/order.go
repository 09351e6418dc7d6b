package edge

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// Bounds of the repeats of one reserve call.
const (
	reserveTries   = 6
	reserveBackoff = 15 * time.Millisecond // doubles; all of them fit into the default budget
)

// keyAttempts bounds how many refused tries of one Idempotency-Key are passed over.
const keyAttempts = 8

// causeRefusedBefore never leaves this package: the order id was fenced by a refusal, take the next one.
const causeRefusedBefore Cause = "refused_before"

// task is a request on its way.
type task struct {
	Request
	e       *Edge
	began   time.Time // before the first reserve call
	answer  time.Time // when the buyer must have heard
	timings ledger.Timings
	item    int64
	kept    bool // whoever goes on with the order gives back its place in open
	first   try  // its reservation is that of all tries
}

// res is what is to be reserved.
func (t *task) res() *ledger.Reservation { return &t.first.Reservation }

// try is one reserve call of a task. When it reserves, the order is published at once, by the goroutine that has the answers of
// the whole batch: its request need not wake up twice.
type try struct {
	ledger.Member
	t     *task
	news  chan struct{} // room for one: the answer is there, or the outcome of what is published
	told  bool          // that came; for the request only, as `again`
	again bool          // there was a try before

	// The outcome of what is published: a status, or none where it was taken back; and why.
	status order.Status
	cause  Cause
	fate   atomic.Int32 // what its buyer hears while that is not there
}

// Whoever takes a try's fate decides whether its buyer hears of the order or is refused: what a tombstone says must be true.
const (
	fateOpen     int32 = iota
	fateTold           // the buyer was answered with the order's id
	fateTakeBack       // it is being taken back, and the buyer waits for what comes of that
)

// newTry is a fresh one: an earlier one may still be in a call.
func (t *task) newTry() *try {
	y := &t.first
	if y.t != nil {
		y = new(try)
		y.Reservation = *t.res()
	}
	y.t, y.news, y.Answered = t, make(chan struct{}, 1), y.answered
	return y
}

// answered publishes what was reserved, and leaves all else to the request.
func (y *try) answered() {
	if d, err := y.Answer(); reserved(d, err) {
		y.t.e.gate.Observe(y.t.Activity, d)
		y.publish(d, y.t.began.Add(y.t.publishBudget()), true)
		return
	}
	y.news <- struct{}{}
}

func reserved(d ledger.Decision, err error) bool { return err == nil && d.Code == ledger.Reserved }

func (t *task) publishBudget() time.Duration {
	return time.Duration(t.timings.PublishBudgetMs) * time.Millisecond
}

// Order takes a buyer's request to its outcome within the request budget. Once it has begun to reserve, the caller's ctx no
// longer matters.
func (e *Edge) Order(ctx context.Context, r Request) Outcome {
	v := e.admit(ctx, atTheLedger, r.Activity, r.IdempotencyKey)
	if v.Reason != Accepted {
		return Outcome{
			HTTP: HTTPStatus(v.Reason), Reason: v.Reason, Activity: r.Activity, Cause: CauseGate,
			StartsAtMs: v.StartsAtMs, RetryAfter: v.RetryAfter,
		}
	}
	if reason, detail := validate(&r, v.Activity.MaxPerUser); reason != Accepted {
		o := refuse(&r, reason, CauseInput)
		o.Detail = detail
		return o
	}
	t := &task{e: e, Request: r, timings: e.gate.Timings(), item: v.Activity.Item}
	if e.o.PublishTakes >= t.publishBudget() {
		e.shortBudget.Do(func() {
			e.log.Error("no order can be taken: the producer may take longer than the protocol allows; raise the syncer's publish budget or lower the producer's",
				zap.Duration("publish_budget", t.publishBudget()), zap.Duration("producer_budget", e.o.PublishTakes))
		})
		return refuse(&r, Unavailable, CauseTimings)
	}
	if err := e.pub.HealthyFor(r.Activity); err != nil {
		return refuse(&r, Unavailable, CauseProducer)
	}
	if ctx.Err() != nil { // nobody waits for the answer, and nothing has happened yet
		return refuse(&r, Unavailable, CauseGone)
	}
	if !e.open.enter() {
		return refuse(&r, Unavailable, CauseOverload)
	}
	defer func() {
		if !t.kept {
			e.open.leave()
		}
	}()

	for attempt := 0; ; attempt++ {
		id, err := orderID(&r, attempt)
		if err != nil {
			e.log.Error("make an order id", zap.Error(err))
			return refuse(&r, Unavailable, CauseNotReserved)
		}
		*t.res() = ledger.Reservation{
			Order: id, Nonce: strconv.FormatUint(rand.Uint64(), 36), User: r.User, Quantity: r.Quantity, Extra: r.Extra, Window: r.Window,
			Item: t.item,
		}
		// Behind an Idempotency-Key there may be a tombstone of a try that its buyer was refused: that is no order to show,
		// and this is a new try.
		out := e.reserve(ctx, t)
		if out.Cause != causeRefusedBefore {
			return out
		}
		if attempt == keyAttempts {
			return refuse(&r, Unavailable, CauseNotReserved)
		}
	}
}

// reserve asks the ledger and acts on its decision.
func (e *Edge) reserve(ctx context.Context, t *task) Outcome {
	t.began = time.Now()
	t.answer = t.began.Add(e.o.RequestBudget)
	rctx := e.budget.from(t.began)
	notAfter, err := e.led.NotAfter(rctx, time.Duration(t.timings.ReserveDeadlineMs)*time.Millisecond)
	if err != nil {
		e.noRedis.make(t.Activity, err)
		return refuse(&t.Request, Unavailable, CauseNotReserved)
	}
	t.res().NotAfterMs = notAfter
	y, called, err := e.ask(rctx, t)
	switch {
	case errors.Is(err, ledger.ErrNotExecuted):
		e.noRedis.make(t.Activity, err)
		return refuse(&t.Request, Unavailable, CauseNotReserved)
	case err != nil:
		return e.handOver(t, CauseUnknown)
	}
	d, err := y.Answer()
	if reserved(d, err) {
		out := y.await()
		out.Item = d.Item
		return out
	}
	e.gate.Observe(t.Activity, d)
	if d.Item > 0 {
		t.item = d.Item
	}
	return e.act(context.WithoutCancel(ctx), t, y, called)
}

// ask makes the reserve call, and again with the same order id while its outcome is unknown and the budget lasts. It gives the
// try that was answered and the time before its call. Its error is ErrNotExecuted only if no call can have run.
func (e *Edge) ask(ctx context.Context, t *task) (y *try, called time.Time, err error) {
	y = t.newTry()
	for n := 1; ; n++ {
		called = time.Now()
		if err = e.res.Join(t.Activity, &y.Member); err == nil {
			select {
			case <-y.news:
				y.told = true
			case <-ctx.Done():
				if err = y.Leave(); err == nil && !reserved(y.Answer()) {
					<-y.news // on its way
				}
			}
		}
		if err == nil {
			_, err = y.Answer()
		}
		if err == nil {
			y.again = n > 1
			return y, called, nil
		}
		if n == 1 && errors.Is(err, ledger.ErrNotExecuted) {
			return y, called, err
		}
		if n == reserveTries || !wait(ctx, jitter(reserveBackoff<<(n-1))) {
			return y, called, ledger.ErrUnknown
		}
		y = t.newTry()
	}
}

// act turns a decision other than Reserved into an outcome.
func (e *Edge) act(ctx context.Context, t *task, y *try, called time.Time) Outcome {
	d, _ := y.Answer()
	d.Repeated = d.Repeated || y.again
	switch d.Code {
	case ledger.Again:
		return e.again(ctx, t, y, d, called)
	case ledger.Decided:
		if t.IdempotencyKey != "" && d.Result.Reason == order.ReasonRefused {
			if _, told := e.undecided.get(t.res().Order); !told {
				return Outcome{Cause: causeRefusedBefore}
			}
			// Its buyer did not hear the refusal: the release that wrote this got no answer, and he was given the order's id.
			d.Result.Reason = order.ReasonReleased
		}
		return e.accept(t, d.Result.Status, d.Result.Reason, CauseRepeat)
	case ledger.AlreadyHas:
		if d.LiveOrder == t.res().Order { // it landed so long ago that its result has expired
			return e.standing(ctx, t)
		}
		o := refuse(&t.Request, AlreadyOrdered, CauseScript)
		o.OrderID = d.LiveOrder
		return e.fence(ctx, t, d, o)
	default:
		if err := errOf(d); err != nil {
			e.noRedis.make(t.Activity, err)
		}
		o := refuse(&t.Request, reasonOf(d.Code), CauseScript)
		o.StartsAtMs = d.StartsAtMs // not started
		if o.Reason == BadRequest {
			o.Detail = DetailQuantity
		}
		if o.Reason == TooFrequent {
			o.RetryAfter = d.RetryAfter
		}
		return e.fence(ctx, t, d, o)
	}
}

// reasonOf maps the script's refusals; what is not a statement about the sale or the buyer is unavailable.
func reasonOf(c ledger.Code) Reason {
	switch c {
	case ledger.IsEnded:
		return Ended
	case ledger.NotStarted:
		return NotStarted
	case ledger.TooMany:
		return BadRequest
	case ledger.TooFrequent:
		return TooFrequent
	case ledger.SoldOut:
		return SoldOut
	case ledger.WrongServer, ledger.TooLate, ledger.NotLoaded, ledger.IsRecovering, ledger.IsPaused, ledger.BadKey:
		return Unavailable
	default:
		return Unavailable // a code of another version
	}
}

// fence makes sure that a refusal is true before it is told: when the call may have run more than once, another copy of it
// may have reserved, or may still do so. Only a release that answered rules that out.
func (e *Edge) fence(ctx context.Context, t *task, d ledger.Decision, refusal Outcome) Outcome {
	if !d.Repeated {
		return refusal
	}
	e.fenced.Add(1)
	ctx, cancel := context.WithDeadline(ctx, t.answer)
	defer cancel()
	released, err := e.release(ctx, t, true)
	switch {
	case err != nil:
		return e.handOver(t, CauseFence)
	case released == ledger.ReleasedNow:
		return refusal
	}
	// A reservation of this id stands. It was never published from here, so the sweep decides it.
	return e.accept(t, order.Processing, "", CauseFence)
}

// again meets a reservation that was there before: made by a first try of this call, or by another request with the same
// Idempotency-Key, which may be dead. A second record of an order does no harm, so it is published once more, within the
// time that its first publication had.
func (e *Edge) again(ctx context.Context, t *task, y *try, d ledger.Decision, called time.Time) Outcome {
	if d.Result != nil {
		return e.accept(t, d.Result.Status, d.Result.Reason, CauseRepeat)
	}
	// Redis decided after the call began, so that this is early rather than late.
	until := called.Add(time.Duration(d.ReservedAtMs-d.NowMs)*time.Millisecond + t.publishBudget())
	if end := t.began.Add(t.publishBudget()); t.IdempotencyKey == "" && end.Before(until) {
		until = end
	}
	if t.IdempotencyKey == "" {
		return y.republish(d, until, true)
	}
	e.republished.Add(1)
	// The record must say what was reserved, and this request may ask for something else under the same key.
	lctx, cancel := context.WithDeadline(ctx, t.answer)
	defer cancel()
	v, err := e.led.Lookup(lctx, t.Activity, t.res().Order)
	switch {
	case err != nil || !v.Found:
		return e.accept(t, order.Processing, "", CauseRepeat)
	case v.Status != order.Processing:
		return e.accept(t, v.Status, v.Reason, CauseRepeat)
	case v.Quantity != t.Quantity:
		t.Quantity = v.Quantity
		return e.accept(t, order.Processing, "", CauseRepeat)
	}
	return y.republish(d, until, false)
}

// standing shows an order that its buyer holds.
func (e *Edge) standing(ctx context.Context, t *task) Outcome {
	ctx, cancel := context.WithDeadline(ctx, t.answer)
	defer cancel()
	v, err := e.led.Lookup(ctx, t.Activity, t.res().Order)
	if err != nil || !v.Found {
		return e.accept(t, order.Processing, "", CauseRepeat)
	}
	return e.accept(t, v.Status, v.Reason, CauseRepeat)
}

func refuse(r *Request, reason Reason, c Cause) Outcome {
	o := Outcome{HTTP: HTTPStatus(reason), Reason: reason, Activity: r.Activity, Cause: c}
	if reason == Unavailable {
		o.RetryAfter = soon()
	}
	return o
}

func (e *Edge) accept(t *task, s order.Status, reason string, c Cause) Outcome {
	e.repeats.took(t.Activity, t.IdempotencyKey, t.began)
	return Outcome{
		HTTP: HTTPStatus(Accepted), Activity: t.Activity, OrderID: t.res().Order, Status: s, StatusReason: reason,
		Item: t.item, Quantity: t.Quantity, Cause: c,
	}
}

// soon is when a buyer may try again: not all at once.
func soon() time.Duration { return time.Second + rand.N(2*time.Second) }

func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// wait is false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
