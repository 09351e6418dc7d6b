package compare_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/syncer/compare"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// run compares one activity without a syncer.
func run(b *synctest.Bench, a ledger.Activity, dry bool) compare.Activity {
	b.Helper()
	r, err := b.Comparer.Run(b.Context(), []ledger.Activity{a}, compare.Options{DryRun: dry})
	if err != nil {
		b.Fatal(err)
	}
	one := r.Activities[0]
	if one.Error != "" {
		b.Fatalf("compare: %s", one.Error)
	}
	one.Alarms = append(one.Alarms, r.Alarms...)
	return one
}

func kinds(a compare.Activity) string {
	var out []string
	for _, r := range a.Repairs {
		out = append(out, string(r.Kind))
	}
	return strings.Join(out, " ")
}

func sale(t *testing.T, stock int64, options ...synctest.Option) (*synctest.Bench, ledger.Activity) {
	t.Helper()
	t.Parallel()
	b := synctest.New(t, options...)
	a := b.Activity(stock)
	b.Load(a)
	return b, a
}

func TestEqualSidesNeedNothing(t *testing.T) {
	b, a := sale(t, 10)
	b.Buy(a, "u1", 1)
	b.Land(true)
	b.MustReserve(a, "u2", 2)
	if r := run(b, a, false); len(r.Repairs) != 0 || r.Drift || len(r.Alarms) != 0 {
		t.Fatalf("%+v", r)
	}
}

func TestRedisBehindIsSettled(t *testing.T) {
	b, a := sale(t, 10)
	b.Restock(a, 5)
	if r := run(b, a, true); kinds(r) != "behind" || r.Drift {
		t.Fatalf("dry run: %+v", r)
	}
	if s := b.Look(a); s.Stock != 10 {
		t.Fatalf("a dry run changed the stock to %d", s.Stock)
	}
	run(b, a, false)
	b.Equal(a)
}

// E45: the activity's row was given another item in the middle of the sale. What is sold is the former one: the other's stock and
// version are nothing to it, whoever brings them, and no sign that MySQL lost commits.
func TestE45ItemOfAnActivityChanged(t *testing.T) {
	b, a := sale(t, 10)
	b.Buy(a, "u1", 2)
	b.Land(true)
	other := b.Activity(5000) // its row is the younger one
	moved := a
	moved.Item = other.Item
	b.Restock(a, 5) // and what is sold is compared as ever
	r := run(b, moved, false)
	if !r.Drift || kinds(r) != "behind" || len(r.Alarms) != 1 || !strings.Contains(r.Alarms[0], "item was changed") {
		t.Errorf("alarms %q, repairs %q; want one alarm about the item, and the restock", r.Alarms, kinds(r))
	}
	stock, version, _, err := b.Store.Inventory(t.Context(), other.Item)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Ledger.Settle(t.Context(), ledger.Settlement{Activity: a.ID, Item: other.Item, Version: version + 1_000_000, Stock: stock, Source: ledger.FromBinlog}); err != nil {
		t.Fatal(err)
	}
	b.Equal(a)
	if r := run(b, a, false); len(r.Alarms) != 0 || r.Drift {
		t.Errorf("set back: %+v", r)
	}
}

// A row that was changed without its version, as when the trigger is missing, is mended and told.
func TestEqualVersionOtherStock(t *testing.T) {
	b, a := sale(t, 10)
	dropTriggers(b)
	b.Restock(a, 5)
	r := run(b, a, false)
	if kinds(r) != "stock" || !r.Drift || !strings.Contains(r.Repairs[0].Why, "trigger") {
		t.Fatalf("%+v", r)
	}
	b.Equal(a)
	b.Restock(a, compare.DefaultRepairCap+1)
	if r := run(b, a, false); len(r.Repairs) != 0 || len(r.Alarms) == 0 || !strings.Contains(r.Alarms[0], "force") {
		t.Fatalf("above the cap: %+v", r)
	}
	if s := b.Look(a); s.Stock != 15 {
		t.Fatalf("stock %d was mended above the cap", s.Stock)
	}
}

