package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ratelimit"
	"github.com/seckillgate/seckillgate/internal/ratelimit/rediswindow"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// A refusal tells what the limit is and when to come back, in agreeing words.
func TestRateLimitFields(t *testing.T) {
	f := newFake()
	at := run(t, f,
		"seckill_rate_limit /token token_bucket 7200/h burst 1",
		"seckill_rate_limit /window sliding_window 1/1m key {client_ip}",
		"seckill_rate_limit /leaky leaky_bucket 1/1500ms queue 1 wait 1ms key {client_ip}",
		"respond shop 299")
	for _, c := range []struct {
		path, policy, name string
		retry              []string
	}{
		{"/token", `"token_bucket";q=7200;w=3600`, "token_bucket", []string{"1", "2", "3"}}, // all share it: spread
		{"/window", `"sliding_window";q=1;w=60`, "sliding_window", []string{"60"}},
		{"/leaky", `"leaky_bucket";q=1`, "leaky_bucket", []string{"2"}}, // the window is no whole number of seconds
	} {
		passed := request(t, "GET", at+c.path, "")
		if passed.status != 299 || passed.header.Get("RateLimit-Policy") != "" {
			t.Errorf("%s: got %d, policy %q", c.path, passed.status, passed.header.Get("RateLimit-Policy"))
		}
		res := request(t, "GET", at+c.path, "")
		retry := res.header.Get("Retry-After")
		if res.status != 429 || !slices.Contains(c.retry, retry) {
			t.Errorf("%s: got %d, Retry-After %q, want one of %q", c.path, res.status, retry, c.retry)
		}
		if got := res.header.Get("RateLimit-Policy"); got != c.policy {
			t.Errorf("%s: policy %q, want %q", c.path, got, c.policy)
		}
		if got, want := res.header.Get("RateLimit"), `"`+c.name+`";r=0;t=`+retry; got != want {
			t.Errorf("%s: RateLimit is %q, want %q", c.path, got, want)
		}
	}
}

