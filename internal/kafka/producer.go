package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/order"
)

// Ack is Kafka's acknowledgement by all in-sync replicas.
type Ack struct {
	Partition int32
	// Offset is -1 in the rare case that the broker only says that it has the message already.
	Offset int64
}

// ProducerOptions bound a Producer. The zero value of each field means its default.
type ProducerOptions struct {
	// Budget bounds the time from the call of Publish to the end of its last attempt. Default: 5s; at least 500ms.
	Budget time.Duration
	// MaxInFlight bounds the messages that are queued or being sent; more are refused at once. Default: 20000.
	MaxInFlight int
	// Topics are watched for health from the start, besides every topic that was sent to. Default: the orders topic.
	Topics []string

	beforeAttempt func() // called on the lane's goroutine; tests only
}

// Bounds of ProducerOptions.
const (
	DefaultBudget      = 5 * time.Second
	MinBudget          = 500 * time.Millisecond
	DefaultMaxInFlight = 20_000
)

const (
	// watchEvery is how often the watched topics' metadata is read, so that a dead cluster or a missing leader is noticed before
	// an order meets it.
	watchEvery = 5 * time.Second
	// maxBatch bounds the messages of one batch, besides their bytes.
	maxBatch = 1000
)

func (o *ProducerOptions) setDefaults(cfg Config) error {
	if o.Budget == 0 {
		o.Budget = DefaultBudget
	}
	if o.Budget < MinBudget {
		return fmt.Errorf("kafka: publish budget %s is too short: use at least %s", o.Budget, MinBudget)
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = DefaultMaxInFlight
	}
	if o.MaxInFlight < 0 {
		return fmt.Errorf("kafka: max in flight %d is negative: use at least 1", o.MaxInFlight)
	}
	if len(o.Topics) == 0 {
		o.Topics = []string{cfg.Topics.Orders}
	}
	return nil
}

// handover is how long a message may wait for its turn. It is refused after that, so that each message that is handed over has
// time left for at least one whole attempt.
func (o *ProducerOptions) handover() time.Duration { return o.Budget * 3 / 5 }

// attempt bounds one attempt, from looking up the leader to the answer.
func (o *ProducerOptions) attempt() time.Duration { return o.Budget * 2 / 5 }

// stall is the age from which on an unacknowledged message makes its partition unhealthy. It only stops new reservations.
func (o *ProducerOptions) stall() time.Duration { return min(time.Second, o.Budget/2) }

// Producer publishes with idempotence and acks=all. All methods are safe for concurrent use.
//
// It speaks to the brokers with sarama's protocol layer, not with its AsyncProducer: that one has no deadline and cannot be told to
// give up, so a message might reach the log after the publish budget, and its errors do not say whether anything was ever
// sent. Here each partition has one lane: a queue, at most one batch on the wire, a connection and an idempotent identity of its
// own. What waits while a batch is on the wire is the next batch.
type Producer struct {
	cfg     Config
	opt     ProducerOptions
	log     *zap.Logger
	cluster *cluster

	mu      sync.RWMutex
	closed  bool
	lanes   map[laneKey]*lane
	topics  map[string]*topicState
	cancels []context.CancelFunc // one for each goroutine
	running sync.WaitGroup       // lanes
	helpers sync.WaitGroup       // the watcher

	start sync.Once
	kick  chan struct{} // has the watcher look now

	inFlight                        atomic.Int64
	acked, unsent, unknown, batches atomic.Uint64
}

type laneKey struct {
	topic     string
	partition int32
}

// topicState is what the watcher knows of a topic.
type topicState struct {
	known      chan struct{} // closed once partitions is set
	partitions atomic.Int32
	trouble    atomic.Pointer[error]
}

// NewProducer checks the configuration and does not dial. The first use does, or Start.
func NewProducer(cfg Config, opt ProducerOptions, log *zap.Logger) (*Producer, error) {
	cfg.SetDefaults()
	if err := opt.setDefaults(cfg); err != nil {
		return nil, err
	}
	cl, err := newCluster(cfg)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = zap.NewNop()
	}
	p := &Producer{
		cfg: cfg, opt: opt, log: log, cluster: cl,
		lanes: map[laneKey]*lane{}, topics: map[string]*topicState{}, kick: make(chan struct{}, 1),
	}
	for _, t := range opt.Topics {
		p.topics[t] = &topicState{known: make(chan struct{})}
	}
	return p, nil
}

// Start begins to connect in the background, so that Healthy tells the truth before the first Publish. It returns at once and
// may be called more than once.
func (p *Producer) Start() {
	p.start.Do(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.closed {
			p.spawn(&p.helpers, p.watch)
		}
	})
}

// spawn runs f until it ends or Close cancels it. p.mu is held.
func (p *Producer) spawn(group *sync.WaitGroup, f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancels = append(p.cancels, cancel)
	group.Go(func() { f(ctx) })
}