// The sweep reads that an order is live; before it settles, the order is cancelled and the binlog says so. What its buyer
// is told must not go back.
func TestSettlingLateDoesNotTakeACancelBack(t *testing.T) {
	b, a := sale(t, 10)
	o := b.Buy(a, "u1", 2)
	b.Land(false)
	keys := ledger.KeysOf(a.ID)
	entry := b.Client().HGet(b.Context(), keys.Ledger, o.ID).Val()
	_, err := b.Ledger.Settle(b.Context(), ledger.Settlement{Activity: a.ID, Source: ledger.FromBinlog, Orders: []ledger.Outcome{{
		Order: o.ID, User: o.User, Item: o.Item, Quantity: o.Quantity, Status: order.Cancelled, Dead: true,
	}}})
	if err != nil {
		b.Fatal(err)
	}
	// As if the entry had been looked at before, and is settled only now.
	b.Client().HSet(b.Context(), keys.Ledger, o.ID, entry)
	b.Client().IncrBy(b.Context(), keys.Pending, o.Quantity)
	r, err := b.Comparer.Run(b.Context(), []ledger.Activity{a}, compare.Options{Young: true})
	if err != nil || !strings.Contains(kinds(r.Activities[0]), string(compare.Settled)) {
		b.Fatalf("%+v, %v", r, err)
	}
	if v, err := b.Ledger.Lookup(b.Context(), a.ID, o.ID); err != nil || v.Status != order.Cancelled {
		b.Fatalf("the buyer is told %s (%v), want CANCELLED", v.Status, err)
	}
	if s := b.Look(a); s.Pending != 0 || s.Stock != 8 {
		b.Fatalf("%+v", s)
	}
}

func dropTriggers(b *synctest.Bench) {
	rows, err := b.Store.DB().QueryContext(b.Context(), "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE()")
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var n string
		if err := rows.Scan(&n); err != nil {
			b.Fatal(err)
		}
		names = append(names, n)
	}
	for _, n := range names {
		b.Exec("DROP TRIGGER `" + n + "`")
	}
}

// E103: MySQL loses its last commits. Redis follows it, an alarm stands until the orders are landed again.
func TestE103MySQLLosesCommits(t *testing.T) {
	b, a := sale(t, 10)
	b.Buy(a, "kept", 1)
	b.Land(true)
	_, version, _, _ := b.Store.Inventory(t.Context(), a.Item)
	for i := range 5 {
		b.Buy(a, fmt.Sprintf("lost%d", i), 1)
	}
	b.Land(true)
	// The replica that is promoted is five orders behind.
	dropTriggers(b)
	b.Exec("DELETE FROM orders WHERE user_id LIKE 'lost%'")
	b.Exec("UPDATE inventory SET stock = 9, version = ? WHERE item_id = ?", version, a.Item)
	r := run(b, a, false)
	if !strings.HasPrefix(kinds(r), "ahead") || !r.Drift || !strings.Contains(strings.Join(r.Alarms, " "), "seckill-worker replay --since") {
		t.Fatalf("%+v", r)
	}
	b.Equal(a)
	full, err := b.Comparer.Run(t.Context(), []ledger.Activity{a}, compare.Options{})
	if err != nil || full.LostOrders != 5 || full.Err() == nil {
		t.Fatalf("the alarm does not stand: %+v, %v", full, err)
	}
	// Another process knows it too, and replaying what Kafka has ends it.
	other := b.OpenParts(b.Cfg)
	if r, err := other.Comparer.Run(t.Context(), []ledger.Activity{a}, compare.Options{}); err != nil || r.LostOrders != 5 {
		t.Fatalf("another process: %+v, %v", r, err)
	}
	b.Replay()
	full, err = b.Comparer.Run(t.Context(), []ledger.Activity{a}, compare.Options{})
	if err != nil || full.LostOrders != 0 || full.LostSince != 0 {
		t.Fatalf("after the replay: %+v, %v", full, err)
	}
	b.Equal(a)
	if s := b.Stock(a); s != 4 {
		t.Fatalf("stock %d after the replay, want 4", s)
	}
}

