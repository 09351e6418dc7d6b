package outbox

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/telemetry"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.KnownLeaks()...) }

const item, activity = 7, 70

// bench is a database with a sale, and workers that tell what becomes of its orders.
type bench struct {
	*testing.T
	store *store.Store
	dsn   string
}

func setup(t *testing.T) *bench {
	t.Helper()
	dsn := testenv.MySQL(t)
	b := &bench{t, open(t, dsn), dsn}
	if err := b.store.Migrate(t.Context(), store.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.exec("INSERT INTO inventory (item_id, stock) VALUES (?, 1000000)", item)
	if err := b.store.Subscribe(t.Context(), store.Webhook); err != nil {
		t.Fatal(err)
	}
	return b
}

func open(t *testing.T, dsn string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (b *bench) exec(text string, args ...any) {
	b.Helper()
	if _, err := b.store.DB().ExecContext(context.Background(), text, args...); err != nil {
		b.Fatalf("%s: %v", text, err)
	}
}

// land lands n orders and gives their ids.
func (b *bench) land(n int) (ids []string) {
	b.Helper()
	orders := make([]*order.Order, n)
	for i := range orders {
		id, err := order.NewID()
		if err != nil {
			b.Fatal(err)
		}
		ids = append(ids, id)
		orders[i] = &order.Order{V: 1, ID: id, Activity: activity, User: "buyer " + id, Item: item, Quantity: 1, CreatedAtMs: 1}
	}
	if _, err := b.store.Land(b.Context(), item, orders); err != nil {
		b.Fatal(err)
	}
	return ids
}

// become is what the shop does.
func (b *bench) become(id string, s order.Status) {
	b.Helper()
	b.exec("UPDATE orders SET status = ? WHERE order_id = ?", string(s), id)
}

func (b *bench) left() int64 {
	b.Helper()
	n, _, err := b.store.Backlog(context.Background(), store.Webhook)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

func (b *bench) emptied() {
	b.Helper()
	testenv.Eventually(b.T, 30*time.Second, "everything is told and out of the outbox", func() bool { return b.left() == 0 })
}

// shop is a listener that remembers what it was told.
type shop struct {
	mu       sync.Mutex
	got      map[string][]order.Status
	told     int
	failed   int
	underway map[string]bool
	overlaps int
	refuse   func(e store.Event) error // nil: takes everything
}

func newShop() *shop {
	return &shop{got: map[string][]order.Status{}, underway: map[string]bool{}}
}

func (s *shop) Deliver(_ context.Context, e store.Event) error {
	s.mu.Lock()
	if s.underway[e.ID] {
		s.overlaps++
	}
	s.underway[e.ID] = true
	refuse := s.refuse
	s.mu.Unlock()
	var err error
	if refuse != nil {
		err = refuse(e)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.underway, e.ID)
	if err != nil {
		s.failed++
		return err
	}
	s.told++
	s.got[e.ID] = append(s.got[e.ID], e.Status)
	return nil
}

func (s *shop) mind(refuse func(store.Event) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

func (s *shop) of(id string) []order.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got[id])
}

var fast = Pace{Parallel: 8, RetryMin: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond}

// worker is one process that tells the shop.
func (b *bench) worker(cfg Config, l Listener, p Pace) (*Outbox, *telemetry.Health) {
	b.Helper()
	h := new(telemetry.Health)
	h.Set("test", nil)
	o := New(cfg, open(b.T, b.dsn), h, prometheus.NewRegistry(), zap.NewNop())
	o.Add(store.Webhook, l, p)
	if err := o.Subscribe(b.Context()); err != nil {
		b.Fatal(err)
	}
	o.Start()
	b.Cleanup(o.Stop)
	return o, h
}

// TestTellsInOrder: the worker's own, and the shop's own changes, in order for each order, while some deliveries fail.
func TestTellsInOrder(t *testing.T) {
	t.Parallel()
	b, s := setup(t), newShop()
	var mu sync.Mutex
	failures := map[string]int{}
	s.mind(func(e store.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if failures[e.ID]++; failures[e.ID]%2 == 1 { // each event of an order fails once
			return errors.New("not now")
		}
		return nil
	})
	o, _ := b.worker(Config{Poll: 20 * time.Millisecond}, s, fast)
	ids := b.land(200)
	o.Put(order.Result{})
	for _, id := range ids {
		b.become(id, order.Paid)
	}
	for _, id := range ids {
		b.become(id, order.Refunded)
	}
	b.emptied()
	for _, id := range ids {
		if got := s.of(id); !slices.Equal(got, []order.Status{order.Confirmed, order.Paid, order.Refunded}) {
			t.Errorf("order %s: told %v", id, got)
		}
	}
	if s.told != 600 || s.overlaps != 0 {
		t.Errorf("told %d times, %d times two at once of one order; want each event once", s.told, s.overlaps)
	}
}

// TestSlowTransactionIsTold: its number is lower than one that was told long before it committed.
func TestSlowTransactionIsTold(t *testing.T) {
	t.Parallel()
	b, s := setup(t), newShop()
	ids := b.land(2)
	b.worker(Config{Poll: 20 * time.Millisecond}, s, fast)
	b.emptied()
	tx, err := b.store.DB().Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("UPDATE orders SET status = 'PAID' WHERE order_id = ?", ids[0]); err != nil {
		t.Fatal(err)
	}
	b.become(ids[1], order.Paid)
	testenv.Eventually(t, 20*time.Second, "the later number is told", func() bool { return len(s.of(ids[1])) == 2 })
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	b.emptied()
	if got := s.of(ids[0]); !slices.Equal(got, []order.Status{order.Confirmed, order.Paid}) {
		t.Errorf("told %v", got)
	}
}

// TestOneBadOrderHoldsUpNoOther: an order that the shop never takes waits alone, the other orders' events flow.
func TestOneBadOrderHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	b, s := setup(t), newShop()
	ids := b.land(50)
	s.mind(func(e store.Event) error {
		if e.ID == ids[0] {
			return &Later{After: time.Hour, Err: errors.New("never")} // at most RetryMax
		}
		return nil
	})
	b.worker(Config{}, s, fast)
	b.become(ids[0], order.Paid)
	b.become(ids[1], order.Paid)
	testenv.Eventually(t, 20*time.Second, "all others are told", func() bool { return b.left() == 2 && len(s.of(ids[1])) == 2 })
	s.mind(nil)
	b.emptied()
	if got := s.of(ids[0]); !slices.Equal(got, []order.Status{order.Confirmed, order.Paid}) {
		t.Errorf("told %v", got)
	}
}

// TestDownAndBack: a listener that answers again hears at once of all that waited, not after each order's own pause.
func TestDownAndBack(t *testing.T) {
	t.Parallel()
	b, s := setup(t), newShop()
	s.mind(func(store.Event) error { return errors.New("down") })
	ids := b.land(100)
	// Pauses of an hour but for the first try: only the jitter's smallest could end in this test's time without the hurry.
	slow := Pace{Parallel: 8, RetryMin: 50 * time.Millisecond, RetryMax: time.Hour}
	b.worker(Config{}, s, slow)
	testenv.Eventually(t, 20*time.Second, "tries go on until pauses are long", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.told == 0 && s.failed > 500
	})
	s.mind(nil)
	b.emptied()
	if len(s.got) != len(ids) {
		t.Errorf("%d orders told", len(s.got))
	}
}

