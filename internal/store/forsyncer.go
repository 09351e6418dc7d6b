package store

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// Driver is the driver's configuration with everything that this package pins, TLS included, for the binlog's own
// connection to the same server.
func (s *Store) Driver() (*mysql.Config, error) { return s.cfg.driver() }

// ActivityOrder is an order's row with the activity that it belongs to.
type ActivityOrder struct {
	Activity int64
	ledger.Outcome
}

// OrdersWithActivity is Orders for callers that do not know the activity: rows that the binlog left in doubt.
func (s *Store) OrdersWithActivity(ctx context.Context, ids []string) (map[string]ActivityOrder, error) {
	found := make(map[string]ActivityOrder, len(ids))
	err := ordersByID(ids, func(text string, args []any) error {
		return s.query(ctx, func(r *sql.Rows) error {
			var o ActivityOrder
			var live sql.NullInt64
			err := r.Scan(&o.Activity, &o.Order, &o.User, &o.Item, &o.Quantity, &o.Status, &o.Reason, &live)
			o.Dead = !live.Valid
			found[o.Order] = o
			return err
		}, "SELECT activity_id, order_id, user_id, item_id, quantity, status, reason, live FROM "+s.sql.orders+text, args...)
	})
	if err != nil {
		return nil, fmt.Errorf("read %d orders with their activities: %w", len(ids), err)
	}
	return found, nil
}
