package edge

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

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

func (p *topic) published() []order.Order {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.orders)
}

func (p *topic) Enqueue(o *order.Order, headers map[string]string, _ time.Time, done func(Ack, error)) {
	go func() { done(p.Publish(context.Background(), o, headers)) }()
}

func (p *topic) HealthyFor(int64) error { return nil }

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
	calls *calls
}

// calls counts what goes to Redis: single commands, scripts and pipelines.
type calls struct{ n atomic.Int64 }

func (c *calls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *calls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c *calls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmds)
	}
}

func newGateway(t *testing.T, c redisconn.Config, o Options) *gateway {
	t.Helper()
	rdb, err := redisconn.New(c)
	if err != nil {
		t.Fatal(err)
	}
	counted := new(calls)
	rdb.AddHook(counted)
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
	return &gateway{Edge: e, led: l, topic: p, calls: counted}
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
	rdb, err := redisconn.New(redisconn.Config{Addrs: addrs, ReadTimeout: long, PoolTimeout: long})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	return &operator{t: t, rdb: rdb, led: ledger.New(rdb, ledger.Options{})}
}

// sale loads an activity that is on, and offers it.
func (p *operator) sale(stock int64) ledger.Activity {
	p.t.Helper()
	return p.saleOf(testenv.ID(), stock)
}

func (p *operator) saleOf(id, stock int64) ledger.Activity {
	p.t.Helper()
	now := time.Now().UnixMilli()
	a := ledger.Activity{
		ID: id, Item: testenv.ID(), StartsAtMs: now - 60_000, EndsAtMs: now + 3_600_000, MaxPerUser: 3, State: ledger.Open,
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

// reload loads an activity as the syncer does after Redis changed hands: what Kafka has goes back into the ledger, and what
// only the ledger has is dropped when it may have been released.
func (p *operator) reload(a ledger.Activity, stock int64, published ...order.Order) {
	p.t.Helper()
	ctx := p.t.Context()
	load, err := p.led.LoadBegin(ctx, a)
	if err != nil {
		p.t.Fatal(err)
	}
	inKafka := map[string]bool{}
	var known, unknown []ledger.Entry
	for _, o := range published {
		if !inKafka[o.ID] {
			inKafka[o.ID] = true
			known = append(known, ledger.Entry{Order: o.ID, User: o.User, Item: o.Item, Quantity: o.Quantity, ReservedAtMs: o.CreatedAtMs})
		}
	}
	for cursor := uint64(0); ; {
		part, next, err := p.led.ScanLedger(ctx, a.ID, cursor, 1000)
		if err != nil {
			p.t.Fatal(err)
		}
		for _, e := range part {
			if !inKafka[e.Order] {
				unknown = append(unknown, e)
			}
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	if err := p.led.LoadEntries(ctx, a.ID, load.Epoch, known); err != nil {
		p.t.Fatal(err)
	}
	rest := p.led.LoadEntries
	if load.Doubtful {
		rest = p.led.LoadDrop
	}
	if err := rest(ctx, a.ID, load.Epoch, unknown); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.led.LoadFinish(ctx, a.ID, load.Epoch, time.Now().UnixMicro(), stock, ledger.Open); err != nil {
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
	testenv.Eventually(t, 20*time.Second, "the gateway sees the sale", func() bool {
		v, r := g.gate.View(activity, time.Now())
		return r == Accepted && v.State == "open" && v.AgeMs >= 0
	})
}

func buy(activity int64, user string) Request {
	return Request{Activity: activity, User: user, Quantity: 1}
}

// long is a timeout that a busy machine keeps.
const long = 5 * time.Second

// newPatient makes a gateway whose bounds a busy machine keeps, for tests that are about something else.
func newPatient(t *testing.T, addrs []string) *gateway {
	t.Helper()
	return newGateway(t, redisconn.Config{Addrs: addrs, ReadTimeout: long, PoolTimeout: long}, Options{RequestBudget: 2 * long})
}
