package edge

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/faultproxy/redisfault"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// TestE80ClientsLeave: buyers hang up at random moments. What was reserved was published, and whoever repeats the request
// gets the first result.
func TestE80ClientsLeave(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		op := newOperator(t, r.Direct()...)
		const buyers = 300
		a := op.sale(buyers)
		r.Each(func(p *faultproxy.Proxy) { p.DelayReplies(20 * time.Millisecond) })
		g := newGateway(t, redisconn.Config{Addrs: r.Addrs()}, Options{})
		g.onSale(t, a.ID)
		g.topic.late = 100 * time.Millisecond
		ids := make([]string, buyers)
		each(buyers, func(i int) {
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(50*time.Millisecond))
			defer cancel()
			req := buy(a.ID, fmt.Sprint("u", i))
			req.IdempotencyKey = "once"
			ids[i] = g.Order(ctx, req).OrderID
		})
		testenv.Eventually(t, time.Minute, "all is published", func() bool { return g.Stats().Open == 0 })
		units, _ := g.topic.units()
		op.pending(a.ID, units)
		r.Heal()
		each(buyers, func(i int) {
			req := buy(a.ID, fmt.Sprint("u", i))
			req.IdempotencyKey = "once"
			testenv.Eventually(t, time.Minute, "the repeat is decided", func() bool {
				o := g.Order(t.Context(), req)
				if o.HTTP != 202 && o.HTTP != 503 || ids[i] != "" && o.HTTP == 202 && o.OrderID != ids[i] {
					t.Errorf("buyer %d repeats %q: %+v", i, ids[i], o)
				}
				return o.Status == order.Queued
			})
		})
		op.pending(a.ID, buyers)
		if units, distinct := g.topic.units(); units != buyers || distinct != buyers {
			t.Errorf("kafka has %d orders of %d units, want %d", distinct, units, buyers)
		}
	})
}

func each(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// longest is the longest time that many took at once; it is read when they are done.
type longest struct {
	mu   sync.Mutex
	took time.Duration
}

func (l *longest) note(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took = max(l.took, d)
}

// TestE84ManyClicks: one buyer, a hundred clicks at once.
func TestE84ManyClicks(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		op := newOperator(t, r.Direct()...)
		a := op.sale(10)
		g := newPatient(t, r.Direct())
		g.onSale(t, a.ID)
		var accepted, already atomic.Int32
		each(100, func(int) {
			switch o := g.Order(t.Context(), buy(a.ID, "clicker")); {
			case o.HTTP == 202:
				accepted.Add(1)
			case o.Reason == AlreadyOrdered && o.OrderID != "":
				already.Add(1)
			default:
				t.Errorf("got %+v", o)
			}
		})
		if accepted.Load() != 1 || already.Load() != 99 {
			t.Errorf("%d accepted, %d already, want 1 and 99", accepted.Load(), already.Load())
		}
		op.pending(a.ID, 1)
		if v, reason := g.Mine(t.Context(), a.ID, "clicker"); reason != Accepted || v.Quantity != 1 {
			t.Errorf("mine: %q %+v", reason, v)
		}
		// E77, E110: what cannot be a user leaves no key.
		before := r.Keys(t)
		for _, user := range []string{"", " ", "u ", "\tu"} {
			if o := g.Order(t.Context(), buy(a.ID, user)); o.HTTP != 401 && o.HTTP != 400 {
				t.Errorf("user %q: %+v", user, o)
			}
		}
		if after := r.Keys(t); after != before {
			t.Errorf("%d keys, before %d", after, before)
		}
		// E110: u and U are two buyers.
		if o := g.Order(t.Context(), buy(a.ID, "CLICKER")); o.Status != order.Queued {
			t.Errorf("another buyer: %+v", o)
		}
	})
}

// TestE08PoolExhausted: a slow Redis and few connections. Refusals are fast and honest, what was accepted is exactly what
// is reserved, and it is all over when the slowness is.
func TestE08PoolExhausted(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		op := newOperator(t, r.Direct()...)
		const buyers = 600
		a := op.sale(buyers * 2)
		g := newGateway(t, redisconn.Config{Addrs: r.Addrs(), PoolSize: 5}, Options{})
		g.onSale(t, a.ID)
		r.Each(func(p *faultproxy.Proxy) { p.DelayReplies(50 * time.Millisecond) })
		var accepted atomic.Int64
		var slowest longest
		each(buyers, func(i int) {
			began := time.Now()
			o := g.Order(t.Context(), buy(a.ID, fmt.Sprint("u", i)))
			took := time.Since(began)
			if took > 5*time.Second {
				t.Errorf("answered after %v", took)
			}
			slowest.note(took)
			switch {
			case o.HTTP == 202:
				accepted.Add(1)
			case o.HTTP != 503:
				t.Errorf("got %+v", o)
			}
		})
		t.Logf("answered after %v at the latest", slowest.took)
		r.Heal()
		testenv.Eventually(t, time.Minute, "everything is decided", func() bool { return g.Stats().Open == 0 })
		units, _ := g.topic.units()
		op.pending(a.ID, units)
		if accepted.Load() < units {
			t.Errorf("%d were accepted, %d reserved", accepted.Load(), units)
		}
		tries := 0
		testenv.Eventually(t, 20*time.Second, "somebody to buy afterwards", func() bool {
			tries++
			return g.Order(t.Context(), buy(a.ID, fmt.Sprint("after", tries))).Status == order.Queued
		})
	})
}

// TestE33CloseWhileBuying: the gateway is closed in the middle of a crowd. Afterwards all that is reserved is published.
func TestE33CloseWhileBuying(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		op := newOperator(t, r.Direct()...)
		a := op.sale(500)
		g := newGateway(t, redisconn.Config{Addrs: r.Direct()}, Options{})
		g.onSale(t, a.ID)
		g.topic.late = 30 * time.Millisecond
		closed := make(chan error, 1)
		var once sync.Once
		each(500, func(i int) {
			if i > 100 {
				once.Do(func() { go func() { closed <- g.Close(context.Background()) }() })
			}
			if o := g.Order(t.Context(), buy(a.ID, fmt.Sprint("u", i))); o.HTTP != 202 && o.HTTP != 503 {
				t.Errorf("got %+v", o)
			}
		})
		if err := <-closed; err != nil {
			t.Error(err)
		}
		units, _ := g.topic.units()
		op.pending(a.ID, units)
	})
}
