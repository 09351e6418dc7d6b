package landing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// TestLandsEveryOrderOnce: 2,000 orders, each message delivered twice, by two workers that share four partitions.
func TestLandsEveryOrderOnce(t *testing.T) {
	t.Parallel()
	e := onServers(t, 4).sale(5000)
	orders := e.orders(2000, func(i int) int64 { return int64(i%3) + 1 })
	e.reserve(orders...)
	e.publish(orders...)
	e.publish(orders...)
	e.worker(Config{}, nil, nil)
	e.worker(Config{}, nil, nil)
	e.done(time.Minute)
	if got := e.rows(); got["CONFIRMED"] != 2000 || len(got) != 1 {
		t.Errorf("rows %v, want 2000 confirmed", got)
	}
	e.settled(5000 - 3999)
	testenv.Eventually(t, 10*time.Second, "progress is in seckill:landed", func() bool {
		landed, err := e.ledger.Landed(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		high, err := e.admin.HighWater(t.Context(), e.kafka.Topics.Orders)
		if err != nil {
			t.Fatal(err)
		}
		for part, end := range high {
			if landed[part].Offset != end || end > 0 && landed[part].TimeMs == 0 {
				return false
			}
		}
		return len(landed) == 4
	})
	e.wantResults(orders)
}

// wantResults waits until the results topic says of each order that it was confirmed.
func (e *live) wantResults(orders []*order.Order) {
	e.t.Helper()
	testenv.Eventually(e.t, 20*time.Second, "each order's outcome is in the results topic", func() bool {
		high, err := e.admin.HighWater(e.t.Context(), e.kafka.Topics.Results)
		if err != nil {
			e.t.Fatal(err)
		}
		seen := make(map[string]bool)
		err = e.admin.Read(e.t.Context(), e.kafka.Topics.Results, nil, high, func(_ int32, _ int64, _ time.Time, key, value []byte) error {
			var r order.Result
			if err := json.Unmarshal(value, &r); err != nil {
				return err
			}
			if r.ID != string(key) || r.V != 1 || r.Activity != e.activity || r.Status != order.Confirmed {
				return fmt.Errorf("result %s", value)
			}
			seen[r.ID] = true
			return nil
		})
		if err != nil {
			e.t.Fatal(err)
		}
		return len(seen) == len(orders)
	})
}

// TestE111BatchThatDoesNotFit: stock 2, one batch with quantities 1, 3, 1.
func TestE111BatchThatDoesNotFit(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(2)
	orders := e.orders(3, func(i int) int64 { return []int64{1, 3, 1}[i] })
	for _, o := range orders {
		e.publish(o) // one after the other, so that they are in this order
	}
	e.worker(Config{MaxWait: 200 * time.Millisecond}, nil, nil)
	e.done(time.Minute)
	got, err := e.store.Orders(t.Context(), []string{orders[0].ID, orders[1].ID, orders[2].ID})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []order.Status{order.Confirmed, order.Failed, order.Confirmed} {
		if got[orders[i].ID].Status != want {
			t.Errorf("order %d is %+v, want %s", i, got[orders[i].ID], want)
		}
	}
	if r := got[orders[1].ID].Reason; r != order.ReasonSoldOut {
		t.Errorf("reason %q, want %q", r, order.ReasonSoldOut)
	}
	e.settled(0)
}

// TestE39QueuedBeforeTheFirstWorker: orders that wait in Kafka before the group exists, and after its offsets are gone.
func TestE39QueuedBeforeTheFirstWorker(t *testing.T) {
	t.Parallel()
	e := onServers(t, 2).sale(1000)
	orders := e.orders(100, one)
	e.reserve(orders...)
	e.publish(orders...)
	w := e.worker(Config{}, nil, nil)
	e.done(time.Minute)
	e.settled(900)

	w.Stop()
	late := e.orders(50, one)
	for i, o := range late {
		o.User = fmt.Sprintf("late-%d", i)
	}
	e.reserve(late...)
	e.publish(late...)
	admin := e.clusterAdmin()
	if err := admin.DeleteConsumerGroup(e.kafka.Group); err != nil {
		t.Fatal(err)
	}
	e.worker(Config{}, nil, nil)
	e.done(time.Minute)
	e.settled(850)
	if got := e.rows(); got["CONFIRMED"] != 150 {
		t.Errorf("rows %v, want 150 confirmed", got)
	}
}

// TestE39OffsetThatIsGone: records that retention took away are an alarm, not a silent jump; a person may order the jump.
func TestE39OffsetThatIsGone(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(1000)
	orders := e.orders(30, one)
	e.publish(orders[:10]...)
	w := e.worker(Config{}, nil, nil)
	e.done(time.Minute)
	w.Stop()
	e.publish(orders[10:]...)
	if err := e.clusterAdmin().DeleteRecords(e.kafka.Topics.Orders, map[int32]int64{0: 20}); err != nil {
		t.Fatal(err)
	}
	w = e.worker(Config{RetryMax: 500 * time.Millisecond}, nil, nil)
	testenv.Eventually(t, 30*time.Second, "health names the gap and the remedy", func() bool {
		err := w.health.red(stepOffsets)
		return errors.Is(err, sarama.ErrOffsetOutOfRange) && strings.Contains(err.Error(), "accept_lost_offsets")
	})
	if n := e.committed(0); n != 10 {
		t.Errorf("committed offset %d, want it to stay at 10", n)
	}
	w.Stop()
	w = e.worker(Config{AcceptLostOffsets: true}, nil, nil)
	e.done(time.Minute)
	if got := e.rows(); got["CONFIRMED"] != 20 {
		t.Errorf("rows %v, want the 20 whose records are still there", got)
	}
	if err := w.health.red(stepOffsets); err != nil {
		t.Errorf("health is still red: %v", err)
	}
}

func (e *live) clusterAdmin() sarama.ClusterAdmin {
	e.t.Helper()
	cfg, err := e.kafka.Sarama()
	if err != nil {
		e.t.Fatal(err)
	}
	cfg.Metadata.Full = true // it asks for the controller
	admin, err := sarama.NewClusterAdmin(e.kafka.Brokers, cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = admin.Close() })
	return admin
}

