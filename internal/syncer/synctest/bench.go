// Package synctest gives the syncer's tests a small shop on real servers: a Redis of the test's own (the catalogue and the
// lease are one per Redis), a fresh database and a fresh topic, and a worker that lands when it is told to.
package synctest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/syncer/binlog"
	"github.com/seckillgate/seckillgate/internal/syncer/compare"
	"github.com/seckillgate/seckillgate/internal/syncer/load"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// Bench is the shop, with short times: reserve deadline 200 ms, publish budget 500 ms, horizon 1 s.
type Bench struct {
	testing.TB
	Cfg    runner.Config
	Server *testenv.Redis // nil where an option names other ones
	*Parts
	// Repeated counts the orders that Publish had to publish again: each may have left one record more.
	Repeated atomic.Int64

	log    *zap.Logger
	worker sync.Mutex
	group  string
}

// Parts are the parts of the bench's own process.
type Parts struct {
	Redis    redis.UniversalClient
	Ledger   *ledger.Ledger
	Store    *store.Store
	Admin    *kafka.Admin
	Producer *kafka.Producer
	Stream   *binlog.Stream
	Loader   *load.Loader
	Comparer *compare.Comparer
	All      *runner.Parts
}

// Option changes the configuration before anything is opened.
type Option func(*runner.Config)

// New makes a bench on the shared MySQL and Kafka, migrated and without activities.
func New(t testing.TB, options ...Option) *Bench {
	t.Helper()
	return NewOn(t, testenv.MySQL(t), options...)
}

// NewOn is New on another MySQL.
func NewOn(t testing.TB, dsn string, options ...Option) *Bench {
	t.Helper()
	b := &Bench{TB: t, log: zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel))}
	topic := testenv.Topic(t, "syncer", 3)
	b.Cfg = runner.Config{
		Redis:           redisconn.Config{ReadTimeout: 2 * time.Second, WriteTimeout: 2 * time.Second},
		Kafka:           kafka.Config{Brokers: testenv.Brokers(t), Topics: kafka.Topics{Orders: topic}, Group: "worker-" + topic},
		MySQL:           store.Config{DSN: dsn, LockWait: 2 * time.Second},
		ReserveDeadline: 200 * time.Millisecond, PublishBudget: 500 * time.Millisecond, Horizon: time.Second,
		CompareInterval: 300 * time.Millisecond, WatchInterval: 50 * time.Millisecond, ActivityInterval: 200 * time.Millisecond,
		LeaseTTL: time.Second,
	}
	for _, o := range options {
		o(&b.Cfg)
	}
	if len(b.Cfg.Redis.Addrs) == 0 {
		b.Server = testenv.StartRedis(t)
		b.Cfg.Redis.Addrs = []string{b.Server.Addr}
	}
	b.Cfg.Kafka.SetDefaults()
	b.Cfg.MySQL.SetDefaults()
	b.Cfg.SetDefaults()
	if err := b.Cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	b.group = b.Cfg.Kafka.Group
	all := b.OpenParts(b.Cfg)
	b.Parts = &Parts{
		Redis: all.Redis, Ledger: all.Ledger, Store: all.Store, Admin: all.Admin, Producer: all.Producer, Stream: all.Stream,
		Loader: all.Loader, Comparer: all.Comparer, All: all,
	}
	if err := b.Store.Migrate(t.Context(), store.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// OpenParts opens parts of another process, so to speak.
func (b *Bench) OpenParts(cfg runner.Config) *runner.Parts {
	b.Helper()
	p, err := runner.Open(b.Context(), cfg, b.log)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := p.Close(); err != nil {
			b.Errorf("close: %v", err)
		}
	})
	return p
}

// Health is what a syncer says of itself.
type Health struct {
	mu  sync.Mutex
	now map[string]error
}

// Set implements runner.Health.
func (h *Health) Set(name string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now == nil {
		h.now = map[string]error{}
	}
	h.now[name] = err
}

// Err implements runner.Health.
func (h *Health) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for name, err := range h.now {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (h *Health) conditions() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.now)
}

// Of is one condition.
func (h *Health) Of(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now[name]
}

