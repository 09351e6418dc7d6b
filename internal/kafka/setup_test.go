package kafka

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.KnownLeaks()...) }

// bundle is a topic on the real broker behind a fault proxy, with a producer that goes through the proxy and an admin that does
// not.
type bundle struct {
	t     *testing.T
	topic string
	proxy *faultproxy.Proxy
	cfg   Config // through the proxy
	p     *Producer
	admin *Admin
}

func setup(t *testing.T, partitions int32, opt ProducerOptions) *bundle {
	t.Helper()
	b := &bundle{t: t, topic: testenv.Topic(t, "kafka", partitions), proxy: faultproxy.NewKafka(t, testenv.Brokers(t)[0])}
	b.cfg = Config{Brokers: []string{b.proxy.Addr()}, Topics: Topics{Orders: b.topic}}
	b.p = newProducer(t, b.cfg, opt)
	b.admin = newAdmin(t, Config{Brokers: testenv.Brokers(t), Topics: Topics{Orders: b.topic}})
	return b
}

func newProducer(t *testing.T, cfg Config, opt ProducerOptions) *Producer {
	t.Helper()
	p, err := NewProducer(cfg, opt, zaptest.NewLogger(t, zaptest.Level(zapcore.ErrorLevel)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

func newAdmin(t *testing.T, cfg Config) *Admin {
	t.Helper()
	a, err := NewAdmin(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func newOrder(t testing.TB, activity int64) *order.Order {
	t.Helper()
	id, err := order.NewID()
	if err != nil {
		t.Fatal(err)
	}
	return &order.Order{ID: id, Activity: activity, User: "u1", Item: 7, Quantity: 1, CreatedAtMs: time.Now().UnixMilli()}
}

// publish sends one order and returns the outcome and how long it took.
func (b *bundle) publish(activity int64) (*order.Order, Ack, time.Duration, error) {
	b.t.Helper()
	o, began := newOrder(b.t, activity), time.Now()
	ack, err := b.p.Publish(context.Background(), o, nil)
	return o, ack, time.Since(began), err
}

// mustPublish publishes until it works: after a fault is healed.
func (b *bundle) mustPublish(activity int64) {
	b.t.Helper()
	b.eventually("publish works", func() bool {
		_, _, _, err := b.publish(activity)
		return err == nil
	})
}

// log counts the copies of each order in the topic.
func (b *bundle) log() map[string]int {
	b.t.Helper()
	ctx := b.t.Context()
	to, err := b.admin.HighWater(ctx, b.topic)
	if err != nil {
		b.t.Fatal(err)
	}
	copies := map[string]int{}
	err = b.admin.Read(ctx, b.topic, nil, to, func(_ int32, offset int64, _ time.Time, _, value []byte) error {
		o, err := order.Decode(value)
		if err != nil {
			return fmt.Errorf("offset %d: %w", offset, err)
		}
		copies[o.ID]++
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return copies
}

func (b *bundle) eventually(what string, cond func() bool) {
	b.t.Helper()
	testenv.Eventually(b.t, 15*time.Second, what, cond)
}

// second is a budget that keeps tests short and still leaves attempts enough time on a busy machine.
var second = ProducerOptions{Budget: time.Second}

// inTime holds a publish against its budget. A machine that stalls adds seconds to it, and a call that nothing ends adds many more.
func inTime(t testing.TB, took, budget time.Duration, err error) {
	t.Helper()
	if took > budget+5*time.Second {
		t.Errorf("took %v, want at most the budget %v: %v", took, budget, err)
	} else if took > budget+budget/5 {
		t.Logf("took %v with a budget of %v: %v", took, budget, err)
	}
}
