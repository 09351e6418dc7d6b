package invariant

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/testenv"
	"github.com/seckillgate/seckillgate/internal/told"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.KnownLeaks()...) }

// sale is a whole sale on real servers, whose steps the test takes itself in place of gateway, worker and syncer.
type sale struct {
	*testing.T
	src      Sources
	rdb      redis.UniversalClient
	kafka    kafka.Config
	producer *kafka.Producer
	activity ledger.Activity
	told     []told.Record
}

func newSale(t *testing.T, stock int64) *sale {
	t.Helper()
	s := &sale{T: t, activity: ledger.Activity{
		ID: testenv.ID(), Item: testenv.ID(), StartsAtMs: 1, EndsAtMs: time.Now().Add(time.Hour).UnixMilli(), MaxPerUser: 5,
		State: ledger.Open,
	}}
	var err error
	s.rdb, err = redisconn.New(redisconn.Config{Addrs: []string{testenv.RedisAddr(t)}})
	s.must(err)
	t.Cleanup(func() { _ = s.rdb.Close() })
	s.src.Ledger = ledger.New(s.rdb, ledger.Options{})
	s.src.Store, err = store.Open(t.Context(), store.Config{DSN: testenv.MySQL(t)})
	s.must(err)
	t.Cleanup(func() { _ = s.src.Store.Close() })
	s.must(s.src.Store.Migrate(t.Context(), store.MigrateOptions{}))
	s.src.Topic = testenv.Topic(t, "invariant", 2)
	s.src.Group = s.src.Topic
	s.kafka = kafka.Config{Brokers: testenv.Brokers(t), Topics: kafka.Topics{Orders: s.src.Topic}, Group: s.src.Group}
	s.kafka.SetDefaults()
	s.src.Kafka, err = kafka.NewAdmin(s.kafka, zap.NewNop())
	s.must(err)
	t.Cleanup(func() { _ = s.src.Kafka.Close() })
	s.producer, err = kafka.NewProducer(s.kafka, kafka.ProducerOptions{}, zap.NewNop())
	s.must(err)
	t.Cleanup(func() { _ = s.producer.Close() })

	s.must(s.src.Store.CreateActivity(t.Context(), s.activity, &stock))
	load, err := s.src.Ledger.LoadBegin(t.Context(), s.activity)
	s.must(err)
	have, version, _, err := s.src.Store.Inventory(t.Context(), s.activity.Item)
	s.must(err)
	_, err = s.src.Ledger.LoadFinish(t.Context(), s.activity.ID, load.Epoch, version, have, ledger.Open)
	s.must(err)
	return s
}

func (s *sale) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// buy reserves and publishes, as the gateway does.
func (s *sale) buy(user string) *order.Order {
	s.Helper()
	id, err := order.NewID()
	s.must(err)
	notAfter, err := s.src.Ledger.NotAfter(s.Context(), time.Minute)
	s.must(err)
	r := ledger.Reservation{Order: id, Nonce: id, User: user, Quantity: 1, NotAfterMs: notAfter}
	d, err := s.src.Ledger.Reserve(s.Context(), s.activity.ID, []ledger.Reservation{r})
	s.must(err)
	if d[0].Code != ledger.Reserved {
		s.told = append(s.told, told.Record{User: user, HTTP: 409, Answer: "sold_out"})
		return nil
	}
	o := &order.Order{
		V: 1, ID: id, Activity: s.activity.ID, User: user, Item: s.activity.Item, Quantity: 1, CreatedAtMs: d[0].ReservedAtMs,
	}
	_, err = s.producer.Publish(s.Context(), o, nil)
	s.must(err)
	s.told = append(s.told, told.Record{User: user, HTTP: 202, Answer: "queued", OrderID: id})
	return o
}

// land does the worker's work, and marks as landed all that is published.
func (s *sale) land(orders ...*order.Order) {
	s.Helper()
	l, err := s.src.Store.Land(s.Context(), s.activity.Item, orders)
	s.must(err)
	_, err = s.src.Ledger.Settle(s.Context(), ledger.Settlement{
		Activity: s.activity.ID, Version: l.Version, Stock: l.Stock, Orders: l.Outcomes,
	})
	s.must(err)
	s.commit()
}

// commit marks everything that is published as landed.
func (s *sale) commit() {
	s.Helper()
	marks, err := s.src.Kafka.HighWater(s.Context(), s.src.Topic)
	s.must(err)
	cfg, err := s.kafka.Sarama()
	s.must(err)
	client, err := sarama.NewClient(s.kafka.Brokers, cfg)
	s.must(err)
	defer client.Close()
	offsets, err := sarama.NewOffsetManagerFromClient(s.src.Group, client)
	s.must(err)
	defer offsets.Close()
	for p, mark := range marks {
		po, err := offsets.ManagePartition(s.src.Topic, p)
		s.must(err)
		po.MarkOffset(mark, "")
		s.must(po.Close())
	}
	offsets.Commit()
}

