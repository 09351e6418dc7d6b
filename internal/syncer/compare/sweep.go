package compare

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// mark is where the orders topic ended at a time. A reservation that was older than the publish budget then is below its
// ends, or will never be published by its gateway.
type mark struct {
	atMs int64 // Redis time, read before the ends
	ends map[int32]int64
}

// proof is the newest mark below which everything has landed: a reservation that it covers and that MySQL, read later,
// does not have was never published.
type proof struct {
	atMs int64 // 0: nothing is proven
}

// proof marks the ends of the topic and finds the newest mark that the workers have passed. With the worker behind, that
// is none: what waits in the queue is not lost.
func (c *Comparer) proof(ctx context.Context, activities []ledger.Activity) (*proof, error) {
	if len(activities) == 0 {
		return &proof{}, nil
	}
	looks, err := c.Ledger.Inspect(ctx, activities[0].ID)
	if err != nil {
		return &proof{}, err
	}
	ends, err := c.Records.HighWater(ctx, c.Topic)
	if err != nil {
		return &proof{}, fmt.Errorf("read the ends of topic %s: %w", c.Topic, err)
	}
	c.marks = append(c.marks, mark{looks[0].NowMs, ends})
	landed, err := c.landed(ctx)
	if err != nil {
		return &proof{}, err
	}
	for i := len(c.marks) - 1; i >= 0; i-- {
		if passed(landed, c.marks[i].ends) {
			at := c.marks[i].atMs
			c.marks = c.marks[i:]
			c.forget(at)
			return &proof{at}, nil
		}
	}
	// Behind: the oldest mark will be passed first, the newest covers most. Those in between can be spared.
	if len(c.marks) > 64 {
		c.marks = append(c.marks[:32], c.marks[33:]...)
	}
	return &proof{}, nil
}

// landed is how far the workers have come, by what they say in Redis or by what they committed, whichever is further:
// both are written only once MySQL and Redis are done. What Kafka no longer has lands no more: of a partition that is empty
// nothing may ever have been committed, or the commit may have expired with its records. What lies beyond the end is of a log that
// was cut short or made anew, and says nothing of what waits in this one.
func (c *Comparer) landed(ctx context.Context) (map[int32]int64, error) {
	committed, err := c.Records.Committed(ctx, c.Group, c.Topic)
	if err != nil {
		return nil, fmt.Errorf("read the offsets that group %s committed in topic %s: %w", c.Group, c.Topic, err)
	}
	told, err := c.Ledger.Landed(ctx)
	if err != nil {
		return nil, err
	}
	out, err := c.Records.Oldest(ctx, c.Topic)
	if err != nil {
		return nil, fmt.Errorf("read where topic %s begins: %w", c.Topic, err)
	}
	ends, err := c.Records.HighWater(ctx, c.Topic) // read last, so that nobody can have landed past them
	if err != nil {
		return nil, fmt.Errorf("read the ends of topic %s: %w", c.Topic, err)
	}
	for p, end := range ends {
		for _, at := range []int64{committed[p], told[p].Offset} {
			if at <= end {
				out[p] = max(out[p], at)
			}
		}
	}
	return out, nil
}

func passed(landed, ends map[int32]int64) bool {
	for p, end := range ends {
		if end > 0 && landed[p] < end {
			return false
		}
	}
	return true
}