func TestBuyersBothWays(t *testing.T) {
	b, a := sale(t, 10)
	missing := b.Buy(a, "missing", 1)
	cancelled := b.Buy(a, "cancelled", 1)
	b.Land(true)
	b.Buy(a, "queued", 1)
	b.Exec("UPDATE orders SET status = 'CANCELLED' WHERE order_id = ?", cancelled.ID)
	keys := ledger.KeysOf(a.ID)
	b.Client().HDel(t.Context(), keys.Buyers, "missing")
	b.Client().HSet(t.Context(), keys.Buyers, "ghost", "01900000-0000-7000-8000-000000000000")
	r := run(b, a, false)
	for _, want := range []string{"buyer_freed", "buyer_added", "behind"} {
		if !strings.Contains(kinds(r), want) {
			t.Errorf("repairs %q: no %s", kinds(r), want)
		}
	}
	held, err := b.Ledger.BuyersOf(t.Context(), a.ID, []string{"missing", "cancelled", "ghost"})
	if err != nil || held[0] != missing.ID || held[1] != "" || held[2] != "" {
		t.Fatalf("buyers are %q (%v)", held, err)
	}
	if s := b.Look(a); s.Pending != 1 || s.LedgerLen != 1 || s.BuyersLen != 2 {
		t.Fatalf("the queued order was touched: %+v", s)
	}
}

// E92, E112: with the worker down, nothing is published again however old it is, and pending is not touched.
func TestE92E112BacklogIsNotALoss(t *testing.T) {
	b, a := sale(t, 100)
	for i := range 50 {
		b.Buy(a, fmt.Sprintf("u%d", i), 1)
	}
	old(t, b, a)
	for range 3 {
		r := run(b, a, false)
		if len(r.Repairs) != 0 || r.Waiting != 50 {
			t.Fatalf("repairs %q, %d waiting; want none and 50", kinds(r), r.Waiting)
		}
	}
	if s := b.Look(a); s.Pending != 50 || s.Available != 50 {
		t.Fatalf("pending %d, available %d; want 50 and 50", s.Pending, s.Available)
	}
	if n := b.Land(true); n < 50 || int64(n) > 50+b.Repeated.Load() {
		t.Fatalf("%d records in kafka, want 50 and at most %d of the test's own again", n, b.Repeated.Load())
	}
	b.Equal(a)
}

// E39, E112: the topic was made anew, or its log cut short by an unclean fail-over, and what the workers committed and told of the
// former one lies beyond its end. That is no proof that what waits in it has landed.
func TestE39E112BacklogOfALogMadeAnew(t *testing.T) {
	b, a := sale(t, 10)
	b.Commit(map[int32]int64{0: 1000, 1: 1000, 2: 1000})
	b.Buy(a, "u", 1)
	old(t, b, a)
	for range 2 {
		if r := run(b, a, false); len(r.Repairs) != 0 || r.Waiting != 1 {
			t.Fatalf("repairs %q, %d waiting; want none and the one", kinds(r), r.Waiting)
		}
	}
}

// Orders that wait for stock, while a load would not look for them in Kafka: said once, for they would be lost with Redis.
func TestWarnsWhereALoadWouldForget(t *testing.T) {
	for name, c := range map[string]struct {
		back time.Duration
		want int
	}{"load_back 0": {0, 1}, "load_back 1h": {time.Hour, 0}} {
		t.Run(name, func(t *testing.T) {
			b, a := sale(t, 10)
			core, logs := observer.New(zap.WarnLevel)
			b.Comparer.Log, b.Comparer.LoadBack = zap.New(core), c.back
			tries := map[string]int64{}
			for _, u := range []string{"u", "v"} {
				tries[b.MustReserve(a, u, 1).ID] = 1
			}
			if _, err := b.Ledger.Postpone(t.Context(), a.ID, tries); err != nil {
				t.Fatal(err)
			}
			old(t, b, a)
			testenv.Eventually(t, 10*time.Second, "they are published again", func() bool { return kinds(run(b, a, false)) == "republished republished" })
			if got := logs.FilterMessageSnippet("load_back").Len(); got != c.want {
				t.Errorf("warned %d times, want %d", got, c.want)
			}
		})
	}
}

