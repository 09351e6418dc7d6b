package ratelimit

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a fake: it stands until it is moved.
type clock struct{ ns atomic.Int64 }

func (c *clock) now() time.Duration  { return time.Duration(c.ns.Load()) }
func (c *clock) add(d time.Duration) { c.ns.Add(int64(d)) }
func (c *clock) limiter(t testing.TB, rate string, burst int64, keys int) Limiter {
	t.Helper()
	return c.of(t, rate, Options{Burst: burst, MaxKeys: keys})
}

func (c *clock) of(t testing.TB, rate string, o Options) Limiter {
	t.Helper()
	var err error
	if o.Rate, err = ParseRate(rate); err != nil {
		t.Fatal(err)
	}
	o.Now = c.now
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestParseRate(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Rate{
		"10000/s": {10000, time.Second}, "5/m": {5, time.Minute}, "100/h": {100, time.Hour},
		"20/10s": {20, 10 * time.Second}, "1/500ms": {1, 500 * time.Millisecond},
	} {
		got, err := ParseRate(in)
		if err != nil || got != want {
			t.Errorf("%q: got %v, %v; want %v", in, got, err, want)
		}
		if again, err := ParseRate(got.String()); err != nil || again != got {
			t.Errorf("%q: %q reads back as %v, %v", in, got, again, err)
		}
	}
	for _, in := range []string{
		"", "5", "/s", "s/5", "0/s", "-1/s", "+1/s", "1.5/s", "5/", "5/x", "5/0s", "5/-1s", "5/s/s", "5 /s", "1/25h",
		"99999999999999999999/s", "1000000001/s", "1000000/1us", "5/1", "1/1ns",
	} {
		if r, err := ParseRate(in); err == nil {
			t.Errorf("%q: want an error, got %v", in, r)
		} else if !strings.Contains(err.Error(), strconv.Quote(in)) {
			t.Errorf("%q: the error does not name it: %v", in, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	ok := Rate{5, time.Second}
	for name, o := range map[string]Options{
		"no rate":       {},
		"algorithm":     {Algorithm: "guess", Rate: ok},
		"negative":      {Rate: ok, Burst: -1},
		"keys":          {Rate: ok, MaxKeys: -1},
		"window burst":  {Algorithm: SlidingWindow, Rate: ok, Burst: 5},
		"leaky burst":   {Algorithm: LeakyBucket, Rate: ok, Burst: 5},
		"window queue":  {Algorithm: SlidingWindow, Rate: ok, Queue: 5},
		"token wait":    {Rate: ok, Wait: time.Second},
		"token waiting": {Rate: ok, MaxWaiting: 1},
		"queue":         {Algorithm: LeakyBucket, Rate: ok, Queue: -1},
		"wait":          {Algorithm: LeakyBucket, Rate: ok, Wait: -1},
		"endless wait":  {Algorithm: LeakyBucket, Rate: ok, Wait: MaxWait + 1},
		"waiting":       {Algorithm: LeakyBucket, Rate: ok, MaxWaiting: -1},
		"endless burst": {Rate: Rate{1, 24 * time.Hour}, Burst: 1_000_000_000},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
}

// TestTokenBucketExact: a burst passes at once, then one at each refill and not a nanosecond earlier.
func TestTokenBucketExact(t *testing.T) {
	t.Parallel()
	c := &clock{}
	l := c.limiter(t, "10/s", 3, 100)
	for i := range 3 {
		r := l.Allow(t.Context(), "k")
		if !r.OK || r.Remaining != int64(2-i) || r.Limit != 3 || r.RetryAfter != 0 {
			t.Fatalf("request %d of the burst: %+v", i, r)
		}
	}
	r := l.Allow(t.Context(), "k")
	if r.OK || r.RetryAfter != 100*time.Millisecond || r.Remaining != 0 || r.Reset != 300*time.Millisecond || r.Full {
		t.Fatalf("beyond the burst: %+v", r)
	}
	c.add(100*time.Millisecond - 1)
	if r = l.Allow(t.Context(), "k"); r.OK || r.RetryAfter != 1 {
		t.Fatalf("a nanosecond early: %+v", r)
	}
	c.add(1)
	if r = l.Allow(t.Context(), "k"); !r.OK {
		t.Fatalf("at the refill: %+v", r)
	}
	if r = l.Allow(t.Context(), "other"); !r.OK || r.Remaining != 2 {
		t.Fatalf("another key: %+v", r)
	}
	c.add(time.Hour)
	for range 3 {
		if r = l.Allow(t.Context(), "k"); !r.OK {
			t.Fatalf("after a rest: %+v", r)
		}
	}
	if r = l.Allow(t.Context(), "k"); r.OK {
		t.Fatal("a rest gave more than the burst")
	}
}

// TestTokenBucketNeverLaxer counts over a long time at rates that do not divide a second.
func TestTokenBucketNeverLaxer(t *testing.T) {
	t.Parallel()
	for _, rate := range []string{"3/s", "7/s", "999/s", "11/m"} {
		c := &clock{}
		l := c.limiter(t, rate, 1, 10)
		r, _ := ParseRate(rate)
		var passed int64
		const steps = 200_000
		for range steps {
			if l.Allow(t.Context(), "k").OK {
				passed++
			}
			c.add(time.Millisecond)
		}
		most := steps*int64(time.Millisecond)*r.Limit/int64(r.Per) + 1
		if passed > most || passed < most*9/20 {
			t.Errorf("%s: %d passed in 200 s, want at most %d and not far below", rate, passed, most)
		}
	}
}

// TestTokenBucketRoundsUp: a rate that does not divide a second refills a nanosecond late rather than early.
func TestTokenBucketRoundsUp(t *testing.T) {
	t.Parallel()
	c := &clock{}
	l := c.limiter(t, "3/s", 1, 10)
	l.Allow(t.Context(), "k")
	c.add(333_333_333)
	if l.Allow(t.Context(), "k").OK {
		t.Fatal("refilled early")
	}
	c.add(1)
	if !l.Allow(t.Context(), "k").OK {
		t.Fatal("not refilled")
	}
}

// TestEvictedBucketIsDead: whoever found a bucket just before it was evicted must not take a token from it, or its key
// would have two.
func TestEvictedBucketIsDead(t *testing.T) {
	t.Parallel()
	c := &clock{}
	l := c.limiter(t, "1/s", 1, 1).(*tokenBucket)
	l.Allow(t.Context(), "a")
	found := l.shards[0].m["a"]
	c.add(time.Second)
	if !l.Allow(t.Context(), "b").OK {
		t.Fatal("an idle bucket was not evicted")
	}
	if r, ok := l.take(found, int64(c.now())); ok {
		t.Fatalf("a token came out of an evicted bucket: %+v", r)
	}
}

// TestEviction: a bucket that is not full is never forgotten; with nothing to forget, new keys are refused.
func TestEviction(t *testing.T) {
	t.Parallel()
	c := &clock{}
	l := c.limiter(t, "1/s", 2, 4)
	l.Allow(t.Context(), "abuser")
	l.Allow(t.Context(), "abuser")
	for i := range 3 {
		if !l.Allow(t.Context(), fmt.Sprint("k", i)).OK {
			t.Fatal("a new key with room was refused")
		}
	}
	for i := range 1000 {
		if r := l.Allow(t.Context(), fmt.Sprint("flood", i)); r.OK || !r.Full || r.RetryAfter <= 0 {
			t.Fatalf("new key without room: %+v", r)
		}
	}
	if l.Allow(t.Context(), "abuser").OK {
		t.Fatal("the flood reset the abuser's bucket")
	}
	if l.Len() != 4 {
		t.Fatalf("%d keys held, want 4", l.Len())
	}
	// After a second the k's are full and may go; the abuser's bucket is half full and may not.
	c.add(time.Second)
	for i := range 3 {
		if !l.Allow(t.Context(), fmt.Sprint("new", i)).OK {
			t.Fatalf("new key %d was refused although an idle bucket could go", i)
		}
	}
	if r := l.Allow(t.Context(), "new3"); r.OK {
		t.Fatal("the abuser's bucket was taken for an idle one")
	}
	if !l.Allow(t.Context(), "abuser").OK || l.Allow(t.Context(), "abuser").OK {
		t.Fatal("the abuser's bucket is not what it was: want one token")
	}
	if l.Len() != 4 {
		t.Fatalf("%d keys held, want 4", l.Len())
	}
}

// TestConcurrentExact: goroutines that race for one key, with others that evict around it, never pass more than the burst.
func TestConcurrentExact(t *testing.T) {
	t.Parallel()
	c := &clock{}
	l := c.limiter(t, "1/h", 100, 8)
	var passed atomic.Int64
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				if l.Allow(t.Context(), "hot").OK {
					passed.Add(1)
				}
				l.Allow(t.Context(), fmt.Sprint(g, i%20))
			}
		})
	}
	wg.Wait()
	if n := passed.Load(); n != 100 {
		t.Fatalf("%d passed, want 100", n)
	}
}

// TestConcurrentEviction keeps keys coming, becoming idle and going while their owners take tokens: at no time does a key
// get more than its burst and what has refilled since.
func TestConcurrentEviction(t *testing.T) {
	t.Parallel()
	c := &clock{}
	l := c.limiter(t, "1000/s", 1, 4) // a bucket is idle again after 1 ms of the clock
	var wg sync.WaitGroup
	var passed [16]atomic.Int64
	for g := range 8 {
		wg.Go(func() {
			for i := range 3000 {
				k := (g + i) % 16
				if l.Allow(t.Context(), strconv.Itoa(k)).OK {
					passed[k].Add(1)
				}
				if g == 0 {
					c.add(100 * time.Microsecond)
				}
			}
		})
	}
	wg.Wait()
	for k := range passed {
		if n := passed[k].Load(); n > 301 {
			t.Errorf("key %d passed %d times in 300 ms at 1000/s", k, n)
		}
	}
	if l.Len() > 4 {
		t.Errorf("%d keys held, want at most 4", l.Len())
	}
}

func TestManyShardsBound(t *testing.T) {
	t.Parallel()
	c := &clock{}
	l := c.limiter(t, "1/h", 1, 10_001)
	for i := range 50_000 {
		l.Allow(t.Context(), strconv.Itoa(i))
	}
	if n := l.Len(); n != 10_001 {
		t.Fatalf("%d keys held, want 10001", n)
	}
}

func BenchmarkTokenBucket(b *testing.B) {
	l, err := New(Options{Rate: Rate{1_000_000_000, time.Second}, Burst: 1_000_000_000})
	if err != nil {
		b.Fatal(err)
	}
	keys := make([]string, 4096)
	for i := range keys {
		keys[i] = "203.0.113." + strconv.Itoa(i)
	}
	b.Run("one key", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				l.Allow(context.Background(), "k")
			}
		})
	})
	b.Run("4096 keys", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				l.Allow(context.Background(), keys[i&4095])
			}
		})
	})
}