func TestRetrySeconds(t *testing.T) {
	for d, want := range map[time.Duration][2]int64{
		0: {1, 3}, time.Millisecond: {1, 3}, 1500 * time.Millisecond: {2, 4}, 10 * time.Second: {10, 20}, time.Hour: {3600, 3660},
	} {
		seen := map[int64]bool{}
		for range 2000 {
			s := retrySeconds(d, true)
			if s < want[0] || s > want[1] {
				t.Fatalf("%v: %d s, want %d to %d", d, s, want[0], want[1])
			}
			seen[s] = true
		}
		if int64(len(seen)) != want[1]-want[0]+1 {
			t.Errorf("%v: %d different times", d, len(seen))
		}
		if s := retrySeconds(d, false); s != want[0] {
			t.Errorf("%v: %d s for one client, want %d", d, s, want[0])
		}
	}
	f := newRateFields(ratelimit.TokenBucket, 1, time.Second)
	for _, s := range []int64{0, 63, 64, 3600} {
		if got, want := f.remaining(s), `"token_bucket";r=0;t=`+strconv.FormatInt(s, 10); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// E77: nobody is never one key for all strangers; whether that is 400 or 401 is the operator's to say.
func TestE77EmptyKey(t *testing.T) {
	f := newFake()
	at := run(t, f,
		"seckill_rate_limit /a sliding_window 1/h key {header.X-Key}",
		"seckill_rate_limit /b sliding_window 1/h key {header.X-Key} empty_key 401",
		"seckill_rate_limit /c sliding_window 1/h key {header.X-Key} empty_key 400 scope cluster",
		"respond shop 299")
	for path, want := range map[string]int{"/a": 400, "/b": 401, "/c": 400} {
		for range 2 {
			if res := request(t, "GET", at+path, ""); res.status != want {
				t.Errorf("%s: got %d %s", path, res.status, res.body)
			}
		}
		if res := request(t, "GET", at+path, "", "X-Key", "k"); res.status != 299 {
			t.Errorf("%s: got %d %s", path, res.status, res.body)
		}
	}
}

// The leaky bucket holds requests back and lets go of those whose client leaves.
func TestLeakyBucketWaits(t *testing.T) {
	f := newFake()
	at := run(t, f,
		"seckill_rate_limit /steady leaky_bucket 20/s queue 2 wait 5s",
		"seckill_rate_limit /slow leaky_bucket 1/m queue 1 wait 1m",
		"respond shop 299")
	began := time.Now()
	var wg sync.WaitGroup
	var passed, refused atomic.Int32
	for range 6 {
		wg.Go(func() {
			switch res := request(t, "GET", at+"/steady", ""); res.status {
			case 299:
				passed.Add(1)
			case 429:
				refused.Add(1)
			}
		})
	}
	wg.Wait()
	// How many come in the same moment is not ours to say; those that passed beyond the first have waited.
	if n := passed.Load(); n < 3 || time.Since(began) < time.Duration(n-1)*50*time.Millisecond || n+refused.Load() != 6 {
		t.Errorf("%d passed, %d refused in %v", n, refused.Load(), time.Since(began))
	}
	if res := request(t, "GET", at+"/slow", ""); res.status != 299 {
		t.Errorf("got %d", res.status)
	}
	// hold waits for a turn that is a minute away, and leaves. It reports whether there was room to wait.
	hold := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"/slow", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := tryDo(r)
		if err == nil && res.status != 429 {
			t.Errorf("got %d before its turn", res.status)
		}
		return err != nil
	}
	if !hold() {
		t.Error("no room to wait")
	}
	testenv.Eventually(t, 10*time.Second, "the place of the client that has left", hold)
}

// redisFake is a fake edge whose shared limits are real, in a Redis of the test's own.
type redisFake struct {
	*fake
	rdb *redis.Client
}

func (f redisFake) takeRate(ctx context.Context, key string, rate ratelimit.Rate) (ratelimit.Result, error) {
	if err := f.redis; err != nil {
		return ratelimit.Result{}, err
	}
	return rediswindow.Take(ctx, f.rdb, key, rate)
}

// Scope cluster counts in Redis; other sites, other lines and purchases and reads do not share, and what has a name does.
func TestRateLimitScopeCluster(t *testing.T) {
	server := testenv.StartRedis(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	was := newBackend
	newBackend = func(settings, *zap.Logger) (backend, error) { return redisFake{newFake(), rdb}, nil }
	t.Cleanup(func() { newBackend = was })
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	a, b := testenv.FreePort(t), testenv.FreePort(t)
	config := func(more string) string {
		const limit = " sliding_window 2/h scope cluster timeout 10s"
		lines := "seckill_rate_limit /own" + limit + "\nseckill_rate_limit /other" + limit + "\n" +
			"seckill_rate_limit /named" + limit + " name shop\n" +
			"seckill {\nprefix /sale\nuser {header.X-User}\nrate_limit" + limit + " name sale\n}\nrespond shop 299\n"
		return fmt.Sprintf("%shttp://127.0.0.1:%d {\n%s}\nhttp://localhost:%d {\n%s}\n",
			strings.Replace(global, "kafka", more+"\nkafka", 1), a, lines, b, lines)
	}
	load(t, config(""))
	status := func(port int, method, path string) int {
		host := "127.0.0.1"
		if port == b {
			host = "localhost"
		}
		r, err := http.NewRequestWithContext(t.Context(), method, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = fmt.Sprintf("%s:%d", host, port)
		return do(t, r).status
	}
	for _, c := range []struct {
		port         int
		method, path string
		want         []int
	}{
		{a, "GET", "/own", []int{299, 299, 429}},
		{a, "GET", "/other", []int{299, 299, 429}},
		{b, "GET", "/own", []int{299, 299, 429}},
		{a, "GET", "/named", []int{299}},
		{b, "GET", "/named", []int{299, 429}},
		{a, "POST", "/sale/2/orders", []int{409, 409, 429}},
		{a, "GET", "/sale/1", []int{200, 200, 429}},
		{b, "GET", "/sale/1", []int{429}},
	} {
		for i, want := range c.want {
			if got := status(c.port, c.method, c.path); got != want {
				t.Errorf("%s %d%s, call %d: got %d, want %d", c.method, c.port, c.path, i, got, want)
			}
		}
	}
	load(t, config("request_timeout 900ms"))
	if got := status(a, "GET", "/own"); got != 429 {
		t.Errorf("after a reload with other clients: got %d", got)
	}
	keys, err := rdb.Keys(t.Context(), "*").Result()
	if err != nil || len(keys) != 6 {
		t.Errorf("%d keys in Redis (%v), want 6: %q", len(keys), err, keys)
	}
}

func fallbacks(t *testing.T) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(rateFallbacks)
	families, err := reg.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%d families: %v", len(families), err)
	}
	return families[0].GetMetric()[0].GetCounter().GetValue()
}

// With Redis down the gateway lets its share pass, and counts that.
func TestRateLimitFallback(t *testing.T) {
	f := newFake()
	at := run(t, f,
		"seckill_rate_limit /all sliding_window 6/h scope cluster fallback_divisor 3",
		"seckill_rate_limit /none sliding_window 2/h scope cluster fallback_divisor 3",
		"respond shop 299")
	f.mu.Lock()
	f.redis = errors.New("redis is down")
	f.mu.Unlock()
	before := fallbacks(t)
	var got []int
	for range 4 {
		got = append(got, request(t, "GET", at+"/all", "").status)
	}
	got = append(got, request(t, "GET", at+"/none", "").status)
	if !slices.Equal(got, []int{299, 299, 429, 429, 429}) {
		t.Errorf("got %v", got)
	}
	if n := fallbacks(t) - before; n != 5 {
		t.Errorf("%v fallbacks counted, want 5", n)
	}
	f.mu.Lock()
	f.redis = nil
	f.mu.Unlock()
	testenv.Eventually(t, 10*time.Second, "Redis to be asked again", func() bool {
		return request(t, "GET", at+"/all", "").status == 299
	})
}

// A limit counts only what it is for, and lets the rest pass.
func TestRateLimitOnly(t *testing.T) {
	at := run(t, newFake(),
		"seckill_rate_limit /buy token_bucket 1/h burst 1 only purchases",
		"seckill_rate_limit /read token_bucket 1/h burst 1 only reads",
		"respond shop 299")
	reads, purchases := []string{"GET", "HEAD", "OPTIONS"}, []string{"POST", "PUT", "PATCH"}
	for _, c := range []struct {
		path           string
		counted, other []string
	}{{"/buy", purchases, reads}, {"/read", reads, purchases}} {
		for i, want := range []int{299, 429, 429} {
			if res := request(t, c.other[i], at+c.path, ""); res.status != 299 {
				t.Errorf("%s %s: got %d", c.other[i], c.path, res.status)
			}
			if res := request(t, c.counted[i], at+c.path, ""); res.status != want {
				t.Errorf("%s %s, request %d: got %d, want %d", c.counted[i], c.path, i+1, res.status, want)
			}
		}
	}
}
