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
// survives a reload as long as the limiter's own configuration stays the same; with scope cluster it lives in Redis and is
// one for all gateways.
type RateLimit struct {
	// How requests are counted: token_bucket, a steady refill with room for a burst; sliding_window, never more than
	// `limit` in any span of `window`; leaky_bucket, one by one, and the others wait for their turn. Default: token_bucket.
	Algorithm ratelimit.Algorithm `json:"algorithm,omitempty"`

	// How many requests pass in each `window`.
	Limit int64 `json:"limit"`

	// The time that `limit` counts for, in nanoseconds or as a string such as "1s". Default: 1s.
	Window caddy.Duration `json:"window,omitempty"`

	// How many requests may pass at once, for token_bucket. Default: the same as `limit`.
	Burst int64 `json:"burst,omitempty"`

	// How many requests of one key may wait, for leaky_bucket. Default: the same as `limit`, at most 1000.
	Queue int `json:"queue,omitempty"`

	// How long a request may have to wait, for leaky_bucket, up to 1m. Default: 1s.
	Wait caddy.Duration `json:"wait,omitempty"`

	// How many requests of all keys may wait, for leaky_bucket. Default: 10000.
	MaxWaiting int `json:"max_waiting,omitempty"`

	// What is limited, by placeholders: each distinct text has its own allowance, and IPv6 client addresses count by their
	// /64. A request for which it comes out empty is refused, never let through and never lumped together with others.
	// Default: empty, one allowance for all requests that get here.
	Key string `json:"key,omitempty"`

	// What a request is answered for which the key comes out empty: 400, or 401 where the key is who the client is.
	// Default: 400.
	EmptyKey int `json:"empty_key,omitempty"`

	// Which requests are counted: reads, which are those by GET, HEAD and OPTIONS, or purchases, which are all others. What is
	// not counted passes. Default: empty, all requests.
	Only string `json:"only,omitempty"`

	// Where the state is kept: local, in this process, or cluster, in Redis, for all gateways together. The latter needs
	// sliding_window and the app `seckill`. Default: local.
	Scope string `json:"scope,omitempty"`

	// What the gateways of scope cluster know the limiter by. Give it where their sites differ in hosts or in order; ports may differ;
	// limiters of other sites with this name, algorithm, rate and key share the allowance. Default: the site.
	Name string `json:"name,omitempty"`

	// While Redis does not answer, each gateway of scope cluster lets `limit` divided by this pass, rounded down. It
	// should be the number of gateways or more. Default: 3.
	FallbackDivisor int64 `json:"fallback_divisor,omitempty"`

	// How long Redis may take to answer, for scope cluster. Default: 250ms.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How many keys are remembered at most; when all are in use, new ones are refused. Default: 1000000.
	MaxKeys int `json:"max_keys,omitempty"`

	Refusals
	key     template
	empty   fault
	limiter pooledLimiter
	store   *clusterStore // scope cluster
	fields  rateFields
	place   place
	pooled  string
}

const (
	scopeLocal   = "local"
	scopeCluster = "cluster"

	onlyPurchases = "purchases"
	onlyReads     = "reads"
)

var limiters = caddy.NewUsagePool()

// pooledLimiter is a limiter in the pool: one of the two. It holds nothing that must be closed.
type pooledLimiter struct {
	local   ratelimit.Limiter
	cluster *ratelimit.Cluster
}

// Destruct implements caddy.Destructor.
func (pooledLimiter) Destruct() error { return nil }

// CaddyModule returns the Caddy module information.
func (RateLimit) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.seckill_rate_limit", New: func() caddy.Module { return new(RateLimit) }}
}

// Provision checks the configuration and finds the limiter's state of before a reload.
func (l *RateLimit) Provision(ctx caddy.Context) error {
	if err := l.provision(ctx); err != nil {
		return err
	}
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
	if name := l.key.fleeting(); name != "" {
		return fmt.Errorf("key %q: {%s} changes with every connection or request, so that nothing would be limited: use {client_ip}, or who the buyer is",
			l.Key, name)
	}
	counts := *l
	counts.Refusals = Refusals{} // how it refuses says nothing of what it has counted
	identity, err := json.Marshal(&counts)
	if err != nil {
		return err
	}
	at := siteOf(ctx)
	l.place = places.take(ctx, at.here+" "+string(identity))
	name := l.place.String()
	v, _, err := limiters.LoadOrNew(name, func() (caddy.Destructor, error) { return l.make() })
	if err != nil {
		return err
	}
	l.pooled, l.limiter = name, v.(pooledLimiter)
	if l.Scope == scopeCluster {
		if l.store, err = newClusterStore(ctx, l.clusterName(at.everywhere)); err != nil {
			return err
		}
	}
	l.fields = newRateFields(l.Algorithm, l.Limit, time.Duration(l.Window))
	return registerMetrics(ctx)
}