// Syncer starts a syncer on the bench's parts. It is stopped when the test ends.
func (b *Bench) Syncer() (*runner.Syncer, *Health) {
	b.Helper()
	return b.SyncerOn(b.All)
}

// SyncerOn starts a syncer on other parts.
func (b *Bench) SyncerOn(p *runner.Parts) (*runner.Syncer, *Health) {
	b.Helper()
	h := &Health{}
	s := runner.New(p, h, runner.NewMetrics(nil))
	s.Start()
	b.Cleanup(s.Stop)
	return s, h
}

// Ready waits until a syncer says that all is well.
func (b *Bench) Ready(h *Health) {
	b.Helper()
	var last error
	defer func() {
		if b.Failed() {
			b.Logf("health: %v", last)
		}
	}()
	testenv.Eventually(b, 20*time.Second, "the syncer to be well", func() bool {
		last = h.Err()
		return last == nil && h.conditions() > 3
	})
}

// Exec runs a statement on the shop's database.
func (b *Bench) Exec(text string, args ...any) {
	b.Helper()
	if _, err := b.Store.DB().ExecContext(b.Context(), text, args...); err != nil {
		b.Fatalf("%s: %v", text, err)
	}
}

// Activity creates a running activity of a new item with a stock.
func (b *Bench) Activity(stock int64) ledger.Activity {
	b.Helper()
	now := time.Now().UnixMilli()
	a := ledger.Activity{
		ID: testenv.ID(), Item: testenv.ID(), Title: "sale", StartsAtMs: now - 1000, EndsAtMs: now + 3_600_000, MaxPerUser: 10, State: ledger.Open,
	}
	b.Create(a, stock)
	return a
}

// Create creates an activity.
func (b *Bench) Create(a ledger.Activity, stock int64) {
	b.Helper()
	if err := b.Store.CreateActivity(b.Context(), a, &stock); err != nil {
		b.Fatal(err)
	}
}

// Load loads without a syncer.
func (b *Bench) Load(a ledger.Activity) {
	b.Helper()
	if _, err := b.Loader.Load(b.Context(), a.ID); err != nil {
		b.Fatal(err)
	}
}

// Look inspects an activity in Redis.
func (b *Bench) Look(a ledger.Activity) ledger.Snapshot {
	b.Helper()
	s, err := b.Ledger.Inspect(b.Context(), a.ID)
	if err != nil {
		b.Fatal(err)
	}
	return s[0]
}

// Loaded waits until an activity is loaded under another epoch than the given one.
func (b *Bench) Loaded(a ledger.Activity, not string) ledger.Snapshot {
	b.Helper()
	var s ledger.Snapshot
	testenv.Eventually(b, 20*time.Second, fmt.Sprintf("activity %d to be loaded", a.ID), func() bool {
		looks, err := b.Ledger.Inspect(b.Context(), a.ID) // Redis may be down for the moment
		if err != nil {
			return false
		}
		s = looks[0]
		return s.Loaded && s.SameServer && s.Epoch != not
	})
	return s
}

// Reserve reserves as a gateway does.
func (b *Bench) Reserve(a ledger.Activity, user string, quantity int64) (*order.Order, ledger.Code) {
	b.Helper()
	id, err := order.NewID()
	if err != nil {
		b.Fatal(err)
	}
	var ds []ledger.Decision
	testenv.Eventually(b, 20*time.Second, "an answer in time", func() bool { // too late is nothing reserved, with this deadline
		ds, err = b.Ledger.Reserve(b.Context(), a.ID, []ledger.Reservation{{
			Order: id, Nonce: id, User: user, Quantity: quantity, NotAfterMs: time.Now().Add(b.Cfg.ReserveDeadline).UnixMilli(),
		}})
		if err != nil {
			b.Fatal(err)
		}
		return ds[0].Code != ledger.TooLate
	})
	return &order.Order{
		V: order.SchemaVersion, ID: id, Activity: a.ID, User: user, Item: a.Item, Quantity: quantity, CreatedAtMs: ds[0].NowMs,
	}, ds[0].Code
}

