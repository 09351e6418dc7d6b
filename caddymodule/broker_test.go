package caddymodule

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// The whole gateway with a real broker behind the fault proxy.

// told is what a buyer heard.
type told struct {
	status        int
	order, state  string
	reason        string
	tookTooLong   bool
	withoutAnswer error
}

// buy is one purchase, and what its buyer hears. A buyer waits for a second at most, by default; the machine may take longer.
func (s *sale) buy(user, key string) (t told) {
	r, err := http.NewRequestWithContext(s.Context(), http.MethodPost, "http://"+s.addr+s.path(s.id), nil)
	if err != nil {
		return told{withoutAnswer: err}
	}
	r.Header.Set("X-User", user)
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	began := time.Now()
	res, err := tryDo(r)
	if err != nil {
		return told{withoutAnswer: err}
	}
	var body struct {
		OrderID string `json:"order_id"`
		Status  string `json:"status"`
		Reason  string `json:"reason"`
	}
	err = json.Unmarshal([]byte(res.body), &body)
	return told{res.status, body.OrderID, body.Status, body.Reason, time.Since(began) > 10*time.Second, err}
}

// crowd is that many purchases at once, by user.
func (s *sale) crowd(n int, name string) map[string]told {
	var mu sync.Mutex
	all := make(map[string]told, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			user := fmt.Sprint(name, "-", i)
			heard := s.buy(user, "")
			mu.Lock()
			defer mu.Unlock()
			all[user] = heard
		})
	}
	wg.Wait()
	return all
}

// queued buys until Kafka has the order: it is well again.
func (s *sale) queued(name string) {
	s.Helper()
	n := 0
	testenv.Eventually(s, time.Minute, "orders flow again", func() bool {
		n++
		return s.buy(fmt.Sprint(name, "-", n), "").state == "queued"
	})
}

// idle waits until no order is in work.
func (s *sale) idle() {
	s.Helper()
	testenv.Eventually(s, time.Minute, "every order to be through", func() bool { return len(s.open()) == 0 })
}

// open gives what the shared clients of the running configuration have in work.
func (s *sale) open() []int {
	var busy []int
	sharedPool.Range(func(_, v any) bool {
		if b := v.(*shared).ready.Load(); b != nil {
			if n := b.backend.(*core).Stats().Open; n > 0 {
				busy = append(busy, n)
			}
		}
		return true
	})
	return busy
}

// agrees checks that Redis and Kafka have the same orders, each once, but for those whose buyers heard that nothing is certain:
// these may be reserved and wait for the sweep.
func (s *sale) agrees(heard map[string]told) {
	s.Helper()
	orders, copies := s.records()
	entries := s.entries()
	for id, n := range copies {
		if n != 1 {
			s.Errorf("order %s is %d times on kafka", id, n)
		}
	}
	users := map[string]bool{}
	for id, o := range orders {
		if _, ok := entries[id]; !ok {
			s.Errorf("order %s of %s is on kafka and not reserved", id, o.User)
		}
		if users[o.User] {
			s.Errorf("%s has two orders", o.User)
		}
		users[o.User] = true
	}
	var units int64
	for id, e := range entries {
		units += e.Quantity
		if orders[id] == nil && heard[e.User].state != "processing" {
			s.Errorf("order %s of %s is reserved and not on kafka, and its buyer heard %+v", id, e.User, heard[e.User])
		}
	}
	for user, h := range heard {
		switch {
		case h.withoutAnswer != nil:
			s.Errorf("%s heard nothing: %v", user, h.withoutAnswer)
		case h.tookTooLong:
			s.Errorf("%s waited for more than ten seconds", user)
		case h.status == 202 && h.state == "queued" && orders[h.order] == nil:
			s.Errorf("%s was told that order %s is queued, and kafka does not have it", user, h.order)
		case h.status != 202 && h.status != 503:
			s.Errorf("%s heard %+v", user, h)
		case h.status == 503 && users[user]:
			s.Errorf("%s was refused and has an order", user)
		}
	}
	if pending := s.look().Pending; pending != units {
		s.Errorf("pending is %d, the ledger sums up to %d", pending, units)
	}
}

