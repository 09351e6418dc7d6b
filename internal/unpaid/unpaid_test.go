package unpaid

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.KnownLeaks()...) }

// fakeStore has due orders, oldest first.
type fakeStore struct {
	mu     sync.Mutex
	due    []store.Unpaid
	fail   map[int64]error // of an item's transactions
	broken error           // of the walk
	calls  []string        // "1:3" is a transaction of item 1 with 3 orders
}

// add makes one order of each item due.
func (f *fakeStore) add(items ...int64) {
	for _, item := range items {
		n := len(f.due)
		f.due = append(f.due, store.Unpaid{Order: fmt.Sprintf("%03d", n), Item: item, SinceMs: int64(n / 3)})
	}
}

func (f *fakeStore) Unpaid(_ context.Context, _ time.Duration, after store.Unpaid, limit int) ([]store.Unpaid, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != nil {
		return nil, f.broken
	}
	var page []store.Unpaid
	for _, u := range f.due {
		if len(page) < limit && (u.SinceMs > after.SinceMs || u.SinceMs == after.SinceMs && u.Order > after.Order) {
			page = append(page, u)
		}
	}
	return page, nil
}

func (f *fakeStore) Expire(_ context.Context, _ time.Duration, item int64, orders []string) (store.Expired, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf("%d:%d", item, len(orders)))
	if err := f.fail[item]; err != nil {
		return store.Expired{}, err
	}
	before := len(f.due)
	f.due = slices.DeleteFunc(f.due, func(u store.Unpaid) bool { return u.Item == item && slices.Contains(orders, u.Order) })
	n := before - len(f.due)
	return store.Expired{Orders: n, Units: int64(2 * n), Skipped: len(orders) - n}, nil
}

// fakeHealth remembers the last state.
type fakeHealth struct {
	mu  sync.Mutex
	err error
}

func (h *fakeHealth) Set(_ string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
}

func (h *fakeHealth) red() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

func (f *fakeStore) called() string { return strings.Join(f.calls, " ") }

func TestRunGoesThroughAllItemsInBatches(t *testing.T) {
	f := &fakeStore{}
	f.add(1, 1, 2, 1, 2, 3, 1)
	registry := prometheus.NewRegistry()
	e := New(Config{Window: time.Minute, Batch: 4}, f, &fakeHealth{}, registry, zap.NewNop())
	run, err := e.RunOnce(t.Context())
	if err != nil || run != (Run{store.Expired{Orders: 7, Units: 14}, 5}) {
		t.Fatalf("%+v, %v", run, err)
	}
	if got := f.called(); got != "1:3 2:1 2:1 3:1 1:1" {
		t.Errorf("transactions %s", got)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, m := range families {
		got[m.GetName()] = m.GetMetric()[0].GetCounter().GetValue()
	}
	if got["seckill_worker_unpaid_orders_total"] != 7 || got["seckill_worker_unpaid_units_total"] != 14 {
		t.Errorf("figures %v", got)
	}
}

// One item that cannot be expired, for a lock or for triggers that are gone, holds up no other, is tried once a run, and is told.
func TestLockedItemHoldsUpNoOther(t *testing.T) {
	for name, failure := range map[string]error{
		"locked":     fmt.Errorf("expire: %w", &mysql.MySQLError{Number: 1205}),
		"no trigger": fmt.Errorf("expire: %w", store.ErrStockNotReturned),
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeStore{fail: map[int64]error{1: failure}}
			f.add(1, 1, 1, 1, 2, 1, 3)
			e := New(Config{Window: time.Minute, Batch: 2}, f, &fakeHealth{}, nil, zap.NewNop())
			run, err := e.RunOnce(t.Context())
			if !errors.Is(err, failure) || run.Orders != 2 {
				t.Fatalf("%+v, %v: want the two orders of the other items expired, and the failure", run, err)
			}
			if got := f.called(); got != "1:2 2:1 3:1" {
				t.Errorf("transactions %s, want item 1 tried once", got)
			}
			delete(f.fail, 1)
			if run, err = e.RunOnce(t.Context()); err != nil || run.Orders != 5 {
				t.Errorf("next run: %+v, %v", run, err)
			}
		})
	}
}

// With MySQL away every item would wait for the same: the run ends.
func TestRunEndsWhenMySQLIsAway(t *testing.T) {
	away := errors.New("connection refused")
	f := &fakeStore{fail: map[int64]error{1: away}}
	f.add(1, 2, 3)
	e := New(Config{Window: time.Minute}, f, &fakeHealth{}, nil, zap.NewNop())
	if run, err := e.RunOnce(t.Context()); !errors.Is(err, away) || run.Orders != 0 || f.called() != "1:1" {
		t.Errorf("%+v, %v after %s", run, err, f.called())
	}
}

