package landing

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// land brings records to their end by a Lander of its own, with no Kafka in between.
func (e *live) land(l *Lander, orders ...*order.Order) {
	e.t.Helper()
	records := make([]Record, len(orders))
	for i, o := range orders {
		value, err := o.Encode()
		if err != nil {
			e.t.Fatal(err)
		}
		records[i] = Record{Topic: "orders", Offset: int64(i), Time: time.Now(), Value: value}
	}
	if _, err := l.Land(e.t.Context(), records); err != nil {
		e.t.Fatal(err)
	}
}

// holder is the live order of a user as Redis has it.
func (e *live) holder(user string) string {
	e.t.Helper()
	v, err := e.ledger.Mine(e.t.Context(), e.activity, user)
	if err != nil {
		e.t.Fatal(err)
	}
	return v.Order
}

// TestE29AnyOrderOfDelivery: an order that was cancelled and the one that its buyer made after it, delivered in every order and again
// and again, end the same: the later one is the buyer's, in MySQL and in Redis, and one unit is sold.
func TestE29AnyOrderOfDelivery(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(100)
	l := e.lander()
	for n := range 10 {
		user := fmt.Sprint("buyer-", n)
		first, second := newOrder(e.activity, e.item, user), newOrder(e.activity, e.item, user)
		e.reserve(first)
		e.land(l, first)
		if _, err := e.store.DB().ExecContext(t.Context(), "UPDATE orders SET status = 'CANCELLED' WHERE order_id = ?", first.ID); err != nil {
			t.Fatal(err)
		}
		e.land(l, first) // the next delivery tells Redis; in a whole deployment the binlog has done so before
		e.reserve(second)
		deliveries := []*order.Order{first, second, first, second, first}
		rand.Shuffle(len(deliveries), func(i, j int) { deliveries[i], deliveries[j] = deliveries[j], deliveries[i] })
		for len(deliveries) > 0 {
			k := 1 + rand.IntN(len(deliveries))
			e.land(l, deliveries[:k]...)
			deliveries = deliveries[k:]
		}
		rows, err := e.store.Orders(t.Context(), []string{first.ID, second.ID})
		if err != nil || rows[first.ID].Status != order.Cancelled || rows[second.ID].Status != order.Confirmed {
			t.Fatalf("rows %+v, %v", rows, err)
		}
		if got := e.holder(user); got != second.ID {
			t.Fatalf("redis says that %s holds %s, want the second order %s", user, got, second.ID)
		}
		e.settled(100 - int64(n) - 1)
	}
}