func (l *RateLimit) make() (pooledLimiter, error) {
	rate := ratelimit.Rate{Limit: l.Limit, Per: time.Duration(l.Window)}
	if l.Scope == scopeCluster {
		c, err := ratelimit.NewCluster(ratelimit.ClusterOptions{
			Rate: rate, Divisor: l.FallbackDivisor, MaxKeys: l.MaxKeys, Timeout: time.Duration(l.Timeout),
		})
		return pooledLimiter{cluster: c}, err
	}
	lim, err := ratelimit.New(ratelimit.Options{
		Algorithm: l.Algorithm, Rate: rate, Burst: l.Burst, MaxKeys: l.MaxKeys,
		Queue: l.Queue, Wait: time.Duration(l.Wait), MaxWaiting: l.MaxWaiting,
	})
	return pooledLimiter{local: lim}, err
}

// clusterName is what the limiter is known by in Redis. It leaves out what may differ from gateway to gateway.
func (l *RateLimit) clusterName(where string) string {
	if l.Name != "" {
		where = "name " + l.Name
	}
	rate := ratelimit.Rate{Limit: l.Limit, Per: time.Duration(l.Window)}
	if l.Only != "" {
		where += " only " + l.Only
	}
	return fmt.Sprintf("%s %s %q #%d", where, rate, l.Key, l.place.ordinal)
}

// check fills defaults and refuses what does not go together.
func (l *RateLimit) check() error {
	if l.Algorithm == "" {
		l.Algorithm = ratelimit.TokenBucket
	}
	if l.Window == 0 {
		l.Window = caddy.Duration(time.Second)
	}
	if l.Limit <= 0 {
		return errors.New("limit: none given: want how many requests pass per window, such as 10000/s")
	}
	if l.Only != "" && l.Only != onlyPurchases && l.Only != onlyReads {
		return fmt.Errorf("only %q does not exist: want %s or %s", l.Only, onlyPurchases, onlyReads)
	}
	switch l.EmptyKey {
	case 0, edge.HTTPStatus(edge.BadRequest):
		l.empty = malformed("the request lacks what its rate limit goes by")
	case edge.HTTPStatus(edge.NoUser):
		l.empty = fault{reason: edge.NoUser}
	default:
		return fmt.Errorf("empty_key %d: want 400 or 401", l.EmptyKey)
	}
	if l.EmptyKey != 0 && l.Key == "" {
		return fmt.Errorf("empty_key %d: there is no key that could be empty: leave it out", l.EmptyKey)
	}
	return l.checkScope()
}

