package edge

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// Ten thousand who wait on one gateway, spread over twenty sales, share one subscription. While nothing happens they cost
// Redis a bounded number of looks a second, and when their orders are decided each is told once.
//
// It does not run in parallel: the crowd would disturb the others.
func TestTenThousandWaitersOnRedis(t *testing.T) {
	const sales, each = 20, 500
	const waiters = sales * each
	r := testenv.StartRedis(t)
	op := newOperator(t, r.Addr)
	op.ms = ledger.Timings{ReserveDeadlineMs: 30_000, PublishBudgetMs: 60_000, HorizonMs: 120_000} // however slow the machine
	var on []ledger.Activity
	now := time.Now().UnixMilli()
	for range sales {
		a := ledger.Activity{
			ID: testenv.ID(), Item: testenv.ID(), StartsAtMs: now - 60_000, EndsAtMs: now + 3_600_000, MaxPerUser: 3, State: ledger.Open,
		}
		op.load(a, each)
		on = append(on, a)
	}
	op.offer(on...)
	g := newGateway(t, redisconn.Config{Addrs: []string{r.Addr}}, Options{MaxWaiters: waiters, RequestBudget: 20 * time.Second})

	queries := make([]Query, waiters)
	var buying sync.WaitGroup
	var failed atomic.Int64
	next := make(chan int)
	for range 16 {
		buying.Go(func() {
			for i := range next {
				a, user := on[i%sales], fmt.Sprintf("u%d", i)
				o := g.Order(t.Context(), buy(a.ID, user))
				if o.Status != order.Queued {
					failed.Add(1)
				}
				queries[i] = Query{Activity: a.ID, User: user, OrderID: o.OrderID}
			}
		})
	}
	for _, a := range on {
		g.onSale(t, a.ID)
	}
	for i := range waiters {
		next <- i
	}
	close(next)
	buying.Wait()
	if n := failed.Load(); n > 0 {
		t.Fatalf("%d of %d orders are not queued", n, waiters)
	}

	var waiting sync.WaitGroup
	var told, lost atomic.Int64
	for _, q := range queries {
		waiting.Go(func() {
			v, reason := g.Wait(t.Context(), q, 20*time.Minute)
			for reason == Unavailable && t.Context().Err() == nil { // on a slow machine: a client asks again then
				v, reason = g.Wait(t.Context(), q, 20*time.Minute)
			}
			if reason == Accepted && v.Status == order.Confirmed {
				told.Add(1)
			} else if lost.Add(1) == 1 {
				t.Errorf("one who waits heard %q, %+v", reason, v)
			}
		})
	}
	testenv.Eventually(t, 3*time.Minute, "all to wait", func() bool { return lost.Load() > 0 || g.Stats().Waiters == waiters })
	if lost.Load() > 0 {
		t.FailNow()
	}

	if n, err := op.rdb.PubSubNumSub(t.Context(), ledger.EventsChannel).Result(); err != nil || n[ledger.EventsChannel] != 1 {
		t.Errorf("subscriptions: %v, %v, want one", n, err)
	}
	// The first look of each has been made once the calls come at the pace of the healing looks alone.
	quiet := func(d time.Duration) float64 {
		began, before := time.Now(), g.calls.n.Load()
		<-time.After(d)
		return float64(g.calls.n.Load()-before) / time.Since(began).Seconds()
	}
	// 500 looks a second, and what the gate asks besides. Waiters that polled by themselves, if only every three seconds, would
	// make 3,333.
	const most = 1000
	testenv.Eventually(t, 3*time.Minute, "the first looks to be over", func() bool { return quiet(time.Second) < most })
	if rate := quiet(5 * time.Second); rate > most {
		t.Errorf("%d that wait make %.0f calls a second, want at most %d", waiters, rate, most)
	} else {
		t.Logf("%d that wait make %.0f calls a second", waiters, rate)
	}

	before := g.calls.n.Load()
	for i, a := range on {
		var orders []ledger.Outcome
		for n := i; n < waiters; n += sales {
			q := queries[n]
			orders = append(orders, ledger.Outcome{Order: q.OrderID, User: q.User, Item: a.Item, Quantity: 1, Status: order.Confirmed})
		}
		_, err := op.led.Settle(t.Context(), ledger.Settlement{
			Activity: a.ID, Version: time.Now().UnixMicro(), Stock: 0, Source: ledger.FromWorker, Orders: orders,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	waiting.Wait()
	if n := told.Load(); n != waiters {
		t.Errorf("%d of %d were told", n, waiters)
	}
	if n, bound := g.calls.n.Load()-before, int64(waiters+most*(time.Since(began).Seconds()+5)); n > bound {
		t.Errorf("telling %d cost %d calls, want at most %d", waiters, n, bound)
	}
}