// TestE40SecondWorkerJoins: both work after the rebalance, and both are healthy.
func TestE40SecondWorkerJoins(t *testing.T) {
	t.Parallel()
	e := onServers(t, 4).sale(1000)
	var by [2]landings
	by[0].Store, by[1].Store = e.store, e.store
	first := e.worker(Config{}, &by[0], nil)
	e.publish(e.orders(20, one)...)
	e.done(time.Minute)
	second := e.worker(Config{}, &by[1], nil)
	// Four partitions, one key each is not to be had for certain: send to each by hand.
	n := 0
	testenv.Eventually(t, 60*time.Second, "both workers land", func() bool {
		o := newOrder(e.activity, e.item, fmt.Sprintf("next-%d", n))
		n++
		value, err := o.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.producer.Send(t.Context(), e.kafka.Topics.Orders, []byte(strconv.Itoa(n)), value, nil); err != nil {
			t.Fatal(err)
		}
		return by[0].after(second.Consumer) && by[1].n.Load() > 0
	})
	e.done(time.Minute)
	for i, w := range []*worker{first, second} {
		if err := w.health.red(stepGroup); err != nil {
			t.Errorf("worker %d: %v", i, err)
		}
	}
}

// landings counts orders that one worker lands.
type landings struct {
	Store
	n      atomic.Int64
	before atomic.Int64 // n when the other worker was seen in its session, +1
}

func (c *landings) Land(ctx context.Context, item int64, orders []*order.Order) (store.Landing, error) {
	c.n.Add(int64(len(orders)))
	return c.Store.Land(ctx, item, orders)
}

// after says whether this worker has landed something since the other one joined.
func (c *landings) after(other *Consumer) bool {
	if other.since.Load() != 0 {
		return false
	}
	c.before.CompareAndSwap(0, c.n.Load()+1)
	return c.n.Load() >= c.before.Load()
}

// gate lets a test hold up, fail or see the landing of single orders.
type gate struct {
	Store
	mu   sync.Mutex
	hold func(ctx context.Context, orders []*order.Order) error
}

func (g *gate) set(hold func(ctx context.Context, orders []*order.Order) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hold = hold
}

func (g *gate) Land(ctx context.Context, item int64, orders []*order.Order) (store.Landing, error) {
	g.mu.Lock()
	hold := g.hold
	g.mu.Unlock()
	if hold != nil {
		if err := hold(ctx, orders); err != nil {
			return store.Landing{}, err
		}
	}
	return g.Store.Land(ctx, item, orders)
}

