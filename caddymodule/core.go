package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/gate"
	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/ratelimit"
	"github.com/seckillgate/seckillgate/internal/ratelimit/rediswindow"
	"github.com/seckillgate/seckillgate/internal/redisconn"
)

// backend is what the handlers ask for. core is the real one.
type backend interface {
	Admit(activity int64, idempotencyKey string) gate.Verdict
	View(activity int64, now time.Time) (gate.View, edge.Reason)
	Order(ctx context.Context, r edge.Request) edge.Outcome
	Status(ctx context.Context, q edge.Query) (edge.OrderView, edge.Reason)
	Wait(ctx context.Context, q edge.Query, d time.Duration) (edge.OrderView, edge.Reason)
	Mine(ctx context.Context, activity int64, user string) (edge.OrderView, edge.Reason)
	follow(q edge.Query) (follower, edge.Reason)
	// takeWindow opens a user window outside of a reservation and reports whether it was free, and how long it stays closed.
	takeWindow(ctx context.Context, key string, window time.Duration) (bool, time.Duration, error)
	// takeRate counts a request in a limit that all gateways share.
	takeRate(ctx context.Context, key string, rate ratelimit.Rate) (ratelimit.Result, error)
	overview(now time.Time) overview
	figures(now time.Time) figures
	// changes tells how the states of sales change, until the backend is closed.
	changes() <-chan gate.Change
	// looked is closed after the first look at the sales.
	looked() <-chan struct{}

	drain(ctx context.Context) error
	close() error
}

// follower is an edge.Watch.
type follower interface {
	Next(ctx context.Context, d time.Duration) (v edge.OrderView, changed, done bool, reason edge.Reason)
	Close()
}

// core is the clients and the edge over them.
type core struct {
	*edge.Edge
	gate     *gate.Gate
	ledger   *ledger.Ledger
	batcher  *ledger.Batcher
	producer *kafka.Producer
	redis    redis.UniversalClient
	news     chan gate.Change
}

// publishTo is where orders go; a benchmark puts something faster in its place.
var publishTo = func(p *kafka.Producer) edge.Publisher { return publisher{p} }

// newsQueue is how many changes of state may wait for slow event handlers; more are dropped.
const newsQueue = 256

func makeCore(c settings, log *zap.Logger) (backend, error) {
	rdb, err := redisconn.New(c.Redis)
	if err != nil {
		return nil, err
	}
	producer, err := kafka.NewProducer(c.Kafka, kafka.ProducerOptions{Budget: c.PublishTimeout}, log)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	l := ledger.New(rdb, ledger.Options{})
	b := ledger.NewBatcher(l, ledger.BatcherOptions{MaxBatch: c.MaxBatch, MaxQueue: c.MaxQueue, Observe: observeReserve})
	news := make(chan gate.Change, newsQueue)
	g := gate.New(l, gate.Options{Logger: log, OnChange: func(c gate.Change) {
		select {
		case news <- c:
		default:
			log.Warn("event handlers are too slow: a change of a sale's state is not told",
				zap.Int64("activity", c.Activity.ID), zap.String("state", c.To))
		}
	}})
	e := edge.New(l, b, publishTo(producer), g, edge.Options{
		RequestBudget:  c.RequestTimeout,
		PublishTakes:   c.PublishTimeout,
		MaxOpen:        c.MaxOpen,
		MaxWaiters:     c.MaxWaiters,
		Logger:         log,
		ObservePublish: observePublish,
	})
	producer.Start()
	g.Start()
	e.Start()
	return &core{Edge: e, gate: g, ledger: l, batcher: b, producer: producer, redis: rdb, news: news}, nil
}

func (c *core) View(activity int64, now time.Time) (gate.View, edge.Reason) {
	return c.gate.View(activity, now)
}

func (c *core) follow(q edge.Query) (follower, edge.Reason) {
	w, reason := c.Watch(q)
	if reason != edge.Accepted {
		return nil, reason
	}
	return w, reason
}

func (c *core) takeWindow(ctx context.Context, key string, window time.Duration) (bool, time.Duration, error) {
	return c.ledger.TakeWindow(ctx, key, "-", window)
}

func (c *core) takeRate(ctx context.Context, key string, rate ratelimit.Rate) (ratelimit.Result, error) {
	return rediswindow.Take(ctx, c.redis, key, rate)
}

func (c *core) changes() <-chan gate.Change { return c.news }

func (c *core) looked() <-chan struct{} { return c.gate.Ready() }

// drain ends what goes through the clients; close then closes them.
func (c *core) drain(ctx context.Context) error { return c.Edge.Close(ctx) }

func (c *core) close() error {
	c.batcher.Close()
	c.gate.Stop()
	close(c.news)
	return errors.Join(c.producer.Close(), c.redis.Close())
}

// publisher is the producer as the edge wants it.
type publisher struct{ *kafka.Producer }

// Enqueue implements edge.Publisher.
func (p publisher) Enqueue(o *order.Order, headers map[string]string, until time.Time, done func(edge.Ack, error)) {
	p.Producer.Enqueue(o, headers, until, func(ack kafka.Ack, err error) {
		if errors.Is(err, kafka.ErrNotSent) {
			err = fmt.Errorf("%w: %w", edge.ErrNotSent, err)
		}
		done(edge.Ack{Partition: ack.Partition, Offset: ack.Offset}, err)
	})
}
