package landing

import (
	"context"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/syncer/compare"
	"github.com/seckillgate/seckillgate/internal/syncer/lost"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// syncer is the part of the syncer that publishes again what waits in the ledger.
type syncer struct {
	*compare.Comparer
	e *live
}

func (e *live) syncer() *syncer {
	e.t.Helper()
	p, err := kafka.NewProducer(e.kafka, kafka.ProducerOptions{}, e.log)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = p.Close() })
	rdb, err := redisconn.New(redisconn.Config{Addrs: []string{e.redis.Addr}})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = rdb.Close() })
	return &syncer{&compare.Comparer{
		Ledger: e.ledger, Store: e.store, Records: e.admin, Publisher: p, Lost: lost.NewAlarm(rdb), Topic: e.kafka.Topics.Orders,
		Group: e.kafka.Group, Timings: ledger.Timings{ReserveDeadlineMs: 100, PublishBudgetMs: 200, HorizonMs: 400}, Log: e.log,
	}, e}
}

// sweep is one comparison.
func (s *syncer) sweep() {
	s.e.t.Helper()
	a, err := s.e.store.Activity(context.Background(), s.e.activity)
	if err != nil {
		s.e.t.Fatal(err)
	}
	if _, err := s.Run(context.Background(), []ledger.Activity{a}, compare.Options{}); err != nil {
		s.e.t.Fatal(err)
	}
}

func (e *live) status(o *order.Order) order.Status {
	e.t.Helper()
	rows, err := e.store.Orders(context.Background(), []string{o.ID})
	if err != nil {
		e.t.Fatal(err)
	}
	return rows[o.ID].Status
}

func (e *live) tries(o *order.Order) int64 {
	e.t.Helper()
	entries, _, err := e.ledger.ScanLedger(context.Background(), e.activity, 0, 100)
	if err != nil {
		e.t.Fatal(err)
	}
	for _, x := range entries {
		if x.Order == o.ID {
			return x.Tries
		}
	}
	return -1
}

// TestShortOfStockIsTriedAgain: an order that was reserved and for which MySQL has too little waits in the ledger, with its buyer's place, and
// lands once the shop restocks; another one fails after the last try, and its units are free again.
func TestShortOfStockIsTriedAgain(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(4)
	orders := e.orders(3, func(i int) int64 { return []int64{2, 1, 1}[i] })
	waits, fits, fails := orders[0], orders[1], orders[2]
	e.reserve(orders...)
	if _, err := e.store.DB().Exec("UPDATE inventory SET stock = 1 WHERE item_id = ?", e.item); err != nil { // an ERP's correction
		t.Fatal(err)
	}
	for _, o := range orders {
		e.publish(o) // one after the other, so that they are in this order
	}
	e.worker(Config{StockTries: 4}, nil, nil)
	s := e.syncer()
	testenv.Eventually(t, 60*time.Second, "both are left open, the one that fits lands", func() bool {
		return e.status(fits) == order.Confirmed && e.tries(waits) == 1 && e.tries(fails) == 1
	})
	if v, err := e.ledger.Lookup(t.Context(), e.activity, waits.ID); err != nil || v.Status != order.Queued && v.Status != order.Processing {
		t.Errorf("its buyer sees %+v, %v", v, err)
	}
	testenv.Eventually(t, 60*time.Second, "they are tried a second time", func() bool {
		s.sweep()
		return e.tries(waits) == 2 && e.tries(fails) == 2
	})
	if _, err := e.store.DB().Exec("UPDATE inventory SET stock = 2 WHERE item_id = ?", e.item); err != nil { // the shop restocks
		t.Fatal(err)
	}
	testenv.Eventually(t, 60*time.Second, "the first lands, the last one fails at its last try", func() bool {
		s.sweep()
		return e.status(waits) != "" && e.status(fails) != ""
	})
	// Which of the two got the units depends on how the sweep met them; each has exactly one end, and no unit leaks.
	if a, b := e.status(waits), e.status(fails); (a == order.Confirmed) == (b == order.Confirmed) {
		t.Errorf("%s and %s of two units for which 2 and 1 were asked", a, b)
	}
	testenv.Eventually(t, 30*time.Second, "nothing is pending", func() bool {
		look, err := e.ledger.Inspect(context.Background(), e.activity)
		return err == nil && look[0].Pending == 0 && look[0].LedgerLen == 0
	})
}

