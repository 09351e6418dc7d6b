package landing

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
)

func queue(capacity int, sizes ...int) chan *sarama.ConsumerMessage {
	c := make(chan *sarama.ConsumerMessage, capacity)
	for i, n := range sizes {
		c <- &sarama.ConsumerMessage{Offset: int64(i), Value: make([]byte, n)}
	}
	return c
}

func TestGather(t *testing.T) {
	t.Parallel()
	gather := func(ctx context.Context, cfg Config, from chan *sarama.ConsumerMessage) int {
		cfg.SetDefaults()
		return len((&Consumer{cfg: cfg}).gather(ctx, from))
	}
	t.Run("takes along what is there, up to the count", func(t *testing.T) {
		q := queue(10, 1, 1, 1, 1, 1)
		if n := gather(t.Context(), Config{MaxOrders: 3, MaxWait: -1}, q); n != 3 {
			t.Errorf("batch of %d, want 3", n)
		}
		if n := gather(t.Context(), Config{MaxOrders: 3, MaxWait: -1}, q); n != 2 {
			t.Errorf("batch of %d, want the 2 that are left", n)
		}
	})
	t.Run("stops at the bytes", func(t *testing.T) {
		if n := gather(t.Context(), Config{MaxBytes: 1024, MaxWait: -1}, queue(10, 600, 600, 600)); n != 2 {
			t.Errorf("batch of %d, want 2", n)
		}
	})
	t.Run("a message above the bytes goes alone", func(t *testing.T) {
		if n := gather(t.Context(), Config{MaxBytes: 1024, MaxWait: -1}, queue(10, 5000, 1)); n != 1 {
			t.Errorf("batch of %d, want 1", n)
		}
	})
	t.Run("gives nothing once the session has ended", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 { // select picks at random
			if n := gather(ctx, Config{MaxWait: -1}, queue(10, 1, 1)); n != 0 {
				t.Fatalf("batch of %d, want none", n)
			}
		}
	})
	t.Run("gives nothing once the claim is closed", func(t *testing.T) {
		q := queue(1)
		close(q)
		if n := gather(t.Context(), Config{}, q); n != 0 {
			t.Errorf("batch of %d, want none", n)
		}
	})
}

func TestGatherWaitsForCompany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{MaxWait: 10 * time.Millisecond}
		cfg.SetDefaults()
		q := queue(10, 1)
		var sender sync.WaitGroup
		defer sender.Wait()
		sender.Go(func() {
			<-time.After(9 * time.Millisecond)
			q <- &sarama.ConsumerMessage{}
			<-time.After(2 * time.Millisecond)
			q <- &sarama.ConsumerMessage{}
		})
		began := time.Now()
		if n := len((&Consumer{cfg: cfg}).gather(t.Context(), q)); n != 2 {
			t.Errorf("batch of %d, want the first and what came within 10ms", n)
		}
		if took := time.Since(began); took != 10*time.Millisecond {
			t.Errorf("waited %s, want 10ms", took)
		}
	})
}

// TestWorkOutlivesItsSession: by the grace of a rebalance, or of a shutdown, and no longer.
func TestWorkOutlivesItsSession(t *testing.T) {
	for name, stopping := range map[string]bool{"rebalance": false, "shutdown": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &Consumer{}
				c.cfg.SetDefaults()
				c.stopping.Store(stopping)
				want := c.cfg.RebalanceGrace
				if stopping {
					want = c.cfg.ShutdownGrace
				}
				session, end := context.WithCancel(t.Context())
				work, done := c.workContext(session)
				defer done()
				<-time.After(time.Hour)
				if work.Err() != nil {
					t.Fatal("ended within its session")
				}
				end()
				began := time.Now()
				<-work.Done()
				if took := time.Since(began); took != want {
					t.Errorf("ended %s after its session, want %s", took, want)
				}
			})
		})
	}
}
