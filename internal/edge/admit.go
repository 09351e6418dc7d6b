package edge

import (
	"context"
	"hash/maphash"
	"time"

	"github.com/seckillgate/seckillgate/internal/gate"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/ratelimit"
)

// firstView bounds how long a request that arrives right after start-up waits for the first answer from Redis.
const firstView = 300 * time.Millisecond

// Admit is the gate as it stands before authentication: it refuses from memory. A request with an Idempotency-Key may be a
// repeat of an order that stands, so it passes a sold-out or ended sale, a bounded number of times per second.
func (e *Edge) Admit(activity int64, idempotencyKey string) gate.Verdict {
	return e.admit(context.Background(), atTheGate, activity, idempotencyKey)
}

func (e *Edge) admit(ctx context.Context, where repeatsAt, activity int64, key string) gate.Verdict {
	v := e.gate.Judge(activity, time.Now())
	switch {
	case v.Reason == Accepted:
	case v.Reason == Unavailable:
		select {
		case <-e.gate.Ready():
		default:
			e.awaitView(ctx)
			v = e.gate.Judge(activity, time.Now())
		}
	case (v.Reason == SoldOut || v.Reason == Ended) && e.repeats.may(ctx, where, activity, key):
		v.Reason = Accepted
	}
	if v.Reason == Unavailable {
		v.RetryAfter = soon()
	}
	return v
}

func (e *Edge) awaitView(ctx context.Context) {
	t := time.NewTimer(firstView)
	defer t.Stop()
	select {
	case <-e.gate.Ready():
	case <-t.C:
	case <-ctx.Done():
	case <-e.closing:
	}
}

// repeats decides which requests with an Idempotency-Key pass a sale that refuses everybody else. The buyer of the last
// unit who repeats his request must get his order and not "sold out"; yet a flood that carries keys must not reach Redis.
type repeats struct {
	seed  maphash.Seed
	mine  *aging[uint64] // keys of orders that this gateway took
	limit ratelimit.Limiter
}

// repeatsAt says where in the chain a request asks. It may ask before authentication and after it, and each counts by
// itself.
type repeatsAt string

const (
	atTheGate   repeatsAt = "gate"
	atTheLedger repeatsAt = "ledger"
)

func newRepeats(perSecond int) *repeats {
	limit, err := ratelimit.New(ratelimit.Options{
		Rate: ratelimit.Rate{Limit: int64(max(perSecond, 1)), Per: time.Second}, MaxKeys: 2,
	})
	if err != nil {
		panic(err) // a rate of 1 to 2^31 per second is always valid
	}
	return &repeats{seed: maphash.MakeSeed(), mine: newAging[uint64](65_536), limit: limit}
}

func (r *repeats) hash(activity int64, key string) uint64 {
	var h maphash.Hash
	h.SetSeed(r.seed)
	maphash.WriteComparable(&h, activity)
	_, _ = h.WriteString(key)
	return h.Sum64()
}

func (r *repeats) took(activity int64, key string, now time.Time) {
	if key != "" {
		r.mine.first(r.hash(activity, key), now)
	}
}

func (r *repeats) may(ctx context.Context, where repeatsAt, activity int64, key string) bool {
	if key == "" || len(key) > order.MaxKeyBytes {
		return false
	}
	return r.mine.has(r.hash(activity, key)) || r.limit.Allow(ctx, string(where)).OK
}
