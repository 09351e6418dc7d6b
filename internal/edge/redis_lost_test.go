package edge

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/faultproxy/redisfault"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// TestE01LostReply: the first reply to a reserve call is lost, by silence or by a reset after execution. One unit is
// reserved, the order is published once, and the buyer of the last unit does not hear "sold out".
func TestE01LostReply(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		op := newOperator(t, r.Direct()...)
		for name, fault := range map[string]func(*faultproxy.Proxy, func([]byte) bool) *faultproxy.Rule{
			"withheld":                 func(p *faultproxy.Proxy, m func([]byte) bool) *faultproxy.Rule { return p.WithholdReply(m, 1) },
			"closed after execution":   func(p *faultproxy.Proxy, m func([]byte) bool) *faultproxy.Rule { return p.CloseAfter(m, 1) },
			"closed before the server": func(p *faultproxy.Proxy, m func([]byte) bool) *faultproxy.Rule { return p.CloseBefore(m, 1) },
		} {
			t.Run(name, func(t *testing.T) {
				op := *op
				op.t = t
				a := op.sale(2)
				g := newGateway(t, redisconn.Config{Addrs: r.Addrs(), PoolTimeout: long}, Options{RequestBudget: 2 * long})
				g.onSale(t, a.ID)
				if o := g.Order(t.Context(), buy(a.ID, "first")); o.Status != order.Queued { // and the script is known from now on
					t.Fatalf("without a fault: %+v", o)
				}
				rule := r.Rule(func(p *faultproxy.Proxy) *faultproxy.Rule {
					return fault(p, faultproxy.Contains("evalsha", "unlucky"))
				})
				o := g.Order(t.Context(), buy(a.ID, "unlucky"))
				if o.HTTP != 202 || o.Status != order.Queued {
					t.Errorf("the buyer hears %+v", o)
				}
				if rule.Fired() != 1 {
					t.Errorf("the fault fired %d times", rule.Fired())
				}
				op.pending(a.ID, 2)
				if units, distinct := g.topic.units(); units != 2 || distinct != 2 || len(g.topic.orders) != 2 {
					t.Errorf("kafka has %d records of %d orders, %d units", len(g.topic.orders), distinct, units)
				}
			})
		}
	})
}

// TestE01E97AllRepliesLost: no reply to any copy. The buyer hears `processing` within the budget (E18), nothing is published,
// and in the end the unit is back and the order's fate is told (E97).
func TestE01E97AllRepliesLost(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		op := newOperator(t, r.Direct()...)
		a := op.sale(1)
		g := newGateway(t, redisconn.Config{Addrs: r.Addrs()}, Options{RequestBudget: 3 * time.Second})
		g.onSale(t, a.ID)
		r.Rule(func(p *faultproxy.Proxy) *faultproxy.Rule {
			return p.WithholdReply(faultproxy.Contains("unlucky"), 1_000)
		})
		began := time.Now()
		o := g.Order(t.Context(), buy(a.ID, "unlucky"))
		took := time.Since(began) // without a bound it would be for ever: nothing is answered
		if o.HTTP != 202 || o.Status != order.Processing || took > 8*time.Second {
			t.Fatalf("the buyer hears %+v after %v", o, took)
		}
		t.Logf("processing after %v", took)
		if s := op.look(a.ID); s.Pending > 1 { // its release may have run already, unheard
			t.Errorf("pending is %d after one request", s.Pending)
		}
		q := Query{Activity: a.ID, User: "unlucky", OrderID: o.OrderID}
		if v, reason := g.Status(t.Context(), q); reason == NotFound {
			t.Errorf("status meanwhile: %q %+v", reason, v)
		}
		r.Heal()
		v, reason := g.Wait(t.Context(), q, 30*time.Second)
		if reason != Accepted || v.Status != order.Failed || v.Reason != order.ReasonReleased {
			t.Errorf("status in the end: %q %+v", reason, v)
		}
		op.pending(a.ID, 0)
		if len(g.topic.orders) != 0 {
			t.Errorf("an order whose reservation was unknown was published")
		}
		if o := g.Order(t.Context(), buy(a.ID, "unlucky")); o.Status != order.Queued { // I6
			t.Errorf("the buyer tries again: %+v", o)
		}
	})
}

