package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

// What one buyer meets, call by call.
func TestABuyersWay(t *testing.T) {
	s := newStack(t)
	s.startGateway()
	id := s.sell(2)
	path := fmt.Sprintf("/seckill/%d", id)

	if r, err := s.get("/anything", ""); err != nil || r.Text != "the shop, /anything" {
		t.Fatalf("everything else is the shop's: %+v, %v", r, err)
	}
	want := func(what string, r reply, err error, http int, word string) {
		t.Helper()
		if err != nil || r.HTTP != http || (r.Reason != word && r.Status != word) {
			t.Fatalf("%s: %+v, %v; want %d %s\ngateway:\n%s\nsyncer:\n%s", what, r, err, http, word, last(s.gateway), last(s.syncer))
		}
	}
	// settled is the first answer of a gateway that is in no haste: what is unavailable or undecided on a machine that stalls ends as
	// nothing, or as the order that was asked for, and is asked for again or told.
	settled := func(user string, quantity int) (r reply, err error) {
		t.Helper()
		testenv.Eventually(t, time.Minute, "the gateway to decide", func() bool {
			r, err = s.buy(id, user, quantity)
			if err != nil || r.Status != "processing" {
				return err != nil || r.HTTP != 503
			}
			t.Logf("undecided at first: %+v", r)
			end, failed := s.get(r.URL+"?wait=20s", user)
			if failed == nil && end.Status == "confirmed" {
				r.Status = "queued"
			}
			return r.Status == "queued"
		})
		return r, err
	}
	r, err := s.buy(id, "", 1)
	want("nobody", r, err, 401, "no_user")
	r, err = s.buy(id+7, "u1", 1)
	want("no such activity", r, err, 404, "not_found")
	r, err = s.buy(id, "u1", 4)
	want("more than one may have", r, err, 400, "bad_request")
	first, err := settled("u1", 1)
	want("the first", first, err, 202, "queued")
	r, err = s.buy(id, "u1", 1)
	want("once more", r, err, 409, "already_ordered")
	if r.OrderID != first.OrderID {
		t.Fatalf("already_ordered names %q, not %q", r.OrderID, first.OrderID)
	}
	r, err = s.get(first.URL+"?wait=20s", "u1")
	want("its outcome", r, err, 200, "confirmed")
	r, err = s.get(first.URL, "u2")
	want("another's order", r, err, 404, "not_found")
	r, err = s.get(path+"/orders/mine", "u1")
	want("my order", r, err, 200, "confirmed")
	r, err = settled("u2", 2)
	want("two, with one left", r, err, 409, "sold_out")
	r, err = settled("u2", 1)
	want("the last one", r, err, 202, "queued")
	r, err = settled("u3", 1)
	want("none left", r, err, 409, "sold_out")

	// The shop cancels by plain SQL: the unit is for sale again, and the buyer may try again.
	if _, err := s.store.DB().Exec("UPDATE orders SET status='CANCELLED' WHERE order_id=?", first.OrderID); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, "the cancelled unit can be bought", func() bool {
		r, err := s.buy(id, "u1", 1)
		return err == nil && r.HTTP == 202
	})
	s.command("syncer", "activity", "pause", fmt.Sprint(id))
	testenv.Eventually(t, 30*time.Second, "paused", func() bool {
		r, err := s.buy(id, "u9", 1)
		return err == nil && r.HTTP == 503 && r.Reason == "unavailable"
	})
	s.command("syncer", "activity", "close", fmt.Sprint(id))
	testenv.Eventually(t, 30*time.Second, "closed", func() bool {
		r, err := s.buy(id, "u9", 1)
		return err == nil && r.HTTP == 410 && r.Reason == "ended"
	})
	s.check(id, 2, nil)
}