// TestShortOfStockWithoutReservation: what the ledger does not have nobody would publish again, so it is decided at once, however many tries
// there may be; and by default everything is.
func TestShortOfStockWithoutReservation(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(1)
	stray := newOrder(e.activity, e.item, "stray")
	stray.Quantity = 5
	e.publish(stray)
	e.worker(Config{StockTries: 100}, nil, nil)
	testenv.Eventually(t, 60*time.Second, "it fails", func() bool { return e.status(stray) == order.Failed })
}

// TestShortOfStockIsToldToRedis: whoever meets it tells the edge what MySQL has, so that no more are accepted for want of a binlog.
func TestShortOfStockIsToldToRedis(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(10)
	o := newOrder(e.activity, e.item, "waits")
	o.Quantity = 5
	e.reserve(o)
	if _, err := e.store.DB().Exec("UPDATE inventory SET stock = 1 WHERE item_id = ?", e.item); err != nil { // an ERP's correction
		t.Fatal(err)
	}
	e.publish(o)
	e.worker(Config{StockTries: 4}, nil, nil)
	testenv.Eventually(t, 60*time.Second, "it is left open", func() bool { return e.tries(o) == 1 })
	look, err := e.ledger.Inspect(t.Context(), e.activity)
	if err != nil {
		t.Fatal(err)
	}
	if look[0].Stock != 1 || look[0].Pending != 5 {
		t.Errorf("redis has stock %d and pending %d, want what mysql has, 1, and the 5 that wait", look[0].Stock, look[0].Pending)
	}
}

// TestE104TriesLeftWithoutARow: while nobody knows how much there is to sell, an order with tries left waits in the ledger and one that has
// landed stays landed, also where orders that are set aside share their batch: one at its last try, and one that nobody would try again.
func TestE104TriesLeftWithoutARow(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(10)
	orders := e.orders(5, one)
	landed, last, waits, stray, dup := orders[0], orders[1], orders[2], orders[3], orders[4]
	last.Attempt = 2
	dup.User = landed.User
	e.reserve(landed, last, waits)
	l := NewLander(Config{StockTries: 3, MissingWait: -1, RetryMin: time.Millisecond}, e.store, e.ledger, NewTopicDeadLetters(e.producer, e.kafka),
		new(fakeResults), e.health, NewMetrics(nil), e.log)
	offset := int64(0)
	land := func(batch ...*order.Order) Tally {
		t.Helper()
		var records []Record
		for _, o := range batch {
			value, err := o.Encode()
			if err != nil {
				t.Fatal(err)
			}
			records = append(records, Record{Topic: e.kafka.Topics.Orders, Offset: offset, Value: value})
			offset++
		}
		got, err := l.Land(t.Context(), records)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	land(landed)
	if _, err := e.store.DB().Exec("DELETE FROM inventory WHERE item_id = ?", e.item); err != nil {
		t.Fatal(err)
	}
	if got := land(landed, last, waits, stray, dup, last); got.Landed != 1 || got.Failed != 1 || got.Left != 1 || got.Refused != 3 || got.Redone != 0 {
		t.Errorf("tally %+v: want the landed one landed, the buyer's second one failed, one left and the other three records refused", got)
	}
	if e.status(waits) != "" || e.tries(waits) != 1 {
		t.Errorf("the order with tries left is %q after %d tries, want it open after one", e.status(waits), e.tries(waits))
	}
	for _, o := range []*order.Order{last, stray, dup} {
		if e.status(o) != order.Failed {
			t.Errorf("%s of %s is %q, want it failed", o.ID, o.User, e.status(o))
		}
	}
	if letters := e.letters(); len(letters) != 3 {
		t.Errorf("%d dead letters, want the three of the two orders that cannot wait", len(letters))
	}
	if _, err := e.store.DB().Exec("INSERT INTO inventory (item_id, stock, version) VALUES (?, 9, 1000)", e.item); err != nil {
		t.Fatal(err)
	}
	waits.Attempt = 1 // as the sweep publishes it
	if got := land(waits); got.Landed != 1 {
		t.Errorf("tally %+v, want it landed once there is a stock", got)
	}
	e.settled(8)
}
