package rediswindow

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/internal/ratelimit"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.KnownLeaks()...) }

// gateway is what one gateway has: a limiter and a client of its own.
type gateway struct {
	*ratelimit.Cluster
	rdb      redis.UniversalClient
	switches atomic.Int32
}

func (g *gateway) Take(ctx context.Context, key string, rate ratelimit.Rate) (ratelimit.Result, error) {
	return Take(ctx, g.rdb, Key("limiter", key), rate)
}

func (g *gateway) Switched(error) { g.switches.Add(1) }

func (g *gateway) allow(t *testing.T, key string) ratelimit.Result {
	return g.Allow(t.Context(), g, key)
}

func newGateways(t *testing.T, rate ratelimit.Rate, addrs ...string) []*gateway {
	t.Helper()
	all := make([]*gateway, 3)
	for i := range all {
		l, err := ratelimit.NewCluster(ratelimit.ClusterOptions{Rate: rate, Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		rdb := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addrs, MaxRetries: -1, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = rdb.Close() })
		all[i] = &gateway{Cluster: l, rdb: rdb}
	}
	return all
}

// flood asks all gateways at once, many times, and gives how many passed and how many shares were used.
func flood(t *testing.T, gateways []*gateway, key string) (passed, local int64) {
	t.Helper()
	var wg sync.WaitGroup
	var ok, own atomic.Int64
	for _, g := range gateways {
		for range 8 {
			wg.Go(func() {
				for range 50 {
					r := g.allow(t, key)
					if r.OK {
						ok.Add(1)
					}
					if r.Local {
						own.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	return ok.Load(), own.Load()
}

// TestThreeGateways: three gateways that ask in parallel let exactly the limit pass, on one Redis and on a cluster.
func TestThreeGateways(t *testing.T) {
	t.Parallel()
	for name, addrs := range map[string]func() []string{
		"single":  func() []string { return []string{testenv.StartRedis(t).Addr} },
		"cluster": func() []string { return testenv.StartRedisCluster(t, 3) },
	} {
		addrs := addrs()
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gateways := newGateways(t, ratelimit.Rate{Limit: 100, Per: time.Hour}, addrs...)
			for _, key := range []string{"a", "b", "{}", strings.Repeat("long", 1000)} {
				if passed, local := flood(t, gateways, key); passed != 100 || local != 0 {
					t.Errorf("%d passed, %d of them by a share; want 100 and 0", passed, local)
				}
			}
		})
	}
}

// TestAnyWindow: over many windows, as Redis' clock measures them, there are never more than the limit in any one.
func TestAnyWindow(t *testing.T) {
	t.Parallel()
	const limit, per = 20, 200 * time.Millisecond
	gateways := newGateways(t, ratelimit.Rate{Limit: limit, Per: per}, testenv.StartRedis(t).Addr)
	rdb := gateways[0].rdb
	scores := map[string]float64{}
	var passed atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, g := range gateways {
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					r := g.allow(t, "k")
					if r.OK {
						passed.Add(1)
						continue
					}
					select {
					case <-stop:
					case <-time.After(min(r.RetryAfter, per)):
					}
				}
			})
		}
	}
	var most int64
	testenv.Eventually(t, 30*time.Second, "five windows' worth", func() bool {
		zs, err := rdb.ZRangeWithScores(t.Context(), Key("limiter", "k"), 0, -1).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, z := range zs {
			scores[z.Member.(string)] = z.Score
		}
		most = max(most, int64(len(zs)))
		return passed.Load() >= 5*limit
	})
	close(stop)
	wg.Wait()
	if most > limit {
		t.Errorf("the set had %d members", most)
	}
	for _, from := range scores {
		n := 0
		for _, at := range scores {
			if at >= from && at < from+float64(per.Microseconds()) {
				n++
			}
		}
		if n > limit {
			t.Fatalf("%d passed in one window", n)
		}
	}
}