// TestE101SecondCopy: the first copy of a reserve call is stuck on its way; its repeat hears "sold out". A unit comes back,
// and then the first copy arrives. It must do nothing: while the tombstone stands, and after it has gone.
func TestE101SecondCopy(t *testing.T) {
	t.Parallel()
	for name, expire := range map[string]bool{"tombstone stands": false, "tombstone expired": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := testenv.StartRedis(t, "--slowlog-log-slower-than", "0", "--slowlog-max-len", "100000")
			op := newOperator(t, r.Addr)
			p := faultproxy.New(t, r.Addr)
			a := op.sale(1)
			g := newPatient(t, []string{p.Addr()})
			g.onSale(t, a.ID)
			stuck := p.Hold(faultproxy.Contains("evalsha", "unlucky"), 1)
			other := g.Order(t.Context(), buy(a.ID, "other")) // takes the last unit, and the script is known from now on
			if other.Status != order.Queued {
				t.Fatalf("the other buyer: %+v", other)
			}
			// The memory of this gateway knows that it is sold out, so the request comes through one that does not yet.
			g2 := newGateway(t, redisconn.Config{Addrs: []string{p.Addr()}, PoolTimeout: long}, Options{RequestBudget: 2 * long})
			var o Outcome
			testenv.Eventually(t, 20*time.Second, "the held copy and its repeat", func() bool {
				g2.gate.Observe(a.ID, ledger.Decision{Code: ledger.Reserved, Available: 1, NowMs: time.Now().UnixMilli() + 1500})
				if o = g2.Order(t.Context(), buy(a.ID, "unlucky")); o.Cause == CauseGate {
					return false
				}
				return true
			})
			if o.Reason != SoldOut || stuck.Fired() != 1 || g2.Stats().FencedRefusals != 1 {
				t.Fatalf("the buyer hears %+v, the copy was held %d times, %d refusals were fenced", o, stuck.Fired(), g2.Stats().FencedRefusals)
			}
			told := time.Now()
			// MySQL refused the other's order: the unit is back.
			_, err := op.led.Settle(t.Context(), ledger.Settlement{Activity: a.ID, Orders: []ledger.Outcome{{
				Order: other.OrderID, User: "other", Item: a.Item, Quantity: 1, Status: order.Failed, Dead: true,
			}}})
			if err != nil {
				t.Fatal(err)
			}
			if expire {
				keys, err := op.rdb.Keys(t.Context(), fmt.Sprintf("seckill:result:{%d}:*", a.ID)).Result()
				if err != nil || len(keys) != 2 {
					t.Fatalf("results: %v, %v", keys, err)
				}
				op.rdb.Del(t.Context(), keys...)
				testenv.Eventually(t, 20*time.Second, "the reserve deadline", func() bool { return time.Since(told) > 2100*time.Millisecond })
			}
			before := scripts(t, op.rdb, "unlucky")
			stuck.Release()
			testenv.Eventually(t, 20*time.Second, "the stuck copy has run", func() bool { return scripts(t, op.rdb, "unlucky") == before+1 })
			op.pending(a.ID, 0)
			if s := op.look(a.ID); s.Available != 1 || s.BuyersLen != 0 {
				t.Errorf("a refused order has landed: %+v", s)
			}
		})
	}
}

// scripts is how many script calls with that word have run on the server, as its slow log has them.
func scripts(t *testing.T, rdb redis.UniversalClient, word string) int {
	t.Helper()
	log, err := rdb.SlowLogGet(t.Context(), -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, l := range log {
		if strings.EqualFold(l.Args[0], "evalsha") && strings.Contains(strings.Join(l.Args, " "), word) {
			n++
		}
	}
	return n
}

// TestE102OldRelease: the producer fails for certain, but so late that the sweep may have published the entry.
func TestE102OldRelease(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		op := newOperator(t, r.Direct()...)
		op.ms = ledger.Timings{ReserveDeadlineMs: 2000, PublishBudgetMs: 3000, HorizonMs: 6000}
		a := op.sale(1)
		g := newGateway(t, redisconn.Config{Addrs: r.Direct()}, Options{PublishTakes: 300 * time.Millisecond, RequestBudget: 2 * long})
		g.onSale(t, a.ID)
		g.topic.late, g.topic.err = 3500*time.Millisecond, fmt.Errorf("no leader: %w", ErrNotSent)
		if o := g.Order(t.Context(), buy(a.ID, "late")); o.HTTP != 202 || o.Status != order.Processing {
			t.Errorf("released too late: %+v", o)
		}
		op.pending(a.ID, 1)
		b := op.sale(1)
		g.onSale(t, b.ID)
		g.topic.late = 0
		if o := g.Order(t.Context(), buy(b.ID, "soon")); o.HTTP != 503 {
			t.Errorf("released in time: %+v", o)
		}
		op.pending(b.ID, 0)
	})
}