// Publish sends an order, keyed by its activity, to the orders topic and waits for the acknowledgement. The end of ctx ends the
// wait: with ErrNotSent if the message had not been handed over yet, else with an error that means unknown.
func (p *Producer) Publish(ctx context.Context, o *order.Order, headers map[string]string) (Ack, error) {
	value, err := o.Encode()
	if err != nil {
		p.unsent.Add(1)
		return Ack{}, notSent("order %s: %w", o.ID, err)
	}
	return p.Send(ctx, p.cfg.Topics.Orders, ActivityKey(o.Activity), value, headers)
}

// ActivityKey is the key of an activity's messages.
func ActivityKey(activity int64) []byte { return strconv.AppendInt(nil, activity, 10) }

// Send is Publish for any topic, key and value.
func (p *Producer) Send(ctx context.Context, topic string, key, value []byte, headers map[string]string) (Ack, error) {
	m := newMessage(key, value, headers)
	m.done = make(chan struct{})
	if m.size > p.cfg.MaxMessageBytes {
		p.unsent.Add(1)
		return Ack{}, notSent("%w: %d bytes, but max_message_bytes is %d", sarama.ErrMessageSizeTooLarge, m.size, p.cfg.MaxMessageBytes)
	}
	if !p.admit() {
		p.unsent.Add(1)
		return Ack{}, notSent("%d messages are waiting already", p.opt.MaxInFlight)
	}
	wait := time.NewTimer(p.opt.handover())
	defer wait.Stop()
	if err := p.enqueue(ctx, topic, m, wait.C); err != nil {
		p.finish(m, Ack{}, err)
		return Ack{}, err
	}
	var cause error
	select {
	case <-m.done:
		return m.ack, m.err
	case <-wait.C:
		cause = fmt.Errorf("its turn did not come within %s", p.opt.handover())
	case <-ctx.Done():
		cause = context.Cause(ctx)
	}
	if m.take(dropped) { // the lane discards it
		p.unsent.Add(1)
		return Ack{}, notSent("topic %q: %w", topic, cause)
	}
	// It is on the wire, so its end is near: the lane keeps to the budget. The timer is only for a lane that does not.
	wait.Reset(time.Until(m.at.Add(p.opt.Budget + p.opt.Budget/10)))
	select {
	case <-m.done:
		return m.ack, m.err
	case <-wait.C:
		return Ack{}, fmt.Errorf("topic %q: no answer within the publish budget %s", topic, p.opt.Budget)
	case <-ctx.Done():
		return Ack{}, fmt.Errorf("topic %q: gave up waiting: %w", topic, context.Cause(ctx))
	}
}

// Enqueue is Publish for callers that need not wait. It returns at once, and done is called once with what Publish would have
// returned: by the goroutine that serves the whole partition, or before Enqueue returns, so it must neither block nor use the
// producer. It is called within twice the budget. What has not been handed over by until is not sent at all; the budget
// bounds the rest.
func (p *Producer) Enqueue(o *order.Order, headers map[string]string, until time.Time, done func(Ack, error)) {
	value, err := o.Encode()
	if err != nil {
		p.unsent.Add(1)
		done(Ack{}, notSent("order %s: %w", o.ID, err))
		return
	}
	m := newMessage(ActivityKey(o.Activity), value, headers)
	m.then, m.until = done, until
	if m.size > p.cfg.MaxMessageBytes {
		p.unsent.Add(1)
		done(Ack{}, notSent("%w: %d bytes, but max_message_bytes is %d", sarama.ErrMessageSizeTooLarge, m.size, p.cfg.MaxMessageBytes))
		return
	}
	if !p.admit() {
		p.unsent.Add(1)
		done(Ack{}, notSent("%d messages are waiting already", p.opt.MaxInFlight))
		return
	}
	topic := p.cfg.Topics.Orders
	if t := p.watched(topic); t == nil || t.isKnown() {
		if err := p.enqueue(context.Background(), topic, m, nil); err != nil {
			p.finish(m, Ack{}, err)
		}
		return
	}
	// Only the first orders of all have to wait for the topic's metadata.
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.finish(m, Ack{}, notSent("the producer is closed"))
		return
	}
	defer p.mu.Unlock()
	p.helpers.Go(func() {
		wait := time.NewTimer(p.opt.handover())
		defer wait.Stop()
		if err := p.enqueue(context.Background(), topic, m, wait.C); err != nil {
			p.finish(m, Ack{}, err)
		}
	})
}

// isKnown says whether enqueue need not wait.
func (t *topicState) isKnown() bool {
	select {
	case <-t.known:
		return true
	default:
		return false
	}
}

