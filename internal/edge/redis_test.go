package edge

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/gate"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// These tests run on a real Redis, with a TCP proxy for the faults. Kafka is a list here: what it does wrong is scripted.

// topic stands in for Kafka.
type topic struct {
	mu     sync.Mutex
	orders []order.Order
	late   time.Duration
	err    error
}

func (p *topic) Publish(_ context.Context, o *order.Order, _ map[string]string) (Ack, error) {
	p.mu.Lock()
	late, err := p.late, p.err
	p.mu.Unlock()
	if late > 0 {
		<-time.After(late)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		return Ack{}, err
	}
	p.orders = append(p.orders, *o)
	return Ack{Offset: int64(len(p.orders) - 1)}, nil
}

func (p *topic) Healthy() error { return nil }

func (p *topic) units() (units int64, distinct int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := map[string]bool{}
	for _, o := range p.orders {
		if !seen[o.ID] {
			seen[o.ID] = true
			units += o.Quantity
		}
	}
	return units, len(seen)
}

// gateway is one gateway: everything but HTTP and Kafka.
type gateway struct {
	*Edge
	led   *ledger.Ledger
	topic *topic
}

func newGateway(t *testing.T, c redisconn.Config, o Options) *gateway {
	t.Helper()
	rdb, err := redisconn.New(c)
	if err != nil {
		t.Fatal(err)
	}
	l := ledger.New(rdb, ledger.Options{})
	b := ledger.NewBatcher(l, ledger.BatcherOptions{})
	g := gate.New(l, gate.Options{})
	p := &topic{}
	e := New(l, b, p, g, o)
	g.Start()
	e.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
		b.Close()
		g.Stop()
		_ = rdb.Close()
	})
	return &gateway{Edge: e, led: l, topic: p}
}

// operator is what the tests do past the gateways.
type operator struct {
	t   *testing.T
	rdb redis.UniversalClient
	led *ledger.Ledger
	ms  ledger.Timings
}

