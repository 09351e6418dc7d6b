// Package ratelimit limits how often a key may pass. Every algorithm is exact, bounded in memory and never lets a key
// regain its allowance early; when memory is full, new keys are refused, since wrongly refusing is better than letting
// through.
package ratelimit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// Algorithm names one way to limit.
type Algorithm string

// The algorithms.
const (
	// TokenBucket refills steadily and holds at most Burst.
	TokenBucket Algorithm = "token_bucket"
	// SlidingWindow lets at most Rate.Limit pass in any span of Rate.Per, wherever it begins.
	SlidingWindow Algorithm = "sliding_window"
	// LeakyBucket lets one pass every Rate.Per / Rate.Limit and has the others wait for their turn.
	LeakyBucket Algorithm = "leaky_bucket"
)

// Algorithms lists them all.
var Algorithms = []Algorithm{TokenBucket, SlidingWindow, LeakyBucket}

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
	// Local says that a Cluster judged by this gateway's own share, since the shared store did not answer.
	Local bool
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
	// Burst is how many may pass at once, for token_bucket only. Default: Rate.Limit.
	Burst int64
	// Queue is how many of one key may wait, for leaky_bucket only. Default: Rate.Limit, at most 1,000.
	Queue int
	// Wait is how long one may have to wait, for leaky_bucket only. Default: 1 s.
	Wait time.Duration
	// MaxWaiting is how many of all keys may wait, for leaky_bucket only. Default: 10,000.
	MaxWaiting int
	// MaxKeys bounds the keys held. Default: 1,000,000.
	MaxKeys int
	// Now is a monotonic clock: time since any fixed origin. Default: the process's.
	Now func() time.Duration
}

// Defaults and bounds of Options.
const (
	DefaultMaxKeys    = 1_000_000
	DefaultWait       = time.Second
	DefaultMaxWaiting = 10_000
	// MaxWait is the longest that leaky_bucket may have a request wait.
	MaxWait      = time.Minute
	defaultQueue = 1000
	maxBurst     = 1_000_000_000
)

// New makes a limiter, or says which option is wrong. It starts nothing.
func New(o Options) (Limiter, error) {
	o.Algorithm = cmp.Or(o.Algorithm, TokenBucket)
	if err := o.check(); err != nil {
		return nil, err
	}
	o.MaxKeys = cmp.Or(o.MaxKeys, DefaultMaxKeys)
	o.Burst = cmp.Or(o.Burst, o.Rate.Limit)
	o.Queue = cmp.Or(o.Queue, int(min(o.Rate.Limit, defaultQueue)))
	o.Wait = cmp.Or(o.Wait, DefaultWait)
	o.MaxWaiting = cmp.Or(o.MaxWaiting, DefaultMaxWaiting)
	if o.Now == nil {
		o.Now = sinceStart
	}
	switch o.Algorithm {
	case SlidingWindow:
		return newSlidingWindow(o), nil
	case LeakyBucket:
		return newLeakyBucket(o), nil
	default:
		return newTokenBucket(o)
	}
}

// check refuses what is out of bounds, and options that the algorithm has no use for: they would be a promise.
func (o *Options) check() error {
	if !slices.Contains(Algorithms, o.Algorithm) {
		return fmt.Errorf("rate limit: unknown algorithm %q: want one of %q", o.Algorithm, Algorithms)
	}
	if err := o.Rate.Validate(); err != nil {
		return err
	}
	switch {
	case o.MaxKeys < 0:
		return fmt.Errorf("rate limit: max_keys %d: want at least 1", o.MaxKeys)
	case o.Burst != 0 && o.Algorithm != TokenBucket:
		return fmt.Errorf("rate limit: %s has no burst: leave it out, or use %s", o.Algorithm, TokenBucket)
	case o.Burst < 0 || o.Burst > maxBurst:
		return fmt.Errorf("rate limit: burst %d: want 1 to %d", o.Burst, maxBurst)
	case o.Algorithm != LeakyBucket && (o.Queue != 0 || o.Wait != 0 || o.MaxWaiting != 0):
		return fmt.Errorf("rate limit: %s has no queue: leave queue, wait and max_waiting out, or use %s", o.Algorithm, LeakyBucket)
	case o.Queue < 0:
		return fmt.Errorf("rate limit: queue %d: want at least 1", o.Queue)
	case o.Wait < 0 || o.Wait > MaxWait:
		return fmt.Errorf("rate limit: wait %v: want up to %v", o.Wait, MaxWait)
	case o.MaxWaiting < 0:
		return fmt.Errorf("rate limit: max_waiting %d: want at least 1", o.MaxWaiting)
	}
	return nil
}

// start is the origin of the default clock. It is the process's, not a limiter's, so that state which outlives a reload
// keeps its meaning.
var start = time.Now()

func sinceStart() time.Duration { return time.Since(start) }
