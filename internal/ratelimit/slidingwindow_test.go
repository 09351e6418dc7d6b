package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestSlidingWindowExact: up to 64 per window, each passage counts for exactly a window and not a nanosecond less.
func TestSlidingWindowExact(t *testing.T) {
	t.Parallel()
	c := &clock{}
	l := c.of(t, "3/s", Options{Algorithm: SlidingWindow})
	for i := range 3 {
		if r := l.Allow(t.Context(), "k"); !r.OK || r.Limit != 3 || r.Remaining != int64(2-i) || r.RetryAfter != 0 {
			t.Fatalf("request %d: %+v", i, r)
		}
		c.add(100 * time.Millisecond)
	}
	r := l.Allow(t.Context(), "k") // at 300 ms; passed at 0, 100, 200
	if r.OK || r.RetryAfter != 700*time.Millisecond || r.Reset != 900*time.Millisecond || r.Remaining != 0 || r.Full {
		t.Fatalf("beyond the limit: %+v", r)
	}
	c.add(700*time.Millisecond - 1)
	if r = l.Allow(t.Context(), "k"); r.OK || r.RetryAfter != 1 {
		t.Fatalf("a nanosecond early: %+v", r)
	}
	c.add(1)
	if r = l.Allow(t.Context(), "k"); !r.OK || r.Remaining != 0 {
		t.Fatalf("when the first leaves the window: %+v", r)
	}
	if r = l.Allow(t.Context(), "k"); r.OK || r.RetryAfter != 100*time.Millisecond {
		t.Fatalf("only one had left: %+v", r)
	}
	if r = l.Allow(t.Context(), "other"); !r.OK || r.Remaining != 2 {
		t.Fatalf("another key: %+v", r)
	}
}

// TestSlidingWindowAnyWindow looks at every window that begins with a passage: aligned ones are what a counter would get
// right by chance. Limits that share cells refuse at most a grain too long.
func TestSlidingWindowAnyWindow(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{1, 2, 7, 63, 64, 65, 100, 1000, 5000} {
		t.Run(strconv.FormatInt(limit, 10), func(t *testing.T) {
			t.Parallel()
			c := &clock{}
			l := c.of(t, fmt.Sprint(limit, "/s"), Options{Algorithm: SlidingWindow})
			random := rand.New(rand.NewPCG(1, uint64(limit)))
			var passed []time.Duration
			for len(passed) < int(limit)*8+50 {
				now := c.now()
				r := l.Allow(t.Context(), "k")
				if r.OK {
					passed = append(passed, now)
				} else if r.RetryAfter <= 0 || r.RetryAfter > time.Second {
					t.Fatalf("%+v", r)
				}
				i := len(passed) - int(limit)
				if r.OK && i > 0 && now-passed[i-1] < time.Second {
					t.Fatalf("%d passed within %v", limit+1, now-passed[i-1])
				}
				if grain := time.Second/63 + 1; !r.OK && (i < 0 || now-passed[i] > time.Second+grain) {
					t.Fatalf("refused although only %d passed in the last second and a grain", limit-1)
				}
				switch random.IntN(4) {
				case 0: // a burst
				case 1:
					c.add(time.Duration(random.Int64N(int64(3 * time.Second / time.Duration(limit)))))
				default:
					c.add(time.Duration(random.Int64N(int64(time.Second / time.Duration(limit)))))
				}
			}
			s, _ := l.(*slidingWindow).acquire("k")
			defer s.mu.Unlock()
			if n := len(s.state.ring); n > maxCells || int64(n) > limit {
				t.Errorf("the log has %d cells", n)
			}
		})
	}
}

func TestSlidingWindowEviction(t *testing.T) {
	t.Parallel()
	c := &clock{}
	l := c.of(t, "2/s", Options{Algorithm: SlidingWindow, MaxKeys: 2})
	l.Allow(t.Context(), "abuser")
	c.add(500 * time.Millisecond)
	l.Allow(t.Context(), "abuser")
	l.Allow(t.Context(), "idle")
	for i := range 100 {
		if r := l.Allow(t.Context(), strconv.Itoa(i)); r.OK || !r.Full || r.RetryAfter <= 0 {
			t.Fatalf("new key without room: %+v", r)
		}
	}
	if l.Allow(t.Context(), "abuser").OK {
		t.Fatal("the flood reset the abuser's window")
	}
	c.add(500 * time.Millisecond)
	if !l.Allow(t.Context(), "abuser").OK { // its first has left
		t.Fatal("refused too long")
	}
	c.add(500 * time.Millisecond)
	if !l.Allow(t.Context(), "new").OK { // in the place of "idle"
		t.Fatal("an idle key was not evicted")
	}
	if !l.Allow(t.Context(), "abuser").OK || l.Allow(t.Context(), "abuser").OK {
		t.Fatal("the abuser's window is not what it was")
	}
	if l.Len() != 2 {
		t.Fatalf("%d keys held", l.Len())
	}
}

// TestSlidingWindowConcurrent races one hot key with others that come and go around it.
func TestSlidingWindowConcurrent(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{50, 500} {
		c := &clock{}
		l := c.of(t, fmt.Sprint(limit, "/s"), Options{Algorithm: SlidingWindow, MaxKeys: 4})
		var passed [16]atomic.Int64
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 2000 {
					k := (g + i) % 16
					if i%2 == 0 {
						k = 0
					}
					if l.Allow(t.Context(), strconv.Itoa(k)).OK {
						passed[k].Add(1)
					}
					if g == 0 {
						c.add(time.Millisecond) // 2 s in all
					}
				}
			})
		}
		wg.Wait()
		for k := range passed {
			if n := passed[k].Load(); n > 3*limit {
				t.Errorf("key %d passed %d times in 2 s at %d/s", k, n, limit)
			}
		}
		if l.Len() > 4 {
			t.Errorf("%d keys held, want at most 4", l.Len())
		}
	}
}

// TestSlidingWindowConcurrentExact: with the clock standing, exactly the limit passes.
func TestSlidingWindowConcurrentExact(t *testing.T) {
	t.Parallel()
	c := &clock{}
	l := c.of(t, "100/s", Options{Algorithm: SlidingWindow})
	var passed atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if l.Allow(t.Context(), "").OK {
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := passed.Load(); n != 100 {
		t.Fatalf("%d passed, want 100", n)
	}
}

func BenchmarkSlidingWindow(b *testing.B) {
	for _, rate := range []Rate{{50, time.Millisecond}, {1_000_000, time.Second}} {
		b.Run(rate.String(), func(b *testing.B) {
			l, err := New(Options{Algorithm: SlidingWindow, Rate: rate})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					l.Allow(b.Context(), "k")
				}
			})
		})
	}
}
