package load_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/syncer/load"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestForce(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a := b.Activity(20)
	b.Load(a)
	b.Buy(a, "landed", 3)
	b.Land(true)
	b.Buy(a, "queued", 4)
	// Something that nothing else would mend: a stock above the truth under a version from the future.
	keys := ledger.KeysOf(a.ID)
	b.Client().Set(t.Context(), keys.Stock, 1000, 0)
	b.Client().Set(t.Context(), keys.Version, 1<<52, 0)
	r, err := b.Loader.Force(t.Context(), a.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	if s := b.Look(a); !s.Loaded || s.Stock != 17 || s.Pending != 4 || s.BuyersLen != 2 {
		t.Fatalf("%+v", s)
	}
	if r.LockMs > 200 {
		t.Errorf("the row was locked for %d ms", r.LockMs)
	}
	b.Land(true)
	b.Equal(a)
}

// E71 (a): Redis is slow while the row is locked. The lock is given up in time, and the sale opens all the same.
func TestE71AForceWithSlowRedis(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	proxy := faultproxy.New(t, b.Server.Addr)
	cfg := b.Cfg
	cfg.Redis.Addrs = []string{proxy.Addr()}
	slow := b.OpenParts(cfg)
	a := b.Activity(20)
	b.Load(a)
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { _, err = slow.Loader.Force(t.Context(), a.ID, 0) })
	testenv.Eventually(t, 5*time.Second, "the force to begin", func() bool { return b.Look(a).State == ledger.Recovering })
	proxy.DelayReplies(400 * time.Millisecond)
	var worst time.Duration
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
			at := time.Now()
			b.Restock(a, 1)
			worst = max(worst, time.Since(at))
		}
	}
	proxy.DelayReplies(0)
	if !errors.Is(err, load.ErrAborted) {
		t.Fatalf("force: %v, want that it was aborted", err)
	}
	if worst > time.Second {
		t.Errorf("a statement of the shop waited %s", worst)
	}
	if s := b.Look(a); !s.Loaded {
		t.Errorf("the sale stays closed: %+v", s)
	}
}

// E71 (c): two at once.
func TestE71CTwoForces(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a := b.Activity(20)
	b.Load(a)
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = b.Loader.Force(t.Context(), a.ID, 0) })
	}
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs...), load.ErrBusy) {
		t.Fatalf("%v and %v: want one done and one refused", errs[0], errs[1])
	}
	b.Equal(a)
}
