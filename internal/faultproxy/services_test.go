package faultproxy

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

// A lost reply makes go-redis with its default settings run a command twice and report success: the very fault that
// this product is built against, and a check that the proxy produces it.
func TestRedisClientRepeatsAfterALostReply(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	p := New(t, r.Addr)
	rule := p.CloseAfter(Contains("incr"), 1)
	c := redis.NewClient(&redis.Options{Addr: p.Addr()})
	defer c.Close()
	got, err := c.Incr(t.Context(), "n").Result()
	if err != nil || got != 2 || rule.Fired() != 1 {
		t.Errorf("INCR returns %d, %v with %d replies lost", got, err, rule.Fired())
	}
}

func TestKafkaStaysBehindTheProxy(t *testing.T) {
	t.Parallel()
	topic := testenv.Topic(t, "faultproxy", 1)
	p := NewKafka(t, testenv.Brokers(t)[0])
	producer := newProducer(t, p, 3)
	send := func() (int64, error) {
		_, offset, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("v")})
		return offset, err
	}
	if offset, err := send(); err != nil || offset != 0 {
		t.Fatalf("first message at %d, %v", offset, err)
	}

	// The producer is idempotent: its retry after a lost acknowledgement is no second message.
	rule := p.CloseAfter(KafkaRequest(KafkaProduce), 1)
	if offset, err := send(); err != nil || offset != 1 || rule.Fired() != 1 {
		t.Fatalf("second message at %d, %v with %d acknowledgements lost", offset, err, rule.Fired())
	}
	if offset, err := send(); err != nil || offset != 2 {
		t.Fatalf("third message at %d, %v", offset, err)
	}

	// All brokers that it knows are the proxy, so a cut leaves it no way.
	p.Cut()
	if offset, err := send(); err == nil {
		t.Errorf("a message gets past a cut proxy, to %d", offset)
	}
}

func newProducer(t *testing.T, p *Proxy, retries int) sarama.SyncProducer {
	t.Helper()
	cfg := sarama.NewConfig()
	cfg.Producer.Return.Successes = true
	cfg.Producer.RequiredAcks = sarama.WaitForAll
	cfg.Producer.Idempotent = true
	cfg.Producer.Retry.Max = retries
	cfg.Producer.Retry.Backoff = 10 * time.Millisecond
	cfg.Metadata.Retry.Max = retries
	cfg.Metadata.Retry.Backoff = 10 * time.Millisecond
	cfg.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer([]string{p.Addr()}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = producer.Close() })
	return producer
}
