package compare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/order"
)

// lostKey holds since when (epoch ms) orders have to be landed again. It outlives the syncer that found out.
const lostKey = "seckill:{syncer}:lost_since"

// plausible is the smallest version that can be a time in microseconds: 2001. Below it versions are mere counters.
const plausible = 1_000_000_000_000_000

// lostSince tells from MySQL's version, which is a clock, when the last commit was that it still has. The margin covers
// clocks that differ; landing more than was lost is harmless.
func lostSince(version, nowMs int64) time.Time {
	if version < plausible {
		return time.UnixMilli(nowMs).Add(-time.Hour)
	}
	return time.UnixMicro(version).Add(-time.Minute)
}

// lost keeps the alarm about lost commits until every order that Kafka has of that time is in MySQL.
func (c *Comparer) lost(ctx context.Context, r *Report) error {
	kept, err := c.Redis.Get(ctx, lostKey).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("read the alarm about lost commits: %w", err)
	}
	if since, err := strconv.ParseInt(kept, 10, 64); err == nil && (r.LostSince == 0 || since < r.LostSince) {
		r.LostSince = since
	}
	if r.LostSince == 0 {
		return nil
	}
	since := time.UnixMilli(r.LostSince)
	if r.LostOrders, err = c.notInMySQL(ctx, since); err != nil {
		return fmt.Errorf("mysql lost commits; how many orders are missing cannot be told now (%w): land them again with `%s`", err, ReplayCommand(since))
	}
	if r.LostOrders == 0 {
		r.LostSince = 0
		if r.DryRun {
			return nil
		}
		return c.Redis.Del(ctx, lostKey).Err()
	}
	r.Alarms = append(r.Alarms, fmt.Sprintf("mysql lost %d orders that had landed: land them again with `%s`", r.LostOrders, ReplayCommand(since)))
	if r.DryRun {
		return nil
	}
	return c.Redis.Set(ctx, lostKey, r.LostSince, 0).Err()
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
		missing -= len(rows)
	}
	return missing, nil
}