// TestE37NothingIsMarkedPastAnUndoneOrder: message 5 fails while later ones wait; the worker dies; a new one takes it up.
func TestE37NothingIsMarkedPastAnUndoneOrder(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(1000)
	orders := e.orders(50, one)
	e.reserve(orders...)
	for _, o := range orders {
		e.publish(o)
	}
	g := &gate{Store: e.store}
	g.set(func(_ context.Context, batch []*order.Order) error {
		for _, o := range batch {
			if o.ID == orders[5].ID {
				return errors.New("mysql is away")
			}
		}
		return nil
	})
	w := e.worker(Config{MaxOrders: 3, ShutdownGrace: 200 * time.Millisecond}, g, nil)
	testenv.Eventually(t, 30*time.Second, "landing waits at message 5, with health red", func() bool { return w.health.red(stepMySQL) != nil })
	w.Stop()
	if n := e.committed(0); n > 5 {
		t.Errorf("committed offset %d, want at most 5", n)
	}
	e.worker(Config{}, nil, nil)
	e.done(time.Minute)
	if got := e.rows(); got["CONFIRMED"] != 50 {
		t.Errorf("rows %v, want 50 confirmed", got)
	}
	e.settled(950)
}

// TestE35StalledDatabaseAndRebalance: MySQL hangs, a second worker joins; the first lets go within a second, marks nothing, and
// no order is lost.
func TestE35StalledDatabaseAndRebalance(t *testing.T) {
	t.Parallel()
	e := onServers(t, 2).sale(1000)
	orders := e.orders(300, one)
	e.reserve(orders...)
	e.publish(orders...)
	// A session of the shop holds the stock row.
	tx, err := e.store.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), "SELECT stock FROM inventory WHERE item_id = ? FOR UPDATE", e.item); err != nil {
		t.Fatal(err)
	}
	first := e.worker(Config{}, nil, nil)
	testenv.Eventually(t, 30*time.Second, "the first worker waits for the lock, with health red", func() bool { return first.health.red(stepMySQL) != nil })
	second := e.worker(Config{}, nil, nil)
	testenv.Eventually(t, 20*time.Second, "both have a session", func() bool { return first.since.Load() == 0 && second.since.Load() == 0 })
	for part := range int32(2) {
		if n := e.committed(part); n != 0 {
			t.Errorf("partition %d: committed offset %d, want none", part, n)
		}
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	e.done(time.Minute)
	if got := e.rows(); got["CONFIRMED"] != 300 {
		t.Errorf("rows %v, want 300 confirmed", got)
	}
	e.settled(700)
}

// TestE35FrozenDatabaseAndStop: a MySQL that keeps its connections open and says nothing holds up neither a rebalance nor a stop.
func TestE35FrozenDatabaseAndStop(t *testing.T) {
	t.Parallel()
	db := testenv.StartMySQL(t)
	e := newLive(t, 2, db.DSN("shop")).sale(1000)
	first := e.worker(Config{ShutdownGrace: 300 * time.Millisecond}, nil, nil)
	e.publish(e.orders(20, one)...)
	e.done(time.Minute)
	db.Pause()
	more := e.orders(20, one)
	for i, o := range more {
		o.User = fmt.Sprintf("more-%d", i)
	}
	e.publish(more...)
	second := e.worker(Config{ShutdownGrace: 300 * time.Millisecond}, nil, nil)
	testenv.Eventually(t, 20*time.Second, "both have a session", func() bool { return first.since.Load() == 0 && second.since.Load() == 0 })
	began := time.Now()
	first.Stop()
	took := time.Since(began)
	if took > 15*time.Second {
		t.Errorf("stopped after %s", took)
	}
	t.Logf("stopped after %s", took)
	db.Resume()
	e.done(time.Minute)
	if got := e.rows(); got["CONFIRMED"] != 40 {
		t.Errorf("rows %v, want 40 confirmed", got)
	}
	e.settled(960)
}

// TestStopWithinItsBound: a batch that hangs is abandoned after the grace, nothing is marked, and stopping again is harmless.
func TestStopWithinItsBound(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(10)
	e.publish(e.orders(1, one)...)
	g := &gate{Store: e.store}
	reached := make(chan struct{})
	var once sync.Once
	g.set(func(ctx context.Context, _ []*order.Order) error {
		once.Do(func() { close(reached) })
		<-ctx.Done()
		return ctx.Err()
	})
	w := e.worker(Config{ShutdownGrace: 300 * time.Millisecond}, g, nil)
	<-reached
	began := time.Now()
	w.Stop()
	took := time.Since(began)
	if took < 300*time.Millisecond || took > 15*time.Second {
		t.Errorf("stopped after %s, want the grace and a moment", took)
	}
	t.Logf("stopped after %s", took)
	w.Stop()
	if n := e.committed(0); n != 0 {
		t.Errorf("committed offset %d, want none", n)
	}
	if err := w.Start(); err == nil {
		t.Error("started again")
	}
}