func newOperator(t *testing.T, addrs ...string) *operator {
	t.Helper()
	rdb, err := redisconn.New(redisconn.Config{Addrs: addrs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	return &operator{t: t, rdb: rdb, led: ledger.New(rdb, ledger.Options{})}
}

// sale loads an activity that is on, and offers it.
func (p *operator) sale(stock int64) ledger.Activity {
	p.t.Helper()
	now := time.Now().UnixMilli()
	a := ledger.Activity{
		ID: testenv.ID(), Item: testenv.ID(), StartsAtMs: now - 60_000, EndsAtMs: now + 3_600_000, MaxPerUser: 3, State: ledger.Open,
	}
	p.load(a, stock)
	p.offer(a)
	return a
}

func (p *operator) load(a ledger.Activity, stock int64) {
	p.t.Helper()
	load, err := p.led.LoadBegin(p.t.Context(), a)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.led.LoadFinish(p.t.Context(), a.ID, load.Epoch, time.Now().UnixMicro(), stock, ledger.Open); err != nil {
		p.t.Fatal(err)
	}
}

func (p *operator) offer(as ...ledger.Activity) {
	p.t.Helper()
	c := &ledger.Catalogue{Activities: map[int64]ledger.Activity{}, Timings: p.ms}
	for _, a := range as {
		c.Activities[a.ID] = a
	}
	if err := p.led.PutCatalogue(p.t.Context(), c); err != nil {
		p.t.Fatal(err)
	}
}

func (p *operator) look(activity int64) ledger.Snapshot {
	p.t.Helper()
	s, err := p.led.Inspect(p.t.Context(), activity)
	if err != nil {
		p.t.Fatal(err)
	}
	return s[0]
}

// pending checks that exactly so many units are reserved, with the ledger agreeing.
func (p *operator) pending(activity, want int64) {
	p.t.Helper()
	if s := p.look(activity); s.Pending != want || !s.Loaded {
		p.t.Errorf("pending is %d, want %d (%s)", s.Pending, want, s.Problem)
	}
}

func (g *gateway) onSale(t *testing.T, activity int64) {
	t.Helper()
	testenv.Eventually(t, 5*time.Second, "the gateway sees the sale", func() bool {
		v, r := g.gate.View(activity, time.Now())
		return r == Accepted && v.State == "open" && v.AgeMs >= 0
	})
}

func buy(activity int64, user string) Request {
	return Request{Activity: activity, User: user, Quantity: 1}
}

// TestE01LostReply: the first reply to a reserve call is lost, by silence or by a reset after execution. One unit is
// reserved, the order is published once, and the buyer of the last unit does not hear "sold out".
func TestE01LostReply(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	op := newOperator(t, r.Addr)
	for name, fault := range map[string]func(*faultproxy.Proxy, func([]byte) bool) *faultproxy.Rule{
		"withheld":                 func(p *faultproxy.Proxy, m func([]byte) bool) *faultproxy.Rule { return p.WithholdReply(m, 1) },
		"closed after execution":   func(p *faultproxy.Proxy, m func([]byte) bool) *faultproxy.Rule { return p.CloseAfter(m, 1) },
		"closed before the server": func(p *faultproxy.Proxy, m func([]byte) bool) *faultproxy.Rule { return p.CloseBefore(m, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			op := *op
			op.t = t
			p := faultproxy.New(t, r.Addr)
			a := op.sale(2)
			g := newGateway(t, redisconn.Config{Addrs: []string{p.Addr()}}, Options{})
			g.onSale(t, a.ID)
			if o := g.Order(t.Context(), buy(a.ID, "first")); o.Status != order.Queued { // and the script is known from now on
				t.Fatalf("without a fault: %+v", o)
			}
			rule := fault(p, faultproxy.Contains("evalsha", "unlucky"))
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
}

// TestE01AllRepliesLost: no reply to any copy. The buyer hears `processing` within the budget (E18), nothing is published,
// and in the end the unit is back and the order's fate is told (E97).
func TestE01AllRepliesLost(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	op := newOperator(t, r.Addr)
	p := faultproxy.New(t, r.Addr)
	a := op.sale(1)
	g := newGateway(t, redisconn.Config{Addrs: []string{p.Addr()}}, Options{})
	g.onSale(t, a.ID)
	p.WithholdReply(faultproxy.Contains("unlucky"), 1_000)
	began := time.Now()
	o := g.Order(t.Context(), buy(a.ID, "unlucky"))
	if took := time.Since(began); o.HTTP != 202 || o.Status != order.Processing || took > 1500*time.Millisecond {
		t.Fatalf("the buyer hears %+v after %v", o, took)
	}
	if s := op.look(a.ID); s.Pending > 1 { // its release may have run already, unheard
		t.Errorf("pending is %d after one request", s.Pending)
	}
	q := Query{Activity: a.ID, User: "unlucky", OrderID: o.OrderID}
	if v, reason := g.Status(t.Context(), q); reason == NotFound {
		t.Errorf("status meanwhile: %q %+v", reason, v)
	}
	p.Heal()
	v, reason := g.Wait(t.Context(), q, 15*time.Second)
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
			g := newGateway(t, redisconn.Config{Addrs: []string{p.Addr()}}, Options{})
			g.onSale(t, a.ID)
			stuck := p.Hold(faultproxy.Contains("evalsha", "unlucky"), 1)
			other := g.Order(t.Context(), buy(a.ID, "other")) // takes the last unit, and the script is known from now on
			if other.Status != order.Queued {
				t.Fatalf("the other buyer: %+v", other)
			}
			// The memory of this gateway knows that it is sold out, so the request comes through one that does not yet.
			g2 := newGateway(t, redisconn.Config{Addrs: []string{p.Addr()}}, Options{})
			var o Outcome
			testenv.Eventually(t, 10*time.Second, "the held copy and its repeat", func() bool {
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
				testenv.Eventually(t, 5*time.Second, "the reserve deadline", func() bool { return time.Since(told) > 2100*time.Millisecond })
			}
			before := scripts(t, op.rdb, "unlucky")
			stuck.Release()
			testenv.Eventually(t, 5*time.Second, "the stuck copy has run", func() bool { return scripts(t, op.rdb, "unlucky") == before+1 })
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
	r := testenv.StartRedis(t)
	op := newOperator(t, r.Addr)
	op.ms = ledger.Timings{ReserveDeadlineMs: 500, PublishBudgetMs: 600, HorizonMs: 2000}
	a := op.sale(1)
	g := newGateway(t, redisconn.Config{Addrs: []string{r.Addr}}, Options{PublishTakes: 300 * time.Millisecond})
	g.onSale(t, a.ID)
	g.topic.late, g.topic.err = 800*time.Millisecond, fmt.Errorf("no leader: %w", ErrNotSent)
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
}

// TestE80ClientsLeave: buyers hang up at random moments. What was reserved was published, and whoever repeats the request
// gets the first result.
func TestE80ClientsLeave(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	op := newOperator(t, r.Addr)
	const buyers = 300
	a := op.sale(buyers)
	p := faultproxy.New(t, r.Addr)
	p.DelayReplies(20 * time.Millisecond)
	g := newGateway(t, redisconn.Config{Addrs: []string{p.Addr()}}, Options{})
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
	testenv.Eventually(t, 10*time.Second, "all is published", func() bool { return g.Stats().Open == 0 })
	units, _ := g.topic.units()
	op.pending(a.ID, units)
	each(buyers, func(i int) {
		req := buy(a.ID, fmt.Sprint("u", i))
		req.IdempotencyKey = "once"
		if o := g.Order(t.Context(), req); o.HTTP != 202 || ids[i] != "" && o.OrderID != ids[i] {
			t.Errorf("buyer %d repeats %q: %+v", i, ids[i], o)
		}
	})
	op.pending(a.ID, buyers)
	if units, distinct := g.topic.units(); units != buyers || distinct != buyers {
		t.Errorf("kafka has %d orders of %d units, want %d", distinct, units, buyers)
	}
}

func each(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// TestE84ManyClicks: one buyer, a hundred clicks at once.
func TestE84ManyClicks(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	op := newOperator(t, r.Addr)
	a := op.sale(10)
	g := newGateway(t, redisconn.Config{Addrs: []string{r.Addr}}, Options{})
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
	before := op.rdb.DBSize(t.Context()).Val()
	for _, user := range []string{"", " ", "u ", "\tu"} {
		if o := g.Order(t.Context(), buy(a.ID, user)); o.HTTP != 401 && o.HTTP != 400 {
			t.Errorf("user %q: %+v", user, o)
		}
	}
	if after := op.rdb.DBSize(t.Context()).Val(); after != before {
		t.Errorf("%d keys, before %d", after, before)
	}
	// E110: u and U are two buyers.
	if o := g.Order(t.Context(), buy(a.ID, "CLICKER")); o.Status != order.Queued {
		t.Errorf("another buyer: %+v", o)
	}
}

// TestE08PoolExhausted: a slow Redis and few connections. Refusals are fast and honest, what was accepted is exactly what
// is reserved, and it is all over when the slowness is.
func TestE08PoolExhausted(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	op := newOperator(t, r.Addr)
	p := faultproxy.New(t, r.Addr)
	const buyers = 600
	a := op.sale(buyers * 2)
	g := newGateway(t, redisconn.Config{Addrs: []string{p.Addr()}, PoolSize: 5}, Options{})
	g.onSale(t, a.ID)
	p.DelayReplies(50 * time.Millisecond)
	var accepted atomic.Int64
	each(buyers, func(i int) {
		began := time.Now()
		o := g.Order(t.Context(), buy(a.ID, fmt.Sprint("u", i)))
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("answered after %v", took)
		}
		switch {
		case o.HTTP == 202:
			accepted.Add(1)
		case o.HTTP != 503:
			t.Errorf("got %+v", o)
		}
	})
	p.Heal()
	testenv.Eventually(t, 10*time.Second, "everything is decided", func() bool { return g.Stats().Open == 0 })
	units, _ := g.topic.units()
	op.pending(a.ID, units)
	if accepted.Load() < units {
		t.Errorf("%d were accepted, %d reserved", accepted.Load(), units)
	}
	if o := g.Order(t.Context(), buy(a.ID, "after")); o.Status != order.Queued {
		t.Errorf("afterwards: %+v", o)
	}
}

// TestE18SlowRedis: Redis takes longer than a buyer may wait. Everybody is answered within the budget, and in the end
// nothing is reserved that was not published.
func TestE18SlowRedis(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	op := newOperator(t, r.Addr)
	p := faultproxy.New(t, r.Addr)
	a := op.sale(100)
	g := newGateway(t, redisconn.Config{Addrs: []string{p.Addr()}}, Options{RequestBudget: 300 * time.Millisecond})
	g.onSale(t, a.ID)
	p.DelayReplies(2 * time.Second)
	each(50, func(i int) {
		began := time.Now()
		o := g.Order(t.Context(), buy(a.ID, fmt.Sprint("u", i)))
		if took := time.Since(began); took > 600*time.Millisecond || o.HTTP != 202 && o.HTTP != 503 {
			t.Errorf("answered after %v: %+v", took, o)
		}
	})
	p.Heal()
	testenv.Eventually(t, 15*time.Second, "everything is decided", func() bool { return g.Stats().Open == 0 })
	units, _ := g.topic.units()
	op.pending(a.ID, units)
}

// TestE33CloseWhileBuying: the gateway is closed in the middle of a crowd. Afterwards all that is reserved is published.
func TestE33CloseWhileBuying(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	op := newOperator(t, r.Addr)
	a := op.sale(500)
	g := newGateway(t, redisconn.Config{Addrs: []string{r.Addr}}, Options{})
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
}

// TestE78SoldOutEverywhere: three gateways answer a sold-out flood without a single command; a unit comes back, and on
// every one of them somebody is let through to buy it within a second.
func TestE78SoldOutEverywhere(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	op := newOperator(t, r.Addr)
	a := op.sale(1)
	var gs []*gateway
	for range 3 {
		g := newGateway(t, redisconn.Config{Addrs: []string{r.Addr}}, Options{})
		g.onSale(t, a.ID)
		gs = append(gs, g)
	}
	o := gs[0].Order(t.Context(), buy(a.ID, "first"))
	if o.Status != order.Queued {
		t.Fatalf("the only unit: %+v", o)
	}
	for i, g := range gs {
		testenv.Eventually(t, time.Second, fmt.Sprintf("gateway %d knows", i), func() bool { return g.Admit(a.ID, "").Reason == SoldOut })
	}
	before := total(t, op.rdb)
	began := time.Now()
	const flood = 20_000
	for i := range flood {
		if o := gs[i%3].Order(t.Context(), buy(a.ID, "late")); o.Reason != SoldOut || o.Cause != CauseGate {
			t.Fatalf("in the flood: %+v", o)
		}
	}
	// Three gateways that look twice a second and read the catalogue once; a look counts for all that its script calls.
	if n, most := total(t, op.rdb)-before, int64(3*25*(2+time.Since(began)/time.Second*3)); n > most {
		t.Errorf("%d commands for a flood of %d, want at most %d", n, flood, most)
	}
	_, err := op.led.Settle(t.Context(), ledger.Settlement{Activity: a.ID, Orders: []ledger.Outcome{{
		Order: o.OrderID, User: "first", Item: a.Item, Quantity: 1, Status: order.Failed, Reason: order.ReasonSoldOut, Dead: true,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	for i, g := range gs {
		testenv.Eventually(t, time.Second, fmt.Sprintf("gateway %d is open again", i), func() bool { return g.Admit(a.ID, "").Reason == Accepted })
	}
	t.Logf("open again on three gateways after %v", time.Since(back))
	if o := gs[2].Order(t.Context(), buy(a.ID, "second")); o.Status != order.Queued {
		t.Errorf("the unit that came back: %+v", o)
	}
	op.pending(a.ID, 1)
}

func total(t *testing.T, rdb redis.UniversalClient) int64 {
	t.Helper()
	info, err := rdb.InfoMap(t.Context(), "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	if _, err := fmt.Sscan(info["Stats"]["total_commands_processed"], &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestE115Forgetful: FLUSHALL in the middle of a sale. At no moment does anybody hear 404 or "sold out", neither buyers nor
// those who ask for their orders.
func TestE115Forgetful(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	op := newOperator(t, r.Addr)
	a := op.sale(1000)
	g := newGateway(t, redisconn.Config{Addrs: []string{r.Addr}}, Options{})
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
	if err := op.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, "it is noticed", func() bool { return unavailable.Load() > 100 })
	testenv.Eventually(t, 5*time.Second, "the gate has noticed", func() bool { return g.Admit(a.ID, "").Reason == Unavailable })
	op.offer(a)
	testenv.Eventually(t, 5*time.Second, "the catalogue is back", func() bool { return g.Admit(a.ID, "").Why == "recovering" })
	stop()
	wg.Wait()
	op.load(a, 999)
	g.onSale(t, a.ID)
	if o := g.Order(t.Context(), buy(a.ID, "after")); o.Status != order.Queued {
		t.Errorf("after the load: %+v", o)
	}
}

// TestE09RedisRestarts: Redis is killed and started again, empty. Buyers hear "unavailable", and the gateway is back by
// itself once the sale is.
func TestE09RedisRestarts(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	op := newOperator(t, r.Addr)
	a := op.sale(10)
	g := newGateway(t, redisconn.Config{Addrs: []string{r.Addr}}, Options{})
	g.onSale(t, a.ID)
	r.Kill()
	for i := range 20 {
		if o := g.Order(t.Context(), buy(a.ID, fmt.Sprint("u", i))); o.HTTP != 503 && o.Status != order.Processing {
			t.Errorf("redis is down: %+v", o)
		}
	}
	testenv.Eventually(t, 10*time.Second, "the gate has noticed", func() bool { return g.Admit(a.ID, "").Reason == Unavailable })
	r.Restart()
	testenv.Eventually(t, 10*time.Second, "redis is back", func() bool { return op.rdb.Ping(t.Context()).Err() == nil })
	op.load(a, 10)
	op.offer(a)
	back := time.Now()
	testenv.Eventually(t, 5*time.Second, "somebody can buy again", func() bool {
		return g.Order(t.Context(), buy(a.ID, "back")).Status == order.Queued
	})
	t.Logf("first success %v after redis was back", time.Since(back))
	testenv.Eventually(t, 10*time.Second, "everything is decided", func() bool { return g.Stats().Open == 0 })
	op.pending(a.ID, 1)
}

// TestUserWindow: folded into the reserve call; a repeat of one's own order never meets it.
func TestUserWindow(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	op := newOperator(t, r.Addr)
	a := op.sale(10)
	g := newGateway(t, redisconn.Config{Addrs: []string{r.Addr}}, Options{})
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
}

// TestStatusOnRedis: queued with a position, woken when it lands, and nobody else's business.
func TestStatusOnRedis(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	statusFlow(t, r.Addr)
}

// TestCluster runs the same over a cluster of three masters, and a crowd for exactness.
func TestCluster(t *testing.T) {
	t.Parallel()
	addrs := testenv.StartRedisCluster(t, 3)
	statusFlow(t, addrs...)
	op := newOperator(t, addrs...)
	a := op.sale(100)
	g := newGateway(t, redisconn.Config{Addrs: addrs}, Options{})
	g.onSale(t, a.ID)
	var accepted atomic.Int64
	each(300, func(i int) {
		switch o := g.Order(t.Context(), buy(a.ID, fmt.Sprint("u", i))); {
		case o.HTTP == 202:
			accepted.Add(1)
		case o.Reason != SoldOut:
			t.Errorf("got %+v", o)
		}
	})
	if accepted.Load() != 100 {
		t.Errorf("%d accepted, want 100", accepted.Load())
	}
	op.pending(a.ID, 100)
	if units, distinct := g.topic.units(); units != 100 || distinct != 100 {
		t.Errorf("kafka has %d orders of %d units", distinct, units)
	}
}

func statusFlow(t *testing.T, addrs ...string) {
	t.Helper()
	op := newOperator(t, addrs...)
	a := op.sale(10)
	g := newGateway(t, redisconn.Config{Addrs: addrs}, Options{})
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
	testenv.Eventually(t, 5*time.Second, "the position is known", func() bool {
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
	testenv.Eventually(t, 5*time.Second, "somebody waits", func() bool { return g.Stats().Waiters == 1 })
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
