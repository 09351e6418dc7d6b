// Package unpaid lets orders expire that were not paid within the payment window. MySQL alone decides: an order leaves the success
// status once, by payment or by expiry, and its stock goes back in that transaction. Redis learns of it by the binlog, as of any
// change that the shop makes; this package does not know Redis.
//
// Any number of workers may do this at once. They pass by what another one has under lock.
package unpaid

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/store"
)

// Store is what expiry needs of MySQL. *store.Store is the one implementation; tests put failures in between.
type Store interface {
	Unpaid(ctx context.Context, window time.Duration, after store.Unpaid, limit int) ([]store.Unpaid, error)
	Expire(ctx context.Context, window time.Duration, item int64, orders []string) (store.Expired, error)
}

// Health takes the state of a named part of the process: nil while it is well.
type Health interface {
	Set(name string, err error)
}

// healthName is the part of the process that health names.
const healthName = "unpaid"

// Config says when orders expire. The zero value of each field means its default.
type Config struct {
	// Window is how long a buyer has to pay, counted from the landing of the order by MySQL's clock. 0: orders never expire.
	// Default: 0.
	Window time.Duration `yaml:"window"`
	// Every is the time between two runs of one worker, jittered by an eighth. Default: 10s.
	Every time.Duration `yaml:"every"`
	// Batch is the most orders of one transaction, which holds the lock on their item's stock. Default: 500.
	Batch int `yaml:"batch"`
}

// Enabled says whether orders expire at all.
func (c *Config) Enabled() bool { return c.Window > 0 }

// SetDefaults fills in what is not set.
func (c *Config) SetDefaults() {
	if c.Every == 0 {
		c.Every = 10 * time.Second
	}
	if c.Batch == 0 {
		c.Batch = 500
	}
}

// Validate refuses values that cannot work. It expects defaults to be filled in. Its messages begin with the key.
func (c *Config) Validate() error {
	switch {
	case c.Window != 0 && c.Window < time.Second:
		return fmt.Errorf("window: %s: want at least 1s, or 0 for never", c.Window)
	case c.Every < 100*time.Millisecond:
		return fmt.Errorf("every: %s: want at least 100ms", c.Every)
	case c.Batch < 1 || c.Batch > 5000:
		return fmt.Errorf("batch: %d: want 1 to 5000", c.Batch)
	}
	return nil
}

// Run is what one run came to.
type Run struct {
	store.Expired
	Transactions int // that expired something
}

// Expirer runs now and then. Start returns at once; Stop blocks, may be called twice and before Start. An Expirer is used once.
type Expirer struct {
	cfg    Config
	store  Store
	health Health
	log    *zap.Logger

	orders  *prometheus.CounterVec // outcome
	units   prometheus.Counter
	errors  prometheus.Counter
	seconds prometheus.Histogram

	mu      sync.Mutex
	stopped bool
	cancel  context.CancelFunc
	done    chan struct{}
}

// New wires an Expirer and registers its figures; r may be nil.
func New(cfg Config, s Store, h Health, r prometheus.Registerer, log *zap.Logger) *Expirer {
	cfg.SetDefaults()
	const ns, sub = "seckill", "worker"
	e := &Expirer{
		cfg: cfg, store: s, health: h, log: log,
		orders: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "unpaid_orders_total",
			Help: "Orders past the payment window: expired here, or skipped because somebody else had them or was faster.",
		}, []string{"outcome"}),
		units: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "unpaid_units_total", Help: "Units that expired orders gave back to the stock.",
		}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "unpaid_errors_total", Help: "Statements and transactions of expiry that failed; the next run tries again.",
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "unpaid_run_seconds", Help: "Time of one run.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
		}),
	}
	if r != nil {
		r.MustRegister(e.orders, e.units, e.errors, e.seconds)
	}
	return e
}

// Start begins to run, if a window is set.
func (e *Expirer) Start() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done != nil || e.stopped || !e.cfg.Enabled() {
		return
	}
	var ctx context.Context
	ctx, e.cancel = context.WithCancel(context.Background())
	done := make(chan struct{})
	e.done = done
	go func() {
		defer close(done)
		e.loop(ctx)
	}()
}

// Stop ends the running transaction, which has then happened or not, and returns.
func (e *Expirer) Stop() {
	e.mu.Lock()
	e.stopped = true
	cancel, done := e.cancel, e.done
	e.mu.Unlock()
	if done == nil {
		return
	}
	cancel()
	<-done
}

func (e *Expirer) loop(ctx context.Context) {
	for {
		began := time.Now()
		run, err := e.RunOnce(ctx)
		took := time.Since(began)
		e.seconds.Observe(took.Seconds())
		if run.Orders > 0 {
			e.log.Info("unpaid orders expired", zap.Int("orders", run.Orders), zap.Int64("units", run.Units), zap.Int("skipped", run.Skipped),
				zap.Int("transactions", run.Transactions), zap.Duration("took", took))
		}
		if ctx.Err() != nil {
			return
		}
		e.health.Set(healthName, err)
		if err != nil {
			e.log.Warn("unpaid orders could not all expire, trying again in the next run", zap.Error(err))
		}
		t := time.NewTimer(e.cfg.Every - e.cfg.Every/8 + rand.N(e.cfg.Every/4))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// RunOnce walks once over all orders that are due, the oldest first, and lets them expire, one transaction for each item of each
// batch. An item whose stock is locked holds up no other: its orders wait for the next run. The error tells what failed first.
func (e *Expirer) RunOnce(ctx context.Context) (run Run, err error) {
	busy := make(map[int64]bool) // items that this run has given up
	var at store.Unpaid
	for ctx.Err() == nil {
		page, failed := e.store.Unpaid(ctx, e.cfg.Window, at, e.cfg.Batch)
		if failed != nil {
			e.errors.Inc()
			return run, errors.Join(err, failed)
		}
		for _, group := range byItem(page) {
			if busy[group.item] {
				continue
			}
			got, failed := e.store.Expire(ctx, e.cfg.Window, group.item, group.orders)
			switch {
			case failed == nil:
				e.count(&run, got)
				continue
			case ctx.Err() != nil:
				return run, errors.Join(err, failed)
			}
			e.errors.Inc()
			if err == nil {
				err = failed
			}
			if !store.IsContention(failed) && !errors.Is(failed, store.ErrStockNotReturned) {
				return run, err // MySQL is not well: the other items would only wait for the same
			}
			busy[group.item] = true
		}
		if len(page) < e.cfg.Batch {
			break
		}
		at = page[len(page)-1]
	}
	return run, err
}

func (e *Expirer) count(run *Run, got store.Expired) {
	run.Orders += got.Orders
	run.Units += got.Units
	run.Skipped += got.Skipped
	if got.Orders > 0 {
		run.Transactions++
	}
	e.orders.WithLabelValues("expired").Add(float64(got.Orders))
	e.orders.WithLabelValues("skipped").Add(float64(got.Skipped))
	e.units.Add(float64(got.Units))
}

// group is the due orders of one item.
type group struct {
	item   int64
	orders []string
}

// byItem groups a page, items and orders in the order of the page.
func byItem(page []store.Unpaid) []group {
	var groups []group
	at := make(map[int64]int)
	for _, u := range page {
		i, ok := at[u.Item]
		if !ok {
			i = len(groups)
			at[u.Item] = i
			groups = append(groups, group{item: u.Item})
		}
		groups[i].orders = append(groups[i].orders, u.Order)
	}
	return groups
}
