package edge

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/crashpoint"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// releaseTimeout bounds the release of an order that was not sent. Its buyer may have been answered already.
const releaseTimeout = 2 * time.Second

// publish sends the order and answers the buyer: with `queued` when Kafka has it in time, else with `processing` while the
// work goes on. mine says that no other request can have published the order, so that it may be released.
func (e *Edge) publish(ctx context.Context, t *task, d ledger.Decision, until time.Time, mine bool, keep func()) Outcome {
	o := &order.Order{
		V: order.SchemaVersion, ID: t.res.Order, Activity: t.Activity, User: t.User, Item: d.Item, Quantity: t.Quantity,
		CreatedAtMs: d.ReservedAtMs, Extra: t.Extra,
	}
	told := make(chan Outcome, 1)
	keep()
	e.send(ctx, t, o, until, mine, func(out Outcome) {
		told <- out
		e.open.leave()
	})
	late := e.timers.start(time.Until(t.answer))
	defer e.timers.giveBack(late)
	select {
	case out := <-told:
		return out
	case <-late.C:
		return e.accept(t, order.Processing, "", CausePublishing)
	}
}

// send hands an order to Kafka and has the outcome told, once. It does not wait.
func (e *Edge) send(ctx context.Context, t *task, o *order.Order, until time.Time, mine bool, tell func(Outcome)) {
	crashpoint.Here("after_reserve")
	began := time.Now()
	sent := func(ack Ack, err error) {
		switch {
		case err == nil:
			crashpoint.Here("after_publish")
			e.marker.mark(t.Activity, ledger.Ack{
				Order: o.ID, User: o.User, Item: o.Item, Quantity: o.Quantity, Partition: ack.Partition, Offset: ack.Offset,
			})
			tell(e.accept(t, order.Queued, "", CausePublished))
		case !errors.Is(err, ErrNotSent):
			// It may be in Kafka. The reservation stays; the worker settles it, or the sweep.
			tell(e.accept(t, order.Processing, "", CauseUnconfirmed))
		case !mine:
			tell(e.accept(t, order.Processing, "", CauseNotSent))
		default:
			go func() { tell(e.takeBack(ctx, t, o)) }() // a call to Redis, and whoever says this has others to serve
		}
	}
	if began.Add(e.o.PublishTakes).After(until) { // a copy might go out after the sweep began to look
		sent(Ack{}, ErrNotSent)
		return
	}
	e.pub.Enqueue(o, t.Headers, until, func(ack Ack, err error) {
		e.o.ObservePublish(t.Activity, time.Since(began), err)
		sent(ack, err)
	})
}

// takeBack releases an order that was not sent.
func (e *Edge) takeBack(ctx context.Context, t *task, o *order.Order) Outcome {
	rctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	res := t.res
	// Who has been answered already, at the end of the request's budget, was given the order's id.
	res.Refused = time.Now().Before(t.answer)
	released, err := e.led.Release(rctx, t.Activity, res, t.publishBudget())
	if err != nil {
		e.log.Debug("release an order that was not sent; the sweep will publish it", zap.String("order", o.ID), zap.Error(err))
	}
	if err != nil || released != ledger.ReleasedNow {
		return e.accept(t, order.Processing, "", CauseNotSent)
	}
	return refuse(&t.Request, Unavailable, CauseNotSent)
}
