package landing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/kafka"
)

// Consumer feeds a Lander from the consumer group. Start returns at once; Stop blocks, may be called twice and before
// Start. A Consumer is used once.
type Consumer struct {
	cfg      Config
	kafka    kafka.Config
	lander   *Lander
	progress *progress
	metrics  *Metrics
	health   Health
	log      *zap.Logger

	mu      sync.Mutex
	started bool
	stopped bool
	client  sarama.Client
	cancel  context.CancelFunc // stops fetching
	done    chan struct{}      // closed when everything has ended

	stopping atomic.Bool
	since    atomic.Int64 // unix ms of the end of the last session; 0 while there is one

	goneMu sync.Mutex
	gone   map[int32]error // partitions whose committed offset Kafka no longer has
}

// NewConsumer checks the configuration and does not dial.
func NewConsumer(cfg Config, k kafka.Config, l *Lander, led Ledger, h Health, m *Metrics, log *zap.Logger) (*Consumer, error) {
	cfg.SetDefaults()
	k.SetDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("landing: %w", err)
	}
	if _, err := k.Sarama(); err != nil {
		return nil, err
	}
	return &Consumer{
		cfg: cfg, kafka: k, lander: l, metrics: m, health: h, log: log,
		progress: newProgress(led, m, cfg.LandedEvery, log),
		done:     make(chan struct{}),
		gone:     make(map[int32]error),
	}, nil
}

// saramaConfig adds what only a group consumer needs.
func (c *Consumer) saramaConfig() (*sarama.Config, error) {
	s, err := c.kafka.Sarama()
	if err != nil {
		return nil, err
	}
	s.Consumer.Offsets.Initial = sarama.OffsetOldest
	s.Consumer.Group.ResetInvalidOffsets = c.cfg.AcceptLostOffsets
	s.Consumer.Return.Errors = true
	s.Consumer.Offsets.AutoCommit.Enable = true // of offsets that are marked, and these are done
	s.Consumer.Offsets.AutoCommit.Interval = time.Second
	// A dead worker's partitions are free after 6 s, the least that brokers allow by default. A join waits for the slowest
	// member, which is free within a second of its next heartbeat, or dead.
	s.Consumer.Group.Session.Timeout = 6 * time.Second
	s.Consumer.Group.Heartbeat.Interval = time.Second
	s.Consumer.Group.Rebalance.Timeout = 12 * time.Second
	s.Net.ReadTimeout = 15 * time.Second
	// What gathers while a transaction runs. Past this time with no room, the partition lets the others of its broker go on.
	s.ChannelBufferSize = 2 * c.cfg.MaxOrders
	s.Consumer.MaxProcessingTime = 250 * time.Millisecond
	return s, nil
}

// Start begins to consume in the background.
func (c *Consumer) Start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started || c.stopped {
		return errors.New("landing: consumer was started or stopped before: make a new one")
	}
	cfg, err := c.saramaConfig()
	if err != nil {
		return err
	}
	client, err := sarama.NewClient(c.kafka.Brokers, cfg)
	if err != nil {
		return fmt.Errorf("kafka client for %v: %w", c.kafka.Brokers, err)
	}
	group, err := sarama.NewConsumerGroupFromClient(c.kafka.Group, client)
	if err != nil {
		return errors.Join(fmt.Errorf("consumer group %s: %w", c.kafka.Group, err), client.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.started, c.client, c.cancel = true, client, cancel
	c.since.Store(time.Now().UnixMilli())
	c.health.Set(stepGroup, errors.New("not joined yet"))
	go c.run(ctx, group)
	return nil
}

// Stop ends fetching, lets running batches finish within ShutdownGrace, commits what is done and leaves the group.
func (c *Consumer) Stop() {
	c.mu.Lock()
	if !c.started || c.stopped {
		started := c.started
		c.stopped = true
		c.mu.Unlock()
		if started {
			<-c.done
		}
		return
	}
	c.stopped = true
	c.mu.Unlock()
	c.stopping.Store(true)
	c.cancel()
	<-c.done
}

// run consumes session after session: Consume returns after each rebalance, and must be called again.
func (c *Consumer) run(ctx context.Context, group sarama.ConsumerGroup) {
	defer close(c.done)
	var side sync.WaitGroup
	sideCtx, endSide := context.WithCancel(context.WithoutCancel(ctx))
	side.Go(func() { c.progress.run(sideCtx) })
	side.Go(func() { c.watch(sideCtx) })
	side.Go(func() { c.askEnds(sideCtx) })
	side.Go(func() { c.listen(group.Errors()) })

	for n := 0; ctx.Err() == nil; n++ {
		err := group.Consume(ctx, []string{c.kafka.Topics.Orders}, &handler{c})
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			if err = c.offsetsGone(); err == nil {
				n = -1
				continue
			}
			// This worker will fail on that partition again and take the whole group through a rebalance each time: slowly.
			n = max(n, 16)
		} else {
			c.health.Set(stepGroup, err)
		}
		pause := c.lander.pause(n)
		c.log.Warn("no session with the consumer group, trying again", zap.Duration("pause", pause), zap.Error(err))
		if sleep(ctx, pause) != nil {
			break
		}
	}
	if err := group.Close(); err != nil {
		c.log.Info("left the consumer group with an error", zap.Error(err))
	}
	if err := c.client.Close(); err != nil && !errors.Is(err, sarama.ErrClosedClient) {
		c.log.Info("closed the kafka client with an error", zap.Error(err))
	}
	endSide()
	side.Wait()
	c.health.Set(stepGroup, errors.New("stopped"))
}

