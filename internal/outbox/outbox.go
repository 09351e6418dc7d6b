// Package outbox tells listeners what became of each order: the results topic, and the shop's webhook. What there is to tell is in
// MySQL, written in the very transaction that made it so (store.Event), so a kill anywhere loses nothing; whoever tells takes
// it away only once the listener has it. So each listener is told at least once, in order for each order, and never holds up
// the landing of orders.
//
// Of all workers one tells a listener at a time (store.Lead). A worker that lost its connection to MySQL may go on for a second
// while the next one begins: then, as after a kill, an event may be told twice.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
)

// Store is what the outbox needs of MySQL. *store.Store is the one implementation; tests put failures in between.
type Store interface {
	Subscribe(ctx context.Context, sinks ...store.Sink) error
	Subscribed(ctx context.Context) ([]store.Sink, error)
	Lead(ctx context.Context, k store.Sink) (*store.Lead, error)
	Events(ctx context.Context, k store.Sink, after int64, limit int) ([]store.Event, error)
	Told(ctx context.Context, k store.Sink, seqs []int64) error
	Backlog(ctx context.Context, k store.Sink) (events, oldestMs int64, err error)
}

// Listener takes events. Deliver returns nil once the listener has the event for good. It is called for different orders at the
// same time, never for one order twice at once. Delays says how long to wait before another try.
type Listener interface {
	Deliver(ctx context.Context, e store.Event) error
}

// Pace bounds the telling of one listener.
type Pace struct {
	Parallel           int           // deliveries under way at once
	RetryMin, RetryMax time.Duration // the pause after a failure doubles from the first to the second
}

// Later is an error that says when to try again.
type Later struct {
	After time.Duration
	Err   error
}

// Error is the cause.
func (l *Later) Error() string { return l.Err.Error() }

// Unwrap gives the cause.
func (l *Later) Unwrap() error { return l.Err }

// Health takes the state of a named part of the process: nil while it is well.
type Health interface {
	Set(name string, err error)
}

// Config says what is kept and for how long. The zero value of each field means its default.
type Config struct {
	// Results writes what becomes of each order to kafka.topics.results. Default: true in the worker.
	Results bool `yaml:"results"`
	// Poll is how often the worker that tells a listener looks for what other processes wrote: other workers, and the shop by
	// its own statements. What it wrote itself it tells at once. Default: 100ms.
	Poll time.Duration `yaml:"poll"`
	// AlarmAfter is the age of the oldest event not told from which health is red. Default: 5m.
	AlarmAfter time.Duration `yaml:"alarm_after"`
	// Keep is the age from which an event that could not be told is given up, so that a listener that is gone for good does not
	// fill the database. Default: 72h.
	Keep time.Duration `yaml:"keep"`
}

// SetDefaults fills in what is not set.
func (c *Config) SetDefaults() {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&c.Poll, 100 * time.Millisecond}, {&c.AlarmAfter, 5 * time.Minute}, {&c.Keep, 72 * time.Hour}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
}

// Validate refuses values that cannot work. It expects defaults to be filled in. Its messages begin with the key.
func (c *Config) Validate() error {
	switch {
	case c.Poll < 10*time.Millisecond || c.Poll > time.Minute:
		return fmt.Errorf("poll: %s: want 10ms to 1m", c.Poll)
	case c.AlarmAfter < time.Second:
		return fmt.Errorf("alarm_after: %s: want at least 1s", c.AlarmAfter)
	case c.Keep < c.AlarmAfter:
		return fmt.Errorf("keep: %s: want at least outbox.alarm_after, which is %s, or nothing would ever be told of what is given up", c.Keep, c.AlarmAfter)
	}
	return nil
}

