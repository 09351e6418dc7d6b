package landing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"
)

// The steps that are tried again until they are done, as health, metrics and logs name them.
const (
	stepMySQL      = "mysql"
	stepRedis      = "redis"
	stepDeadLetter = "dead_letters"
	stepRows       = "mysql_rows"
	stepGroup      = "kafka_group"
	stepOffsets    = "kafka_offsets"
	stepStall      = "progress"
)

// Time limits of one try. Past them the outcome is unknown, which every step tolerates: it is simply done again.
const (
	tryMySQL      = 30 * time.Second
	tryRedis      = 5 * time.Second
	tryDeadLetter = 15 * time.Second
)

// until tries a step again until it is done, ctx ends, or giveUp says of its error that another try cannot help. Health is
// red from the first failure to the end of the last one that is under way anywhere in the process.
func (l *Lander) until(ctx context.Context, step string, limit time.Duration, giveUp func(error) bool, try func(context.Context) error) error {
	ongoing := false
	defer func() {
		if ongoing {
			l.troubles.end(step)
		}
	}()
	for n := 0; ; n++ {
		tryCtx, cancel := context.WithTimeout(ctx, limit)
		err := try(tryCtx)
		cancel()
		switch {
		case err == nil, giveUp != nil && giveUp(err):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("%s: abandoned after %d tries: %w (last: %w)", step, n+1, context.Cause(ctx), err)
		}
		pause := l.pause(n)
		l.metrics.retries.WithLabelValues(step).Inc()
		l.log.Warn("step failed, trying again in place", zap.String("step", step), zap.Int("tries", n+1),
			zap.Duration("pause", pause), zap.Error(err))
		if !ongoing {
			ongoing = true
			l.troubles.begin(step, err)
		} else {
			l.troubles.update(step, err)
		}
		if err := sleep(ctx, pause); err != nil {
			return fmt.Errorf("%s: abandoned after %d tries: %w", step, n+1, err)
		}
	}
}

// pause doubles from RetryMin to RetryMax and is jittered by half, so that many partitions do not knock together.
func (l *Lander) pause(n int) time.Duration {
	d := l.cfg.RetryMax
	if n < 16 {
		d = min(d, l.cfg.RetryMin<<n)
	}
	return d/2 + rand.N(d/2+1)
}

// sleep waits, or returns why ctx ended.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// troubles folds the failures of all partitions into one health state per step: red while any of them is failing.
type troubles struct {
	health Health

	mu    sync.Mutex
	count map[string]int
}

func (t *troubles) begin(step string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count[step]++
	t.health.Set(step, err)
}

func (t *troubles) update(step string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.health.Set(step, err)
}

func (t *troubles) end(step string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count[step]--; t.count[step] == 0 {
		t.health.Set(step, nil)
	}
}
