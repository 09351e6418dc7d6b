package landing

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/order"
)

// Sender sends one message and waits for its acknowledgement. *kafka.Producer is one.
type Sender interface {
	Send(ctx context.Context, topic string, key, value []byte, headers map[string]string) (kafka.Ack, error)
}

// Bounds of TopicResults.
const (
	resultLanes   = 32               // sends under way at once
	resultQueue   = 1024             // results waiting in each lane; more are dropped
	resultTrying  = 30 * time.Second // how long one result is tried
	resultDrain   = 3 * time.Second  // how long Stop waits for what is queued
	resultAttempt = 5 * time.Second
)

// TopicResults writes outcomes to the results topic in the background, in order for each order id. It never holds up
// landing: a result that cannot be sent within its bounds is dropped and counted. What a listener must not miss, it finds
// in MySQL.
type TopicResults struct {
	sender  Sender
	topic   string
	log     *zap.Logger
	metrics *Metrics
	seed    maphash.Seed
	lanes   [resultLanes]chan order.Result

	mu      sync.RWMutex // held for reading while putting, so that lanes close under no sender
	closed  bool
	started bool
	wg      sync.WaitGroup
	cancel  context.CancelFunc
}

// NewTopicResults prepares the sender.
func NewTopicResults(s Sender, topic string, m *Metrics, log *zap.Logger) *TopicResults {
	t := &TopicResults{sender: s, topic: topic, log: log, metrics: m, seed: maphash.MakeSeed()}
	for i := range t.lanes {
		t.lanes[i] = make(chan order.Result, resultQueue)
	}
	return t
}

// Start begins to send.
func (t *TopicResults) Start() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.started || t.closed {
		return
	}
	t.started = true
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel = cancel
	for _, lane := range t.lanes {
		t.wg.Go(func() {
			for r := range lane {
				t.send(ctx, r)
			}
		})
	}
}

// Put queues a result, or drops it when its lane is full.
func (t *TopicResults) Put(r order.Result) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.closed {
		select {
		case t.lanes[maphash.String(t.seed, r.ID)%resultLanes] <- r:
			return
		default:
		}
	}
	t.metrics.results.WithLabelValues("dropped").Inc()
}

// Stop sends what is queued, within a bound, and ends. It may be called twice and before Start.
func (t *TopicResults) Stop() {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		t.wg.Wait()
		return
	}
	t.closed = true
	for _, lane := range t.lanes {
		close(lane)
	}
	started := t.started
	t.mu.Unlock()
	if !started {
		return
	}
	bound := time.AfterFunc(resultDrain, t.cancel)
	t.wg.Wait()
	bound.Stop()
	t.cancel()
}

func (t *TopicResults) send(ctx context.Context, r order.Result) {
	value, err := json.Marshal(r)
	if err != nil {
		t.metrics.results.WithLabelValues("failed").Inc()
		return
	}
	ctx, cancel := context.WithTimeout(ctx, resultTrying)
	defer cancel()
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		try, cancel := context.WithTimeout(ctx, resultAttempt)
		_, err = t.sender.Send(try, t.topic, []byte(r.ID), value, nil)
		cancel()
		if err == nil {
			t.metrics.results.WithLabelValues("sent").Inc()
			return
		}
		if sleep(ctx, pause) != nil {
			t.metrics.results.WithLabelValues("failed").Inc()
			t.log.Debug("outcome not sent to the results topic", zap.String("order", r.ID), zap.Error(err))
			return
		}
	}
}
