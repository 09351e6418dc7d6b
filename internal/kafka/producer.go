package kafka

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/order"
)

// ErrNotSent marks the errors of messages that provably never reached a broker's log: the caller may take its reservation
// back. Any other error of Publish and Send means that nobody knows.
var ErrNotSent = errors.New("not sent to kafka")

// ErrTopicMissing marks the errors that say that a topic does not exist.
var ErrTopicMissing = errors.New("kafka topic does not exist")

// Ack is Kafka's acknowledgement by all in-sync replicas.
type Ack struct {
	Partition int32
	Offset    int64
}

// ProducerOptions bound a Producer. The zero value of each field means its default.
type ProducerOptions struct {
	// Budget bounds the time from the call of Publish to the end of its last attempt. Default: 5s; at least 500ms.
	Budget time.Duration
	// MaxInFlight bounds the messages that are queued or being sent; more are refused at once. Default: 20000.
	MaxInFlight int
	// Topics are watched for health from the start, besides every topic that was sent to. Default: the orders topic.
	Topics []string
}

// Producer publishes with idempotence and acks=all. All methods are safe for concurrent use.
type Producer struct{}

// NewProducer checks the configuration and does not dial. The first use does, or Start.
func NewProducer(cfg Config, opt ProducerOptions, log *zap.Logger) (*Producer, error) {
	panic("TODO")
}

// Start begins to connect in the background, so that Healthy tells the truth before the first Publish. It returns at once and
// may be called more than once.
func (p *Producer) Start() {}

// Publish sends an order, keyed by its activity, to the orders topic and waits for the acknowledgement. The end of ctx ends the
// wait: with ErrNotSent if the message had not been handed over yet, else with an error that means unknown.
func (p *Producer) Publish(ctx context.Context, o *order.Order, headers map[string]string) (Ack, error) {
	panic("TODO")
}

// Send is Publish for any topic, key and value.
func (p *Producer) Send(ctx context.Context, topic string, key, value []byte, headers map[string]string) (Ack, error) {
	panic("TODO")
}

// Healthy is nil, or says why a message sent now would be in danger, for the worst of all watched topics and partitions. Before
// anything is known it is nil.
func (p *Producer) Healthy() error { panic("TODO") }

// HealthyFor is Healthy for the one partition that the orders of an activity go to. It costs no allocation and no lock that is
// held for long: ask it before each reservation.
func (p *Producer) HealthyFor(activity int64) error { panic("TODO") }

// OldestUnacked is the age of the oldest message that is neither acknowledged nor given up; 0 if there is none.
func (p *Producer) OldestUnacked() time.Duration { panic("TODO") }

// Stats counts what became of messages since the start.
type Stats struct {
	Acked, NotSent, Unknown uint64 // messages
	Batches                 uint64 // acknowledged batches
	InFlight                int64  // messages queued or being sent now
}

// Stats is a snapshot for metrics.
func (p *Producer) Stats() Stats { panic("TODO") }

// Close refuses new messages with ErrNotSent, waits until each one accepted before has its answer (at most the budget), and
// ends every goroutine. It may be called more than once.
func (p *Producer) Close() error { panic("TODO") }
