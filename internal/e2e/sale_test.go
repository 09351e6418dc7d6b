package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/seckillgate/seckillgate/internal/loadgen"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// The main job: 5,000 buyers want 1 to 3 of 500 units. Whatever happens meanwhile, what was accepted is what was sold,
// Redis equals MySQL, nothing stays reserved, and no buyer has two live orders.
func TestSale(t *testing.T) {
	const buyers, units = 5000, 500
	for name, disturb := range map[string]func(*stack, *loadgen.Stats) func(){
		"undisturbed": func(*stack, *loadgen.Stats) func() { return func() {} },
		"worker killed and restarted": func(s *stack, stats *loadgen.Stats) func() {
			return s.once(stats, 60, func() {
				s.worker.Kill()
				s.worker.Restart()
			})
		},
		"gateway reloaded": func(s *stack, stats *loadgen.Stats) func() {
			return s.once(stats, 30, func() {
				for i := range 5 {
					s.change(i)
					s.command("caddy", "reload", "--address", s.caddyAPI)
				}
			})
		},
		"syncer killed and restarted": func(s *stack, stats *loadgen.Stats) func() {
			return s.once(stats, 60, func() {
				s.syncer.Kill()
				s.syncer.Restart()
			})
		},
		"every message delivered twice": func(s *stack, _ *loadgen.Stats) func() { return s.duplicate() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t)
			s.startGateway()
			id := s.sell(units)
			stats := loadgen.NewStats()
			wait := disturb(s, stats)
			records := s.rush(id, buyers, stats)
			wait()
			report := s.check(id, units, records)
			// Nobody is turned away while there is something left that he asked for.
			if left := report.Totals.Left; left != 0 {
				t.Errorf("%d units of %d were not sold to %d buyers", left, units, buyers)
			}
			accepted, refused, unheard := 0, 0, 0
			for _, r := range records {
				switch {
				case r.Accepted():
					accepted++
					if r.Final != "confirmed" {
						t.Errorf("order %s of %s was accepted and is %q (%s)", r.OrderID, r.User, r.Final, r.FinalReason)
					}
				case r.Refused():
					refused++
				default:
					unheard++
				}
			}
			if got := report.Totals.SoldOrders; accepted > got || got > accepted+unheard {
				t.Errorf("%d accepted, %d refused, %d heard nothing, %d orders in mysql", accepted, refused, unheard, got)
			}
			// A reload closes a listener, and the kernel resets what waits in its queue: those buyers ask again. Nothing else
			// leaves a buyer without an answer.
			if most := map[string]int{"gateway reloaded": buyers / 10}[name]; unheard > most {
				t.Errorf("%d buyers heard nothing", unheard)
			}
			t.Logf("%+v", stats.Figures().Answers)
		})
	}
}

// change makes the gateway's configuration differ, so that a reload really loads.
func (s *stack) change(i int) {
	s.Helper()
	b, err := os.ReadFile(s.file("caddy"))
	if err != nil {
		s.Fatal(err)
	}
	text := string(b)
	if at := strings.Index(text, "\n# "); at >= 0 {
		text = text[:at]
	}
	text = strings.Replace(text, "request_timeout", "#", 1)
	text = strings.Replace(text, "publish_timeout 1500ms", fmt.Sprintf("publish_timeout %dms", 1500+i), 1)
	if err := os.WriteFile(s.file("caddy"), []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
}

// duplicate copies each record of the orders topic behind itself while the sale goes on, and waits until it has copied all.
func (s *stack) duplicate() func() {
	s.Helper()
	cfg := sarama.NewConfig()
	cfg.Producer.Return.Successes = true
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	c, err := sarama.NewClient(s.kafka.Brokers, cfg)
	if err != nil {
		s.Fatal(err)
	}
	producer, err := sarama.NewSyncProducerFromClient(c)
	if err != nil {
		s.Fatal(err)
	}
	consumer, err := sarama.NewConsumerFromClient(c)
	if err != nil {
		s.Fatal(err)
	}
	partitions, err := c.Partitions(s.kafka.Topics.Orders)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	copied := make(chan string, 1<<16)
	done := make(chan struct{}, len(partitions))
	for _, p := range partitions {
		pc, err := consumer.ConsumePartition(s.kafka.Topics.Orders, p, sarama.OffsetOldest)
		if err != nil {
			s.Fatal(err)
		}
		go func() {
			defer func() { _ = pc.Close(); done <- struct{}{} }()
			for {
				select {
				case <-ctx.Done():
					return
				case m := <-pc.Messages():
					if len(m.Headers) > 0 && string(m.Headers[len(m.Headers)-1].Key) == "copy" {
						continue
					}
					_, _, err := producer.SendMessage(&sarama.ProducerMessage{
						Topic: m.Topic, Key: sarama.ByteEncoder(m.Key), Value: sarama.ByteEncoder(m.Value), Partition: m.Partition,
						Headers: []sarama.RecordHeader{{Key: []byte("copy"), Value: []byte("1")}},
					})
					if err != nil {
						s.Errorf("copy a record: %v", err)
						return
					}
					copied <- string(m.Value)
				}
			}
		}()
	}
	return func() {
		want, err := s.sources.Kafka.HighWater(s.Context(), s.kafka.Topics.Orders)
		if err != nil {
			s.Error(err)
		}
		testenv.Eventually(s, time.Minute, "each record has its copy", func() bool {
			now, err := s.sources.Kafka.HighWater(s.Context(), s.kafka.Topics.Orders)
			if err != nil {
				return false
			}
			total := int64(0)
			for p := range want {
				total += now[p]
			}
			return total > 0 && total == 2*int64(len(copied))
		})
		cancel()
		for range partitions {
			<-done
		}
		if err := producer.Close(); err != nil {
			s.Error(err)
		}
		_ = consumer.Close()
		_ = c.Close()
	}
}
