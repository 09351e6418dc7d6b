package e2e

import (
	"context"
	"fmt"
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
	r, err := s.buy(id, "", 1)
	want("nobody", r, err, 401, "no_user")
	r, err = s.buy(id+7, "u1", 1)
	want("no such activity", r, err, 404, "not_found")
	r, err = s.buy(id, "u1", 4)
	want("more than one may have", r, err, 400, "bad_request")
	first, err := s.buy(id, "u1", 1)
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
	r, err = s.buy(id, "u2", 2)
	want("two, with one left", r, err, 409, "sold_out")
	r, err = s.buy(id, "u2", 1)
	want("the last one", r, err, 202, "queued")
	r, err = s.buy(id, "u3", 1)
	want("none left", r, err, 409, "sold_out")

	// The shop cancels by plain SQL: the unit is for sale again, and the buyer may try again.
	if _, err := s.store.DB().Exec("UPDATE orders SET status='CANCELLED' WHERE order_id=?", first.OrderID); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, "the cancelled unit can be bought", func() bool {
		r, err := s.buy(id, "u1", 1)
		return err == nil && r.HTTP == 202
	})
	s.command("syncer", "activity", "pause", fmt.Sprint(id))
	testenv.Eventually(t, 10*time.Second, "paused", func() bool {
		r, err := s.buy(id, "u9", 1)
		return err == nil && r.HTTP == 503 && r.Reason == "unavailable"
	})
	s.command("syncer", "activity", "close", fmt.Sprint(id))
	testenv.Eventually(t, 10*time.Second, "closed", func() bool {
		r, err := s.buy(id, "u9", 1)
		return err == nil && r.HTTP == 410 && r.Reason == "ended"
	})
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
