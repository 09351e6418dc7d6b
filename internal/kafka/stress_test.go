package kafka

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// The producer's promises, whatever happens on the wire: acknowledged means once in the log, not sent means never, unknown means at
// most once; and each call ends within the budget.
func TestPromisesUnderRandomFaults(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, second)
	b.mustPublish(1)
	produce := faultproxy.KafkaRequest(faultproxy.KafkaProduce)
	var mu sync.Mutex
	outcome := map[string]error{}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			for !stop.Load() {
				o, ack, took, err := b.publish(int64(i%5 + 1))
				inTime(t, took, second.Budget, err)
				if err == nil && ack.Partition != Partition(ActivityKey(o.Activity), 3) {
					t.Errorf("ack %+v for activity %d", ack, o.Activity)
				}
				mu.Lock()
				outcome[o.ID] = err
				mu.Unlock()
				if err != nil {
					pause(t.Context(), 10*time.Millisecond)
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(1, uint64(testenv.ID())))
	until := time.Now().Add(8 * time.Second)
	for time.Now().Before(until) {
		moment := time.Duration(rng.IntN(500)) * time.Millisecond
		switch rng.IntN(7) {
		case 0:
			b.proxy.Reset()
		case 1:
			b.proxy.CloseAfter(produce, 1+rng.IntN(3))
		case 2:
			b.proxy.CloseBefore(produce, 1+rng.IntN(3))
		case 3:
			b.proxy.WithholdReply(produce, 1+rng.IntN(3))
		case 4: // a copy arrives late
			rule := b.proxy.Hold(produce, 1)
			pause(t.Context(), moment)
			rule.Release()
		case 5:
			b.proxy.HalfOpen()
			pause(t.Context(), moment)
			b.proxy.Heal()
		case 6:
			b.proxy.Cut()
			pause(t.Context(), moment/4)
			b.proxy.Heal()
		}
		pause(t.Context(), moment/2)
	}
	b.proxy.Heal()
	stop.Store(true)
	wg.Wait()
	for a := range 5 {
		b.mustPublish(int64(a + 1))
	}
	b.eventually("nothing is in flight", func() bool { return b.p.Stats().InFlight == 0 && b.p.OldestUnacked() == 0 })
	log := b.log()
	var acked, unsent, unknown int
	for id, err := range outcome {
		n := log[id]
		switch {
		case err == nil:
			acked++
			if n != 1 {
				t.Errorf("acknowledged, and %d copies", n)
			}
		case errors.Is(err, ErrNotSent):
			unsent++
			if n != 0 {
				t.Errorf("%v, and %d copies", err, n)
			}
		default:
			unknown++
			if n > 1 {
				t.Errorf("%v, and %d copies", err, n)
			}
		}
	}
	t.Logf("%d acknowledged, %d not sent, %d unknown", acked, unsent, unknown)
	if acked == 0 {
		t.Error("nothing was acknowledged")
	}
}

func TestLateCopyOfABatchIsRecognized(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, ProducerOptions{Budget: 5 * time.Second})
	b.mustPublish(1)
	rule := b.proxy.Hold(faultproxy.KafkaRequest(faultproxy.KafkaProduce), 1)
	o, _, _, err := b.publish(1)
	if err != nil { // by the second attempt, over another connection
		t.Fatal(err)
	}
	rule.Release()
	b.mustPublish(1)
	if n := b.log()[o.ID]; n != 1 {
		t.Errorf("%d copies, want 1", n)
	}
}

func BenchmarkPublish(bench *testing.B) {
	p, err := NewProducer(Config{Brokers: testenv.Brokers(bench), Topics: Topics{Orders: testenv.Topic(bench, "bench", 4)}}, ProducerOptions{}, nil)
	if err != nil {
		bench.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	o := newOrder(bench, 1)
	bench.SetParallelism(500)
	bench.ReportAllocs()
	bench.RunParallel(func(pb *testing.PB) {
		order := *o
		for pb.Next() {
			if _, err := p.Publish(bench.Context(), &order, nil); err != nil {
				bench.Error(err)
				return
			}
		}
	})
	s := p.Stats()
	bench.ReportMetric(float64(s.Acked)/float64(max(s.Batches, 1)), "messages/batch")
}

func BenchmarkHealthyFor(bench *testing.B) {
	p, err := NewProducer(Config{Brokers: testenv.Brokers(bench), Topics: Topics{Orders: testenv.Topic(bench, "bench", 4)}}, ProducerOptions{}, nil)
	if err != nil {
		bench.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	if _, err := p.Publish(bench.Context(), newOrder(bench, 1), nil); err != nil {
		bench.Fatal(err)
	}
	bench.ReportAllocs()
	for bench.Loop() {
		if err := p.HealthyFor(1); err != nil {
			bench.Fatal(err)
		}
	}
}