// BenchmarkBytesPerKey fills limiters with keys of 16 bytes, longer than IPv4 addresses are, each of which has
// passed the given number of times. The figures stand in docs/caddyfile.md.
func BenchmarkBytesPerKey(b *testing.B) {
	for _, c := range []struct {
		algorithm Algorithm
		limit     int64
		passed    int
	}{{TokenBucket, 10, 1}, {SlidingWindow, 10, 1}, {SlidingWindow, 10, 10}, {SlidingWindow, 1000, 64}, {LeakyBucket, 10, 1}} {
		b.Run(fmt.Sprintf("%s/%d of %d", c.algorithm, c.passed, c.limit), func(b *testing.B) {
			for range b.N {
				clk := &clock{}
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				// A rate that a window's grain never merges: the worst case.
				l, err := New(Options{Algorithm: c.algorithm, Rate: Rate{c.limit, 64 * time.Minute}, Now: clk.now})
				if err != nil {
					b.Fatal(err)
				}
				keys := DefaultMaxKeys
				if c.passed > 10 {
					keys /= 8 // or it takes more than a gigabyte
				}
				for range c.passed {
					for i := range keys {
						l.Allow(context.Background(), fmt.Sprintf("%016d", i))
					}
					clk.add(62 * time.Second)
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(l.Len()), "B/key")
				runtime.KeepAlive(l)
			}
		})
	}
}
