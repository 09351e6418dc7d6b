// Package lost keeps the alarm that MySQL lost commits which Redis had seen, as after the promotion of a replica that was
// behind. It lives in Redis, so that it outlives the syncer that found out, and stands until every order that Kafka has of
// that time is in MySQL.
package lost

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// key holds since when orders have to be landed again, in epoch ms.
const key = "seckill:{syncer}:lost_since"

// plausible is the smallest version that can be a time in microseconds: 2001. Below it versions are mere counters.
const plausible = 1_000_000_000_000_000

// Since tells from the version of MySQL's inventory row, which is a clock, when the last commit was that it still has. The
// margin covers clocks that differ; landing more than was lost is harmless.
func Since(version int64, now time.Time) time.Time {
	if version < plausible {
		return now.Add(-time.Hour)
	}
	return time.UnixMicro(version).Add(-time.Minute)
}

// Command is what lands orders again.
func Command(since time.Time) string {
	return "seckill-worker replay --since " + since.UTC().Format(time.RFC3339)
}

// Alarm is the alarm of one Redis.
type Alarm struct{ rdb redis.UniversalClient }

// NewAlarm makes an alarm.
func NewAlarm(rdb redis.UniversalClient) *Alarm { return &Alarm{rdb} }

// Raise has orders landed again since a time, or since an earlier one that stands already.
func (a *Alarm) Raise(ctx context.Context, since time.Time) error {
	before, err := a.Standing(ctx)
	if err != nil {
		return err
	}
	if !before.IsZero() && before.Before(since) {
		return nil
	}
	if err := a.rdb.Set(ctx, key, since.UnixMilli(), 0).Err(); err != nil {
		return fmt.Errorf("keep the alarm about lost commits: %w", err)
	}
	return nil
}

// Standing is since when, or the zero time.
func (a *Alarm) Standing(ctx context.Context) (time.Time, error) {
	text, err := a.rdb.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read the alarm about lost commits: %w", err)
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the alarm about lost commits: %q: %w", text, err)
	}
	return time.UnixMilli(ms), nil
}

// Clear ends the alarm.
func (a *Alarm) Clear(ctx context.Context) error {
	if err := a.rdb.Del(ctx, key).Err(); err != nil {
		return fmt.Errorf("end the alarm about lost commits: %w", err)
	}
	return nil
}