// TestManyWorkersTellOnce: one leads; when it stops in the middle the next one goes on, nothing is told twice and the order of each
// order's events holds.
func TestManyWorkersTellOnce(t *testing.T) {
	t.Parallel()
	b, s := setup(t), newShop()
	var workers []*Outbox
	for range 3 {
		o, _ := b.worker(Config{Poll: 20 * time.Millisecond}, s, fast)
		workers = append(workers, o)
	}
	var ids []string
	for round := range 3 {
		for range 5 {
			ids = append(ids, b.land(100)...)
			workers[2].Put(order.Result{})
		}
		for _, id := range ids[len(ids)-50:] {
			b.become(id, order.Paid)
		}
		if round < 2 {
			workers[round].Stop()
			workers[round].Stop()
		}
	}
	b.emptied()
	if s.told != 1650 || s.overlaps != 0 {
		t.Errorf("told %d times, %d times two at once of one order; want 1650 and none", s.told, s.overlaps)
	}
	for i, id := range ids {
		want := []order.Status{order.Confirmed}
		if i%500 >= 450 {
			want = append(want, order.Paid)
		}
		if got := s.of(id); !slices.Equal(got, want) {
			t.Errorf("order %d: told %v, want %v", i, got, want)
		}
	}
}

// TestLostLead: the leader's connections are killed in the middle. Events may be told twice then; none is lost.
func TestLostLead(t *testing.T) {
	t.Parallel()
	b, s := setup(t), newShop()
	b.worker(Config{Poll: 20 * time.Millisecond}, s, fast)
	b.worker(Config{Poll: 20 * time.Millisecond}, s, fast)
	var ids []string
	for range 5 {
		ids = append(ids, b.land(100)...)
		b.killIdle()
	}
	b.emptied()
	for _, id := range ids {
		if len(s.of(id)) == 0 {
			t.Errorf("order %s was never told", id)
		}
	}
}

// killIdle ends every session of the test's database that is not at work, the leader's among them.
func (b *bench) killIdle() {
	b.Helper()
	rows, err := b.store.DB().QueryContext(b.Context(), "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() AND command = 'Sleep'")
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	var ids []int64
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			b.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		b.Fatal(err)
	}
	for _, id := range ids {
		_, _ = b.store.DB().ExecContext(b.Context(), "KILL CONNECTION "+strconv.FormatInt(id, 10)) // it may have gone by itself
	}
}