// TestStopFinishesTheRunningBatch: what can be done within the grace is done, and committed.
func TestStopFinishesTheRunningBatch(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(10)
	e.publish(e.orders(1, one)...)
	g := &gate{Store: e.store}
	reached, goOn := make(chan struct{}), make(chan struct{})
	g.set(func(context.Context, []*order.Order) error {
		close(reached)
		<-goOn
		return nil
	})
	w := e.worker(Config{}, g, nil)
	<-reached
	time.AfterFunc(500*time.Millisecond, func() { close(goOn) })
	w.Stop()
	if n := e.committed(0); n != 1 {
		t.Errorf("committed offset %d, want 1", n)
	}
}

// TestStartStop hammers the lifecycle.
func TestStartStop(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(10)
	for range 5 {
		w := e.worker(Config{}, nil, nil)
		var all sync.WaitGroup
		for range 4 {
			all.Go(w.Stop)
		}
		all.Wait()
	}
	never, err := NewConsumer(Config{}, e.kafka, nil, nil, newFakeHealth(), NewMetrics(nil), e.log)
	if err != nil {
		t.Fatal(err)
	}
	never.Stop()
	if err := never.Start(); err == nil {
		t.Error("started after Stop")
	}
}

// TestE40KafkaThatIsNotThere: the worker waits for it and says so.
func TestE40KafkaThatIsNotThere(t *testing.T) {
	t.Parallel()
	h := newFakeHealth()
	m := NewMetrics(nil)
	b := onFakes(t)
	cfg := fast
	cfg.SetDefaults()
	c, err := NewConsumer(cfg, kafka.Config{Brokers: []string{"127.0.0.1:1"}}, b.Lander, b.ledger, h, m, b.log)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, "health names Kafka", func() bool {
		err := h.red(stepGroup)
		return err != nil && strings.Contains(err.Error(), "brokers")
	})
	c.Stop()
}

// TestE42PoisonEndToEnd: poison among good orders; each goes where it belongs, and its buyer may try again.
func TestE42PoisonEndToEnd(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(100)
	good := e.orders(3, one)
	bad := newOrder(e.activity, e.item, "unlucky")
	e.reserve(good...)
	e.reserve(bad)
	e.publish(good[0])
	at := e.raw([]byte(`{"v":1,`))
	e.publish(good[1])
	spoilt := *bad
	spoilt.Quantity = -3
	value, err := json.Marshal(&spoilt)
	if err != nil {
		t.Fatal(err)
	}
	e.raw(value)
	stranger := newOrder(testenv.ID(), e.item, "stranger")
	e.publish(stranger, good[2])
	e.worker(Config{}, nil, nil)
	e.done(time.Minute)
	if got := e.rows(); got["CONFIRMED"] != 3 || got["FAILED"] != 1 {
		t.Errorf("rows %v, want three confirmed and the unlucky one failed", got)
	}
	e.settled(97)
	letters := e.letters()
	if len(letters) != 3 {
		t.Fatalf("%d dead letters, want 3: %+v", len(letters), letters)
	}
	l := letters[0]
	if l.OriginTopic != e.kafka.Topics.Orders || l.OriginPartition != at.Partition || l.OriginOffset != at.Offset || string(l.Value) != `{"v":1,` || string(l.Key) != "k" || l.Why == "" {
		t.Errorf("dead letter %+v: want the record with its origin %+v", l, at)
	}
	e.reserve(newOrder(e.activity, e.item, "unlucky")) // I6: free to try again
}

// TestE104StockRowAwayWhileOrdersWait: orders that are in the queue outlive a row that is written anew in two steps.
func TestE104StockRowAwayWhileOrdersWait(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(100)
	orders := e.orders(5, one)
	e.reserve(orders...)
	e.publish(orders...)
	for _, statement := range []string{"DELETE FROM inventory WHERE item_id = ?", "DELETE FROM activity WHERE activity_id = ?"} {
		id := e.item
		if strings.Contains(statement, "activity_id") {
			id = e.activity
		}
		if _, err := e.store.DB().ExecContext(t.Context(), statement, id); err != nil {
			t.Fatal(err)
		}
	}
	w := e.worker(Config{}, nil, nil)
	testenv.Eventually(t, 20*time.Second, "health is red for the row", func() bool { return w.health.red(stepRows) != nil })
	testenv.Eventually(t, 20*time.Second, "the row is away for longer than UnknownTries take", func() bool {
		m := w.lander.missing
		m.mu.Lock()
		defer m.mu.Unlock()
		a := m.rows[row{"activity", e.activity}]
		return a != nil && time.Since(a.since) > 1500*time.Millisecond
	})
	if got := e.rows(); len(got) != 0 {
		t.Fatalf("rows %v while the sale's rows are away", got)
	}
	stock := int64(100)
	e.create(e.activity, e.item, &stock)
	e.done(time.Minute)
	if got := e.rows(); got["CONFIRMED"] != 5 || len(got) != 1 || w.health.red(stepRows) != nil {
		t.Errorf("rows %v, health %v: want five confirmed", got, w.health.red(stepRows))
	}
	if letters := e.letters(); len(letters) != 0 {
		t.Errorf("dead letters %+v", letters)
	}
}

