package ratelimit

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// tokenBucket is the generic cell rate algorithm: a bucket is one number, the time at which it will be full again ("tat",
// theoretical arrival time, in nanoseconds of the clock). Taking a token moves that time on by the time that one token takes
// to refill; a bucket is refused when it would then be more than a whole bucket in debt. No timer refills anything.
type tokenBucket struct {
	now    func() time.Duration
	every  int64 // nanoseconds in which one token refills, rounded up: never laxer than the rate
	whole  int64 // nanoseconds in which an empty bucket fills
	burst  int64
	seed   maphash.Seed
	shards []shard // a power of two
}

// shard holds a part of the keys. Its lock is held for a look-up only; the bucket itself is changed by compare-and-swap.
type shard struct {
	mu   sync.RWMutex
	m    map[string]*bucket
	ring []*bucket // every bucket of m, for the hand that looks for idle ones
	hand int
	room int
	_    [64 - 8]byte // keeps neighbours' locks off one cache line
}

type bucket struct {
	key string
	tat atomic.Int64
}

// evicted marks a bucket that was taken out of its shard, so that whoever still holds it starts again with the new one and
// its tokens are not lost.
const evicted = math.MinInt64

// handSteps bounds how many buckets one new key looks at for an idle one. The hand goes on where it stopped, so that all
// are looked at in turn and no request pays for a sweep.
const handSteps = 16

// keysPerShard is how many keys make one more shard worth while.
const keysPerShard = 1024

func newTokenBucket(o Options) (*tokenBucket, error) {
	every := (int64(o.Rate.Per) + o.Rate.Limit - 1) / o.Rate.Limit
	if every > math.MaxInt64/4/o.Burst {
		return nil, fmt.Errorf("rate limit: burst %d at %v takes too long to refill", o.Burst, o.Rate)
	}
	n := shardsFor(o.MaxKeys)
	l := &tokenBucket{
		now: o.Now, every: every, whole: every * o.Burst, burst: o.Burst,
		seed: maphash.MakeSeed(), shards: make([]shard, n),
	}
	for i := range l.shards {
		s := &l.shards[i]
		s.m = map[string]*bucket{}
		s.room = roomOf(i, n, o.MaxKeys)
	}
	return l, nil
}

// Allow takes one token of the key's bucket.
func (l *tokenBucket) Allow(_ context.Context, key string) Result {
	s := &l.shards[maphash.String(l.seed, key)&uint64(len(l.shards)-1)]
	for {
		now := int64(l.now())
		s.mu.RLock()
		b := s.m[key]
		s.mu.RUnlock()
		if b == nil {
			if b, now = s.add(key, l.now); b == nil {
				return Result{Limit: l.burst, RetryAfter: time.Duration(l.every), Reset: time.Duration(l.whole), Full: true}
			}
		}
		if r, ok := l.take(b, now); ok {
			return r
		}
	}
}

// take is false for a bucket that was evicted meanwhile.
func (l *tokenBucket) take(b *bucket, now int64) (Result, bool) {
	for {
		old := b.tat.Load()
		if old == evicted {
			return Result{}, false
		}
		next := max(old, now) + l.every
		if debt := next - now; debt > l.whole {
			return Result{
				Limit: l.burst, RetryAfter: time.Duration(debt - l.whole), Reset: time.Duration(old - now),
			}, true
		}
		if b.tat.CompareAndSwap(old, next) {
			return Result{
				OK: true, Limit: l.burst, Remaining: (l.whole - (next - now)) / l.every, Reset: time.Duration(next - now),
			}, true
		}
	}
}

// add makes a full bucket for a new key, in the place of an idle one if there is no room. Nil: there is none.
// It gives the time that it judged by, which must be read under the lock: a bucket made with a time from before its
// predecessor's last token would give that token twice.
func (s *shard) add(key string, clock func() time.Duration) (*bucket, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := int64(clock())
	if b := s.m[key]; b != nil {
		return b, now
	}
	// The caller's string may be a part of something larger.
	b := &bucket{key: strings.Clone(key)}
	b.tat.Store(now)
	if len(s.ring) < s.room {
		s.ring = append(s.ring, b)
		s.m[b.key] = b
		return b, now
	}
	for range min(handSteps, len(s.ring)) {
		i := s.hand
		s.hand = (s.hand + 1) % len(s.ring)
		old := s.ring[i]
		// Only a full bucket may go: its key comes back to exactly the same allowance, so that nobody gains by making
		// the limiter forget.
		if tat := old.tat.Load(); tat <= now && old.tat.CompareAndSwap(tat, evicted) {
			delete(s.m, old.key)
			s.ring[i] = b
			s.m[b.key] = b
			return b, now
		}
	}
	return nil, now
}

// Len is how many keys are held.
func (l *tokenBucket) Len() int {
	n := 0
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.RLock()
		n += len(s.ring)
		s.mu.RUnlock()
	}
	return n
}