// E24: the broker appends and no acknowledgement comes back. The buyer hears `processing` and the reservation stays, for the order
// is there: the worker lands it. A repeat of the request with its key publishes once more and ends as the same order.
func TestE24NoAckIsNotTakenBack(t *testing.T) {
	s := newSale(t, 10)
	load(t, s.caddyfile(""))
	s.queued("before")
	noAck := s.broker.WithholdReply(faultproxy.KafkaRequest(faultproxy.KafkaProduce), 1000)
	first := s.buy("bob", "key")
	if first.status != 202 || first.state != "processing" || noAck.Fired() == 0 {
		t.Fatalf("bob heard %+v, %d acknowledgements were lost", first, noAck.Fired())
	}
	s.idle() // the producer has given up
	if e := s.entries(); e[first.order].User != "bob" {
		t.Fatalf("the reservation was taken back: %+v", e)
	}
	if orders := s.published(); orders[first.order] == nil {
		t.Fatal("kafka does not have the order: the fault did not strike")
	}
	// Meanwhile nobody reserves what cannot be published.
	n := 0
	testenv.Eventually(t, time.Minute, "a refusal while the producer is not healthy", func() bool {
		n++
		before := s.look().Pending
		h := s.buy(fmt.Sprint("eve-", n), "")
		if h.status == 202 && h.state == "processing" {
			return false // the partition was just being tried again
		}
		if h.status != 503 {
			t.Errorf("while the producer is not healthy eve hears %+v", h)
		}
		if after := s.look().Pending; after != before {
			t.Errorf("pending went from %d to %d", before, after)
		}
		return true
	})
	s.broker.Heal()
	s.queued("after")
	if again := s.buy("bob", "key"); again.status != 202 || again.order != first.order {
		t.Errorf("bob repeats and hears %+v, first %+v", again, first)
	}
	s.idle()
	if pending, orders := s.look().Pending, s.published(); pending != int64(len(orders)) {
		t.Errorf("pending is %d, %d orders are on kafka", pending, len(orders))
	}
	if _, err := s.led.Settle(t.Context(), ledger.Settlement{
		Activity: s.id, Version: 2, Stock: 9, Source: ledger.FromWorker,
		Orders: []ledger.Outcome{{Order: first.order, User: "bob", Item: s.id + 100, Quantity: 1, Status: order.Confirmed}},
	}); err != nil {
		t.Fatal(err)
	}
	if again := s.buy("bob", "key"); again.status != 202 || again.state != "confirmed" || again.order != first.order {
		t.Errorf("once it has landed bob hears %+v", again)
	}
}