func (s *sale) exec(query string, args ...any) {
	s.Helper()
	_, err := s.src.Store.DB().ExecContext(s.Context(), query, args...)
	s.must(err)
}

func (s *sale) check(within time.Duration) *Report {
	s.Helper()
	r, err := Check(s.Context(), s.src, s.activity.ID, s.told, Options{Units: 3, ToldRecords: true}, within)
	s.must(err)
	return r
}

// sold plays a sale of 3 units to 4 buyers.
func sold(t *testing.T) (*sale, []*order.Order) {
	s := newSale(t, 3)
	var orders []*order.Order
	for _, user := range []string{"a", "b", "c", "d"} {
		if o := s.buy(user); o != nil {
			orders = append(orders, o)
		}
	}
	if len(orders) != 3 {
		t.Fatalf("%d orders, want 3", len(orders))
	}
	s.land(orders...)
	return s, orders
}

func TestCheckOnRealServers(t *testing.T) {
	s, _ := sold(t)
	r := s.check(5 * time.Second)
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	if r.Totals.SoldUnits != 3 || r.Totals.Left != 0 || r.Totals.Lost != 0 {
		t.Errorf("totals %+v", r.Totals)
	}
}

// TestCheckWaitsForQuiet starts while an order is still on its way.
func TestCheckWaitsForQuiet(t *testing.T) {
	s := newSale(t, 3)
	o := s.buy("a")
	r := s.check(0)
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "I2") {
		t.Fatalf("no time to wait, and one unit reserved: %v", err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer close(done)
		select {
		case <-time.After(300 * time.Millisecond): // the worker's delay
			s.land(o)
		case <-ctx.Done():
		}
	}()
	if err := s.check(20 * time.Second).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestCheckNamesWhatBroke(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(s *sale, orders []*order.Order)
		words []string
	}{
		"stock in redis lowered": {func(s *sale, _ []*order.Order) {
			s.must(s.rdb.Set(s.Context(), ledger.KeysOf(s.activity.ID).Stock, -1, 0).Err())
		}, []string{"I2"}},
		"an order row removed": {func(s *sale, orders []*order.Order) {
			s.exec("DELETE FROM orders WHERE order_id = ?", orders[1].ID)
		}, []string{"I4", orderWord}},
		"a unit leaked": {func(s *sale, _ []*order.Order) {
			s.must(s.rdb.Incr(s.Context(), ledger.KeysOf(s.activity.ID).Pending).Err())
		}, []string{"I2"}},
		"stock in mysql raised": {func(s *sale, _ []*order.Order) {
			s.exec("UPDATE inventory SET stock = stock + 1 WHERE item_id = ?", s.activity.Item)
		}, []string{"I1", "+1 in mysql", "I2"}},
		"a buyer forgotten": {func(s *sale, _ []*order.Order) {
			s.must(s.rdb.HDel(s.Context(), ledger.KeysOf(s.activity.ID).Buyers, "b").Err())
		}, []string{"I3", `"b"`}},
		"redis flushed": {func(s *sale, _ []*order.Order) {
			k := ledger.KeysOf(s.activity.ID)
			s.must(s.rdb.Del(s.Context(), k.Stock, k.Pending, k.Buyers, k.Activity, k.Version).Err())
		}, []string{"I2", "not loaded"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, orders := sold(t)
			c.spoil(s, orders)
			r := s.check(200 * time.Millisecond)
			err := r.Err()
			if err == nil {
				t.Fatalf("the check holds: %+v", r)
			}
			for _, w := range c.words {
				if w == orderWord {
					w = orders[1].ID
				}
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
		})
	}
}

const orderWord = "the id of the second order"

// Records that Kafka has removed, and that no commit tells of, are not waited for.
func TestRemovedRecordsAreNotBehind(t *testing.T) {
	t.Parallel()
	s := newSale(t, 3)
	s.buy("a")
	marks, err := s.src.Kafka.HighWater(t.Context(), s.src.Topic)
	s.must(err)
	g := &gatherer{src: s.src, activity: s.activity.ID, marks: marks}
	if n, err := g.behind(t.Context()); n != 1 || err != nil {
		t.Fatalf("%d behind (%v), want 1", n, err)
	}
	cfg, err := s.kafka.Sarama()
	s.must(err)
	cfg.Metadata.Full = true
	admin, err := sarama.NewClusterAdmin(s.kafka.Brokers, cfg)
	s.must(err)
	defer admin.Close()
	s.must(admin.DeleteRecords(s.src.Topic, marks))
	if n, err := g.behind(t.Context()); n != 0 || err != nil {
		t.Fatalf("%d behind (%v), want 0", n, err)
	}
}
