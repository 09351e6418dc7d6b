// Package ratelimit limits how often a key may pass. Every algorithm is exact, bounded in memory and never lets a key
// regain its allowance early; when memory is full, new keys are refused, since wrongly refusing is better than letting
// through.
package ratelimit

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// Algorithm names one way to limit.
type Algorithm string

// TokenBucket refills steadily and holds at most Burst.
const TokenBucket Algorithm = "token_bucket"

// Result is a limiter's answer.
type Result struct {
	OK bool
	// RetryAfter is how long the key should wait before the next try; 0 when OK.
	RetryAfter time.Duration
	// Limit is the most that may pass at once, and Remaining how much of it is left after this answer.
	Limit, Remaining int64
	// Reset is how long until the allowance is whole again.
	Reset time.Duration
	// Full says that the key was refused because the limiter has no room for a new key.
	Full bool
}

// Limiter limits by key. An empty key is a key like any other: callers decide what a missing key means before they ask.
// Allow never blocks for algorithms that do not queue; a queueing one returns when ctx ends.
type Limiter interface {
	Allow(ctx context.Context, key string) Result
	// Len is how many keys are held.
	Len() int
}

// Options of New.
type Options struct {
	Algorithm Algorithm // default token_bucket
	Rate      Rate
	// Burst is how many may pass at once. Default: Rate.Limit.
	Burst int64
	// MaxKeys bounds the keys held. Default: 1,000,000.
	MaxKeys int
	// Now is a monotonic clock: time since any fixed origin. Default: the process's.
	Now func() time.Duration
}

// Defaults and bounds of Options.
const (
	DefaultMaxKeys = 1_000_000
	maxBurst       = 1_000_000_000
)

// New makes a limiter, or says which option is wrong. It starts nothing.
func New(o Options) (Limiter, error) {
	o.Algorithm = cmp.Or(o.Algorithm, TokenBucket)
	o.MaxKeys = cmp.Or(o.MaxKeys, DefaultMaxKeys)
	o.Burst = cmp.Or(o.Burst, o.Rate.Limit)
	if o.Now == nil {
		o.Now = sinceStart
	}
	if err := o.Rate.Validate(); err != nil {
		return nil, err
	}
	if o.MaxKeys < 1 {
		return nil, fmt.Errorf("rate limit: max keys %d: want at least 1", o.MaxKeys)
	}
	if o.Burst < 1 || o.Burst > maxBurst {
		return nil, fmt.Errorf("rate limit: burst %d: want 1 to %d", o.Burst, maxBurst)
	}
	switch o.Algorithm {
	case TokenBucket:
		return newTokenBucket(o)
	default:
		return nil, fmt.Errorf("rate limit: unknown algorithm %q: want %s", o.Algorithm, TokenBucket)
	}
}

// start is the origin of the default clock. It is the process's, not a limiter's, so that state which outlives a reload
// keeps its meaning.
var start = time.Now()

func sinceStart() time.Duration { return time.Since(start) }
