package edge

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/faultproxy/redisfault"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// TestUserWindow: folded into the reserve call; a repeat of one's own order never meets it.
func TestUserWindow(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		op := newOperator(t, r.Direct()...)
		a := op.sale(10)
		g := newPatient(t, r.Direct())
		g.onSale(t, a.ID)
		req := buy(a.ID, "u")
		req.Window, req.IdempotencyKey = time.Minute, "k"
		first := g.Order(t.Context(), req)
		if first.Status != order.Queued {
			t.Fatalf("first: %+v", first)
		}
		if again := g.Order(t.Context(), req); again.OrderID != first.OrderID || again.HTTP != 202 {
			t.Errorf("repeat: %+v", again)
		}
		_, err := op.led.Settle(t.Context(), ledger.Settlement{Activity: a.ID, Orders: []ledger.Outcome{{
			Order: first.OrderID, User: "u", Item: a.Item, Quantity: 1, Status: order.Failed, Dead: true,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		req.IdempotencyKey = ""
		o := g.Order(t.Context(), req)
		if o.Reason != TooFrequent || o.RetryAfter <= 0 || o.RetryAfter > time.Minute {
			t.Errorf("inside the window: %+v", o)
		}
		req.Window = 0
		if o := g.Order(t.Context(), req); o.Status != order.Queued {
			t.Errorf("without a window: %+v", o)
		}
	})
}

// TestStatusOnRedis: queued with a position, woken when it lands, and nobody else's business.
func TestStatusOnRedis(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		statusFlow(t, r.Direct()...)
	})
}

// TestE98ACrowdAndAHundredUnits: exactly what there is, is sold.
func TestE98ACrowdAndAHundredUnits(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		op := newOperator(t, r.Direct()...)
		a := op.sale(100)
		g := newPatient(t, r.Direct())
		g.onSale(t, a.ID)
		var accepted atomic.Int64
		var told sync.Map // user → order id
		each(300, func(i int) {
			switch o := g.Order(t.Context(), buy(a.ID, fmt.Sprint("u", i))); {
			case o.HTTP == 202:
				accepted.Add(1)
				told.Store(fmt.Sprint("u", i), o.OrderID)
			case o.Reason != SoldOut:
				t.Errorf("got %+v", o)
			}
		})
		if accepted.Load() != 100 {
			t.Errorf("%d accepted, want 100", accepted.Load())
		}
		op.pending(a.ID, 100)
		for _, o := range g.topic.published() { // batches answer each buyer with his own order
			if id, _ := told.Load(o.User); id != o.ID {
				t.Errorf("%s was told of order %v and has %s", o.User, id, o.ID)
			}
		}
		if units, distinct := g.topic.units(); units != 100 || distinct != 100 {
			t.Errorf("kafka has %d orders of %d units", distinct, units)
		}
	})
}

func statusFlow(t *testing.T, addrs ...string) {
	t.Helper()
	op := newOperator(t, addrs...)
	a := op.sale(10)
	g := newPatient(t, addrs)
	g.onSale(t, a.ID)
	if err := op.led.SetLanded(t.Context(), map[int32]ledger.LandedAt{0: {Offset: 0, TimeMs: 1}}); err != nil {
		t.Fatal(err)
	}
	var last Outcome
	for i := range 3 {
		req := buy(a.ID, fmt.Sprint("u", i))
		req.Quantity = 2
		if last = g.Order(t.Context(), req); last.Status != order.Queued || last.Item != a.Item || last.Quantity != 2 {
			t.Fatalf("order %d: %+v", i, last)
		}
	}
	q := Query{Activity: a.ID, User: "u2", OrderID: last.OrderID}
	testenv.Eventually(t, 20*time.Second, "the position is known", func() bool {
		v, reason := g.Status(t.Context(), q)
		return reason == Accepted && v.Status == order.Queued && v.Position == 2 && v.Quantity == 2 && v.Item == a.Item
	})
	if _, reason := g.Status(t.Context(), Query{Activity: a.ID, User: "u1", OrderID: last.OrderID}); reason != NotFound {
		t.Errorf("somebody else's order: %q", reason)
	}
	if _, reason := g.Status(t.Context(), Query{Activity: a.ID, User: "u2", OrderID: "01890a5d-ac96-774b-bcce-b302099a8057"}); reason != NotFound {
		t.Errorf("no such order: %q", reason)
	}
	done := make(chan error, 1)
	go func() {
		began := time.Now()
		v, reason := g.Wait(t.Context(), q, 20*time.Second)
		if reason != Accepted || v.Status != order.Confirmed || !v.Final {
			done <- fmt.Errorf("waited for: %q %+v", reason, v)
			return
		}
		t.Logf("woken after %v", time.Since(began))
		done <- nil
	}()
	testenv.Eventually(t, 20*time.Second, "somebody waits", func() bool { return g.Stats().Waiters == 1 })
	_, err := op.led.Settle(t.Context(), ledger.Settlement{
		Activity: a.ID, Version: time.Now().UnixMicro(), Stock: 8,
		Orders: []ledger.Outcome{{Order: last.OrderID, User: "u2", Item: a.Item, Quantity: 2, Status: order.Confirmed}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if v, reason := g.Mine(t.Context(), a.ID, "u2"); reason != Accepted || v.OrderID != last.OrderID || v.Status != order.Confirmed {
		t.Errorf("mine: %q %+v", reason, v)
	}
	if _, reason := g.Mine(t.Context(), a.ID, "nobody"); reason != NotFound {
		t.Errorf("nobody's: %q", reason)
	}
}
