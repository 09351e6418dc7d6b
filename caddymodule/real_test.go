package caddymodule

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/faultproxy/redisfault"
	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// sale is a Redis of its own with activities in it, a Kafka topic, and Caddy in front.
type sale struct {
	*testing.T
	redis  *redisfault.Servers
	led    *ledger.Ledger
	topic  string
	broker *faultproxy.Proxy // between Caddy and Kafka
	addr   string
	id     int64 // the activity on sale; others are id+1 …
}

func newSale(t *testing.T, stock int64) *sale {
	t.Helper()
	return newSaleOn(t, redisfault.Single(t), stock)
}

func newSaleOn(t *testing.T, r *redisfault.Servers, stock int64) *sale {
	t.Helper()
	s := &sale{
		T: t, redis: r, topic: testenv.Topic(t, "seckill.orders", 3), broker: faultproxy.NewKafka(t, testenv.Brokers(t)[0]),
		id: testenv.ID(),
	}
	rdb, err := redisconn.New(redisconn.Config{Addrs: r.Direct()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	s.led = ledger.New(rdb, ledger.Options{})
	s.addr = fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))

	now := time.Now().UnixMilli()
	catalogue := &ledger.Catalogue{Activities: map[int64]ledger.Activity{}, Timings: ledger.Timings{
		ReserveDeadlineMs: 2000, PublishBudgetMs: 5000, HorizonMs: 30_000,
	}}
	for i, a := range []ledger.Activity{
		{StartsAtMs: now - 60_000, EndsAtMs: now + 3_600_000, State: ledger.Open},
		{StartsAtMs: now + 3_600_000, EndsAtMs: now + 7_200_000, State: ledger.Open},
		{StartsAtMs: now - 7_200_000, EndsAtMs: now - 3_600_000, State: ledger.Open},
		{StartsAtMs: now - 60_000, EndsAtMs: now + 3_600_000, State: ledger.Paused},
	} {
		a.ID, a.Item, a.MaxPerUser = s.id+int64(i), s.id+100+int64(i), 3
		catalogue.Activities[a.ID] = a
		load, err := s.led.LoadBegin(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.led.LoadFinish(t.Context(), a.ID, load.Epoch, 1, stock, a.State); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.led.PutCatalogue(t.Context(), catalogue); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

func (s *sale) caddyfile(options string) string {
	return "{\nseckill {\nredis " + strings.Join(s.redis.Direct(), " ") + "\nkafka " + s.broker.Addr() + " {\ntopic " + s.topic + "\n}\n" +
		options + "\n}\n}\nhttp://" + s.addr + " {\nseckill {\nuser {header.X-User}\n}\nrespond shop 299\n}\n"
}

func (s *sale) call(method, path, body, user string, headers ...string) (response, map[string]any) {
	s.Helper()
	res := request(s.T, method, "http://"+s.addr+path, body, append(headers, "X-User", user)...)
	var v map[string]any
	if res.status != 299 && res.body != "" {
		if err := json.Unmarshal([]byte(res.body), &v); err != nil {
			s.Fatalf("%s %s: got %d %q: %v", method, path, res.status, res.body, err)
		}
	}
	return res, v
}

func (s *sale) want(res response, status int, reason string) {
	s.Helper()
	if res.status != status || (reason != "" && !strings.Contains(res.body, `"reason":"`+reason+`"`)) {
		s.Fatalf("got %d %s, want %d %s", res.status, res.body, status, reason)
	}
}

func (s *sale) path(activity int64) string { return fmt.Sprintf("/seckill/%d/orders", activity) }

// published reads every order on the topic.
func (s *sale) published() map[string]*order.Order {
	s.Helper()
	all, _ := s.records()
	return all
}

// records reads every order on the topic, and how often it is there.
func (s *sale) records() (all map[string]*order.Order, copies map[string]int) {
	s.Helper()
	admin, err := kafka.NewAdmin(kafka.Config{Brokers: testenv.Brokers(s)}, nil)
	if err != nil {
		s.Fatal(err)
	}
	defer admin.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	to, err := admin.HighWater(ctx, s.topic)
	if err != nil {
		s.Fatal(err)
	}
	all, copies = map[string]*order.Order{}, map[string]int{}
	err = admin.Read(ctx, s.topic, nil, to, func(_ int32, _ int64, _ time.Time, _, value []byte) error {
		o, err := order.Decode(value)
		if err == nil {
			all[o.ID] = o
			copies[o.ID]++
		}
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
	return all, copies
}

// entries reads the ledger.
func (s *sale) entries() map[string]ledger.Entry {
	s.Helper()
	all := map[string]ledger.Entry{}
	for cursor := uint64(0); ; {
		part, next, err := s.led.ScanLedger(context.Background(), s.id, cursor, 1000)
		if err != nil {
			s.Fatal(err)
		}
		for _, e := range part {
			all[e.Order] = e
		}
		if cursor = next; cursor == 0 {
			return all
		}
	}
}

func (s *sale) look() ledger.Snapshot {
	s.Helper()
	all, err := s.led.Inspect(context.Background(), s.id)
	if err != nil {
		s.Fatal(err)
	}
	return all[0]
}

// Every call of the contract on real Redis, single and as a cluster, and Kafka.
func TestSaleOnRealServices(t *testing.T) {
	t.Run("single", func(t *testing.T) { saleOnRealServices(t, redisfault.Single(t)) })
	t.Run("cluster", func(t *testing.T) { saleOnRealServices(t, redisfault.Cluster(t, 3)) }) // Caddy is global: one at a time
}

func saleOnRealServices(t *testing.T, r *redisfault.Servers) {
	t.Helper()
	s := newSaleOn(t, r, 5)
	load(t, s.caddyfile(""))
	at := s.path(s.id)

	res, v := s.call("POST", at, `{"quantity":2,"extra":{"address":7}}`, "bob", "Idempotency-Key", "k1")
	s.want(res, 202, "")
	id, _ := v["order_id"].(string)
	if !order.ValidID(id) || v["status"] != "queued" || v["status_url"] != at+"/"+id {
		t.Fatalf("got %s", res.body)
	}
	if o := s.published()[id]; o == nil || o.User != "bob" || o.Quantity != 2 || o.Item != s.id+100 || string(o.Extra) != `{"address":7}` {
		t.Fatalf("on kafka: %+v", o)
	}
	if res, again := s.call("POST", at, `{"quantity":2}`, "bob", "Idempotency-Key", "k1"); res.status != 202 || again["order_id"] != id {
		t.Errorf("a repeat with the key: got %d %s", res.status, res.body)
	}
	if res, again := s.call("POST", at, "", "bob"); res.status != 409 || again["reason"] != "already_ordered" || again["order_id"] != id {
		t.Errorf("a repeat without the key: got %d %s", res.status, res.body)
	}
	res, v = s.call("GET", at+"/"+id, "", "bob")
	s.want(res, 200, "")
	if v["status"] != "queued" || v["quantity"] != 2.0 || v["item_id"] != float64(s.id+100) {
		t.Errorf("status: got %s", res.body)
	}
	res, _ = s.call("GET", at+"/"+id, "", "eve")
	s.want(res, 404, "not_found")
	res, v = s.call("GET", at+"/mine", "", "bob")
	if s.want(res, 200, ""); v["order_id"] != id {
		t.Errorf("mine: got %s", res.body)
	}
	res, _ = s.call("GET", at+"/mine", "", "eve")
	s.want(res, 404, "not_found")
	res, _ = s.call("POST", at, `{"quantity":4}`, "eve")
	s.want(res, 400, "bad_request")
	res, _ = s.call("POST", s.path(s.id+1), "", "bob")
	s.want(res, 403, "not_started")
	res, _ = s.call("POST", s.path(s.id+2), "", "bob")
	s.want(res, 410, "ended")
	res, _ = s.call("POST", s.path(s.id+3), "", "bob")
	s.want(res, 503, "unavailable")
	res, _ = s.call("POST", s.path(s.id+50), "", "bob")
	s.want(res, 404, "not_found")
	for i, state := range []string{"open", "not_started", "ended", "paused"} {
		// Until the gate has looked at an activity itself it shows `recovering`.
		testenv.Eventually(t, 10*time.Second, fmt.Sprintf("view %d to be %s", i, state), func() bool {
			res, v := s.call("GET", fmt.Sprintf("/seckill/%d", s.id+int64(i)), "", "")
			s.want(res, 200, "")
			return v["state"] == state && v["sold_out"] == false
		})
	}

	// The outcome reaches whoever waits for it.
	polled := make(chan string, 1)
	go func() {
		res := request(t, "GET", "http://"+s.addr+at+"/"+id+"?wait=20s", "", "X-User", "bob")
		polled <- res.body
	}()
	_, lines := stream(t, "http://"+s.addr+at+"/"+id)
	if got := next(t, lines); got != "retry: 2000" {
		t.Fatalf("got %q", got)
	}
	if got := next(t, lines); !strings.Contains(got, `"status":"queued"`) {
		t.Fatalf("got %q", got)
	}
	if _, err := s.led.Settle(t.Context(), ledger.Settlement{
		Activity: s.id, Version: 2, Stock: 3, Source: ledger.FromWorker,
		Orders: []ledger.Outcome{{Order: id, User: "bob", Item: s.id + 100, Quantity: 2, Status: order.Confirmed}},
	}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"id: final", `"status":"confirmed"`, "(end)"} {
		if got := next(t, lines); !strings.Contains(got, want) {
			t.Fatalf("the stream got %q, want %s", got, want)
		}
	}
	if body := <-polled; !strings.Contains(body, `"status":"confirmed"`) {
		t.Errorf("the long-poll got %s", body)
	}

	// Sold out, and from then on refused from memory.
	res, _ = s.call("POST", at, `{"quantity":3}`, "eve")
	s.want(res, 202, "")
	res, _ = s.call("POST", at, "", "zoe")
	s.want(res, 409, "sold_out")
	_, v = s.call("GET", fmt.Sprintf("/seckill/%d", s.id), "", "")
	if v["sold_out"] != true {
		t.Errorf("the view is %v", v)
	}
}

// With Redis gone buyers hear 503, never "sold out" or 404, and it comes back by itself.
func TestRedisGoneAndBack(t *testing.T) {
	s := newSale(t, 5)
	load(t, s.caddyfile(""))
	s.redis.Kill()
	for _, path := range []string{s.path(s.id), s.path(s.id)} {
		res, _ := s.call("POST", path, "", "bob")
		s.want(res, 503, "unavailable")
		if res.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	s.redis.Restart(t) // empty: the syncer has to load it again
	testenv.Eventually(t, 10*time.Second, "the gate to notice the empty Redis", func() bool {
		res, _ := s.call("POST", s.path(s.id), "", "bob")
		return res.status == 503
	})
}

// Caddy starts with neither Redis nor Kafka up.
func TestStartsWithNothingUp(t *testing.T) {
	addr := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	nothing := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	t.Cleanup(func() { _ = caddy.Stop() })
	load(t, "{\nseckill {\nredis "+nothing+"\nkafka "+nothing+"\n}\n}\nhttp://"+addr+" {\nseckill {\nuser {header.X-User}\n}\nrespond shop 299\n}\n")
	if res := request(t, "POST", "http://"+addr+"/seckill/1/orders", "", "X-User", "bob"); res.status != 503 || res.header.Get("Retry-After") == "" {
		t.Errorf("got %d %s", res.status, res.body)
	}
	if res := request(t, "GET", "http://"+addr+"/", ""); res.status != 299 {
		t.Errorf("the shop: got %d %s", res.status, res.body)
	}
}

// inUse is what reloads could leak.
type inUse struct{ goroutines, files, redis, kafka int }

func use(s *sale) inUse {
	s.Helper()
	list, err := s.redis.Client(0).ClientList(context.Background()).Result()
	if err != nil {
		s.Fatal(err)
	}
	files, err := os.ReadDir("/dev/fd")
	if err != nil {
		s.Fatal(err)
	}
	return inUse{runtime.NumGoroutine(), len(files), strings.Count(list, "\n"), s.broker.Conns()}
}

// within allows 5 %, and what a machine that is not quiet has open for a moment.
func (u inUse) within(base inUse) bool {
	ok := func(n, base int) bool { return n <= base+base/20+2 }
	return ok(u.goroutines, base.goroutines) && ok(u.files, base.files) && ok(u.redis, base.redis) && ok(u.kafka, base.kafka)
}

// answered is the sum of the requests that have been counted since the process began.
func answered(t *testing.T) (sum float64) {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(requests)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue()
		}
	}
	return sum
}

// E33, E72, E73, E80: 200 reloads that change the clients' configuration, under load with clients that hang up. Nothing
// panics, no reservation is left without its message, and goroutines, connections and open files go back to where they were, and counters go on.
func TestE73Reloads(t *testing.T) {
	const reloads = 200
	s := newSale(t, 1_000_000)
	load(t, s.caddyfile(""))
	s.call("POST", s.path(s.id), "", "first")
	base := use(s)
	counted := answered(t)

	ctx, cancel := context.WithCancel(context.Background())
	var buyers sync.WaitGroup
	var accepted, refused, failed, n atomic.Int64
	for range 8 {
		buyers.Go(func() {
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				i := n.Add(1)
				rctx, hangUp := context.WithTimeout(ctx, 5*time.Second)
				if i%5 == 0 {
					rctx, hangUp = context.WithTimeout(ctx, time.Duration(i%7)*time.Millisecond)
				}
				r, err := http.NewRequestWithContext(rctx, http.MethodPost, "http://"+s.addr+s.path(s.id), nil)
				if err != nil {
					hangUp()
					t.Error(err)
					return
				}
				r.Header.Set("X-User", fmt.Sprintf("user-%d", i))
				res, err := client.Do(r)
				hangUp()
				switch {
				case err != nil:
					failed.Add(1)
					continue
				case res.StatusCode == http.StatusAccepted:
					accepted.Add(1)
				default:
					refused.Add(1)
				}
				_ = res.Body.Close()
			}
		})
	}
	for i := range reloads {
		load(t, s.caddyfile(fmt.Sprintf("max_batch %d", 8+i%32)))
	}
	cancel()
	buyers.Wait()
	t.Logf("%d accepted, %d refused, %d without an answer", accepted.Load(), refused.Load(), failed.Load())
	if accepted.Load() == 0 {
		t.Fatal("nothing was accepted")
	}

	load(t, s.caddyfile(""))
	http.DefaultClient.CloseIdleConnections()
	testenv.Eventually(t, time.Minute, "everything to go back to base", func() bool { return use(s).within(base) })
	t.Logf("before %+v, after %+v", base, use(s))
	if n := answered(t) - counted; n < float64(accepted.Load()+refused.Load()) {
		t.Errorf("%v requests were counted, %d answered", n, accepted.Load()+refused.Load())
	}

	// Every reservation is on Kafka, and every message has its reservation.
	orders := s.published()
	for _, e := range s.entries() {
		if orders[e.Order] == nil {
			t.Errorf("reservation %s of %s was never published", e.Order, e.User)
		}
	}
	if pending := s.look().Pending; pending != int64(len(orders)) {
		t.Errorf("pending is %d, %d orders are on kafka", pending, len(orders))
	}
	if int64(len(orders)) < accepted.Load() {
		t.Errorf("%d orders on kafka, %d accepted", len(orders), accepted.Load())
	}
}
