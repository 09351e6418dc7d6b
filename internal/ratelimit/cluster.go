package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Cluster is a sliding window that several gateways share. Whoever asks it brings the means to ask the shared store. While
// the store does not answer, each gateway lets its own share pass and no more.
//
// It remembers in memory until when the store has refused a key: nothing can pass before that time, so that a flood beyond
// the limit does not reach the store.
type Cluster struct {
	rate    Rate
	share   Limiter // nil: nothing passes while the store is away
	seen    *table[sighting]
	timeout time.Duration
	now     func() time.Duration

	local atomic.Bool  // the store does not answer
	probe atomic.Int64 // when it is asked again
}

// sighting is what is known of a key.
type sighting struct {
	refused int64 // nothing of it can pass before
	kept    int64 // the store holds it until then, at most
}

// Store is the shared store, as one request has it.
type Store interface {
	// Take counts one request of the key if fewer than rate.Limit have been counted within the last rate.Per, for all
	// gateways. An error means that it is not known to be counted.
	Take(ctx context.Context, key string, rate Rate) (Result, error)
	// Switched is told when the store stops answering (with the reason), and when it answers again (with nil).
	Switched(err error)
}

// ErrNotAsked is a Store's error when it had no means to ask: the request counts in the gateway's own share, and the next
// one asks again.
var ErrNotAsked = errors.New("the shared store was not asked")

// ClusterOptions of NewCluster.
type ClusterOptions struct {
	Rate Rate
	// Divisor: while the store is away, this gateway lets Rate.Limit / Divisor pass, rounded down. It should be the number
	// of gateways or more. Default: 3.
	Divisor int64
	// MaxKeys bounds the keys that this gateway remembers, and so those that it can have the store hold. Default: 1,000,000.
	MaxKeys int
	// Timeout bounds one question to the store. Default: 250 ms.
	Timeout time.Duration
	// Now is a monotonic clock. Default: the process's.
	Now func() time.Duration
}

// Defaults and bounds of ClusterOptions.
const (
	DefaultDivisor        = 3
	DefaultClusterTimeout = 250 * time.Millisecond
	// MaxClusterLimit bounds the members that the store has to keep for one key.
	MaxClusterLimit = 100_000
	// probeEvery is how often a store that does not answer is asked again, by one request at a time.
	probeEvery = 500 * time.Millisecond
)

// NewCluster makes a limiter, or says which option is wrong. It starts nothing and asks nobody.
func NewCluster(o ClusterOptions) (*Cluster, error) {
	o.Divisor = cmp.Or(o.Divisor, DefaultDivisor)
	o.MaxKeys = cmp.Or(o.MaxKeys, DefaultMaxKeys)
	o.Timeout = cmp.Or(o.Timeout, DefaultClusterTimeout)
	if o.Now == nil {
		o.Now = sinceStart
	}
	if err := o.Rate.Validate(); err != nil {
		return nil, err
	}
	switch {
	case o.Rate.Limit > MaxClusterLimit:
		return nil, fmt.Errorf("rate limit: %d is too much for scope cluster: want at most %d, or scope local",
			o.Rate.Limit, MaxClusterLimit)
	case o.Divisor < 1:
		return nil, fmt.Errorf("rate limit: fallback_divisor %d: want at least 1", o.Divisor)
	case o.MaxKeys < 1:
		return nil, fmt.Errorf("rate limit: max_keys %d: want at least 1", o.MaxKeys)
	case o.Timeout < time.Millisecond:
		return nil, fmt.Errorf("rate limit: timeout %v: want at least %v", o.Timeout, time.Millisecond)
	}
	l := &Cluster{rate: o.Rate, timeout: o.Timeout, now: o.Now}
	l.seen = newTable(o.MaxKeys, o.Now, func(s *sighting, now int64) bool { return s.refused <= now && s.kept <= now })
	if share := o.Rate.Limit / o.Divisor; share > 0 {
		l.share = newSlidingWindow(Options{Rate: Rate{Limit: share, Per: o.Rate.Per}, MaxKeys: o.MaxKeys, Now: o.Now})
	}
	return l, nil
}

// Allow asks the store, or the gateway's own share while the store does not answer. Result.Local tells which.
func (l *Cluster) Allow(ctx context.Context, store Store, key string) Result {
	if l.local.Load() && !l.mayProbe() {
		return l.fallback(ctx, key)
	}
	s, now := l.seen.acquire(key)
	if s == nil {
		return Result{
			Limit: l.rate.Limit, RetryAfter: l.rate.Per / time.Duration(l.rate.Limit), Reset: l.rate.Per, Full: true,
		}
	}
	if d := time.Duration(s.state.refused - now); d > 0 {
		s.mu.Unlock()
		return Result{Limit: l.rate.Limit, RetryAfter: d, Reset: l.rate.Per}
	}
	// From before the question until a window after the latest moment at which the store can have counted it.
	s.state.kept = now + int64(l.timeout+l.rate.Per)
	s.mu.Unlock()

	asking, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	res, err := store.Take(asking, key, l.rate)
	if err != nil {
		switch {
		case ctx.Err() != nil: // the client has left: that says nothing of the store
			return Result{Limit: l.rate.Limit, RetryAfter: l.rate.Per / time.Duration(l.rate.Limit), Reset: l.rate.Per}
		case errors.Is(err, ErrNotAsked):
			return l.fallback(ctx, key)
		}
		l.probe.Store(int64(l.now() + probeEvery))
		if l.local.CompareAndSwap(false, true) {
			store.Switched(err)
		}
		return l.fallback(ctx, key)
	}
	if l.local.CompareAndSwap(true, false) {
		store.Switched(nil)
	}
	if !res.OK {
		l.remember(key, now+int64(res.RetryAfter))
	}
	return res
}

// remember notes until when the store refuses a key. The time counts from before the question, so it is never late.
func (l *Cluster) remember(key string, until int64) {
	s, _ := l.seen.acquire(key)
	if s == nil {
		return
	}
	s.state.refused = max(s.state.refused, until)
	s.mu.Unlock()
}

// mayProbe lets one request in each probeEvery ask a store that did not answer.
func (l *Cluster) mayProbe() bool {
	at, now := l.probe.Load(), int64(l.now())
	return now >= at && l.probe.CompareAndSwap(at, now+int64(probeEvery))
}

func (l *Cluster) fallback(ctx context.Context, key string) Result {
	res := Result{RetryAfter: probeEvery, Reset: l.rate.Per}
	if l.share != nil {
		res = l.share.Allow(ctx, key)
	}
	res.Local = true
	return res
}

// Len is how many keys are held.
func (l *Cluster) Len() int { return l.seen.Len() }