// E25, E44: the broker is a black hole. Everybody is answered, and once that is known nobody reserves any more; what waits is
// bounded; and when the broker is back, orders flow again without a duplicate.
func TestE25E44Blackhole(t *testing.T) {
	const open = 200
	s := newSale(t, 100_000)
	load(t, s.caddyfile(fmt.Sprint("max_open ", open)))
	s.queued("before")
	s.broker.HalfOpen()
	heard := map[string]told{}
	var most atomic.Int64
	done := make(chan struct{})
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		for {
			for _, n := range s.open() {
				most.Store(max(most.Load(), int64(n)))
			}
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	for user, h := range s.crowd(600, "during") {
		heard[user] = h
	}
	testenv.Eventually(t, 30*time.Second, "the producer to be known as not healthy", func() bool { return s.buy("probe", "k").status == 503 })
	s.idle()

	before := s.look()
	var heap, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&heap)
	for round := range 5 {
		for user, h := range s.crowd(200, fmt.Sprint("later-", round)) {
			heard[user] = h
			if h.status != 503 {
				t.Errorf("while the producer is not healthy %s hears %+v", user, h)
			}
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if now := s.look(); now.Pending != before.Pending {
		t.Errorf("pending went from %d to %d while the producer was not healthy", before.Pending, now.Pending)
	}
	if grown := int64(after.HeapAlloc) - int64(heap.HeapAlloc); grown > 32<<20 {
		t.Errorf("a thousand refusals keep %d bytes", grown)
	}
	close(done)
	<-watching
	if n := most.Load(); n > open || n == 0 {
		t.Errorf("%d orders were in work at once, bounded to %d", n, open)
	}

	s.broker.Heal()
	s.queued("after")
	s.idle()
	for user := range s.buyersOnKafka() { // the probes' answers were not kept
		if _, ok := heard[user]; !ok {
			heard[user] = told{status: 202, state: "processing"}
		}
	}
	heard["probe"] = told{status: 202, state: "processing"}
	s.agrees(heard)
}

// buyersOnKafka gives the orders on Kafka by user.
func (s *sale) buyersOnKafka() map[string]*order.Order {
	s.Helper()
	all := map[string]*order.Order{}
	for _, o := range s.published() {
		all[o.User] = o
	}
	return all
}

// E26, E27: connections to the broker are lost all the time, before and after it has appended, and the broker goes and comes back.
// Every purchase is answered, and each order is on Kafka once.
func TestE26E27BrokerConnectionsAreLost(t *testing.T) {
	s := newSale(t, 100_000)
	load(t, s.caddyfile(""))
	s.queued("before")
	heard := map[string]told{}
	queued := 0
	for i := range 60 {
		switch i % 6 {
		case 1:
			s.broker.Reset()
		case 3:
			s.broker.CloseAfter(faultproxy.KafkaRequest(faultproxy.KafkaProduce), 1)
		case 5:
			s.broker.CloseBefore(faultproxy.KafkaRequest(faultproxy.KafkaProduce), 1)
		}
		user := fmt.Sprint("lost-", i)
		heard[user] = s.buy(user, "")
		if heard[user].state == "queued" {
			queued++
		}
	}
	if queued < 30 {
		t.Errorf("%d of 60 were queued: a lost connection is repeated", queued)
	}
	s.broker.Heal()
	for round := range 3 {
		s.broker.Cut()
		for user, h := range s.crowd(30, fmt.Sprint("cut-", round)) {
			heard[user] = h
		}
		s.broker.Heal()
		s.queued(fmt.Sprint("between-", round))
	}
	s.idle()
	s.agrees(heard)
}

// E33: a reload and then a shutdown come while hundreds of orders are reserved and not yet acknowledged. Both wait for them: every
// buyer is answered, and what is reserved is on Kafka.
func TestE33ReloadBetweenReserveAndPublish(t *testing.T) {
	const patient = "publish_timeout 4s\nrequest_timeout 4s\n"
	s := newSale(t, 100_000)
	load(t, s.caddyfile(patient))
	s.queued("before")
	heard := map[string]told{}
	for _, c := range []struct {
		name string
		end  func() error
	}{
		{"reload", func() error { return tryLoad(t, s.caddyfile(patient+"max_batch 32")) }},
		{"shutdown", caddy.Stop},
	} {
		before := s.look().Pending
		ack := s.broker.Hold(faultproxy.KafkaRequest(faultproxy.KafkaProduce), 1)
		app, err := caddy.ActiveContext().App("http")
		if err != nil {
			t.Fatal(err)
		}
		// Not over connections, which a server that is shut down would wait for: the clients alone have to.
		var mu sync.Mutex
		var buyers sync.WaitGroup
		for i := range 500 {
			buyers.Go(func() {
				user := fmt.Sprint(c.name, "-", i)
				r := httptest.NewRequest(http.MethodPost, "http://"+s.addr+s.path(s.id), nil)
				r.Header.Set("X-User", user)
				w := httptest.NewRecorder()
				for _, srv := range app.(*caddyhttp.App).Servers {
					srv.ServeHTTP(w, r)
				}
				h := told{status: w.Code}
				var body struct {
					OrderID string `json:"order_id"`
					Status  string `json:"status"`
				}
				h.withoutAnswer = json.Unmarshal(w.Body.Bytes(), &body)
				h.order, h.state = body.OrderID, body.Status
				mu.Lock()
				defer mu.Unlock()
				heard[user] = h
			})
		}
		testenv.Eventually(t, time.Minute, "orders between reserve and publish", func() bool { return s.look().Pending > before+20 })
		time.AfterFunc(100*time.Millisecond, ack.Release) // while the clients are being closed
		if err := c.end(); err != nil {
			t.Fatal(err)
		}
		buyers.Wait()
		s.broker.Heal()
	}
	orders, entries := s.buyersOnKafka(), s.entries()
	for user := range orders { // those who bought before
		if _, ok := heard[user]; !ok {
			heard[user] = told{status: 202, state: "queued", order: orders[user].ID}
		}
	}
	s.agrees(heard)
	if len(entries) != len(orders) {
		t.Errorf("%d orders are reserved, %d are on kafka", len(entries), len(orders))
	}
	t.Logf("%d orders in all", len(orders))
}

// A request that memory can refuse costs Redis nothing: not for a sale that is sold out, has not begun, is over or paused, and
// not for ids that nobody has ever heard of.
func TestE22RefusalsFromMemoryCostRedisNothing(t *testing.T) {
	const flood = 3000
	s := newSale(t, 1)
	load(t, s.caddyfile(""))
	s.queued("last")
	for _, c := range []struct {
		name, reason string
		id           func() int64
	}{
		{"sold out", "sold_out", func() int64 { return s.id }},
		{"not started", "not_started", func() int64 { return s.id + 1 }},
		{"ended", "ended", func() int64 { return s.id + 2 }},
		{"paused", "unavailable", func() int64 { return s.id + 3 }},
		{"unknown", "not_found", testenv.ID},
	} {
		ask := func() string {
			r := httptest.NewRequest(http.MethodPost, "http://"+s.addr+s.path(c.id()), nil)
			r.Header.Set("X-User", "zoe")
			w := serve(t, r)
			var v struct {
				Reason string `json:"reason"`
			}
			if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
				t.Fatalf("%s: got %d %s", c.name, w.Code, w.Body)
			}
			return v.Reason
		}
		testenv.Eventually(t, 20*time.Second, c.name+" to be known", func() bool { return ask() == c.reason })
		before := s.redis.Commands(t)
		for range flood {
			if got := ask(); got != c.reason {
				t.Fatalf("%s: refused as %s", c.name, got)
			}
		}
		// The gateway's own looks, some hundred a second, are all there is: with one command a request it were thousands.
		if n := s.redis.Commands(t) - before; n >= flood/2 {
			t.Errorf("%s: %d commands for %d requests", c.name, n, flood)
		}
	}
}
