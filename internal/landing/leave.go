package landing

import (
	"context"

	"go.uber.org/zap"
)

// leave keeps orders open that MySQL was short of stock for. The ledger is the queue in which they wait: they have no row and stay
// reserved, so the sweep publishes them again, with the number of tries that the ledger notes here, and their record counts as done.
// What the ledger does not have nobody would publish again: those messages come back, to be decided now.
func (l *Lander) leave(ctx context.Context, ids []string, from []message) (left int, again []message, err error) {
	if len(ids) == 0 {
		return 0, nil, nil
	}
	of := make(map[string]message, len(ids))
	for _, id := range ids {
		of[id] = message{}
	}
	tries := make(map[int64]map[string]int64, 1) // by activity
	for _, m := range from {
		if first, isLeft := of[m.order.ID]; !isLeft || first.order != nil {
			continue
		}
		of[m.order.ID] = m
		if tries[m.order.Activity] == nil {
			tries[m.order.Activity] = make(map[string]int64)
		}
		tries[m.order.Activity][m.order.ID] = m.order.Attempt + 1
	}
	kept := make(map[string]bool, len(ids))
	for activity, orders := range tries {
		if err := l.until(ctx, stepRedis, tryRedis, nil, func(ctx context.Context) error {
			got, err := l.ledger.Postpone(ctx, activity, orders)
			for id := range got {
				kept[id] = true
			}
			return err
		}); err != nil {
			return 0, nil, err
		}
		l.log.Info("mysql is short of stock for orders that were reserved; they are tried again once the sweep publishes them",
			zap.Int64("activity", activity), zap.Int("orders", len(orders)))
	}
	for _, id := range ids {
		if kept[id] {
			l.metrics.orders.WithLabelValues("left_open").Inc()
			continue
		}
		m := of[id]
		m.order.Attempt = int64(l.cfg.StockTries) // no more
		again = append(again, m)
	}
	return len(kept), again, nil
}
