package ledger

import (
	"context"
	"sync"
	"time"
)

// clock estimates the server's clock from the times that its answers carry. An answer has spent time on its way, so each
// sample puts the server's clock a little too early; the largest of the last minute or two is the best one. Too early is
// the safe side: a reserve call then expires early, never late.
type clock struct {
	mu        sync.Mutex
	known     bool
	current   time.Duration // largest offset of this window
	previous  time.Duration // and of the one before
	windowEnd time.Time
}

const clockWindow = time.Minute

func (c *clock) observe(serverMs int64, received time.Time) {
	offset := time.UnixMilli(serverMs).Sub(received)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.known:
		c.known, c.current, c.previous, c.windowEnd = true, offset, offset, received.Add(clockWindow)
	case received.After(c.windowEnd):
		c.previous, c.current, c.windowEnd = c.current, offset, received.Add(clockWindow)
	default:
		c.current = max(c.current, offset)
	}
}

func (c *clock) now(local time.Time) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return local.Add(max(c.current, c.previous)), c.known
}

// Now is the server's time by a conservative estimate, asking the server only if nothing is known of its clock yet.
func (l *Ledger) Now(ctx context.Context) (time.Time, error) {
	if t, known := l.clock.now(time.Now()); known {
		return t, nil
	}
	t, err := l.rdb.Time(ctx).Result()
	if err != nil {
		return time.Time{}, err
	}
	l.clock.observe(t.UnixMilli(), time.Now())
	return t, nil
}

// NotAfter gives the Redis time, in epoch milliseconds, that lies d ahead: the deadline that a reserve call carries, so
// that a copy of it which was stuck somewhere does nothing.
func (l *Ledger) NotAfter(ctx context.Context, d time.Duration) (int64, error) {
	t, err := l.Now(ctx)
	if err != nil {
		return 0, err
	}
	return t.Add(d).UnixMilli(), nil
}
