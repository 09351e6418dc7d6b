package kafka

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// told is what Enqueue's callback was called with.
type told struct {
	ack Ack
	err error
}

// enqueue hands over an order and gives where its outcome comes. The channel has room for more than the one that is due.
func enqueue(t *testing.T, p *Producer, activity int64, until time.Time, user string) (*order.Order, chan told) {
	t.Helper()
	id, err := order.NewID()
	if err != nil {
		t.Fatal(err)
	}
	o := &order.Order{
		V: order.SchemaVersion, ID: id, Activity: activity, User: user, Item: 7, Quantity: 1, CreatedAtMs: time.Now().UnixMilli(),
	}
	c := make(chan told, 2)
	p.Enqueue(o, nil, until, func(ack Ack, err error) { c <- told{ack, err} })
	return o, c
}

func outcome(t *testing.T, c chan told) told {
	t.Helper()
	select {
	case got := <-c:
		return got
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was told within 30s")
		return told{}
	}
}

// TestEnqueue: each order is told once, with its own offset, and they share batches. The first of them have to wait for the
// topic's metadata.
func TestEnqueue(t *testing.T) {
	t.Parallel()
	b := setup(t, 2, ProducerOptions{})
	const orders = 200
	activity, until := testenv.ID(), time.Now().Add(time.Minute)
	var mu sync.Mutex
	outcomes := map[string]chan told{}
	var all sync.WaitGroup
	for range orders {
		all.Go(func() {
			o, c := enqueue(t, b.p, activity, until, "u")
			mu.Lock()
			outcomes[o.ID] = c
			mu.Unlock()
		})
	}
	all.Wait()
	seen := map[int64]bool{}
	for id, c := range outcomes {
		got := outcome(t, c)
		if got.err != nil || got.ack.Offset < 0 || got.ack.Offset >= orders || seen[got.ack.Offset] {
			t.Fatalf("order %s: %+v: want each offset once", id, got)
		}
		seen[got.ack.Offset] = true
	}
	if s := b.p.Stats(); s.Acked != orders || s.InFlight != 0 || s.Batches > orders/2 {
		t.Errorf("stats %+v: want all acknowledged in few batches", s)
	}
	log := b.log()
	for id, c := range outcomes {
		if log[id] != 1 || len(c) != 0 {
			t.Errorf("order %s is %d times in the log, and was told %d times more", id, log[id], len(c))
		}
	}
}

// TestEnqueueProvesWhatIsNotSent: too late, too large, or too late for the producer itself. None of it reaches the log.
func TestEnqueueProvesWhatIsNotSent(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, ProducerOptions{})
	activity, later := testenv.ID(), time.Now().Add(time.Minute)
	if _, _, _, err := b.publish(activity); err != nil { // the topic is known from here on
		t.Fatal(err)
	}
	_, late := enqueue(t, b.p, activity, time.Now().Add(-time.Millisecond), "u")
	if got := outcome(t, late); !errors.Is(got.err, ErrNotSent) {
		t.Errorf("after its time: %+v", got)
	}
	_, large := enqueue(t, b.p, activity, later, strings.Repeat("u", b.p.cfg.MaxMessageBytes))
	if got := outcome(t, large); !errors.Is(got.err, ErrNotSent) || !errors.Is(got.err, sarama.ErrMessageSizeTooLarge) {
		t.Errorf("too large: %+v", got)
	}
	if err := b.p.Close(); err != nil {
		t.Fatal(err)
	}
	_, closed := enqueue(t, b.p, activity, later, "u")
	if got := outcome(t, closed); !errors.Is(got.err, ErrNotSent) {
		t.Errorf("closed: %+v", got)
	}
	if n := len(b.log()); n != 1 {
		t.Errorf("%d orders are in the log, want the one that was published before", n)
	}
}