// sweep looks after reservations older than the horizon.
func (w *work) sweep(ctx context.Context) error {
	for cursor := uint64(0); ; {
		entries, next, err := w.Ledger.ScanLedger(ctx, w.out.ID, cursor, part)
		if err != nil {
			return err
		}
		var old []ledger.Entry
		for _, e := range entries {
			age := w.now - e.ReservedAtMs
			w.out.OldestMs = max(w.out.OldestMs, age)
			if age > w.Timings.HorizonMs || w.opt.Young {
				old = append(old, e)
			}
		}
		if err := w.lookAfter(ctx, old); err != nil {
			return err
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

func (w *work) lookAfter(ctx context.Context, old []ledger.Entry) error {
	if len(old) == 0 {
		return nil
	}
	ids := make([]string, len(old))
	for i, e := range old {
		ids[i] = e.Order
	}
	rows, err := w.rows(ctx, ids)
	if err != nil {
		return err
	}
	var landed []ledger.Outcome
	for _, e := range old {
		if row, there := rows[e.Order]; there {
			w.out.add(Repair{Kind: Settled, Order: e.Order, User: e.User, Why: "the order is " + string(row.Status) + " in mysql and its reservation was still open"})
			landed = append(landed, row)
			delete(w.Comparer.republishedAt(), e.Order)
		}
	}
	if err := w.settle(ctx, landed); err != nil {
		return err
	}
	for _, e := range old {
		if _, there := rows[e.Order]; there {
			continue
		}
		if !w.unpublished(e) {
			if w.now-e.ReservedAtMs > w.Timings.HorizonMs {
				w.out.Waiting++
			}
			continue
		}
		if err := w.republish(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// sameLoad refuses to go on when Redis changed servers, or was loaded anew, since the run looked: what the run saw may be a
// reservation whose release another server has, or whose units a load has sold again. It gives Redis' time, and is called right
// before each order is published and not once for all of them: Kafka may be slow. A load that begins later waits until the
// publishing has ended, for the publish budget; what passes before it starts has to fit in what a load waits besides.
func (w *work) sameLoad(ctx context.Context) (nowMs int64, err error) {
	for {
		began := time.Now()
		looks, err := w.Ledger.Inspect(ctx, w.out.ID)
		if err != nil {
			return 0, err
		}
		if !looks[0].SameServer || looks[0].Epoch != w.epoch {
			return 0, errors.New("redis changed while its reservations were looked at; the next run looks again")
		}
		if time.Since(began).Milliseconds() <= w.Timings.ReserveDeadlineMs {
			return looks[0].NowMs, nil
		}
	}
}

// forget drops what was published again so long ago that it holds nothing up any more. Most of it has landed, and no sweep meets it.
func (c *Comparer) forget(provenMs int64) {
	maps.DeleteFunc(c.republished, func(_ string, atMs int64) bool { return atMs+c.Timings.PublishBudgetMs < provenMs })
}

func (c *Comparer) republishedAt() map[string]int64 {
	if c.republished == nil {
		c.republished = map[string]int64{}
	}
	return c.republished
}

// unpublished says that, given that MySQL has no row, nothing was or will be published of the entry: neither by its
// gateway nor by an earlier sweep.
func (w *work) unpublished(e ledger.Entry) bool {
	last := max(e.ReservedAtMs, w.republishedAt()[e.Order])
	return w.now-e.ReservedAtMs > w.Timings.HorizonMs && w.proof.atMs != 0 && last+w.Timings.PublishBudgetMs < w.proof.atMs
}

// republish gives the order to Kafka once more, with its own id: should it be there after all, the worker takes it once.
func (w *work) republish(ctx context.Context, e ledger.Entry) error {
	now, err := w.sameLoad(ctx)
	if err != nil {
		return err
	}
	why := "everything that could have been published has landed and mysql does not have the order"
	if e.Tries > 0 {
		why = fmt.Sprintf("mysql was short of stock for the order, %d times by now, and it is to be tried again", e.Tries)
		if w.LoadBack == 0 {
			w.warned.Do(func() {
				w.Log.Warn("orders wait for stock (landing.stock_tries of the workers), and load_back is 0: should Redis lose its data they are lost with it; set load_back",
					zap.Int64("activity", w.out.ID))
			})
		}
	}
	w.out.add(Repair{Kind: Republished, Order: e.Order, User: e.User, Why: why})
	if w.opt.DryRun {
		return nil
	}
	ack, err := w.Publisher.Publish(ctx, &order.Order{
		V: order.SchemaVersion, ID: e.Order, Activity: w.out.ID, User: e.User, Item: e.Item, Quantity: e.Quantity,
		CreatedAtMs: e.ReservedAtMs, Extra: e.Extra, Attempt: e.Tries,
	}, nil)
	if errors.Is(err, kafka.ErrNotSent) {
		return fmt.Errorf("publish order %s again: %w", e.Order, err)
	}
	w.republishedAt()[e.Order] = now + w.Timings.PublishBudgetMs // it may be sent until then
	if err != nil {
		return fmt.Errorf("publish order %s again: %w", e.Order, err)
	}
	err = w.Ledger.MarkQueued(ctx, w.out.ID, []ledger.Ack{{
		Order: e.Order, User: e.User, Item: e.Item, Quantity: e.Quantity, Partition: ack.Partition, Offset: ack.Offset,
	}})
	if err != nil {
		w.Log.Debug("the place of an order in the queue is not known", zap.String("order", e.Order), zap.Error(err))
	}
	return nil
}