// TestTake: what is told is right, the key goes by itself, and a server that forgot the script is told it again.
func TestTake(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: testenv.StartRedis(t).Addr, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	rate := ratelimit.Rate{Limit: 2, Per: time.Hour} // so that no answer comes too late for the window
	key := Key("l", "k")
	for i := range 2 {
		if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		r, err := Take(t.Context(), rdb, key, rate)
		if err != nil || !r.OK || r.Limit != 2 || r.Remaining != int64(1-i) || r.Reset != rate.Per {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	if ttl, err := rdb.PTTL(t.Context(), key).Result(); err != nil || ttl <= 0 || ttl > rate.Per+time.Second {
		t.Errorf("the key has %v to live (%v), want the window", ttl, err)
	}
	r, err := Take(t.Context(), rdb, key, rate)
	if err != nil || r.OK || r.RetryAfter <= 0 || r.RetryAfter > rate.Per || r.Reset < r.RetryAfter || r.Reset > rate.Per {
		t.Fatalf("%+v, %v", r, err)
	}
	short := Key("l", "short")
	if r, err := Take(t.Context(), rdb, short, ratelimit.Rate{Limit: 2, Per: 300 * time.Millisecond}); err != nil || !r.OK {
		t.Fatalf("%+v, %v", r, err)
	}
	testenv.Eventually(t, 10*time.Second, "the key to expire", func() bool {
		n, err := rdb.Exists(t.Context(), short).Result()
		return err == nil && n == 0
	})
}

// TestClockGoesBack: passages that stand in the future count as of now, for one window.
func TestClockGoesBack(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: testenv.StartRedis(t).Addr, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	rate := ratelimit.Rate{Limit: 2, Per: 200 * time.Millisecond}
	key := Key("l", "k")
	future := float64(time.Now().Add(time.Hour).UnixMicro())
	for _, m := range []string{"a", "b"} {
		if err := rdb.ZAdd(t.Context(), key, redis.Z{Score: future, Member: m}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := Take(t.Context(), rdb, key, rate); err != nil || r.OK || r.RetryAfter > rate.Per {
		t.Fatalf("%+v, %v", r, err)
	}
	testenv.Eventually(t, 10*time.Second, "a window to pass", func() bool {
		r, err := Take(t.Context(), rdb, key, rate)
		return err == nil && r.OK
	})
}

func TestKey(t *testing.T) {
	t.Parallel()
	for _, k := range []string{"", "a", "}{", "203.0.113.1", strings.Repeat("x", 10_000)} {
		got := Key("l", k)
		if !strings.HasPrefix(got, "seckill:rate:{") || strings.Index(got, "}") != len(got)-1 || len(got) > 64 || (len(k) > 3 && strings.Contains(got, k)) {
			t.Errorf("%.20s: %s", k, got)
		}
		if got == Key("m", k) || got == Key("l", k+"x") {
			t.Errorf("%.20s: shares its key", k)
		}
	}
}

// TestRedisGone: with Redis killed each gateway lets a third pass, and with it back the limit is one again.
func TestRedisGone(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	gateways := newGateways(t, ratelimit.Rate{Limit: 30, Per: time.Hour}, server.Addr)
	if passed, local := flood(t, gateways, "before"); passed != 30 || local != 0 {
		t.Fatalf("%d passed, %d by a share", passed, local)
	}
	server.Kill()
	if passed, local := flood(t, gateways, "k"); passed != 30 || local == 0 {
		t.Errorf("%d passed, %d asked a share; want three shares of 10", passed, local)
	}
	server.Restart()
	testenv.Eventually(t, 10*time.Second, "all gateways to ask Redis", func() bool {
		for _, g := range gateways {
			if g.allow(t, "probe").Local {
				return false
			}
		}
		return true
	})
	if passed, local := flood(t, gateways, "after"); passed != 30 || local != 0 {
		t.Errorf("%d passed, %d by a share; want 30 and 0", passed, local)
	}
	for i, g := range gateways {
		if n := g.switches.Load(); n != 2 {
			t.Errorf("gateway %d told %d changes, want 2", i, n)
		}
	}
}

// TestErrors: an error names what failed, and a dead context is not mistaken for anything else.
func TestErrors(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: testenv.StartRedis(t).Addr, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	rate := ratelimit.Rate{Limit: 1, Per: time.Second}
	if _, err := Take(gone, rdb, "k", rate); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := rdb.Set(t.Context(), "text", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := Take(t.Context(), rdb, "text", rate); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("got %v", err)
	}
}