// MustReserve is Reserve for a buyer who gets it.
func (b *Bench) MustReserve(a ledger.Activity, user string, quantity int64) *order.Order {
	b.Helper()
	o, code := b.Reserve(a, user, quantity)
	if code != ledger.Reserved {
		b.Fatalf("reserve for %s: code %d, want reserved", user, code)
	}
	return o
}

// Buy reserves and publishes.
func (b *Bench) Buy(a ledger.Activity, user string, quantity int64) *order.Order {
	b.Helper()
	o := b.MustReserve(a, user, quantity)
	b.Publish(o)
	return o
}

// Publish publishes an order, on a broker that many tests share: an unknown outcome is tried again, as the sweep would.
func (b *Bench) Publish(o *order.Order) {
	b.Helper()
	testenv.Eventually(b, 20*time.Second, "kafka to take the order", func() bool {
		_, err := b.Producer.Publish(b.Context(), o, nil)
		if err != nil {
			b.Repeated.Add(1)
		}
		return err == nil
	})
}

// Land plays the worker: it lands everything that Kafka has, settles in Redis where told to, and commits offsets.
func (b *Bench) Land(settle bool) int {
	b.Helper()
	n, _ := b.landAll(settle)
	return n
}

// Landed is what one transaction of the worker made of its orders.
type Landed struct {
	store.Landing
	Orders []*order.Order
}

// LandOnly lands everything that Kafka has, and leaves settling it to the test.
func (b *Bench) LandOnly() []Landed {
	b.Helper()
	_, landed := b.landAll(false)
	return landed
}

func (b *Bench) landAll(settle bool) (int, []Landed) {
	b.Helper()
	b.worker.Lock()
	defer b.worker.Unlock()
	ctx := b.Context()
	topic := b.Cfg.Kafka.Topics.Orders
	from, err := b.Admin.Committed(ctx, b.group, topic)
	if err != nil {
		b.Fatal(err)
	}
	to, err := b.Admin.HighWater(ctx, topic)
	if err != nil {
		b.Fatal(err)
	}
	n, landed := b.land(from, to, settle)
	b.Commit(to)
	return n, landed
}

