// Package rediswindow counts requests in a sliding window that lives in Redis, so that several gateways share one limit
// exactly. One call decides and counts; Redis' own clock is the only one that matters.
package rediswindow

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/ratelimit"
)

//go:embed take.lua
var source string

var script = redis.NewScript(source)

// Members have to be distinct over all gateways: a random word for this process, and a number.
var (
	process = rand.Text()
	members atomic.Uint64
)

// Key names the set that counts one key of one limiter. Both go in as a digest, so that a key has a fixed length, whatever
// an outsider sends, and no address or user id stands in Redis. The braces are the literal hash tag of Redis Cluster.
func Key(limiter, key string) string {
	return "seckill:rate:{" + digest(limiter) + ":" + digest(key) + "}"
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// Take counts one request under the key if fewer than rate.Limit have been counted within the last rate.Per. The script is
// called by its digest; its source is sent only to a server that says it does not know it, where nothing can have run.
// After any error the request may or may not have been counted: never repeat it.
func Take(ctx context.Context, rdb redis.Scripter, key string, rate ratelimit.Rate) (ratelimit.Result, error) {
	member := process + strconv.FormatUint(members.Add(1), 36)
	// Redis' clock has microseconds; rounded up, never laxer than the rate.
	window := (rate.Per + time.Microsecond - 1) / time.Microsecond
	v, err := script.Run(ctx, rdb, []string{key}, rate.Limit, int64(window), member).Int64Slice()
	if err != nil {
		return ratelimit.Result{}, fmt.Errorf("count in the shared rate limit: %w", err)
	}
	if len(v) != 3 {
		return ratelimit.Result{}, fmt.Errorf("count in the shared rate limit: the script gave %d values, want 3", len(v))
	}
	left, retry, reset := v[0], time.Duration(v[1])*time.Microsecond, time.Duration(v[2])*time.Microsecond
	if left < 0 {
		return ratelimit.Result{Limit: rate.Limit, RetryAfter: retry, Reset: reset}, nil
	}
	return ratelimit.Result{OK: true, Limit: rate.Limit, Remaining: left, Reset: reset}, nil
}