// TestE35StallBeyondTheRebalanceTimeout: MySQL hangs for longer than a rebalance may take. The group does not go from one rebalance
// into the next, nothing is marked, and nothing is lost.
func TestE35StallBeyondTheRebalanceTimeout(t *testing.T) {
	t.Parallel()
	e := onServers(t, 2).sale(1000)
	orders := e.orders(300, one)
	e.reserve(orders...)
	e.publish(orders...)
	lock, err := e.store.LockInventory(t.Context(), e.item, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Release() }()
	workers := []*worker{e.worker(Config{}, nil, nil), e.worker(Config{}, nil, nil)}
	testenv.Eventually(t, time.Minute, "both have a session, and one of them waits for the lock", func() bool {
		return workers[0].since.Load() == 0 && workers[1].since.Load() == 0 &&
			(workers[0].health.red(stepMySQL) != nil || workers[1].health.red(stepMySQL) != nil)
	})
	begun := func() (n float64) {
		for _, w := range workers {
			n += value(t, w.metrics.sessions)
		}
		return n
	}
	before, since := begun(), time.Now()
	cfg, err := workers[0].saramaConfig()
	if err != nil {
		t.Fatal(err)
	}
	stall := cfg.Consumer.Group.Rebalance.Timeout + time.Second
	testenv.Eventually(t, time.Minute, "the rebalance timeout has passed", func() bool { return time.Since(since) > stall })
	if n := begun() - before; n != 0 {
		t.Errorf("%v sessions were begun anew while MySQL hung, want none", n)
	}
	for part := range int32(2) {
		if n := e.committed(part); n != 0 {
			t.Errorf("partition %d: committed offset %d, want none", part, n)
		}
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	e.done(time.Minute)
	if got := e.rows(); got["CONFIRMED"] != 300 {
		t.Errorf("rows %v, want 300 confirmed", got)
	}
	e.settled(700)
}

// TestE43BrokersMoveBehindTheirNames: every broker is found at another address than before, under the name that the worker has.
func TestE43BrokersMoveBehindTheirNames(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(100)
	broker := testenv.StartKafka(t, 1)[0]
	name := faultproxy.NewKafka(t, broker.Addr)
	e.kafka.Brokers = []string{broker.Addr}
	e.kafka.Topics = kafka.Topics{Orders: "orders", DeadLetters: "dlq", Results: "results"}
	e.connect()
	if _, err := e.admin.EnsureTopics(t.Context(), kafka.TopicOptions{Create: true, Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	through := *e
	through.kafka.Brokers = []string{name.Addr()}
	w := through.worker(Config{}, nil, nil)
	orders := e.orders(20, one)
	e.reserve(orders...)
	e.publish(orders[:10]...)
	e.done(time.Minute)

	broker.Move()
	name.Redirect(broker.Addr)
	e.kafka.Brokers = []string{broker.Addr}
	e.connect()
	e.publish(orders[10:]...)
	e.done(time.Minute)
	if err := w.health.red(stepGroup); err != nil {
		t.Errorf("health is still red: %v", err)
	}
	e.settled(80)
}

// TestE63LostCommitReplies: every fourth COMMIT or so is executed and its answer lost, or lost on its way; each order lands once.
func TestE63LostCommitReplies(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(1000)
	d, err := mysql.ParseDSN(e.store.Config().DSN)
	if err != nil {
		t.Fatal(err)
	}
	p := faultproxy.New(t, d.Addr)
	d.Addr = p.Addr()
	s, err := store.Open(t.Context(), store.Config{DSN: d.FormatDSN(), LockWait: time.Second, StatementTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	n := 0
	every := func(nth int) func([]byte) bool {
		return func(request []byte) bool {
			if !bytes.HasSuffix(request, []byte("\x03COMMIT")) {
				return false
			}
			n++
			return n%4 == nth
		}
	}
	lost, never := p.CloseAfter(every(1), 3), p.CloseBefore(every(3), 3)
	orders := e.orders(200, one)
	e.reserve(orders...)
	e.publish(orders...)
	w := e.worker(Config{MaxOrders: 10}, s, nil)
	e.done(time.Minute)
	w.Stop()
	if lost.Fired() == 0 || never.Fired() == 0 {
		t.Errorf("%d answers and %d requests were lost: the test tried nothing", lost.Fired(), never.Fired())
	}
	if got := e.rows(); got["CONFIRMED"] != 200 || len(got) != 1 {
		t.Errorf("rows %v, want 200 confirmed", got)
	}
	e.settled(800)
	if letters := e.letters(); len(letters) != 0 {
		t.Errorf("dead letters %+v", letters)
	}
}

// TestE85TwoOrdersOfOneBuyer: Redis forgot the first reservation while it was still in the queue, and the buyer bought again. Both
// reach the worker: one lands, the other is failed and its units are free.
func TestE85TwoOrdersOfOneBuyer(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(10)
	first, second := newOrder(e.activity, e.item, "buyer"), newOrder(e.activity, e.item, "buyer")
	e.reserve(first)
	e.publish(first)
	e.redis.Kill()
	e.redis.Restart()
	e.load(e.activity)
	e.reserve(second)
	e.publish(second)
	e.worker(Config{}, nil, nil)
	e.done(time.Minute)
	rows, err := e.store.Orders(t.Context(), []string{first.ID, second.ID})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := rows[first.ID], rows[second.ID]; a.Status != order.Confirmed || b.Status != order.Failed || b.Reason != order.ReasonDuplicate {
		t.Errorf("first %+v, second %+v: want the first confirmed and the second failed for it", a, b)
	}
	e.settled(9)
}

// TestE89FailingMessageAgainAndAgain: a message that can never land comes three times, and the gateway takes its reservation back as
// well: the units come back once, and nothing goes below zero.
func TestE89FailingMessageAgainAndAgain(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(10)
	bad, other := newOrder(e.activity, e.item, "unlucky"), newOrder(e.activity, e.item, "other")
	e.reserve(bad, other)
	value, err := bad.Encode()
	if err != nil {
		t.Fatal(err)
	}
	value = bytes.Replace(value, []byte(`"quantity":1`), []byte(`"quantity":-1`), 1)
	for range 3 {
		e.raw(value)
	}
	e.worker(Config{}, nil, nil)
	e.done(time.Minute)
	if _, err := e.ledger.Release(t.Context(), e.activity, ledger.Reservation{
		Order: bad.ID, Nonce: bad.ID[24:], User: bad.User, Quantity: 1, NotAfterMs: time.Now().Add(time.Minute).UnixMilli(),
	}, time.Minute); err != nil {
		t.Fatal(err)
	}
	got, err := e.ledger.Inspect(t.Context(), e.activity)
	if err != nil || got[0].Pending != 1 || got[0].Available != 9 || got[0].LedgerLen != 1 || got[0].Problem != "" {
		t.Errorf("redis has %+v, %v: want only the other order pending", got[0], err)
	}
	e.publish(other)
	e.done(time.Minute)
	e.settled(9)
}

// TestSettleRefusedByRedis: Redis is there and says no. Nothing is marked, health is red, and what MySQL decided is told as soon as
// Redis takes it. A Redis that is merely full takes it at once: a settlement frees more than it needs.
func TestSettleRefusedByRedis(t *testing.T) {
	for name, c := range map[string]struct{ refuse, take []any }{
		"out of memory": {refuse: []any{"CONFIG", "SET", "maxmemory", "1"}},
		"a replica":     {[]any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"}},
		"no scripts":    {[]any{"ACL", "SETUSER", "default", "-@scripting"}, []any{"ACL", "SETUSER", "default", "+@all"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := onServers(t, 1).sale(100)
			orders := e.orders(5, one)
			e.reserve(orders...)
			rdb := redis.NewClient(&redis.Options{Addr: e.redis.Addr})
			defer rdb.Close()
			if err := rdb.Do(t.Context(), c.refuse...).Err(); err != nil {
				t.Fatal(err)
			}
			e.publish(orders...)
			w := e.worker(Config{RetryMax: 200 * time.Millisecond}, nil, nil)
			e.landsWithin(time.Minute, 5)
			if c.take != nil {
				testenv.Eventually(t, time.Minute, "health is red for Redis", func() bool { return w.health.red(stepRedis) != nil })
				if n := e.committed(0); n != 0 {
					t.Errorf("committed offset %d, want none before Redis has heard", n)
				}
				if err := rdb.Do(t.Context(), c.take...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			e.done(time.Minute)
			if err := w.health.red(stepRedis); err != nil {
				t.Errorf("health is still red: %v", err)
			}
			// A promoted replica has an id of its own, and a sale on it is closed until it is loaded; its figures are right.
			m, _, _, err := e.store.Inventory(t.Context(), e.item)
			if err != nil {
				t.Fatal(err)
			}
			got, err := e.ledger.Inspect(t.Context(), e.activity)
			if err != nil || m != 95 || got[0].Stock != 95 || got[0].Pending != 0 || got[0].LedgerLen != 0 {
				t.Errorf("mysql %d, redis %+v, %v: want 95 and nothing pending", m, got[0], err)
			}
		})
	}
}

// TestE05ScriptsForgottenWhileSettling: Redis forgets its scripts between any two settlements.
func TestE05ScriptsForgottenWhileSettling(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(1000)
	orders := e.orders(300, one)
	e.reserve(orders...)
	e.publish(orders...)
	rdb := redis.NewClient(&redis.Options{Addr: e.redis.Addr})
	defer rdb.Close()
	f := &forgetful{Ledger: e.ledger, rdb: rdb}
	e.worker(Config{MaxOrders: 20}, nil, f)
	e.done(time.Minute)
	if f.n < 10 {
		t.Errorf("%d settlements: the test tried little", f.n)
	}
	e.settled(700)
}

// forgetful flushes Redis's scripts before each settlement.
type forgetful struct {
	*ledger.Ledger
	rdb *redis.Client
	n   int
}

func (f *forgetful) Settle(ctx context.Context, s ledger.Settlement) (ledger.Settled, error) {
	f.n++
	if err := f.rdb.ScriptFlush(ctx).Err(); err != nil && !strings.Contains(err.Error(), "context") {
		return ledger.Settled{}, err
	}
	return f.Ledger.Settle(ctx, s)
}

// TestE42StockOfNull: the shop's inventory says NULL for one item. Its orders are waited for, with health red and the statement that mends
// it, and land once it is mended; where nobody mends it they are set aside, and the other items of the partition land.
func TestE42StockOfNull(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(100)
	exec := func(text string, args ...any) {
		t.Helper()
		if _, err := e.store.DB().ExecContext(t.Context(), text, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec("ALTER TABLE inventory MODIFY stock BIGINT NULL")
	other := *e
	other.activity, other.item = testenv.ID(), testenv.ID()
	other.sale(100)
	red := func(w *worker) {
		t.Helper()
		remedy := fmt.Sprintf("(UPDATE inventory SET stock = … WHERE item_id = %d)", e.item)
		testenv.Eventually(t, time.Minute, "health is red with the statement that mends it", func() bool {
			err := w.health.red(stepRows)
			return err != nil && strings.Contains(err.Error(), remedy)
		})
	}

	t.Log("mended in time")
	mended, after := e.orders(5, one), other.orders(5, one)
	e.reserve(mended...)
	other.reserve(after...)
	exec("UPDATE inventory SET stock = NULL WHERE item_id = ?", e.item)
	e.publish(mended...)
	e.publish(after...)
	w := e.worker(Config{MissingWait: time.Hour, RetryMax: 200 * time.Millisecond}, nil, nil)
	red(w)
	exec("UPDATE inventory SET stock = 100 WHERE item_id = ?", e.item)
	e.done(time.Minute)
	if err := w.health.red(stepRows); err != nil || len(e.letters()) != 0 {
		t.Errorf("health %v and dead letters %+v once it is mended", err, e.letters())
	}
	w.Stop()
	e.settled(95)
	other.settled(95)

	t.Log("not mended")
	lost, behind := newOrder(e.activity, e.item, "unlucky"), newOrder(other.activity, other.item, "behind")
	e.reserve(lost)
	other.reserve(behind)
	exec("UPDATE inventory SET stock = NULL WHERE item_id = ?", e.item)
	e.publish(mended[0]) // comes again, and has a row
	e.publish(lost)
	e.publish(behind)
	w = e.worker(Config{MissingWait: 6 * time.Second, RetryMax: 200 * time.Millisecond}, nil, nil)
	red(w)
	e.done(time.Minute)
	other.settled(94)
	letters := e.letters()
	if len(letters) == 0 || !strings.Contains(letters[len(letters)-1].Why, "UPDATE inventory SET stock") {
		t.Errorf("dead letters %+v, want the order of the item without a stock, and why", letters)
	}
	if e.status(lost) != order.Failed || e.status(mended[0]) != order.Confirmed {
		t.Errorf("the order is %s, and the one from before is %s; want failed and confirmed", e.status(lost), e.status(mended[0]))
	}
	e.reserve(newOrder(e.activity, e.item, lost.User)) // I6: that buyer may try again
}
