package landing

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/outbox"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// live is one deployment on real servers: a private Redis, a fresh database, fresh topics and a group of its own.
type live struct {
	t        *testing.T
	log      *zap.Logger
	redis    *testenv.Redis
	ledger   *ledger.Ledger
	store    *store.Store
	kafka    kafka.Config
	producer *kafka.Producer
	admin    *kafka.Admin
	health   *fakeHealth

	activity, item int64
}

func onServers(t *testing.T, partitions int32) *live {
	t.Helper()
	return newLive(t, partitions, testenv.MySQL(t))
}

func newLive(t *testing.T, partitions int32, dsn string) *live {
	t.Helper()
	e := &live{
		t: t, log: zaptest.NewLogger(t, zaptest.Level(zapcore.WarnLevel)), redis: testenv.StartRedis(t), health: newFakeHealth(),
		activity: testenv.ID(), item: testenv.ID(),
	}
	rdb, err := redisconn.New(redisconn.Config{Addrs: []string{e.redis.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	e.ledger = ledger.New(rdb, ledger.Options{})
	if e.store, err = store.Open(t.Context(), store.Config{DSN: dsn, LockWait: time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.store.Close() })
	if err := e.store.Migrate(t.Context(), store.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := e.store.Subscribe(t.Context(), store.Results); err != nil {
		t.Fatal(err)
	}
	e.kafka = kafka.Config{
		Brokers: testenv.Brokers(t), Group: testenv.Topic(t, "group", 1),
		Topics: kafka.Topics{
			Orders: testenv.Topic(t, "orders", partitions), DeadLetters: testenv.Topic(t, "dlq", 1), Results: testenv.Topic(t, "results", 1),
		},
	}
	e.kafka.SetDefaults()
	e.connect()
	return e
}

// connect makes clients of the brokers that e.kafka names.
func (e *live) connect() {
	e.t.Helper()
	producer, err := kafka.NewProducer(e.kafka, kafka.ProducerOptions{}, e.log)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = producer.Close() })
	admin, err := kafka.NewAdmin(e.kafka, e.log)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = admin.Close() })
	e.producer, e.admin = producer, admin
}

// sale is an open activity of e.item with that stock, loaded in Redis.
func (e *live) sale(stock int64) *live {
	e.t.Helper()
	e.create(e.activity, e.item, &stock)
	e.load(e.activity)
	return e
}

func (e *live) create(activity, item int64, stock *int64) {
	e.t.Helper()
	now := time.Now().UnixMilli()
	a := ledger.Activity{
		ID: activity, Item: item, Title: "test", StartsAtMs: now - 60_000, EndsAtMs: now + 3_600_000, MaxPerUser: 10, State: ledger.Open,
	}
	if err := e.store.CreateActivity(e.t.Context(), a, stock); err != nil {
		e.t.Fatal(err)
	}
}

