package load_test

import (
	"errors"
	"fmt"
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
	var r load.Report
	testenv.Eventually(t, 20*time.Second, "the row not to be locked for too long", func() bool {
		b.Client().Set(t.Context(), keys.Stock, 1000, 0)
		b.Client().Set(t.Context(), keys.Version, 1<<52, 0)
		var err error
		if r, err = b.Loader.Force(t.Context(), a.ID, 0); err != nil && !errors.Is(err, load.ErrAborted) {
			t.Fatal(err)
		}
		return err == nil
	})
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
	// The step under the lock is the first call that tells the state in which the sale opens.
	stuck := proxy.Hold(faultproxy.Contains("evalsha", fmt.Sprintf("{%d}", a.ID), "\r\nopen\r\n"), 1)
	defer stuck.Release()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err = slow.Loader.Force(t.Context(), a.ID, 0)
	}()
	select {
	case <-stuck.Seen():
	case <-done:
		t.Fatalf("the force never came to its step under the lock: %v", err)
	}
	proxy.DelayReplies(400 * time.Millisecond)
	var worst time.Duration
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
	if worst > 5*time.Second {
		t.Errorf("a statement of the shop waited %s", worst)
	}
	t.Logf("a statement of the shop waited %s at most", worst)
	if s := b.Look(a); !s.Loaded {
		t.Errorf("the sale stays closed: %+v", s)
	}
}

// E71 (c): two at once. The second comes while the first is surely at it, whatever the machine has to do beside.
func TestE71CTwoForces(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	proxy := faultproxy.New(t, b.Server.Addr)
	cfg := b.Cfg
	cfg.Redis.Addrs = []string{proxy.Addr()}
	first := b.OpenParts(cfg)
	a := b.Activity(20)
	b.Load(a)
	testenv.Eventually(t, 20*time.Second, "the row not to be locked for too long", func() bool {
		atIt := proxy.Hold(faultproxy.Contains("hscan", ledger.KeysOf(a.ID).Ledger), 1)
		defer atIt.Release()
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err = first.Loader.Force(t.Context(), a.ID, 0)
		}()
		select {
		case <-atIt.Seen():
		case <-done:
			t.Fatalf("the first force ended before it looked at the ledger: %v", err)
		}
		epoch := b.Look(a).Epoch
		if _, err := b.Loader.Force(t.Context(), a.ID, 0); !errors.Is(err, load.ErrBusy) {
			t.Fatalf("the second force: %v, want that it is refused", err)
		}
		if s := b.Look(a); s.Epoch != epoch || s.State != ledger.Recovering {
			t.Fatalf("the refused force changed the activity: %+v, want epoch %s, recovering", s, epoch)
		}
		atIt.Release()
		<-done
		if err != nil && !errors.Is(err, load.ErrAborted) { // a bound that a busy machine may miss
			t.Fatalf("the first force: %v, want it done", err)
		}
		return err == nil
	})
	b.Equal(a)
}

// E71 (b): the connection that holds the lock is lost after its SELECT; ten orders commit; then the last write of the force,
// which had been stuck, reaches Redis. It does not make available what has been sold, and both sides become equal.
func TestE71BLateWriteAfterTheLockIsLost(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	proxy := faultproxy.New(t, b.Server.Addr)
	cfg := b.Cfg
	cfg.Redis.Addrs = []string{proxy.Addr()}
	p := b.OpenParts(cfg)
	a := b.Activity(20)
	_, h := b.Syncer()
	b.Loaded(a, "")
	b.Ready(h)
	for i := range 10 {
		b.Buy(a, fmt.Sprintf("u%d", i), 1)
	}
	// The step under the lock is the first call that tells the state in which the sale opens.
	stuck := proxy.Hold(faultproxy.Contains("evalsha", fmt.Sprintf("{%d}", a.ID), "\r\nopen\r\n"), 1)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if s, err := b.Ledger.Inspect(b.Context(), a.ID); err == nil && s[0].Available > 10 {
					t.Errorf("available is %d, and 10 are left", s[0].Available)
					return
				}
			}
		}
	})
	var err error
	var force sync.WaitGroup
	force.Go(func() { _, err = p.Loader.Force(t.Context(), a.ID, 0) })
	<-stuck.Seen()
	var holder int64
	testenv.Eventually(t, 5*time.Second, "the connection that holds the lock to be known, or given up", func() bool {
		row := b.Store.DB().QueryRowContext(t.Context(), "SELECT COALESCE(MAX(trx_mysql_thread_id), 0) FROM information_schema.INNODB_TRX WHERE trx_rows_locked > 0 AND trx_mysql_thread_id IN "+
			"(SELECT id FROM information_schema.PROCESSLIST WHERE db = DATABASE())")
		return row.Scan(&holder) == nil
	})
	if holder != 0 {
		_, _ = b.Store.DB().ExecContext(t.Context(), fmt.Sprintf("KILL %d", holder)) // it may have ended by itself
	}
	b.Land(true)
	stuck.Release()
	force.Wait()
	if !errors.Is(err, load.ErrAborted) {
		t.Errorf("force: %v, want that it was aborted", err)
	}
	b.Equal(a)
	close(stop)
	wg.Wait()
	if s := b.Look(a); s.Stock != 10 || s.BuyersLen != 10 {
		t.Errorf("%+v; want stock 10 and ten buyers", s)
	}
}

// E71 (d): a plain SELECT came earlier, in the snapshot of the load. What force writes is the locking read's.
func TestE71DValueOfTheLockingRead(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	proxy := faultproxy.New(t, b.Server.Addr)
	cfg := b.Cfg
	cfg.Redis.Addrs = []string{proxy.Addr()}
	p := b.OpenParts(cfg)
	a := b.Activity(20)
	b.Load(a)
	_, before, _, err := b.Store.Inventory(t.Context(), a.Item)
	if err != nil {
		t.Fatal(err)
	}
	stock := int64(20)
	testenv.Eventually(t, 20*time.Second, "the row not to be locked for too long", func() bool {
		// Between the snapshot and the lock the load looks through the ledger.
		looking := proxy.Hold(faultproxy.Contains("hscan", ledger.KeysOf(a.ID).Ledger), 1)
		defer looking.Release()
		var report load.Report
		var force sync.WaitGroup
		force.Go(func() { report, err = p.Loader.Force(t.Context(), a.ID, 0) })
		<-looking.Seen()
		b.Restock(a, 7)
		stock += 7
		looking.Release()
		force.Wait()
		if err != nil && !errors.Is(err, load.ErrAborted) {
			t.Fatal(err)
		}
		if err == nil && (report.Stock != stock || report.Version <= before) {
			t.Errorf("forced to stock %d at version %d (before: %d), want %d as the locking read has it", report.Stock, report.Version, before, stock)
		}
		return err == nil
	})
	b.Equal(a)
}