// admit takes a place among the messages in flight, if there is one. What is refused never counts.
func (p *Producer) admit() bool {
	for {
		n := p.inFlight.Load()
		if n >= int64(p.opt.MaxInFlight) {
			return false
		}
		if p.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// enqueue finds the message's lane, waiting for the topic's metadata if it is not known yet.
func (p *Producer) enqueue(ctx context.Context, topic string, m *message, tooLate <-chan time.Time) error {
	p.Start() //nolint:contextcheck // the watcher and the lanes outlive the message; Close ends them
	t := p.watched(topic)
	if t == nil {
		return notSent("the producer is closed")
	}
	select {
	case <-t.known:
	default:
		if err := t.err(); err != nil {
			return notSent("%w", err)
		}
		select {
		case <-t.known:
		case <-tooLate:
			return notSent("topic %q: kafka did not answer within %s: %w", topic, p.opt.handover(), errors.Join(t.err()))
		case <-ctx.Done():
			return notSent("topic %q: %w", topic, context.Cause(ctx))
		}
	}
	l := p.lane(laneKey{topic, Partition(m.key, t.partitions.Load())}) //nolint:contextcheck // as above
	if l == nil {
		return notSent("the producer is closed")
	}
	return l.put(m)
}

// Partition is the partition that a key belongs to, by the same hash as Java clients and most others use by default. Every
// message of this product goes through here.
func Partition(key []byte, partitions int32) int32 {
	m := keyed.Get().(*sarama.ProducerMessage)
	defer keyed.Put(m)
	m.Key = sarama.ByteEncoder(key)
	n, err := murmur2.Partition(m, partitions)
	if err != nil {
		return 0 // cannot be: encoding bytes does not fail
	}
	return n
}

var murmur2 = sarama.NewMurmur2Partitioner("")

// keyed are messages for murmur2: it is asked twice for each order, and a message is large.
var keyed = sync.Pool{New: func() any { return new(sarama.ProducerMessage) }}

// watched is the state of a topic, which is watched from now on; nil if the producer is closed.
func (p *Producer) watched(topic string) *topicState {
	p.mu.RLock()
	t, closed := p.topics[topic], p.closed
	p.mu.RUnlock()
	if closed {
		return nil
	}
	if t != nil {
		return t
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t = p.topics[topic]; t == nil {
		t = &topicState{known: make(chan struct{})}
		p.topics[topic] = t
		p.look()
	}
	return t
}

// look has the watcher look now.
func (p *Producer) look() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

func (p *Producer) lane(key laneKey) *lane {
	p.mu.RLock()
	l := p.lanes[key]
	p.mu.RUnlock()
	if l != nil {
		return l
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l = p.lanes[key]; l == nil && !p.closed {
		l = newLane(p, key)
		p.lanes[key] = l
		p.spawn(&p.running, l.run)
	}
	return l
}

// finish settles a message: nobody touches it afterwards.
func (p *Producer) finish(m *message, ack Ack, err error) {
	m.ack, m.err = ack, err
	if m.then != nil {
		defer m.then(ack, err)
	} else {
		defer close(m.done)
	}
	p.inFlight.Add(-1)
	switch {
	case err == nil:
		p.acked.Add(1)
	case errors.Is(err, ErrNotSent):
		p.unsent.Add(1)
	default:
		p.unknown.Add(1)
	}
}

// Stats counts what became of messages since the start.
type Stats struct {
	Acked, NotSent, Unknown uint64 // messages
	Batches                 uint64 // acknowledged batches
	InFlight                int64  // messages queued or being sent now
}

// Stats is a snapshot for metrics.
func (p *Producer) Stats() Stats {
	return Stats{p.acked.Load(), p.unsent.Load(), p.unknown.Load(), p.batches.Load(), p.inFlight.Load()}
}

// Close refuses new messages with ErrNotSent, waits until each one accepted before has its answer (at most the budget), and
// ends every goroutine. It may be called more than once.
func (p *Producer) Close() error {
	p.mu.Lock()
	p.closed = true
	lanes, cancels := p.allLanes(), slices.Clone(p.cancels)
	p.mu.Unlock()
	for _, l := range lanes {
		l.close()
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		p.running.Wait()
	}()
	late := time.NewTimer(p.opt.Budget + p.opt.Budget/10)
	defer late.Stop()
	var err error
	select {
	case <-drained:
	case <-late.C:
		err = fmt.Errorf("kafka: %d messages were still on their way when the producer closed", p.inFlight.Load())
	}
	for _, cancel := range cancels {
		cancel()
	}
	<-drained
	p.helpers.Wait()
	p.cluster.close()
	return err
}

// allLanes needs p.mu.
func (p *Producer) allLanes() []*lane {
	out := make([]*lane, 0, len(p.lanes))
	for _, l := range p.lanes {
		out = append(out, l)
	}
	return out
}
