package edge

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/faultproxy/redisfault"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// TestE22E78SoldOutEverywhere: three gateways answer a sold-out flood without a single command; a unit comes back, and on
// every one of them somebody is let through to buy it within a second.
func TestE22E78SoldOutEverywhere(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		op := newOperator(t, r.Direct()...)
		a := op.sale(1)
		var gs []*gateway
		for range 3 {
			g := newPatient(t, r.Direct())
			g.onSale(t, a.ID)
			gs = append(gs, g)
		}
		o := gs[0].Order(t.Context(), buy(a.ID, "first"))
		if o.Status != order.Queued {
			t.Fatalf("the only unit: %+v", o)
		}
		for i, g := range gs {
			testenv.Eventually(t, 10*time.Second, fmt.Sprintf("gateway %d knows", i), func() bool { return g.Admit(a.ID, "").Reason == SoldOut })
		}
		before := r.Commands(t)
		began := time.Now()
		const flood = 20_000
		for i := range flood {
			if o := gs[i%3].Order(t.Context(), buy(a.ID, "late")); o.Reason != SoldOut || o.Cause != CauseGate {
				t.Fatalf("in the flood: %+v", o)
			}
		}
		// Three gateways that look twice a second and read the catalogue once; a look counts for all that its script calls.
		if n, most := r.Commands(t)-before, int64(3*25*(2+time.Since(began)/time.Second*3)); n > most {
			t.Errorf("%d commands for a flood of %d, want at most %d", n, flood, most)
		}
		_, err := op.led.Settle(t.Context(), ledger.Settlement{Activity: a.ID, Orders: []ledger.Outcome{{
			Order: o.OrderID, User: "first", Item: a.Item, Quantity: 1, Status: order.Failed, Reason: order.ReasonSoldOut, Dead: true,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		back := time.Now()
		for i, g := range gs { // within a second on a quiet machine; on a busy one the figure is only told
			testenv.Eventually(t, 10*time.Second, fmt.Sprintf("gateway %d is open again", i), func() bool { return g.Admit(a.ID, "").Reason == Accepted })
		}
		t.Logf("open again on three gateways after %v", time.Since(back))
		if o := gs[2].Order(t.Context(), buy(a.ID, "second")); o.Status != order.Queued {
			t.Errorf("the unit that came back: %+v", o)
		}
		op.pending(a.ID, 1)
	})
}

// TestE115Forgetful: FLUSHALL in the middle of a sale. At no moment does anybody hear 404 or "sold out", neither buyers nor
// those who ask for their orders.
func TestE115Forgetful(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		op := newOperator(t, r.Direct()...)
		a := op.sale(1000)
		g := newPatient(t, r.Direct())
		g.onSale(t, a.ID)
		mine := g.Order(t.Context(), buy(a.ID, "mine"))
		if mine.Status != order.Queued {
			t.Fatalf("before: %+v", mine)
		}
		q := Query{Activity: a.ID, User: "mine", OrderID: mine.OrderID}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var unavailable atomic.Int32
		for w := range 4 {
			wg.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					o := g.Order(context.Background(), buy(a.ID, fmt.Sprint("u", w, "-", i)))
					if o.Reason == NotFound || o.Reason == SoldOut {
						t.Errorf("a buyer hears %+v", o)
					}
					if o.Reason == Unavailable {
						unavailable.Add(1)
					}
					if _, reason := g.Status(context.Background(), q); reason != Accepted && reason != Unavailable {
						t.Errorf("status says %q", reason)
					}
					if _, reason := g.Mine(context.Background(), a.ID, "mine"); reason != Accepted && reason != Unavailable {
						t.Errorf("mine says %q", reason)
					}
					if _, reason := g.gate.View(a.ID, time.Now()); reason == NotFound {
						t.Error("the sale is not found")
					}
				}
			})
		}
		r.FlushAll(t)
		testenv.Eventually(t, 20*time.Second, "it is noticed", func() bool { return unavailable.Load() > 100 })
		testenv.Eventually(t, 20*time.Second, "the gate has noticed", func() bool { return g.Admit(a.ID, "").Reason == Unavailable })
		op.offer(a)
		testenv.Eventually(t, 20*time.Second, "the catalogue is back", func() bool { return g.Admit(a.ID, "").Why == "recovering" })
		stop()
		wg.Wait()
		op.load(a, 999)
		g.onSale(t, a.ID)
		if o := g.Order(t.Context(), buy(a.ID, "after")); o.Status != order.Queued {
			t.Errorf("after the load: %+v", o)
		}
	})
}

// TestE09RedisRestarts: Redis is killed and started again, empty. Buyers hear "unavailable", and the gateway is back by
// itself once the sale is.
func TestE09RedisRestarts(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		op := newOperator(t, r.Direct()...)
		a := op.sale(10)
		g := newGateway(t, redisconn.Config{Addrs: r.Direct()}, Options{})
		g.onSale(t, a.ID)
		r.Kill()
		for i := range 20 {
			if o := g.Order(t.Context(), buy(a.ID, fmt.Sprint("u", i))); o.HTTP != 503 && o.Status != order.Processing {
				t.Errorf("redis is down: %+v", o)
			}
		}
		testenv.Eventually(t, 20*time.Second, "the gate has noticed", func() bool { return g.Admit(a.ID, "").Reason == Unavailable })
		r.Restart(t)
		testenv.Eventually(t, 20*time.Second, "redis is back", func() bool { return op.rdb.Ping(t.Context()).Err() == nil })
		op.load(a, 10)
		op.offer(a)
		back := time.Now()
		testenv.Eventually(t, 20*time.Second, "somebody can buy again", func() bool {
			return g.Order(t.Context(), buy(a.ID, "back")).Status == order.Queued
		})
		t.Logf("first success %v after redis was back", time.Since(back))
		testenv.Eventually(t, time.Minute, "everything is decided", func() bool { return g.Stats().Open == 0 })
		op.pending(a.ID, 1)
	})
}