// E87: a gateway died between reserving and publishing. The reservation is published again, once, under its own id.
func TestE87UnpublishedIsPublished(t *testing.T) {
	b, a := sale(t, 10)
	b.Buy(a, "other", 1)
	b.Land(true)
	o := b.MustReserve(a, "u", 3)
	if r := run(b, a, false); len(r.Repairs) != 0 {
		t.Fatalf("a young reservation was touched: %+v", r)
	}
	old(t, b, a)
	if r := run(b, a, true); kinds(r) != "republished" {
		t.Fatalf("dry run: %+v", r)
	}
	if r := run(b, a, false); kinds(r) != "republished" {
		t.Fatalf("%+v", r)
	}
	for range 3 { // what was published is below no mark yet
		if r := run(b, a, false); len(r.Repairs) != 0 {
			t.Fatalf("published twice: %+v", r)
		}
	}
	if n := b.Land(true); n != 1 {
		t.Fatalf("%d records in kafka, want 1", n)
	}
	b.Equal(a)
	rows, err := b.Store.Orders(t.Context(), []string{o.ID})
	if err != nil || rows[o.ID].Status != order.Confirmed || rows[o.ID].Quantity != 3 {
		t.Fatalf("order %+v (%v)", rows[o.ID], err)
	}
}

// slowKafka takes so long over its first order that Redis loses everything meanwhile and is loaded anew.
type slowKafka struct {
	b      *synctest.Bench
	a      ledger.Activity
	orders []string
}

func (s *slowKafka) Publish(ctx context.Context, o *order.Order, _ map[string]string) (kafka.Ack, error) {
	s.b.Publish(o)
	if s.orders = append(s.orders, o.ID); len(s.orders) > 1 {
		return kafka.Ack{}, nil
	}
	err := s.b.Redis.FlushAll(ctx).Err()
	s.b.Load(s.a)
	return kafka.Ack{}, err
}

// E87: the units of a reservation that Redis lost and a load did not find are on sale again. The sweep that saw it before
// publishes it no more, even if it was about to.
func TestE87NotPublishedAfterALoad(t *testing.T) {
	b, a := sale(t, 10)
	first, second := b.MustReserve(a, "u1", 3), b.MustReserve(a, "u2", 3)
	old(t, b, a)
	slow := &slowKafka{b: b, a: a}
	b.Comparer.Publisher = slow
	var failed string
	testenv.Eventually(t, 20*time.Second, "the sweep to publish", func() bool {
		r, err := b.Comparer.Run(t.Context(), []ledger.Activity{a}, compare.Options{})
		if err != nil {
			t.Fatal(err)
		}
		failed = r.Activities[0].Error
		return len(slow.orders) > 0
	})
	if len(slow.orders) != 1 || !strings.Contains(failed, "redis changed") {
		t.Fatalf("published %v of %s and %s (%s), want one of them", slow.orders, first.ID, second.ID, failed)
	}
	b.Comparer.Publisher = b.Producer
	b.Land(true)
	b.Equal(a)
	if got := b.Look(a); got.Stock != 7 || got.Pending != 0 {
		t.Fatalf("stock %d, pending %d, want 7 and 0", got.Stock, got.Pending)
	}
}