// TestE107LandingBeforeTheLoad: Redis knows nothing of the activity; the worker lands all the same and the load is exact.
func TestE107LandingBeforeTheLoad(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1)
	stock := int64(10)
	e.create(e.activity, e.item, &stock)
	e.publish(e.orders(4, one)...)
	e.worker(Config{}, nil, nil)
	e.done(time.Minute)
	if got := e.rows(); got["CONFIRMED"] != 4 {
		t.Fatalf("rows %v, want 4 confirmed", got)
	}
	e.load(e.activity)
	e.settled(6)
}

// TestE09RedisAwayWhileLanding: MySQL has the orders, Redis is down; nothing is marked until it has heard.
func TestE09RedisAwayWhileLanding(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(100)
	orders := e.orders(5, one)
	e.redis.Kill()
	e.publish(orders...)
	w := e.worker(Config{}, nil, nil)
	e.landsWithin(30*time.Second, 5)
	testenv.Eventually(t, 20*time.Second, "health is red for Redis", func() bool { return w.health.red(stepRedis) != nil })
	if n := e.committed(0); n != 0 {
		t.Errorf("committed offset %d, want none before Redis has heard", n)
	}
	e.redis.Restart()
	e.done(time.Minute)
	if err := w.health.red(stepRedis); err != nil {
		t.Errorf("health is still red: %v", err)
	}
	e.load(e.activity) // it came back empty
	e.settled(95)
}

// TestE90SettleAndBinlogInAnyOrder: the binlog's settlement comes before, between, after and twice; all end in one state, and
// what is available is never more than the truth.
func TestE90SettleAndBinlogInAnyOrder(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(10)
	tap := &binlogTap{Ledger: e.ledger, live: e}
	e.worker(Config{MaxOrders: 2}, nil, tap)
	for i, when := range []string{"before", "after", "both", "never"} {
		tap.set(when)
		o := newOrder(e.activity, e.item, fmt.Sprintf("buyer-%d", i))
		again := newOrder(e.activity, e.item, fmt.Sprintf("second-%d", i))
		e.reserve(o, again)
		e.publish(o, again)
		e.done(time.Minute)
		e.settled(10 - 2*int64(i+1))
	}
	for _, err := range tap.wrong() {
		t.Error(err)
	}
}

// binlogTap plays the syncer: it applies what MySQL holds now before or after the worker's own settlement.
type binlogTap struct {
	*ledger.Ledger
	live *live

	mu   sync.Mutex
	when string
	errs []error
}

func (b *binlogTap) set(when string) { b.mu.Lock(); b.when = when; b.mu.Unlock() }

func (b *binlogTap) wrong() []error { b.mu.Lock(); defer b.mu.Unlock(); return b.errs }

func (b *binlogTap) Settle(ctx context.Context, s ledger.Settlement) (ledger.Settled, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.when == "before" || b.when == "both" {
		b.apply(ctx, s)
	}
	got, err := b.Ledger.Settle(ctx, s)
	b.check(ctx)
	if b.when == "after" || b.when == "both" {
		b.apply(ctx, s)
	}
	return got, err
}

func (b *binlogTap) apply(ctx context.Context, s ledger.Settlement) {
	stock, version, _, err := b.live.store.Inventory(ctx, b.live.item)
	if err == nil {
		s.Source, s.Stock, s.Version = ledger.FromBinlog, stock, version
		_, err = b.Ledger.Settle(ctx, s)
	}
	if err != nil {
		b.errs = append(b.errs, err)
	}
	b.check(ctx)
}

// check is I5.
func (b *binlogTap) check(ctx context.Context) {
	stock, _, _, err := b.live.store.Inventory(ctx, b.live.item)
	if err != nil {
		b.errs = append(b.errs, err)
		return
	}
	got, err := b.Inspect(ctx, b.live.activity)
	if err != nil {
		b.errs = append(b.errs, err)
	} else if got[0].Pending < 0 || got[0].Available > stock {
		b.errs = append(b.errs, fmt.Errorf("available %d, pending %d while mysql has %d", got[0].Available, got[0].Pending, stock))
	}
}
