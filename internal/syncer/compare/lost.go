package compare

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/syncer/lost"
)

// lost keeps the alarm about lost commits until every order that Kafka has of that time is in MySQL.
func (c *Comparer) lost(ctx context.Context, r *Report) error {
	since, err := c.Lost.Standing(ctx)
	if err != nil {
		return err
	}
	if found := time.UnixMilli(r.LostSince); r.LostSince != 0 && (since.IsZero() || found.Before(since)) {
		since = found
	}
	if since.IsZero() {
		return nil
	}
	r.LostSince = since.UnixMilli()
	if r.LostOrders, err = c.notInMySQL(ctx, since); err != nil {
		return fmt.Errorf("mysql lost commits; how many orders are missing cannot be told now (%w): land them again with `%s`",
			err, lost.Command(since))
	}
	if r.LostOrders == 0 {
		r.LostSince = 0
		if r.DryRun {
			return nil
		}
		return c.Lost.Clear(ctx)
	}
	r.Alarms = append(r.Alarms, fmt.Sprintf("mysql lost %d orders that had landed: land them again with `%s`", r.LostOrders, lost.Command(since)))
	if r.DryRun {
		return nil
	}
	return c.Lost.Raise(ctx, since)
}

// notInMySQL counts the orders that the workers are done with, since a time, and that MySQL does not have.
func (c *Comparer) notInMySQL(ctx context.Context, since time.Time) (int, error) {
	from, err := c.Records.OffsetsAt(ctx, c.Topic, since)
	if err != nil {
		return 0, err
	}
	to, err := c.Records.Committed(ctx, c.Group, c.Topic)
	if err != nil {
		return 0, err
	}
	for p, end := range to {
		if end <= from[p] {
			delete(to, p)
		}
	}
	var ids []string
	err = c.Records.Read(ctx, c.Topic, from, to, func(_ int32, _ int64, _ time.Time, _, value []byte) error {
		if o, err := order.Decode(value); err == nil {
			ids = append(ids, o.ID)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	missing := len(ids)
	for chunk := range slices.Chunk(ids, 1000) {
		rows, err := c.Store.Orders(ctx, chunk)
		if err != nil {
			return 0, err
		}
		missing -= len(rows) // of whatever activity: an id that is taken can never be landed again
	}
	return missing, nil
}