func (l *RateLimit) checkScope() error {
	switch l.Scope {
	case "", scopeLocal:
		if l.Name != "" || l.FallbackDivisor != 0 || l.Timeout != 0 {
			return fmt.Errorf("name, fallback_divisor and timeout are for scope %s: add it, or leave them out", scopeCluster)
		}
	case scopeCluster:
		if l.Algorithm != ratelimit.SlidingWindow {
			return fmt.Errorf("scope %s counts in a sliding window: write %s in place of %s", scopeCluster,
				ratelimit.SlidingWindow, l.Algorithm)
		}
		if l.Burst != 0 || l.Queue != 0 || l.Wait != 0 || l.MaxWaiting != 0 {
			return fmt.Errorf("scope %s has neither burst nor queue: leave burst, queue, wait and max_waiting out", scopeCluster)
		}
	default:
		return fmt.Errorf("rate limit scope %q does not exist: want %s or %s", l.Scope, scopeLocal, scopeCluster)
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
	if l.Only != "" && isSafe(r.Method) == (l.Only == onlyPurchases) {
		return next.ServeHTTP(w, r)
	}
	key := l.key.expand(replacer(r))
	if key == "" && l.Key != "" {
		if isEarly(r) {
			// Before the handshake is complete Caddy does not vouch for the client's address. The client comes back at once.
			return l.refuse(w, r, tooEarly)
		}
		return l.refuse(w, r, l.empty)
	}
	var res ratelimit.Result
	if l.store != nil {
		res = l.limiter.cluster.Allow(r.Context(), l.store, key)
		if res.Local {
			rateFallbacks.Inc()
		}
	} else {
		res = l.limiter.local.Allow(r.Context(), key)
	}
	if res.OK {
		return next.ServeHTTP(w, r)
	}
	return l.write(w, r, refusal{
		reason: edge.RateLimited, retryAfter: res.RetryAfter, rate: &l.fields,
		// One client comes back alone, but what all share is asked for by all again, and in the same moment.
		crowd: l.Key == "" || res.Full || res.Local,
	})
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	seckill_rate_limit [<matcher>] <algorithm> <limit>/<time> [<option> <value>]... {
//	    burst            <n>
//	    queue            <n>
//	    wait             <duration>
//	    max_waiting      <n>
//	    key              <placeholders>
//	    empty_key        400|401
//	    only             purchases|reads
//	    scope            local|cluster
//	    name             <name>
//	    fallback_divisor <n>
//	    timeout          <duration>
//	    max_keys         <n>
//	    handle_errors
//	}
//
// The algorithm is token_bucket, sliding_window or leaky_bucket. The rate is a number and a time, such as 10000/s, 5/m,
// 100/h or 20/10s. Every option may stand on the line or in the block. `burst` is for token_bucket; `queue`, `wait` and
// `max_waiting` are for leaky_bucket; `name`, `fallback_divisor` and `timeout` are for scope cluster, which counts in a
// sliding_window. Without a key all requests share one allowance; with `key {client_ip}` each client has its own.
func (l *RateLimit) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	o := options{d: d}
	var rate string
	if !d.Args((*string)(&l.Algorithm), &rate) {
		return d.Errf("want an algorithm and a rate, such as token_bucket 10000/s")
	}
	if !slices.Contains(ratelimit.Algorithms, l.Algorithm) {
		return d.Errf("rate limit algorithm %q does not exist: want one of %s", l.Algorithm, joined(ratelimit.Algorithms))
	}
	v, err := ratelimit.ParseRate(rate)
	if err != nil {
		return d.WrapErr(err)
	}
	l.Limit, l.Window = v.Limit, caddy.Duration(v.Per)

	option := func(name string) (bool, error) { return l.option(&o, name) }
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
	if err := o.each(0, option); err != nil {
		return err
	}
	// What does not go together is told here, where the line is known. The configuration stays as it was written.
	checked := *l
	if err := checked.check(); err != nil {
		return d.WrapErr(err)
	}
	if _, err := checked.make(); err != nil {
		return d.WrapErr(err)
	}
	return nil
}

func (l *RateLimit) option(o *options, name string) (bool, error) {
	switch name {
	case "burst":
		return true, o.number(&l.Burst)
	case "queue":
		return true, o.count(&l.Queue)
	case "wait":
		return true, o.duration(&l.Wait)
	case "max_waiting":
		return true, o.count(&l.MaxWaiting)
	case "key":
		return true, o.text(&l.Key)
	case "empty_key":
		return true, o.count(&l.EmptyKey)
	case "only":
		return true, o.text(&l.Only)
	case "scope":
		if err := o.text(&l.Scope); err != nil {
			return true, err
		}
		if l.Scope != scopeLocal && l.Scope != scopeCluster {
			return true, o.d.Errf("rate limit scope %q does not exist: want %s or %s", l.Scope, scopeLocal, scopeCluster)
		}
		if l.Scope == scopeLocal {
			l.Scope = "" // the default
		}
		return true, nil
	case "name":
		return true, o.text(&l.Name)
	case "fallback_divisor":
		return true, o.number(&l.FallbackDivisor)
	case "timeout":
		return true, o.duration(&l.Timeout)
	case "max_keys":
		return true, o.count(&l.MaxKeys)
	case "handle_errors":
		return true, o.flag(&l.HandleErrors)
	}
	return false, nil
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
