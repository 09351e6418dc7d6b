package landing

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
)

// settle tells Redis what MySQL decided: one settlement per activity, since an item may be in two activities one after
// the other and both may still have orders under way.
func (l *Lander) settle(ctx context.Context, landing store.Landing, from []message) error {
	of := make(map[string]int64, len(from)) // order id → activity
	for _, m := range from {
		if _, ok := of[m.order.ID]; !ok {
			of[m.order.ID] = m.order.Activity
		}
	}
	var sequence []int64
	by := make(map[int64][]ledger.Outcome, 1)
	for _, o := range landing.Outcomes {
		a := of[o.Order]
		if _, ok := by[a]; !ok {
			sequence = append(sequence, a)
		}
		by[a] = append(by[a], o)
	}
	// Those that are left say that MySQL has less than Redis believes, which is to be known before more are accepted.
	for _, id := range landing.Left {
		if a := of[id]; by[a] == nil && !slices.Contains(sequence, a) && landing.Version > 0 {
			sequence = append(sequence, a)
		}
	}
	for _, a := range sequence {
		if err := l.settleOne(ctx, ledger.Settlement{
			Activity: a, Version: landing.Version, Stock: landing.Stock, Item: landing.Item, Source: ledger.FromWorker, Orders: by[a],
		}); err != nil {
			return err
		}
	}
	return nil
}

// settleOne is one settlement, again until Redis has answered.
func (l *Lander) settleOne(ctx context.Context, s ledger.Settlement) error {
	return l.until(ctx, stepRedis, tryRedis, nil, func(ctx context.Context) error {
		began := time.Now()
		ctx, span := tracer.Start(ctx, "settle") //nolint:spancheck // ended() ends it
		got, err := l.ledger.Settle(ctx, s)
		ended(span, err)
		if err != nil {
			return err //nolint:spancheck // ended() has ended it
		}
		l.metrics.settle.Observe(time.Since(began).Seconds())
		switch {
		case got.Broken:
			// The script has put the activity to recovering; the load that follows reads these orders from MySQL.
			l.log.Warn("redis contradicts itself about an activity, which is closed until the syncer has loaded it again",
				zap.Int64("activity", s.Activity))
			l.metrics.settles.WithLabelValues("broken").Inc()
		case got.NotLoaded:
			// Nothing to settle there: a later load reads these orders from MySQL.
			l.metrics.settles.WithLabelValues("not_loaded").Inc()
		default:
			l.metrics.settles.WithLabelValues("done").Inc()
		}
		return nil
	})
}

// publish passes outcomes on to whoever listens on the results topic, and counts them.
func (l *Lander) publish(outcomes []ledger.Outcome, from []message) {
	of := make(map[string]int64, len(from))
	for _, m := range from {
		of[m.order.ID] = m.order.Activity
	}
	now := time.Now().UnixMilli()
	for _, o := range outcomes {
		l.metrics.orders.WithLabelValues(outcomeWord(o)).Inc()
		l.results.Put(order.Result{
			V: order.SchemaVersion, ID: o.Order, Activity: of[o.Order], User: o.User, Item: o.Item, Quantity: o.Quantity,
			Status: o.Status, Reason: o.Reason, AtMs: now,
		})
	}
}

// outcomeWord is the metric label of an outcome: a small fixed set, whatever words a shop keeps in its rows.
func outcomeWord(o ledger.Outcome) string {
	switch {
	case !o.Dead:
		return "landed"
	case o.Reason == order.ReasonSoldOut, o.Reason == order.ReasonDuplicate, o.Reason == order.ReasonInvalid:
		return o.Reason
	default:
		return "dead"
	}
}
