package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/ratelimit"
)

// RateLimit refuses requests that come too often with 429 and Retry-After. Its state lives in this process's memory and
// survives a reload as long as the limiter's own configuration stays the same.
type RateLimit struct {
	// How requests are counted. Default: token_bucket, a steady refill with room for a burst.
	Algorithm ratelimit.Algorithm `json:"algorithm,omitempty"`

	// How many requests pass in each `window`.
	Limit int64 `json:"limit"`

	// The time that `limit` counts for, in nanoseconds or as a string such as "1s". Default: 1s.
	Window caddy.Duration `json:"window,omitempty"`

	// How many requests may pass at once. Default: the same as `limit`.
	Burst int64 `json:"burst,omitempty"`

	// What is limited, by placeholders: each distinct text has its own allowance, and IPv6 client addresses count by their
	// /64. A request for which it comes out empty is refused with 400, never let through and never lumped together with
	// others. Default: empty, one allowance for all requests that get here.
	Key string `json:"key,omitempty"`

	// Where the state is kept. Default: local, in this process.
	Scope string `json:"scope,omitempty"`

	// How many keys are remembered at most; when all are in use, new ones are refused. Default: 1000000.
	MaxKeys int `json:"max_keys,omitempty"`

	key     template
	limiter ratelimit.Limiter
	place   place
	pooled  string
}

var (
	algorithms = []ratelimit.Algorithm{ratelimit.TokenBucket}
	limiters   = caddy.NewUsagePool()
)

// pooledLimiter is a limiter in the pool. It holds nothing that must be closed.
type pooledLimiter struct{ ratelimit.Limiter }

// Destruct implements caddy.Destructor.
func (pooledLimiter) Destruct() error { return nil }

// CaddyModule returns the Caddy module information.
func (RateLimit) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.seckill_rate_limit", New: func() caddy.Module { return new(RateLimit) }}
}

// Provision checks the configuration and finds the limiter's state of before a reload.
func (l *RateLimit) Provision(ctx caddy.Context) error {
	if err := l.check(); err != nil {
		return err
	}
	var err error
	if l.key, err = compile(l.Key, ctx.Logger()); err != nil {
		return fmt.Errorf("key: %w", err)
	}
	if l.Key != "" && l.key.constant() {
		return fmt.Errorf("key %q has no placeholder: leave it out for one allowance for all requests", l.Key)
	}
	identity, err := json.Marshal(l)
	if err != nil {
		return err
	}
	l.place = places.take(ctx, site(ctx)+" "+string(identity))
	name := l.place.String()
	v, _, err := limiters.LoadOrNew(name, func() (caddy.Destructor, error) {
		lim, err := ratelimit.New(ratelimit.Options{
			Algorithm: l.Algorithm,
			Rate:      ratelimit.Rate{Limit: l.Limit, Per: time.Duration(l.Window)},
			Burst:     l.Burst,
			MaxKeys:   l.MaxKeys,
		})
		return pooledLimiter{lim}, err
	})
	if err != nil {
		return err
	}
	l.pooled, l.limiter = name, v.(pooledLimiter).Limiter
	return registerMetrics(ctx)
}

// check fills defaults and refuses what this version does not have.
func (l *RateLimit) check() error {
	if l.Algorithm == "" {
		l.Algorithm = ratelimit.TokenBucket
	}
	if !slices.Contains(algorithms, l.Algorithm) {
		return fmt.Errorf("rate limit algorithm %q does not exist in this version: it has %s", l.Algorithm, joined(algorithms))
	}
	if l.Scope != "" && l.Scope != "local" {
		return fmt.Errorf("rate limit scope %q does not exist in this version: it has local", l.Scope)
	}
	if l.Window == 0 {
		l.Window = caddy.Duration(time.Second)
	}
	if l.Limit <= 0 {
		return errors.New("limit: none given: want how many requests pass per window, such as 10000/s")
	}
	return nil
}

// Cleanup gives the limiter back.
func (l *RateLimit) Cleanup() error {
	places.leave(l.place)
	if l.pooled == "" {
		return nil
	}
	_, err := limiters.Delete(l.pooled)
	l.pooled = ""
	return err
}

// ServeHTTP lets the request pass or refuses it.
func (l *RateLimit) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	key := l.key.expand(replacer(r))
	if key == "" && l.Key != "" {
		if isEarly(r) {
			// Before the handshake is complete Caddy does not vouch for the client's address. The client comes back at once.
			return refuse(w, r, edge.TooEarly, 0)
		}
		return refuse(w, r, edge.BadRequest, 0)
	}
	res := l.limiter.Allow(r.Context(), key)
	if res.OK {
		return next.ServeHTTP(w, r)
	}
	return refuse(w, r, edge.RateLimited, res.RetryAfter)
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	seckill_rate_limit [<matcher>] <algorithm> <limit>/<time> [burst <n>] [key <placeholders>] [scope local] [max_keys <n>] {
//	    burst    <n>
//	    key      <placeholders>
//	    scope    local
//	    max_keys <n>
//	}
//
// The algorithm is token_bucket. The rate is a number and a time, such as 10000/s, 5/m, 100/h or 20/10s. Every option may
// stand on the line or in the block. Without a key all requests share one allowance; with `key {client_ip}` each client has
// its own.
func (l *RateLimit) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	o := options{d: d}
	var rate string
	if !d.Args((*string)(&l.Algorithm), &rate) {
		return d.Errf("want an algorithm and a rate, such as token_bucket 10000/s")
	}
	if !slices.Contains(algorithms, l.Algorithm) {
		return d.Errf("rate limit algorithm %q does not exist in this version: it has %s", l.Algorithm, joined(algorithms))
	}
	v, err := ratelimit.ParseRate(rate)
	if err != nil {
		return d.WrapErr(err)
	}
	l.Limit, l.Window = v.Limit, caddy.Duration(v.Per)

	option := func(name string) (bool, error) {
		switch name {
		case "burst":
			return true, o.number(&l.Burst)
		case "key":
			return true, o.text(&l.Key)
		case "scope":
			if err := o.text(&l.Scope); err != nil {
				return true, err
			}
			if l.Scope != "local" {
				return true, d.Errf("rate limit scope %q does not exist in this version: it has local", l.Scope)
			}
			l.Scope = "" // the default
			return true, nil
		case "max_keys":
			return true, o.count(&l.MaxKeys)
		}
		return false, nil
	}
	for d.NextArg() {
		name := d.Val()
		if err := o.once(name); err != nil {
			return err
		}
		known, err := option(name)
		if err != nil {
			return err
		}
		if !known {
			return d.Errf("unrecognized option %s", name)
		}
	}
	return o.each(0, option)
}

func joined(words []ratelimit.Algorithm) string {
	s := make([]string, len(words))
	for i, w := range words {
		s[i] = string(w)
	}
	return strings.Join(s, ", ")
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*RateLimit)(nil)
	_ caddy.CleanerUpper          = (*RateLimit)(nil)
	_ caddyhttp.MiddlewareHandler = (*RateLimit)(nil)
	_ caddyfile.Unmarshaler       = (*RateLimit)(nil)
)
