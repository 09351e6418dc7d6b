package landing

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/crashpoint"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
)

// Kinds of records that can never become orders.
var (
	errUnknownActivity = errors.New("activity is not in mysql")
	errWrongItem       = errors.New("item is not the one of the activity")
)

// triage separates records that may become orders from those that never can.
func (l *Lander) triage(ctx context.Context, records []Record) (good []message, refused []refusal, err error) {
	good = make([]message, 0, len(records))
	for _, r := range records {
		o, err := order.Decode(r.Value)
		if err != nil {
			refused = append(refused, refusal{message{r, o}, "decode", err})
			continue
		}
		good = append(good, message{r, o})
	}
	items, err := l.itemsOf(ctx, good)
	if err != nil {
		return nil, nil, err
	}
	kept := good[:0]
	for _, m := range good {
		item, known := items[m.order.Activity]
		switch {
		case !known:
			refused = append(refused, refusal{m, "activity", fmt.Errorf("activity_id %d: %w", m.order.Activity, errUnknownActivity)})
		case item != m.order.Item:
			refused = append(refused, refusal{m, "item", fmt.Errorf("item_id %d: %w %d, which is %d",
				m.order.Item, errWrongItem, m.order.Activity, item)})
		default:
			kept = append(kept, m)
		}
	}
	return kept, refused, nil
}

// refuse sets a record aside. Where its order id can be read, MySQL gets a dead row, unless the order has a row already,
// and Redis is told what MySQL holds, so that the buyer's units come back. It reports whether that was done.
func (l *Lander) refuse(ctx context.Context, r refusal) (released bool, err error) {
	if err := l.until(ctx, stepDeadLetter, tryDeadLetter, nil, func(ctx context.Context) error {
		return l.deadLetters.Put(ctx, r.Record, r.why)
	}); err != nil {
		return false, err
	}
	crashpoint.Here("after_dead_letter")
	o := r.order
	// What a row cannot do without. Any of the rest may be the very thing that is wrong.
	readable := o != nil && order.ValidID(o.ID) && o.Activity > 0 && order.ValidUser(o.User) == nil
	l.metrics.deadLetters.WithLabelValues(r.cause).Inc()
	l.log.Error("record can never become an order and is set aside", zap.String("topic", r.Topic),
		zap.Int32("partition", r.Partition), zap.Int64("offset", r.Offset), zap.Bool("reservation_settled", readable), zap.Error(r.why))
	if !readable {
		// Its reservation, if there was one, is not lost: the ledger has it, and the sweep publishes it again from there.
		return false, nil
	}
	row := *o
	row.Extra = nil // it may be what MySQL refused, and the dead letter has it
	if row.Quantity < 0 {
		row.Quantity = 0
	}
	var outcome ledger.Outcome
	refused := func(err error) bool { return !store.IsTransient(err) }
	err = l.until(ctx, stepMySQL, tryMySQL, refused, func(ctx context.Context) error {
		if err := l.store.Record(ctx, row, order.Failed, order.ReasonInvalid); err != nil {
			return err
		}
		found, err := l.store.Orders(ctx, []string{row.ID})
		if err != nil {
			return err
		}
		var ok bool
		if outcome, ok = found[row.ID]; !ok {
			return fmt.Errorf("order %s: no row although one was just recorded", row.ID)
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		l.log.Error("no row for a refused order: its reservation stays until the sweep publishes it again",
			zap.String("order", row.ID), zap.Error(err))
		return false, nil
	}
	if err != nil {
		return false, err
	}
	crashpoint.Here("after_record")
	m := []message{{r.Record, &row}}
	if err := l.settleOne(ctx, ledger.Settlement{
		Activity: row.Activity, Source: ledger.FromWorker, Orders: []ledger.Outcome{outcome},
	}); err != nil {
		return false, err
	}
	l.publish([]ledger.Outcome{outcome}, m)
	return true, nil
}
