package edge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// TestRefusedEarlyTouchesNothing: what can be refused before reserving never reaches Redis.
func TestRefusedEarlyTouchesNothing(t *testing.T) {
	t.Parallel()
	t.Run("clock", func(t *testing.T) {
		t.Parallel()
		bubble(t, Options{}, nil, func(t *testing.T, w *world, e *Edge) {
			w.set(func() { w.down = errLost })
			if o := e.Order(t.Context(), wish()); o.Cause != CauseNotReserved || o.HTTP != 503 || len(w.reserved) != 0 {
				t.Errorf("redis does not tell its time: %+v", o)
			}
			w.set(func() { w.down = nil })
		})
	})
	t.Run("timings", func(t *testing.T) {
		t.Parallel()
		bubble(t, Options{PublishTakes: 6 * time.Second}, nil, func(t *testing.T, w *world, e *Edge) {
			if o := e.Order(t.Context(), wish()); o.Cause != CauseTimings || o.HTTP != 503 || len(w.reserved) != 0 {
				t.Errorf("the producer takes longer than the publish budget: %+v", o)
			}
		})
	})
	t.Run("gone", func(t *testing.T) {
		t.Parallel()
		bubble(t, Options{}, nil, func(t *testing.T, w *world, e *Edge) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if o := e.Order(ctx, wish()); o.HTTP != 503 || o.Cause != CauseGone || len(w.reserved) != 0 {
				t.Errorf("the client had left before anything was done: %+v", o)
			}
		})
	})
	t.Run("overload", func(t *testing.T) {
		t.Parallel()
		bubble(t, Options{MaxOpen: 2}, func(w *world) { w.publishes[0].late = 3 * time.Second }, func(t *testing.T, w *world, e *Edge) {
			for i := range 3 {
				o := e.Order(t.Context(), wish())
				if i < 2 && o.HTTP != 202 || i == 2 && (o.Cause != CauseOverload || o.HTTP != 503) {
					t.Errorf("order %d with room for 2: %+v", i, o)
				}
			}
			advance(3 * time.Second)
			if o := e.Order(t.Context(), wish()); o.HTTP != 202 {
				t.Errorf("after the first two were done: %+v", o)
			}
		})
	})
}

// TestClientLeaves: a buyer who hangs up in the middle changes nothing (E80).
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, func(w *world) {
		w.reserves[0].late = 50 * time.Millisecond
		w.publishes[0].late = 50 * time.Millisecond
	}, func(t *testing.T, w *world, e *Edge) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if o := e.Order(ctx, wish()); o.Status != order.Queued {
			t.Errorf("hung up during the reservation: %+v", o)
		}
		if len(w.published) != 1 || len(w.released) != 0 {
			t.Errorf("published %d, released %d, want 1 and 0", len(w.published), len(w.released))
		}
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.marked) != 1 || w.marked[0].Partition != 2 || w.marked[0].Offset != 100 || w.marked[0].Order != w.published[0].ID {
			t.Errorf("offset kept: %+v", w.marked)
		}
	})
}

// TestClientLeavesDuringARepeat: what his repeat has found out is done all the same.
func TestClientLeavesDuringARepeat(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, func(w *world) {
		w.reserves = []reply{{d: ledger.Decision{Code: ledger.Again, ReservedAtMs: -100}, late: 50 * time.Millisecond}}
		w.views["any"] = ledger.View{Found: true, Status: order.Processing, User: buyer, Quantity: 1}
	}, func(t *testing.T, w *world, e *Edge) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		r := wish()
		r.IdempotencyKey = "k"
		if o := e.Order(ctx, r); o.Status != order.Queued || len(w.published) != 1 {
			t.Errorf("hung up during the repeat: %+v, published %d times", o, len(w.published))
		}
	})
}

// TestPublishDeadline: the publish budget counts from before the reserve call, and for a repeat from the reservation.
func TestPublishDeadline(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, func(w *world) {
		w.reserves = []reply{
			{d: ledger.Decision{Code: ledger.Reserved, Available: 1}, late: 700 * time.Millisecond},
			{d: ledger.Decision{Code: ledger.Again, ReservedAtMs: -1500}, late: 100 * time.Millisecond},
		}
		w.views["any"] = ledger.View{Found: true, Status: order.Processing, User: buyer, Quantity: 1}
	}, func(t *testing.T, w *world, e *Edge) {
		began := time.Now()
		e.Order(t.Context(), wish())
		if want := began.Add(5 * time.Second); !w.until[0].Equal(want) {
			t.Errorf("first publication may last until %v, want %v", w.until[0].Sub(began), want.Sub(began))
		}
		began = time.Now()
		r := wish()
		r.IdempotencyKey = "k"
		e.Order(t.Context(), r)
		if want := began.Add(3500 * time.Millisecond); !w.until[1].Equal(want) {
			t.Errorf("repeated publication may last until %v after its call, want %v", w.until[1].Sub(began), want.Sub(began))
		}
	})
}

