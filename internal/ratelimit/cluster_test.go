package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// store is a shared window in memory, which can be away.
type store struct {
	window   Limiter
	err      error
	asked    int
	switches []error
}

func (s *store) Take(ctx context.Context, key string, _ Rate) (Result, error) {
	s.asked++
	if s.err != nil {
		return Result{}, s.err
	}
	return s.window.Allow(ctx, key), nil
}

func (s *store) Switched(err error) { s.switches = append(s.switches, err) }

func newCluster(t *testing.T, c *clock, rate string, divisor int64, keys int) (*Cluster, *store) {
	t.Helper()
	r, err := ParseRate(rate)
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewCluster(ClusterOptions{Rate: r, Divisor: divisor, MaxKeys: keys, Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	return l, &store{window: c.of(t, rate, Options{Algorithm: SlidingWindow})}
}

func TestNewClusterRefuses(t *testing.T) {
	t.Parallel()
	ok := Rate{5, time.Second}
	for name, o := range map[string]ClusterOptions{
		"no rate":  {},
		"too much": {Rate: Rate{MaxClusterLimit + 1, time.Second}},
		"divisor":  {Rate: ok, Divisor: -1},
		"keys":     {Rate: ok, MaxKeys: -1},
		"timeout":  {Rate: ok, Timeout: 1},
	} {
		if _, err := NewCluster(o); err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
}

// TestClusterRemembersRefusals: a flood beyond the limit does not reach the store, and what may pass is asked for in time.
func TestClusterRemembersRefusals(t *testing.T) {
	t.Parallel()
	c := &clock{}
	l, s := newCluster(t, c, "2/s", 1, 10)
	for i := range 100 {
		if r := l.Allow(t.Context(), s, "k"); r.OK != (i < 2) || r.Local || (!r.OK && r.RetryAfter != time.Second) {
			t.Fatalf("request %d: %+v", i, r)
		}
	}
	if s.asked != 3 {
		t.Errorf("the store was asked %d times, want 3", s.asked)
	}
	if !l.Allow(t.Context(), s, "other").OK {
		t.Error("another key was refused")
	}
	c.add(time.Second)
	if !l.Allow(t.Context(), s, "k").OK {
		t.Error("refused from memory for too long")
	}
}

// TestClusterFallback: without the store a gateway lets its share pass, asks again now and then, and tells both changes
// once.
func TestClusterFallback(t *testing.T) {
	t.Parallel()
	c := &clock{}
	l, s := newCluster(t, c, "10/s", 3, 10)
	away := errors.New("away")
	s.err = away
	passed := 0
	for range 100 {
		r := l.Allow(t.Context(), s, "k")
		if !r.Local {
			t.Fatalf("%+v", r)
		}
		if r.OK {
			passed++
		}
	}
	if passed != 3 || s.asked != 1 {
		t.Errorf("%d passed, the store was asked %d times; want 3 and 1", passed, s.asked)
	}
	c.add(probeEvery)
	l.Allow(t.Context(), s, "k")
	l.Allow(t.Context(), s, "k")
	if s.asked != 2 {
		t.Errorf("the store was asked %d times, want 2", s.asked)
	}
	s.err = nil
	c.add(probeEvery)
	if r := l.Allow(t.Context(), s, "k"); !r.OK || r.Local || r.Limit != 10 {
		t.Errorf("with the store back: %+v", r)
	}
	if len(s.switches) != 2 || !errors.Is(s.switches[0], away) || s.switches[1] != nil {
		t.Errorf("told %v", s.switches)
	}
}

// TestClusterNoShare: a share of less than one is none.
func TestClusterNoShare(t *testing.T) {
	t.Parallel()
	c := &clock{}
	l, s := newCluster(t, c, "2/s", 3, 10)
	s.err = errors.New("away")
	if r := l.Allow(t.Context(), s, "k"); r.OK || !r.Local || r.RetryAfter <= 0 {
		t.Errorf("%+v", r)
	}
}

// TestClusterClientLeaves: neither a client that leaves nor a request that had no means to ask says anything of the store.
func TestClusterClientLeaves(t *testing.T) {
	t.Parallel()
	c := &clock{}
	l, s := newCluster(t, c, "10/s", 3, 10)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	s.err = context.Canceled
	if r := l.Allow(gone, s, "k"); r.OK || r.Local {
		t.Errorf("%+v", r)
	}
	s.err = ErrNotAsked
	if r := l.Allow(t.Context(), s, "k"); !r.OK || !r.Local {
		t.Errorf("%+v", r)
	}
	s.err = nil
	if r := l.Allow(t.Context(), s, "k"); !r.OK || r.Local || len(s.switches) != 0 {
		t.Errorf("%+v, told %v", r, s.switches)
	}
}

// TestClusterMaxKeys: a gateway never has the store hold more keys than it may remember.
func TestClusterMaxKeys(t *testing.T) {
	t.Parallel()
	c := &clock{}
	l, s := newCluster(t, c, "2/s", 1, 4)
	for i := range 100 {
		if r := l.Allow(t.Context(), s, strconv.Itoa(i)); r.OK != (i < 4) || r.Full != (i >= 4) {
			t.Fatalf("key %d: %+v", i, r)
		}
	}
	if s.asked != 4 || l.Len() != 4 {
		t.Errorf("the store was asked for %d keys, %d are held", s.asked, l.Len())
	}
	c.add(time.Second + DefaultClusterTimeout)
	if !l.Allow(t.Context(), s, "new").OK {
		t.Error("keys that the store has forgotten still take up room")
	}
}

// BenchmarkClusterBytesPerKey is what a gateway remembers of a key of 16 bytes.
func BenchmarkClusterBytesPerKey(b *testing.B) {
	for range b.N {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		l, err := NewCluster(ClusterOptions{Rate: Rate{10, time.Hour}})
		if err != nil {
			b.Fatal(err)
		}
		s := always{}
		for i := range DefaultMaxKeys {
			l.Allow(context.Background(), s, fmt.Sprintf("%016d", i))
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(l.Len()), "B/key")
		runtime.KeepAlive(l)
	}
}

type always struct{}

func (always) Take(context.Context, string, Rate) (Result, error) { return Result{OK: true}, nil }
func (always) Switched(error)                                     {}