// E96: a buyer who does not pay in time loses the unit to the next one, is told so, and a payment that comes then changes nothing. Redis
// hears of it by the binlog alone.
func TestE96UnpaidUnitIsSoldAgain(t *testing.T) {
	s := newStack(t)
	s.startGateway()
	s.worker.Kill()
	f, err := os.OpenFile(s.file("worker"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString("\nunpaid: {window: 15s, every: 200ms}\n")
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	s.startWorker()
	id := s.sell(2)
	pay := func(order string) int64 {
		t.Helper()
		res, err := s.store.DB().Exec("UPDATE orders SET status = 'PAID' WHERE order_id = ? AND status = 'CONFIRMED'", order)
		if err != nil {
			t.Fatal(err)
		}
		n, err := res.RowsAffected()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	buy := func(user string) reply {
		t.Helper()
		r, err := s.buy(id, user, 1)
		if err != nil || r.HTTP != 202 {
			t.Fatalf("%s buys: %+v, %v", user, r, err)
		}
		return r
	}
	keen, slow := buy("keen"), buy("slow")
	if r, err := s.get(keen.URL+"?wait=20s", "keen"); err != nil || r.Status != "confirmed" {
		t.Fatalf("keen's order: %+v, %v", r, err)
	}
	if pay(keen.OrderID) != 1 {
		t.Fatal("keen's payment came too late")
	}
	if r, err := s.buy(id, "next", 1); err != nil || r.Reason != "sold_out" {
		t.Fatalf("a third buyer: %+v, %v", r, err)
	}
	testenv.Eventually(t, time.Minute, "slow is told that the order has expired", func() bool {
		r, err := s.get(slow.URL, "slow")
		return err == nil && r.Status == "expired"
	})
	if pay(slow.OrderID) != 0 {
		t.Fatal("slow paid for an expired order")
	}
	var next reply
	testenv.Eventually(t, 30*time.Second, "the unit can be bought", func() bool {
		next, err = s.buy(id, "next", 1)
		return err == nil && next.HTTP == 202
	})
	if r, err := s.get(next.URL+"?wait=20s", "next"); err != nil || r.Status != "confirmed" || pay(next.OrderID) != 1 {
		t.Fatalf("next's order: %+v, %v", r, err)
	}
	if r, err := s.get(keen.URL, "keen"); err != nil || r.Status != "paid" {
		t.Errorf("keen's order at the end: %+v, %v", r, err)
	}
	s.check(id, 2, nil)
}

// E80: buyers hang up at once. What was reserved is published and lands all the same, and a repeat with the same
// Idempotency-Key finds it.
func TestE80ClientHangsUp(t *testing.T) {
	s := newStack(t)
	s.startGateway()
	const buyers = 300
	id := s.sell(buyers)
	var all sync.WaitGroup
	for i := range buyers {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%20)*time.Millisecond)
			defer cancel()
			_, _ = s.do(ctx, "POST", fmt.Sprintf("/seckill/%d/orders", id), fmt.Sprint("u", i), `{"quantity":1}`)
		})
		if i%30 == 29 {
			all.Wait()
		}
	}
	all.Wait()
	report := s.check(id, buyers, nil)
	if report.Totals.SoldOrders == 0 {
		t.Fatal("every client hung up before anything was reserved: the test shows nothing")
	}
	t.Logf("%d of %d were reserved before their clients were gone", report.Totals.SoldOrders, buyers)
}

// E115: Redis forgets everything in the middle of a sale. Buyers hear 503 until it is rebuilt, and never 404 or
// "sold out"; nobody who bought can buy again, and nothing is lost.
func TestE115RedisForgetsEverything(t *testing.T) {
	s := newStack(t)
	s.startGateway()
	id := s.sell(50)
	for i := range 20 {
		if r, err := s.buy(id, fmt.Sprint("u", i), 1); err != nil || r.HTTP != 202 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	s.redis.Kill()
	s.redis.Restart()
	n := 0
	testenv.Eventually(t, time.Minute, "the sale goes on", func() bool {
		n++
		r, err := s.buy(id, fmt.Sprint("late-", n), 1)
		if err != nil {
			return false
		}
		switch r.HTTP {
		case 202:
			return r.Status == "queued"
		case 503:
			return false
		}
		t.Fatalf("while redis has forgotten everything: %+v", r)
		return false
	})
	for i := range 20 {
		if r, err := s.buy(id, fmt.Sprint("u", i), 1); err != nil || r.Reason != "already_ordered" {
			t.Fatalf("u%d bought before and hears %+v, %v", i, r, err)
		}
	}
	s.check(id, 50, nil)
}

// E13: one key goes missing at the peak. The sale closes, and opens again once it is rebuilt.
func TestE13AMissingKeyClosesTheSale(t *testing.T) {
	s := newStack(t)
	s.startGateway()
	id := s.sell(10)
	for _, key := range []string{"stock", "pending", "ledger", "buyers", "version", "activity"} {
		if r, err := s.buy(id, "first-"+key, 1); err != nil || r.HTTP != 202 {
			t.Fatalf("%+v, %v", r, err)
		}
		if err := s.delete(fmt.Sprintf("seckill:%s:{%d}", key, id)); err != nil {
			t.Fatal(err)
		}
		if r, err := s.buy(id, "second-"+key, 1); err != nil || (r.HTTP != 503 && r.HTTP != 202) {
			t.Fatalf("with %s gone: %+v, %v", key, r, err)
		}
		s.open4Sale(id)
		testenv.Eventually(t, time.Minute, "rebuilt", func() bool {
			x, err := s.ledger.Inspect(t.Context(), id)
			return err == nil && x[0].Loaded && x[0].SameServer
		})
	}
	s.check(id, 10, nil)
}