// TestIdempotencyKey: the same key is the same order, another key, user or activity another one, and no key a new one.
func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, nil, func(t *testing.T, w *world, e *Edge) {
		buy := func(user, key string) string {
			r := wish()
			r.User, r.IdempotencyKey = user, key
			return e.Order(t.Context(), r).OrderID
		}
		a := buy("a", "k")
		if a != buy("a", "k") {
			t.Error("the same key made two orders")
		}
		for _, other := range []string{buy("b", "k"), buy("a", "l"), buy("a", ""), buy("a", "")} {
			if other == a {
				t.Error("two requests made one order")
			}
		}
		if w.reserved[0].Nonce == w.reserved[1].Nonce {
			t.Error("two requests with one key have one nonce: the first could release what the second published")
		}
	})
}

// TestRepeatAfterSoldOut: the buyer of the last unit who repeats his request gets his order, not "sold out"; a flood
// with keys of its own still does not reach Redis.
func TestRepeatAfterSoldOut(t *testing.T) {
	t.Parallel()
	bubble(t, Options{Repeats: 5}, func(w *world) {
		w.reserves = []reply{
			{d: ledger.Decision{Code: ledger.Reserved, Available: 0}},
			{d: ledger.Decision{Code: ledger.Decided, Result: &ledger.Result{Status: order.Confirmed}}},
			code(ledger.SoldOut),
		}
		w.snap.Available = 0
	}, func(t *testing.T, w *world, e *Edge) {
		w.set(func() { w.snap.Available = 1 })
		advance(600 * time.Millisecond)
		synctest.Wait()
		r := wish()
		r.IdempotencyKey = "mine"
		first := e.Order(t.Context(), r)
		if first.Status != order.Queued {
			t.Fatalf("first: %+v", first)
		}
		w.set(func() { w.snap.Available = 0 })
		if v := e.Admit(saleID, ""); v.Reason != SoldOut {
			t.Fatalf("the last unit went: %+v", v)
		}
		if v := e.Admit(saleID, "mine"); v.Reason != Accepted {
			t.Fatalf("a repeat at the gate: %+v", v)
		}
		if o := e.Order(t.Context(), r); o.Status != order.Confirmed || o.OrderID != first.OrderID || o.HTTP != 202 {
			t.Fatalf("the repeat: %+v", o)
		}
		passed := 0
		for i := range 100 {
			if e.Admit(saleID, fmt.Sprint("flood", i)).Reason == Accepted {
				passed++
			}
			r.IdempotencyKey = fmt.Sprint("flood", i)
			if o := e.Order(t.Context(), r); o.Reason != SoldOut {
				t.Fatalf("a new key: %+v", o)
			}
		}
		if passed != 5 || len(w.reserved) != 2+5 {
			t.Errorf("%d passed the gate and %d reached redis, want 5 each", passed, len(w.reserved)-2)
		}
		if v := e.Admit(saleID, "mine"); v.Reason != Accepted {
			t.Fatalf("the flood locked the buyer out: %+v", v)
		}
	})
}

// TestUndecided: an order whose reservation is unknown is `processing` for its buyer, is never published, and is released
// until the release is answered.
func TestUndecided(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, func(w *world) {
		w.reserves = []reply{{err: errLost}}
		w.releases = []reply{{err: errLost}}
	}, func(t *testing.T, w *world, e *Edge) {
		o := e.Order(t.Context(), wish())
		if o.Status != order.Processing || o.Cause != CauseUnknown {
			t.Fatalf("got %+v", o)
		}
		advance(time.Minute)
		synctest.Wait()
		if n := len(w.released); n < 25 || n > 60 {
			t.Errorf("%d releases in a minute, want one or two per 2 s", n)
		}
		if s := e.Stats(); s.Undecided != 1 || s.Open != 1 {
			t.Errorf("stats: %+v", s)
		}
		q := Query{Activity: saleID, User: buyer, OrderID: o.OrderID}
		if v, r := e.Status(t.Context(), q); r != Accepted || v.Status != order.Processing || v.Quantity != 1 || v.Item != itemID || v.Final {
			t.Errorf("status while undecided: %q %+v", r, v)
		}
		q.User = "somebody else"
		if _, r := e.Status(t.Context(), q); r != NotFound {
			t.Errorf("status for another user: %q", r)
		}
		w.set(func() { w.releases = []reply{{rel: ledger.ReleasedNow}} })
		advance(5 * time.Second)
		synctest.Wait()
		if s := e.Stats(); s.Undecided != 0 || s.Open != 0 || len(w.published) != 0 {
			t.Errorf("released: %+v, published %d", s, len(w.published))
		}
	})
}

