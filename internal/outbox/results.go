package outbox

import (
	"context"
	"encoding/json"
	"time"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/store"
)

// Sender sends one message and waits for its acknowledgement. *kafka.Producer is one.
type Sender interface {
	Send(ctx context.Context, topic string, key, value []byte, headers map[string]string) (kafka.Ack, error)
}

// ResultsPace suits the results topic: many messages share a batch of the producer.
var ResultsPace = Pace{Parallel: 512, RetryMin: 100 * time.Millisecond, RetryMax: 5 * time.Second}

// ResultsTopic is the listener behind seckill.results. Messages are keyed by order id, so an order's outcomes stay in order.
type ResultsTopic struct {
	Sender Sender
	Topic  string
}

// resultAttempt bounds one try, the producer's own attempts included.
const resultAttempt = 10 * time.Second

// Deliver writes the event and waits for Kafka.
func (t ResultsTopic) Deliver(ctx context.Context, e store.Event) error {
	value, err := json.Marshal(e.Result)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, resultAttempt)
	defer cancel()
	_, err = t.Sender.Send(ctx, t.Topic, []byte(e.ID), value, nil)
	return err
}