func (b *Bench) land(from, to map[int32]int64, settle bool) (n int, landed []Landed) {
	b.Helper()
	ctx := b.Context()
	byItem := map[int64][]*order.Order{}
	err := b.Admin.Read(ctx, b.Cfg.Kafka.Topics.Orders, from, to, func(_ int32, _ int64, _ time.Time, _, value []byte) error {
		o, err := order.Decode(value)
		if err != nil {
			return err
		}
		byItem[o.Item] = append(byItem[o.Item], o)
		n++
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	for item, orders := range byItem {
		l, err := b.Store.Land(ctx, item, orders)
		if err != nil {
			b.Fatal(err)
		}
		landed = append(landed, Landed{l, orders})
		if settle {
			b.Settle(orders, l)
		}
	}
	return n, landed
}

// Replay lands all of Kafka once more, as `seckill-worker replay` does.
func (b *Bench) Replay() {
	b.Helper()
	b.worker.Lock()
	defer b.worker.Unlock()
	to, err := b.Admin.HighWater(b.Context(), b.Cfg.Kafka.Topics.Orders)
	if err != nil {
		b.Fatal(err)
	}
	b.land(nil, to, true)
}

// Settle settles a landing as the worker does.
func (b *Bench) Settle(orders []*order.Order, l store.Landing) {
	b.Helper()
	activity := map[string]int64{}
	for _, o := range orders {
		activity[o.ID] = o.Activity
	}
	by := map[int64][]ledger.Outcome{}
	for _, o := range l.Outcomes {
		by[activity[o.Order]] = append(by[activity[o.Order]], o)
	}
	for id, out := range by {
		_, err := b.Ledger.Settle(b.Context(), ledger.Settlement{
			Activity: id, Version: l.Version, Stock: l.Stock, Source: ledger.FromWorker, Orders: out,
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// Commit commits offsets of the worker's group, and tells Redis.
func (b *Bench) Commit(to map[int32]int64) {
	b.Helper()
	cfg, err := b.Cfg.Kafka.Sarama()
	if err != nil {
		b.Fatal(err)
	}
	client, err := sarama.NewClient(b.Cfg.Kafka.Brokers, cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	om, err := sarama.NewOffsetManagerFromClient(b.group, client)
	if err != nil {
		b.Fatal(err)
	}
	at := map[int32]ledger.LandedAt{}
	for p, end := range to {
		if end == 0 {
			continue
		}
		pom, err := om.ManagePartition(b.Cfg.Kafka.Topics.Orders, p)
		if err != nil {
			b.Fatal(err)
		}
		pom.MarkOffset(end, "")
		at[p] = ledger.LandedAt{Offset: end, TimeMs: time.Now().UnixMilli()}
		defer pom.Close()
	}
	om.Commit()
	if err := om.Close(); err != nil {
		b.Fatal(err)
	}
	if err := b.Ledger.SetLanded(b.Context(), at); err != nil {
		b.Fatal(err)
	}
}

// Equal waits until Redis equals MySQL with nothing in flight: I2, and the buyers.
func (b *Bench) Equal(a ledger.Activity) {
	b.Helper()
	var why string
	defer func() {
		if b.Failed() {
			b.Logf("last difference: %s", why)
		}
	}()
	testenv.Eventually(b, 20*time.Second, fmt.Sprintf("redis to equal mysql for activity %d", a.ID), func() bool {
		why = b.difference(a)
		return why == ""
	})
}

func (b *Bench) difference(a ledger.Activity) string {
	s := b.Look(a)
	stock, version, _, err := b.Store.Inventory(b.Context(), a.Item)
	if err != nil {
		b.Fatal(err)
	}
	live, err := b.Store.LiveOrders(b.Context(), a.ID, "", 1_000_000)
	if err != nil {
		b.Fatal(err)
	}
	switch {
	case !s.Loaded:
		return "not loaded: " + s.Problem + " " + string(s.State)
	case s.Stock != stock || s.Version != version:
		return fmt.Sprintf("redis has stock %d at %d, mysql %d at %d", s.Stock, s.Version, stock, version)
	case s.Pending != 0 || s.LedgerLen != 0:
		return fmt.Sprintf("pending %d, ledger %d", s.Pending, s.LedgerLen)
	case s.BuyersLen != int64(len(live)):
		return fmt.Sprintf("%d buyers, %d live orders", s.BuyersLen, len(live))
	}
	for _, o := range live {
		held, err := b.Ledger.BuyersOf(b.Context(), a.ID, []string{o.User})
		if err != nil {
			b.Fatal(err)
		}
		if held[0] != o.Order {
			return fmt.Sprintf("user %s holds %q in redis and %q in mysql", o.User, held[0], o.Order)
		}
	}
	return ""
}

// Stock reads MySQL's stock.
func (b *Bench) Stock(a ledger.Activity) int64 {
	b.Helper()
	stock, _, _, err := b.Store.Inventory(b.Context(), a.Item)
	if err != nil {
		b.Fatal(err)
	}
	return stock
}

// Restock changes the stock as an operator does.
func (b *Bench) Restock(a ledger.Activity, by int64) {
	b.Helper()
	b.Exec("UPDATE inventory SET stock = stock + ? WHERE item_id = ?", by, a.Item)
}

// Client gives a Redis client of the test's own.
func (b *Bench) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: b.Server.Addr, MaxRetries: -1})
	b.Cleanup(func() { _ = c.Close() })
	return c
}

// OpenDB opens a connection of the test's own, whose session it may change.
func (b *Bench) OpenDB() *sql.DB {
	b.Helper()
	db, err := sql.Open("mysql", b.Cfg.MySQL.DSN)
	if err != nil {
		b.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	b.Cleanup(func() { _ = db.Close() })
	return db
}

// Within runs f with a bound.
func (b *Bench) Within(d time.Duration, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(b.Context(), d)
	defer cancel()
	return f(ctx)
}

// OnRedis uses other servers than one of the bench's own: Redis Cluster, Sentinel (with its master's name), or a proxy.
func OnRedis(sentinel string, addrs ...string) Option {
	return func(c *runner.Config) { c.Redis.Addrs, c.Redis.Sentinel = addrs, sentinel }
}

// Quiet compares so rarely that only the binlog, and loads, can have done what a test sees.
func Quiet(c *runner.Config) { c.CompareInterval = time.Hour }
