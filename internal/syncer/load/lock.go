package load

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// ErrBusy: the activity is being loaded already, by this process or another one.
var ErrBusy = errors.New("a load is running already")

// Locks keep two loads of one activity from fencing each other for ever. They are a courtesy, not a safeguard: should one
// be lost with its Redis, the newer load fences the older one.
type Locks struct {
	rdb redis.UniversalClient
	who string
	ttl time.Duration
}

// NewLocks makes locks that tell others who has them. A holder that dies gives them up after ttl.
func NewLocks(rdb redis.UniversalClient, who string, ttl time.Duration) *Locks {
	return &Locks{rdb: rdb, who: who, ttl: ttl}
}

var (
	renewScript = redis.NewScript(`if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])`)
	dropScript = redis.NewScript(`if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])`)
)

func lockKey(activity int64) string {
	return "seckill:{syncer}:load:" + strconv.FormatInt(activity, 10)
}

// Take locks an activity, or fails with ErrBusy. The context that it gives ends when the lock is lost; release gives the
// lock back and waits for the renewing goroutine.
func (l *Locks) Take(ctx context.Context, activity int64) (held context.Context, release func(), err error) {
	token := l.who + " " + uuid.NewString()
	ok, err := l.rdb.SetNX(ctx, lockKey(activity), token, l.ttl).Result()
	if err != nil {
		return nil, nil, fmt.Errorf("lock activity %d in redis for a load: %w", activity, err)
	}
	if !ok {
		holder, _ := l.rdb.Get(ctx, lockKey(activity)).Result()
		return nil, nil, fmt.Errorf("%w: activity %d, by %s", ErrBusy, activity, holder)
	}
	held, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.renew(held, cancel, activity, token)
	}()
	return held, func() {
		cancel(nil)
		<-done
		drop, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer stop()
		_ = dropScript.Run(drop, l.rdb, []string{lockKey(activity)}, token).Err() // else it runs out
	}, nil
}

func (l *Locks) renew(ctx context.Context, lost context.CancelCauseFunc, activity int64, token string) {
	tick := time.NewTicker(l.ttl / 3)
	defer tick.Stop()
	good := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n, err := renewScript.Run(ctx, l.rdb, []string{lockKey(activity)}, token, l.ttl.Milliseconds()).Int()
		switch {
		case err == nil && n == 1:
			good = time.Now()
		case err == nil:
			lost(fmt.Errorf("the lock on activity %d was lost, to a Redis that forgot it or to another load", activity))
			return
		case time.Since(good) > l.ttl:
			lost(fmt.Errorf("the lock on activity %d in redis could not be renewed: %w", activity, err))
			return
		}
	}
}