// TestOneStuckReleaseHoldsUpNoOther: more orders than calls at a time, one activity's server does not answer.
func TestOneStuckReleaseHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, func(w *world) {
		w.reserves = []reply{{err: errLost}}
		w.releases = make([]reply, 3*releaseCalls)
		for i := range w.releases {
			w.releases[i] = reply{err: errLost, late: time.Hour} // ends by its time-out
		}
		w.releases = append(w.releases, reply{rel: ledger.ReleasedNow})
	}, func(t *testing.T, w *world, e *Edge) {
		var wg sync.WaitGroup
		for range 4 * releaseCalls {
			wg.Go(func() { e.Order(t.Context(), wish()) })
		}
		wg.Wait()
		advance(3*releaseTimeout + 2*releaseBackoffMax)
		synctest.Wait()
		if s := e.Stats(); s.Undecided != 0 {
			t.Errorf("%d still undecided", s.Undecided)
		}
	})
}

// TestClose: what is in work is finished, nothing new is taken, and a bound is kept (E33, E72).
func TestClose(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, func(w *world) { w.publishes[0].late = 4 * time.Second }, func(t *testing.T, w *world, e *Edge) {
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if o := e.Order(t.Context(), wish()); o.Status != order.Processing {
					t.Errorf("got %+v", o)
				}
			})
		}
		wg.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := e.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "5 orders") {
			t.Errorf("close within a second: %v", err)
		}
		if o := e.Order(t.Context(), wish()); o.HTTP != 503 || len(w.published) != 5 {
			t.Errorf("after close: %+v, published %d", o, len(w.published))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		e := New(w, w, w, gateOf(w), Options{})
		if err := e.Close(t.Context()); err != nil { // before Start
			t.Error(err)
		}
		e.Start()
		if o := e.Order(t.Context(), wish()); o.HTTP != 503 {
			t.Errorf("never started: %+v", o)
		}
	})
}

// TestCloseRaces hammers Close with orders: no panic, and whatever was reserved was published.
func TestCloseRaces(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, func(w *world) { w.publishes[0].late = time.Millisecond }, func(t *testing.T, w *world, e *Edge) {
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range 20 {
					e.Order(t.Context(), wish())
				}
			})
		}
		advance(5 * time.Millisecond)
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		if len(w.reserved) == 0 || len(w.reserved) != len(w.published) {
			t.Errorf("reserved %d, published %d", len(w.reserved), len(w.published))
		}
		w.mu.Unlock()
		wg.Wait()
	})
}

// TestAnsweredAtTheLastMoment: the reserve call is answered at the very moment at which its buyer gives up, and Kafka at the very
// moment at which the buyer is answered. Whoever comes first, an order that is said to be unknown is never published, and every
// other one is, once (E18, E97).
func TestAnsweredAtTheLastMoment(t *testing.T) {
	t.Parallel()
	late := func(w *world) { w.reserves[0].late, w.publishes[0].late = 800*time.Millisecond, 200*time.Millisecond }
	bubble(t, Options{RequestBudget: time.Second, ReserveBudget: 800 * time.Millisecond}, late, func(t *testing.T, w *world, e *Edge) {
		outcomes := make([]Outcome, 1000)
		var wg sync.WaitGroup
		for i := range outcomes {
			wg.Go(func() { outcomes[i] = e.Order(t.Context(), wish()) })
		}
		wg.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
		published, causes := map[string]int{}, map[Cause]int{}
		for _, o := range w.published {
			published[o.ID]++
		}
		for _, o := range outcomes {
			causes[o.Cause]++
			want := 1
			if o.Cause == CauseUnknown {
				want = 0
			}
			if o.HTTP != 202 || o.OrderID == "" || published[o.OrderID] != want {
				t.Errorf("%+v was published %d times, want %d", o, published[o.OrderID], want)
			}
		}
		if len(w.released) != causes[CauseUnknown] {
			t.Errorf("%d released, want those that are unknown: %v", len(w.released), causes)
		}
		t.Log(causes)
	})
}