// The loop runs on its own, logs one line for a run that expired something and none for one that did not, is red while runs fail, and ends.
func TestLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := &fakeStore{}, &fakeHealth{}
		core, logs := observer.New(zap.InfoLevel)
		e := New(Config{Window: time.Minute, Every: 10 * time.Second}, f, h, nil, zap.New(core))
		e.Start()
		e.Start()
		defer e.Stop()
		next := func() { time.Sleep(12 * time.Second); synctest.Wait() } //nolint:forbidigo // the time of the bubble, not ours
		next()
		if logs.Len() != 0 {
			t.Fatalf("logged %v with nothing to do", logs.All())
		}
		f.mu.Lock()
		f.add(1, 1)
		f.mu.Unlock()
		next()
		if lines := logs.TakeAll(); len(lines) != 1 || lines[0].ContextMap()["orders"] != int64(2) {
			t.Errorf("logged %v, want one line of two orders", lines)
		}
		f.mu.Lock()
		f.broken = errors.New("away")
		f.mu.Unlock()
		next()
		if h.red() == nil {
			t.Error("not red while runs fail")
		}
		f.mu.Lock()
		f.broken = nil
		f.mu.Unlock()
		next()
		if err := h.red(); err != nil {
			t.Errorf("still red: %v", err)
		}
		e.Stop()
		e.Stop()
	})
}

func TestLifecycle(t *testing.T) {
	f := &fakeStore{}
	f.add(1)
	off := New(Config{}, f, &fakeHealth{}, nil, zap.NewNop())
	off.Start()
	off.Stop()
	early := New(Config{Window: time.Minute}, f, &fakeHealth{}, nil, zap.NewNop())
	early.Stop()
	early.Start()
	if len(f.calls) != 0 {
		t.Errorf("ran: %v", f.calls)
	}
	for range 100 { // at once
		e := New(Config{Window: time.Minute}, f, &fakeHealth{}, nil, zap.NewNop())
		var all sync.WaitGroup
		for range 3 {
			all.Go(e.Start)
			all.Go(e.Stop)
		}
		all.Wait()
		e.Stop()
	}
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"window": {Window: time.Millisecond}, "every": {Every: time.Millisecond}, "batch": {Batch: 5001},
	} {
		c.SetDefaults()
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("%+v: %v, want it refused by its key %s", c, err, name)
		}
	}
	var c Config
	c.SetDefaults()
	if err := c.Validate(); err != nil || c.Enabled() {
		t.Errorf("default %+v: %v", c, err)
	}
}

// Two workers on the real server let everything expire that is due, once, while the shop is paying; an item whose stock somebody
// holds waits for a later run.
func TestTwoWorkersOnMySQL(t *testing.T) {
	t.Parallel()
	dsn := testenv.MySQL(t)
	open := func() *store.Store {
		s, err := store.Open(t.Context(), store.Config{DSN: dsn, LockWait: time.Second, Tries: 2})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	s := open()
	if err := s.Migrate(t.Context(), store.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	exec := func(text string, args ...any) int64 {
		t.Helper()
		res, err := s.DB().ExecContext(t.Context(), text, args...)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		n, err := res.RowsAffected()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const items, each, stock = 4, 60, 200
	for item := int64(1); item <= items; item++ {
		exec("INSERT INTO inventory (item_id, stock) VALUES (?, ?)", item, stock)
		var orders []*order.Order
		for i := range each {
			id, err := order.NewID()
			if err != nil {
				t.Fatal(err)
			}
			orders = append(orders, &order.Order{V: order.SchemaVersion, ID: id, Activity: item, User: fmt.Sprint("u", i), Item: item, Quantity: int64(i%3) + 1, CreatedAtMs: 1})
		}
		if _, err := s.Land(t.Context(), item, orders); err != nil {
			t.Fatal(err)
		}
	}
	exec("UPDATE orders SET updated_at_ms = updated_at_ms - 120000")
	held, err := s.LockInventory(t.Context(), items, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Release() }()

	cfg := Config{Window: time.Minute, Every: 100 * time.Millisecond, Batch: 25}
	health := &fakeHealth{}
	workers := []*Expirer{New(cfg, s, health, nil, zap.NewNop()), New(cfg, open(), &fakeHealth{}, nil, zap.NewNop())}
	for _, w := range workers {
		w.Start()
		defer w.Stop()
	}
	paid := exec("UPDATE orders SET status = 'PAID' WHERE status = 'CONFIRMED' AND item_id < ? AND quantity = 2", items)
	count := func(where string, args ...any) (n int64) {
		t.Helper()
		if err := s.DB().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM orders WHERE "+where, args...).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	testenv.Eventually(t, 20*time.Second, "all orders of the other items are paid or expired", func() bool {
		return count("status = 'CONFIRMED' AND item_id < ?", items) == 0
	})
	if n := count("status = 'CONFIRMED' AND item_id = ?", items); n != each {
		t.Errorf("%d orders of the item that is held are unpaid, want %d", n, each)
	}
	testenv.Eventually(t, 20*time.Second, "health names the item that is held", func() bool { return health.red() != nil })
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, "those of the item that was held expire too", func() bool { return count("status = 'CONFIRMED'") == 0 })
	testenv.Eventually(t, 20*time.Second, "health is green again", func() bool { return health.red() == nil })
	for _, w := range workers {
		w.Stop()
	}
	if n := count("status = 'PAID'"); n != paid {
		t.Errorf("%d orders are paid, the shop was told %d", n, paid)
	}
	var wrong int64
	err = s.DB().QueryRowContext(t.Context(), `SELECT COUNT(*) FROM inventory AS i
WHERE i.stock + (SELECT COALESCE(SUM(o.quantity), 0) FROM orders AS o WHERE o.item_id = i.item_id AND o.live = 1) <> ?`, stock).Scan(&wrong)
	if err != nil || wrong != 0 {
		t.Errorf("the stock of %d items is not exact, %v", wrong, err)
	}
}