// Outbox tells all listeners. Start returns at once; Stop blocks, may be called twice and before Start. An Outbox is used once.
type Outbox struct {
	cfg     Config
	store   Store
	health  Health
	log     *zap.Logger
	metrics *metrics
	relays  []*relay

	mu      sync.Mutex
	stopped bool
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

// New wires an Outbox without listeners and registers its figures; r may be nil.
func New(cfg Config, s Store, h Health, r prometheus.Registerer, log *zap.Logger) *Outbox {
	cfg.SetDefaults()
	return &Outbox{cfg: cfg, store: s, health: h, log: log, metrics: newMetrics(r)}
}

// Add adds a listener; before Start.
func (o *Outbox) Add(k store.Sink, l Listener, p Pace) {
	o.relays = append(o.relays, &relay{
		sink: k, listener: l, pace: p, poll: o.cfg.Poll, store: o.store, log: o.log.With(zap.Stringer("listener", k)), metrics: o.metrics, wake: make(chan struct{}, 1),
	})
}

// Subscribe registers the listeners that were added. It comes before the first order lands, or that order is not told: so it is
// tried again until MySQL has done it, with health red meanwhile, and fails only when ctx ends.
func (o *Outbox) Subscribe(ctx context.Context) error {
	for _, r := range o.relays {
		for n := 0; ; n++ {
			err := o.store.Subscribe(ctx, r.sink)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return err
			}
			pause := backoff(n, 100*time.Millisecond, 5*time.Second)
			o.health.Set(healthName, err)
			r.log.Warn("a listener cannot be registered, and no order lands before it is: trying again", zap.Duration("pause", pause), zap.Error(err))
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
		o.health.Set(healthName, nil)
	}
	return nil
}

// Start begins to tell.
func (o *Outbox) Start() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped || o.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	o.cancel = cancel
	for _, r := range o.relays {
		o.wg.Go(func() { r.run(ctx) })
	}
	o.wg.Go(func() { o.watch(ctx) })
}

// Stop lets deliveries that are under way end, within a bound, and returns. What is left is told by another worker, or later.
func (o *Outbox) Stop() {
	o.mu.Lock()
	o.stopped = true
	cancel := o.cancel
	o.mu.Unlock()
	if cancel != nil {
		cancel()
		o.wg.Wait()
	}
}

// Put says that an order has been decided, and that there is something to tell by now. It never blocks.
func (o *Outbox) Put(order.Result) {
	for _, r := range o.relays {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// healthName is the condition that this package owns.
const healthName = "outbox"

// watchEvery is the time between two looks at the backlog.
const watchEvery = 5 * time.Second

// watch looks at what waits for every listener there is, ours or not, turns health red when the oldest has waited too long, and
// gives up what nobody could be told of.
func (o *Outbox) watch(ctx context.Context) {
	for {
		o.health.Set(healthName, o.look(ctx))
		t := time.NewTimer(watchEvery)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

func (o *Outbox) look(ctx context.Context) error {
	sinks, err := o.store.Subscribed(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range sinks {
		n, oldestMs, err := o.store.Backlog(ctx, k)
		if err != nil {
			return err
		}
		o.metrics.waiting.WithLabelValues(k.String()).Set(float64(n))
		oldest := time.Duration(oldestMs) * time.Millisecond
		o.metrics.oldest.WithLabelValues(k.String()).Set(oldest.Seconds())
		if oldest > o.cfg.AlarmAfter {
			errs = append(errs, fmt.Errorf("%d outcomes wait for %s, the oldest for %s; they are given up when they are older than outbox.keep, %s",
				n, k, oldest.Round(time.Second), o.cfg.Keep))
		}
		if oldest > o.cfg.Keep {
			if err := o.giveUp(ctx, k); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// giveUp drops what is older than Keep. Numbers grow with time but for what slow transactions wrote, which the next run finds.
func (o *Outbox) giveUp(ctx context.Context, k store.Sink) error {
	dropped := 0
	for ctx.Err() == nil {
		events, err := o.store.Events(ctx, k, 0, readAtOnce)
		if err != nil {
			return err
		}
		var seqs []int64
		for _, e := range events {
			if time.Since(time.UnixMilli(e.AtMs)) > o.cfg.Keep {
				seqs = append(seqs, e.Seq)
			}
		}
		if len(seqs) == 0 {
			break
		}
		if err := o.store.Told(ctx, k, seqs); err != nil {
			return err
		}
		dropped += len(seqs)
		o.metrics.events.WithLabelValues(k.String(), "given_up").Add(float64(len(seqs)))
	}
	if dropped > 0 {
		o.log.Error("gave up telling outcomes that are older than outbox.keep", zap.Stringer("listener", k), zap.Int("events", dropped), zap.Duration("keep", o.cfg.Keep))
	}
	return nil
}