// TestE102LostRelease: an order was not sent and is taken back, but answers to its release are lost. What its buyer hears stays true:
// behind a refusal his Idempotency-Key is free, and once he was given an order's id it names that order.
func TestE102LostRelease(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		op := newOperator(t, r.Direct()...)
		a := op.sale(2)
		g := newGateway(t, redisconn.Config{Addrs: r.Addrs(), PoolTimeout: long}, Options{RequestBudget: 2 * long})
		g.onSale(t, a.ID)
		g.topic.err = fmt.Errorf("no leader: %w", ErrNotSent)
		if o := g.Order(t.Context(), buy(a.ID, "first")); o.HTTP != 503 { // and the scripts are known from now on
			t.Fatalf("without a fault: %+v", o)
		}
		wish := func(user string) Request {
			w := buy(a.ID, user)
			w.IdempotencyKey = "k"
			return w
		}
		once := r.Rule(func(p *faultproxy.Proxy) *faultproxy.Rule {
			return p.CloseAfter(faultproxy.Contains("evalsha", order.ReasonRefused, "unlucky"), 1)
		})
		if o := g.Order(t.Context(), wish("unlucky")); o.HTTP != 503 || once.Fired() != 1 {
			t.Errorf("one answer was lost (%d): %+v", once.Fired(), o)
		}
		always := r.Rule(func(p *faultproxy.Proxy) *faultproxy.Rule {
			return p.CloseAfter(faultproxy.Contains("evalsha", order.ReasonRefused, "hapless"), 1_000)
		})
		o := g.Order(t.Context(), wish("hapless"))
		if o.Status != order.Processing || always.Fired() < 2 {
			t.Errorf("all answers were lost (%d): %+v", always.Fired(), o)
		}
		testenv.Eventually(t, 30*time.Second, "everything is decided", func() bool { return g.Stats().Open == 0 })
		op.pending(a.ID, 0)
		g.topic.err = nil
		if o := g.Order(t.Context(), wish("unlucky")); o.Status != order.Queued {
			t.Errorf("refused, and tries again: %+v", o)
		}
		if again := g.Order(t.Context(), wish("hapless")); again.OrderID != o.OrderID || again.Status != order.Failed || again.StatusReason != order.ReasonReleased {
			t.Errorf("was given an order's id, and asks again: %+v, then %+v", o, again)
		}
	})
}

// TestE18SlowRedis: Redis takes longer than a buyer may wait. Everybody is answered within the budget, and in the end
// nothing is reserved that was not published.
func TestE18SlowRedis(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		op := newOperator(t, r.Direct()...)
		a := op.sale(100)
		g := newGateway(t, redisconn.Config{Addrs: r.Addrs()}, Options{RequestBudget: time.Second})
		g.onSale(t, a.ID)
		tries := 0
		testenv.Eventually(t, 20*time.Second, "connections, clock and script are there", func() bool {
			tries++
			return tries < 50 && g.Order(t.Context(), buy(a.ID, fmt.Sprint("first", tries))).Status == order.Queued
		})
		r.Each(func(p *faultproxy.Proxy) { p.DelayReplies(20 * time.Second) })
		var unknown atomic.Int32
		var slowest longest
		each(50, func(i int) {
			began := time.Now()
			o := g.Order(t.Context(), buy(a.ID, fmt.Sprint("u", i)))
			took := time.Since(began)
			if took > 10*time.Second || o.HTTP != 202 && o.HTTP != 503 {
				t.Errorf("answered after %v: %+v", took, o)
			}
			slowest.note(took)
			if o.Cause == CauseUnknown {
				unknown.Add(1)
			}
		})
		if unknown.Load() == 0 {
			t.Error("no reservation became unknown: the fault did not strike")
		}
		t.Logf("answered after %v at the latest", slowest.took)
		r.Heal()
		testenv.Eventually(t, time.Minute, "everything is decided", func() bool { return g.Stats().Open == 0 })
		units, _ := g.topic.units()
		op.pending(a.ID, units)
	})
}
