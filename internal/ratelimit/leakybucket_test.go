package ratelimit

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// In these tests the clock is synctest's: it moves when all wait, so that times are exact.
func leaky(t *testing.T, rate string, o Options) (l *leakyBucket, since func() time.Duration) {
	t.Helper()
	began := time.Now()
	since = func() time.Duration { return time.Since(began) }
	var err error
	if o.Rate, err = ParseRate(rate); err != nil {
		t.Fatal(err)
	}
	o.Algorithm, o.Now = LeakyBucket, since
	lim, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return lim.(*leakyBucket), since
}

// arrivals calls Allow in goroutines, one after the other, and notes when each returns and with what.
type arrivals struct {
	wg  sync.WaitGroup
	mu  sync.Mutex
	at  map[string]time.Duration
	res map[string]Result
}

func (a *arrivals) come(ctx context.Context, l *leakyBucket, name, key string) {
	a.wg.Go(func() {
		r := l.Allow(ctx, key)
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.at == nil {
			a.at, a.res = map[string]time.Duration{}, map[string]Result{}
		}
		a.at[name], a.res[name] = l.now(), r
	})
	synctest.Wait()
}

// TestLeakyBucketSteady: a burst comes out one by one, in its order, and never sooner.
func TestLeakyBucketSteady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, _ := leaky(t, "10/s", Options{Queue: 5, Wait: 10 * time.Second})
		var a arrivals
		names := []string{"a", "b", "c", "d", "e", "f"}
		for _, n := range names {
			a.come(t.Context(), l, n, "k")
		}
		a.come(t.Context(), l, "other", "k2")
		if r := l.Allow(t.Context(), "k"); r.OK || r.RetryAfter != 100*time.Millisecond || r.Full {
			t.Errorf("a full queue: %+v", r)
		}
		a.wg.Wait()
		for i, n := range names {
			if want := time.Duration(i) * 100 * time.Millisecond; !a.res[n].OK || a.at[n] != want {
				t.Errorf("%s: %+v after %v, want %v", n, a.res[n], a.at[n], want)
			}
		}
		if !a.res["other"].OK || a.at["other"] != 0 {
			t.Errorf("another key waited: %v", a.at["other"])
		}
		// The next one is due 100 ms after the last, and a long rest earns nothing more than that.
		time.Sleep(time.Hour) //nolint:forbidigo // synctest's clock
		if r := l.Allow(t.Context(), "k"); !r.OK {
			t.Errorf("after a rest: %+v", r)
		}
		before := l.now()
		if r := l.Allow(t.Context(), "k"); !r.OK || l.now()-before != 100*time.Millisecond {
			t.Errorf("a rest gave a burst: %+v after %v", r, l.now()-before)
		}
		if n := l.waiting.Load(); n != 0 {
			t.Errorf("%d still count as waiting", n)
		}
	})
}

// TestLeakyBucketWait: who would have to wait too long is refused at once, and told how long until it would not.
func TestLeakyBucketWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, since := leaky(t, "10/s", Options{Queue: 100, Wait: 250 * time.Millisecond})
		var a arrivals
		for _, n := range []string{"0", "100", "200", "refused"} {
			a.come(t.Context(), l, n, "k")
		}
		if r := a.res["refused"]; r.OK || r.RetryAfter != 50*time.Millisecond || since() != 0 {
			t.Errorf("%+v after %v", r, since())
		}
		time.Sleep(50 * time.Millisecond) //nolint:forbidigo // synctest's clock
		a.come(t.Context(), l, "300", "k")
		a.wg.Wait()
		if !a.res["300"].OK || a.at["300"] != 300*time.Millisecond {
			t.Errorf("%+v after %v", a.res["300"], a.at["300"])
		}
	})
}

// TestLeakyBucketLeave: clients that leave give their places to those behind them, wherever they stood.
func TestLeakyBucketLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, _ := leaky(t, "10/s", Options{Queue: 5, Wait: 10 * time.Second})
		var a arrivals
		leave := map[string]context.CancelFunc{}
		for _, n := range []string{"a", "b", "c", "d", "e", "f"} {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			leave[n] = cancel
			a.come(ctx, l, n, "k")
		}
		time.Sleep(50 * time.Millisecond) //nolint:forbidigo // synctest's clock
		// The first, one in the middle, the last.
		for _, n := range []string{"b", "d", "f"} {
			leave[n]()
			synctest.Wait()
			if r, ok := a.res[n]; !ok || r.OK || a.at[n] != 50*time.Millisecond {
				t.Errorf("%s has not left: %+v", n, r)
			}
		}
		a.come(t.Context(), l, "g", "k")
		a.wg.Wait()
		for n, want := range map[string]time.Duration{
			"c": 100 * time.Millisecond, "e": 200 * time.Millisecond, "g": 300 * time.Millisecond,
		} {
			if !a.res[n].OK || a.at[n] != want {
				t.Errorf("%s: %+v after %v, want %v", n, a.res[n], a.at[n], want)
			}
		}
		if n := l.waiting.Load(); n != 0 {
			t.Errorf("%d still count as waiting", n)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if r := l.Allow(gone, "k"); r.OK {
			t.Error("a turn was given to a client that had left")
		}
	})
}

// TestLeakyBucketMaxWaiting: no number of keys makes more wait than allowed.
func TestLeakyBucketMaxWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, _ := leaky(t, "10/s", Options{Queue: 5, MaxWaiting: 2, MaxKeys: 3})
		var a arrivals
		for _, k := range []string{"a", "b", "c"} {
			a.come(t.Context(), l, k, k)
			a.come(t.Context(), l, k+k, k)
		}
		if r, ok := a.res["cc"]; !ok || r.OK || r.Full || r.RetryAfter <= 0 {
			t.Errorf("a third was made to wait: %+v", r)
		}
		if r := l.Allow(t.Context(), "d"); r.OK || !r.Full {
			t.Errorf("a fourth key: %+v", r)
		}
		a.wg.Wait()
		if !a.res["aa"].OK || !a.res["bb"].OK {
			t.Errorf("%+v", a.res)
		}
		time.Sleep(time.Second) //nolint:forbidigo // synctest's clock
		if r := l.Allow(t.Context(), "d"); !r.OK || l.Len() != 3 {
			t.Errorf("an idle key was not evicted: %+v, %d keys", r, l.Len())
		}
	})
}

// TestLeakyBucketConcurrent races arrivals with clients that leave, in real time.
func TestLeakyBucketConcurrent(t *testing.T) {
	t.Parallel()
	l, since := leaky(t, "1000/s", Options{Queue: 50, Wait: 5 * time.Second})
	var mu sync.Mutex
	var passed []time.Duration
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for i := range 20 {
				ctx, cancel := context.WithCancel(t.Context())
				if (g+i)%3 == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), 3*time.Millisecond)
				}
				if l.Allow(ctx, "k").OK {
					mu.Lock()
					passed = append(passed, since())
					mu.Unlock()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	slices.Sort(passed)
	for i, at := range passed {
		if due := time.Duration(i) * time.Millisecond; at < due {
			t.Fatalf("request %d passed after %v, want %v at least", i, at, due)
		}
	}
	s, _ := l.acquire("k")
	defer s.mu.Unlock()
	if q := s.state; q.n != 0 || q.first != nil || q.last != nil || l.waiting.Load() != 0 {
		t.Errorf("the queue is not empty: %+v, %d waiting", q, l.waiting.Load())
	}
	if len(passed) < 16*20/2 {
		t.Errorf("only %d passed", len(passed))
	}
}