// TestDeadListenerIsSeenAndBounded: health turns red, and what is older than Keep is given up.
func TestDeadListenerIsSeenAndBounded(t *testing.T) {
	t.Parallel()
	b, s := setup(t), newShop()
	s.mind(func(store.Event) error { return errors.New("gone for good") })
	old := b.land(1500)
	slices.Sort(old)
	b.exec("UPDATE seckill_outbox SET at_ms = at_ms - 3600000")
	b.exec("UPDATE seckill_outbox SET at_ms = at_ms - 360000000 WHERE order_id <> ?", old[1499])
	o, h := b.worker(Config{AlarmAfter: time.Minute, Keep: 72 * time.Hour}, s, fast)
	testenv.Eventually(t, 20*time.Second, "health is red", func() bool { return h.Err() != nil })
	testenv.Eventually(t, 20*time.Second, "the old is given up", func() bool { return b.left() == 1 })
	if err := o.look(t.Context()); err == nil {
		t.Error("health forgot what is left")
	}
	s.mind(nil)
	testenv.Eventually(t, 20*time.Second, "the rest is told and health is green", func() bool { return b.left() == 0 && h.Err() == nil })
	if len(s.of(old[1499])) != 1 {
		t.Error("what was young enough was not told")
	}
}

// TestDeletedOrder: an event whose order is gone is passed over.
func TestDeletedOrder(t *testing.T) {
	t.Parallel()
	b, s := setup(t), newShop()
	ids := b.land(2)
	b.exec("DELETE FROM orders WHERE order_id = ?", ids[0])
	b.worker(Config{}, s, fast)
	b.emptied()
	if len(s.of(ids[0])) != 0 || len(s.of(ids[1])) != 1 {
		t.Errorf("told %v", s.got)
	}
}

// TestLifecycle: Stop before Start, twice, at once.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for n := range 20 {
		o := New(Config{}, b.store, new(telemetry.Health), nil, zap.NewNop())
		o.Add(store.Webhook, newShop(), fast)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				if (i+n)%2 == 0 {
					o.Start()
				} else {
					o.Stop()
				}
				o.Put(order.Result{})
			})
		}
		wg.Wait()
		o.Stop()
		o.Start()
	}
}

func TestConfig(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"poll":        func(c *Config) { c.Poll = time.Millisecond },
		"alarm_after": func(c *Config) { c.AlarmAfter = time.Millisecond },
		"keep":        func(c *Config) { c.Keep = time.Minute },
	} {
		c := Config{}
		c.SetDefaults()
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&c)
		if err := c.Validate(); err == nil || !slices.Contains([]string{"poll", "alarm_after", "keep"}, name) || err.Error()[:len(name)+1] != name+":" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// otherServer is a worker's store behind which the lead is another server's to give: GET_LOCK knows nothing of the servers beside its
// own, so that after a promotion, or behind a proxy over several primaries, two may lead.
type otherServer struct{ *store.Store }

// Lead takes a lock that no worker of this test has.
func (s otherServer) Lead(ctx context.Context, _ store.Sink) (*store.Lead, error) {
	return s.Store.Lead(ctx, store.Results)
}

// counting passes events on, and counts those that were taken.
type counting struct {
	Listener
	n atomic.Int64
}

func (c *counting) Deliver(ctx context.Context, e store.Event) error {
	err := c.Listener.Deliver(ctx, e)
	if err == nil {
		c.n.Add(1)
	}
	return err
}

// TestTwoLead: two workers tell one listener at the same time. It is told of everything, more than once perhaps, and hears of an
// order's changes for the first time in their order; and the outbox is empty after it.
func TestTwoLead(t *testing.T) {
	t.Parallel()
	b, s := setup(t), newShop()
	var mu sync.Mutex
	failures := map[string]int{}
	s.mind(func(e store.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if failures[e.ID]++; failures[e.ID]%3 == 1 {
			return errors.New("not now")
		}
		return nil
	})
	tellers := make([]*counting, 2)
	for i := range tellers {
		tellers[i] = &counting{Listener: s}
		var st Store = open(t, b.dsn)
		if i == 1 {
			st = otherServer{open(t, b.dsn)}
		}
		o := New(Config{Poll: 20 * time.Millisecond}, st, new(telemetry.Health), nil, zap.NewNop())
		o.Add(store.Webhook, tellers[i], fast)
		o.Start()
		t.Cleanup(o.Stop)
	}
	testenv.Eventually(t, time.Minute, "both lead", func() bool {
		b.land(5)
		return tellers[0].n.Load() > 0 && tellers[1].n.Load() > 0
	})
	ids := b.land(200)
	for _, next := range []order.Status{order.Paid, order.Refunded} {
		for _, id := range ids {
			b.become(id, next)
		}
	}
	b.emptied()
	for _, id := range ids {
		var heard []order.Status
		for _, status := range s.of(id) {
			if !slices.Contains(heard, status) {
				heard = append(heard, status)
			}
		}
		if !slices.Equal(heard, []order.Status{order.Confirmed, order.Paid, order.Refunded}) {
			t.Errorf("order %s: heard of %v, all told %v", id, heard, s.of(id))
		}
	}
}
