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

// releaseTimeout bounds the release of an order that was not sent, its repeats included. Its buyer may have been answered already.
const releaseTimeout = 2 * time.Second

// publish sends the order that a try has reserved, without waiting; the try's request is told. mine says that no other request
// can have published the order, so that it may be released.
func (y *try) publish(d ledger.Decision, until time.Time, mine bool) {
	t := y.t
	y.send(&order.Order{
		V: order.SchemaVersion, ID: t.res().Order, Activity: t.Activity, User: t.User, Item: d.Item, Quantity: t.Quantity,
		CreatedAtMs: d.ReservedAtMs, Extra: t.Extra,
	}, until, mine)
}

// republish is publish for an order whose answer has been told already, and waits for its outcome.
func (y *try) republish(d ledger.Decision, until time.Time, mine bool) Outcome {
	y.told = false
	y.publish(d, until, mine)
	return y.await()
}

// await answers the buyer of an order that is being published: with `queued` when Kafka has it in time, else with
// `processing` while the work goes on. Only for an order that is being taken back already he waits longer, releaseTimeout at most.
func (y *try) await() Outcome {
	t := y.t
	t.kept = true
	if !y.told {
		late := time.NewTimer(time.Until(t.answer))
		defer late.Stop()
		select {
		case <-y.news:
		case <-late.C:
			if y.fate.CompareAndSwap(fateOpen, fateTold) {
				return t.e.accept(t, order.Processing, "", CausePublishing)
			}
			<-y.news
		}
	}
	if y.status == "" {
		return refuse(&t.Request, Unavailable, y.cause)
	}
	return t.e.accept(t, y.status, "", y.cause)
}

// tell gives the outcome of a publication, once.
func (y *try) tell(s order.Status, c Cause) {
	y.wake(s, c)
	y.t.e.open.leave()
}

// wake is tell for an order that keeps its place in open.
func (y *try) wake(s order.Status, c Cause) {
	y.status, y.cause = s, c
	y.news <- struct{}{}
}

// send hands an order to Kafka and has the outcome told. It does not wait.
func (y *try) send(o *order.Order, until time.Time, mine bool) {
	crashpoint.Here("after_reserve")
	t, e := y.t, y.t.e
	began := time.Now()
	sent := func(ack Ack, err error) {
		switch {
		case err == nil:
			crashpoint.Here("after_publish")
			e.marker.mark(t.Activity, ledger.Ack{
				Order: o.ID, User: o.User, Item: o.Item, Quantity: o.Quantity, Partition: ack.Partition, Offset: ack.Offset,
			})
			y.tell(order.Queued, CausePublished)
		case !errors.Is(err, ErrNotSent):
			// It may be in Kafka. The reservation stays; the worker settles it, or the sweep.
			y.tell(order.Processing, CauseUnconfirmed)
		case !mine:
			y.tell(order.Processing, CauseNotSent)
		default:
			e.noKafka.make(t.Activity, err)
			go y.takeBack() // a call to Redis, and whoever says this has others to serve
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

// takeBack releases an order that was not sent, and tells what came of it: nothing is left of it and its buyer is refused, or it
// stands, or nobody knows. Then the releaser goes on asking.
func (y *try) takeBack() {
	t, e := y.t, y.t.e
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	// Who has been answered already, at the end of the request's budget, was given the order's id.
	refused := y.fate.CompareAndSwap(fateOpen, fateTakeBack)
	released, err := e.release(ctx, t, refused)
	switch {
	case err != nil:
		e.log.Debug("an order that was not sent stays undecided: redis does not answer its release",
			zap.String("order", t.res().Order), zap.Error(err))
		e.undecide(t)
		y.wake(order.Processing, CauseNotSent)
	case released != ledger.ReleasedNow:
		y.tell(order.Processing, CauseNotSent)
	default:
		y.tell("", CauseNotSent)
	}
}