// An order that bears the id of another activity's order, which no gateway makes, has not landed with it: its buyer is not told
// so, and is not locked out in the end.
func TestIDOfAnotherActivity(t *testing.T) {
	b, a := sale(t, 10)
	other := b.Activity(10)
	b.Load(other)
	landed := b.Buy(other, "u1", 2)
	b.Land(true)
	_, err := b.Ledger.Reserve(t.Context(), a.ID, []ledger.Reservation{{
		Order: landed.ID, Nonce: "x", User: "u2", Quantity: 3, NotAfterMs: time.Now().Add(time.Minute).UnixMilli(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	old(t, b, a)
	if r := run(b, a, false); strings.Contains(kinds(r), "settled") || kinds(r) != "republished" {
		t.Fatalf("%+v", r)
	}
	b.Land(true)
	if r := run(b, a, false); kinds(r) != "buyer_freed" || r.Pending != 0 {
		t.Fatalf("%+v", r)
	}
	b.Equal(a)
	b.Equal(other)
}

// A settle that was lost is made good from MySQL, with the stock that goes with it: available never rises above the truth.
func TestLostSettleIsSwept(t *testing.T) {
	b, a := sale(t, 10)
	b.Buy(a, "u", 4)
	b.Land(false)
	old(t, b, a)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if s := b.Look(a); s.Available > 6 {
					t.Errorf("available is %d, above the truth of 6", s.Available)
					return
				}
			}
		}
	})
	r := run(b, a, false)
	close(stop)
	wg.Wait()
	if !strings.Contains(kinds(r), "settled") {
		t.Fatalf("%+v", r)
	}
	b.Equal(a)
}

// Comparing all the time in the middle of a sale changes nothing that is right.
func TestCompareDuringASale(t *testing.T) {
	b, a := sale(t, 5000, func(c *runner.Config) { c.Horizon = time.Second })
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				r := run(b, a, false)
				for _, x := range r.Repairs {
					if x.Kind != compare.Behind && x.Kind != compare.Settled {
						t.Errorf("repaired %+v", x)
					}
				}
			}
		}
	})
	accepted := 0
	for i := range 400 {
		b.Buy(a, fmt.Sprintf("u%d", i), 1)
		accepted++
		if i%50 == 49 {
			b.Land(i%100 == 99)
		}
	}
	b.Land(true)
	close(stop)
	wg.Wait()
	if got := b.Stock(a); got != int64(5000-accepted) {
		t.Fatalf("stock %d, want %d", got, 5000-accepted)
	}
	testenv.Eventually(t, 10*time.Second, "lost settles to be swept", func() bool { return run(b, a, false).Ledger == 0 })
	b.Equal(a)
}

// A partition whose records are all gone, and of which nothing was ever committed, holds the sweep up no longer.
func TestSweepPassesRemovedRecords(t *testing.T) {
	b, a := sale(t, 10)
	b.Buy(a, "u1", 1)
	topic := b.Cfg.Kafka.Topics.Orders
	ends, err := b.Admin.HighWater(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	old(t, b, a)
	if r := run(b, a, false); len(r.Repairs) != 0 || r.Waiting != 1 {
		t.Fatalf("with its record in kafka: %+v", r)
	}
	cfg, err := b.Cfg.Kafka.Sarama()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Metadata.Full = true
	admin, err := sarama.NewClusterAdmin(b.Cfg.Kafka.Brokers, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := admin.DeleteRecords(topic, ends); err != nil {
		t.Fatal(err)
	}
	if r := run(b, a, false); kinds(r) != "republished" {
		t.Fatalf("%+v", r)
	}
	b.Land(true)
	b.Equal(a)
}

// old waits until every reservation is older than the horizon.
func old(t *testing.T, b *synctest.Bench, a ledger.Activity) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, "the reservations to grow old", func() bool {
		s := b.Look(a)
		entries, _, err := b.Ledger.ScanLedger(t.Context(), a.ID, 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if s.NowMs-e.ReservedAtMs <= b.Cfg.Horizon.Milliseconds() {
				return false
			}
		}
		return true
	})
}