// load brings an activity from MySQL to Redis, as the syncer does when nothing is under way.
func (e *live) load(activity int64) {
	e.t.Helper()
	ctx := e.t.Context()
	a, err := e.store.Activity(ctx, activity)
	if err != nil {
		e.t.Fatal(err)
	}
	begun, err := e.ledger.LoadBegin(ctx, a)
	if err != nil {
		e.t.Fatal(err)
	}
	view, err := e.store.Snapshot(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	defer view.Close()
	if err := view.Orders(ctx, activity, func(rows []ledger.Outcome) error {
		return e.ledger.LoadOrders(ctx, activity, begun.Epoch, rows)
	}); err != nil {
		e.t.Fatal(err)
	}
	stock, version, found, err := view.Inventory(ctx, a.Item)
	if err != nil || !found {
		e.t.Fatalf("inventory of %d: found %v, %v", a.Item, found, err)
	}
	if _, err := e.ledger.LoadFinish(ctx, activity, begun.Epoch, version, stock, a.State); err != nil {
		e.t.Fatal(err)
	}
}

// orders makes n orders of different buyers.
func (e *live) orders(n int, quantity func(i int) int64) []*order.Order {
	out := make([]*order.Order, n)
	for i := range out {
		out[i] = newOrder(e.activity, e.item, fmt.Sprintf("buyer-%d", i))
		out[i].Quantity = quantity(i)
	}
	return out
}

func one(int) int64 { return 1 }

// reserve puts orders in the ledger, as the gateway does before it publishes.
func (e *live) reserve(orders ...*order.Order) {
	e.t.Helper()
	for len(orders) > 0 {
		n := min(len(orders), 100)
		members := make([]ledger.Reservation, n)
		for i, o := range orders[:n] {
			members[i] = ledger.Reservation{
				Order: o.ID, Nonce: o.ID[24:], User: o.User, Quantity: o.Quantity, NotAfterMs: time.Now().Add(time.Minute).UnixMilli(),
			}
		}
		got, err := e.ledger.Reserve(e.t.Context(), orders[0].Activity, members)
		if err != nil {
			e.t.Fatal(err)
		}
		for i, d := range got {
			if d.Code != ledger.Reserved {
				e.t.Fatalf("reserve %+v: %+v", members[i], d)
			}
		}
		orders = orders[n:]
	}
}

// publish sends orders at once and waits until Kafka has them all.
func (e *live) publish(orders ...*order.Order) {
	e.t.Helper()
	var all sync.WaitGroup
	for _, o := range orders {
		all.Go(func() {
			if _, err := e.producer.Publish(e.t.Context(), o, nil); err != nil {
				e.t.Errorf("publish: %v", err)
			}
		})
	}
	all.Wait()
	if e.t.Failed() {
		e.t.FailNow()
	}
}

// raw sends any bytes to the orders topic.
func (e *live) raw(value []byte) kafka.Ack {
	e.t.Helper()
	ack, err := e.producer.Send(e.t.Context(), e.kafka.Topics.Orders, []byte("k"), value, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	return ack
}

// worker is a Consumer with a Lander of its own; s and l stand between it and the servers where a test needs to interfere.
type worker struct {
	*Consumer
	health *fakeHealth
}

func (e *live) worker(cfg Config, s Store, l Ledger) *worker {
	e.t.Helper()
	if s == nil {
		s = e.store
	}
	if l == nil {
		l = e.ledger
	}
	h, m := newFakeHealth(), NewMetrics(nil)
	results := outbox.New(outbox.Config{}, e.store, h, nil, e.log)
	results.Add(store.Results, outbox.ResultsTopic{Sender: e.producer, Topic: e.kafka.Topics.Results}, outbox.ResultsPace)
	results.Start()
	e.t.Cleanup(results.Stop)
	lander := NewLander(cfg, s, l, NewTopicDeadLetters(e.producer, e.kafka), results, h, m, e.log)
	c, err := NewConsumer(cfg, e.kafka, lander, l, h, m, e.log)
	if err != nil {
		e.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(c.Stop)
	return &worker{c, h}
}

// rows counts orders of the activity by status.
func (e *live) rows() map[string]int {
	e.t.Helper()
	got := make(map[string]int)
	rows, err := e.store.DB().QueryContext(context.Background(), "SELECT status, COUNT(*) FROM orders WHERE activity_id = ? GROUP BY status", e.activity)
	if err != nil {
		e.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		var n int
		if err := rows.Scan(&s, &n); err != nil {
			e.t.Fatal(err)
		}
		got[s] = n
	}
	if err := rows.Err(); err != nil {
		e.t.Fatal(err)
	}
	return got
}

// landsWithin waits until n orders have a row.
func (e *live) landsWithin(within time.Duration, n int) {
	e.t.Helper()
	testenv.Eventually(e.t, within, fmt.Sprintf("%d orders have a row", n), func() bool {
		sum := 0
		for _, k := range e.rows() {
			sum += k
		}
		return sum >= n
	})
}

// done waits until the group has committed everything that is in the topic.
func (e *live) done(within time.Duration) {
	e.t.Helper()
	testenv.Eventually(e.t, within, "every record is landed and its offset committed", func() bool {
		high, err := e.admin.HighWater(e.t.Context(), e.kafka.Topics.Orders)
		if err != nil {
			e.t.Fatal(err)
		}
		committed, err := e.admin.Committed(e.t.Context(), e.kafka.Group, e.kafka.Topics.Orders)
		if err != nil {
			e.t.Fatal(err)
		}
		for part, end := range high {
			if end > 0 && committed[part] < end {
				return false
			}
		}
		return true
	})
}

// committed is the group's offset in the only partition that a test uses; 0 for none.
func (e *live) committed(part int32) int64 {
	e.t.Helper()
	got, err := e.admin.Committed(e.t.Context(), e.kafka.Group, e.kafka.Topics.Orders)
	if err != nil {
		e.t.Fatal(err)
	}
	return max(0, got[part])
}

// settled checks I2: Redis and MySQL hold the same stock, and nothing is pending.
func (e *live) settled(stock int64) {
	e.t.Helper()
	m, version, found, err := e.store.Inventory(e.t.Context(), e.item)
	if err != nil || !found {
		e.t.Fatalf("inventory: found %v, %v", found, err)
	}
	got, err := e.ledger.Inspect(e.t.Context(), e.activity)
	if err != nil {
		e.t.Fatal(err)
	}
	s := got[0]
	if m != stock || s.Stock != m || s.Version != version || s.Pending != 0 || s.LedgerLen != 0 || !s.Loaded {
		e.t.Errorf("mysql has stock %d version %d, redis stock %d version %d pending %d ledger %d loaded %v %s; want stock %d on both sides and nothing pending",
			m, version, s.Stock, s.Version, s.Pending, s.LedgerLen, s.Loaded, s.Problem, stock)
	}
}

// letters reads the dead-letter topic.
func (e *live) letters() []Letter {
	e.t.Helper()
	var all []Letter
	if err := ReadLetters(e.t.Context(), e.admin, e.kafka.Topics.DeadLetters, func(l Letter) error {
		all = append(all, l)
		return nil
	}); err != nil {
		e.t.Fatal(err)
	}
	return all
}