// listen takes the group's errors until the group is closed.
func (c *Consumer) listen(errs <-chan error) {
	for err := range errs {
		var at *sarama.ConsumerError
		if errors.Is(err, sarama.ErrOffsetOutOfRange) && errors.As(err, &at) {
			err = fmt.Errorf("%w: kafka no longer has the records at the committed offset, so accepted orders may be lost (the ledger "+
				"publishes again what it still holds): to go on from the oldest record there is, set landing.accept_lost_offsets to true", err)
			c.log.Error("stopped at an offset that is gone instead of skipping records", zap.Int32("partition", at.Partition), zap.Error(err))
			c.goneMu.Lock()
			c.gone[at.Partition] = err
			c.goneMu.Unlock()
			c.health.Set(stepOffsets, err)
			continue
		}
		c.log.Warn("consumer group error", zap.Error(err))
	}
}

// offsetsGone says which partition cannot be read on, if any.
func (c *Consumer) offsetsGone() error {
	c.goneMu.Lock()
	defer c.goneMu.Unlock()
	for _, err := range c.gone {
		return err
	}
	return nil
}

// offsetsFound forgets the alarm of partitions that can be read again or belong to another worker now.
func (c *Consumer) offsetsFound(found func(part int32) bool) {
	c.goneMu.Lock()
	defer c.goneMu.Unlock()
	maps.DeleteFunc(c.gone, func(part int32, _ error) bool { return found(part) })
	if len(c.gone) == 0 {
		c.health.Set(stepOffsets, nil)
	}
}

// watch keeps health and lag figures up to date.
func (c *Consumer) watch(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		c.health.Set(stepStall, c.progress.measure(c.cfg.StallAfter))
		if since := c.since.Load(); since != 0 {
			if age := time.Since(time.UnixMilli(since)); age > c.cfg.StallAfter {
				c.health.Set(stepGroup, fmt.Errorf("no session with consumer group %s for %s", c.kafka.Group, age.Round(time.Second)))
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// askEnds asks Kafka now and then where the claimed partitions end.
func (c *Consumer) askEnds(ctx context.Context) {
	for sleep(ctx, min(10*time.Second, c.cfg.StallAfter/2)) == nil {
		for _, part := range c.progress.claims() {
			if end, err := c.client.GetOffset(c.kafka.Topics.Orders, part, sarama.OffsetNewest); err == nil {
				c.progress.seen(part, end)
			}
		}
	}
}

// session notes that a session has begun or ended.
func (c *Consumer) session(on bool) {
	if on {
		c.since.Store(0)
		c.health.Set(stepGroup, nil)
		return
	}
	c.since.Store(time.Now().UnixMilli())
}

// workContext is the context of a claim's work. It outlives the session by a grace, so that a batch that is nearly done is
// not thrown away. The caller must call the returned function at its end.
func (c *Consumer) workContext(session context.Context) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancelCause(context.WithoutCancel(session))
	go func() {
		select {
		case <-work.Done():
			return
		case <-session.Done():
		}
		grace := c.cfg.RebalanceGrace
		if c.stopping.Load() {
			grace = c.cfg.ShutdownGrace
		}
		if sleep(work, grace) == nil {
			cancel(fmt.Errorf("session ended %s ago: %w", grace, context.Cause(session)))
		}
	}()
	return work, func() { cancel(context.Canceled) }
}

// oldest is the first offset that Kafka has of a partition.
func (c *Consumer) oldest(topic string, part int32) (int64, error) {
	off, err := c.client.GetOffset(topic, part, sarama.OffsetOldest)
	if err != nil {
		return 0, fmt.Errorf("oldest offset of %s/%d: %w", topic, part, err)
	}
	return off, nil
}
