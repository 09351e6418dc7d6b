package outbox

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// TestGivenUpMakesRoom: what was given up while its listener was down is not told any more, and does not keep what comes after it
// out of the window until the worker is restarted.
func TestGivenUpMakesRoom(t *testing.T) {
	t.Parallel()
	b, s := setup(t), newShop()
	s.mind(func(store.Event) error { return errors.New("down") })
	old := b.land(50)
	// Pauses that end long after this test, but for those of what was given up.
	b.worker(Config{AlarmAfter: time.Minute, Keep: time.Hour}, s, Pace{Parallel: 8, RetryMin: 30 * time.Minute, RetryMax: time.Hour})
	testenv.Eventually(t, 20*time.Second, "each was tried", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.failed == len(old)
	})
	b.become(old[0], order.Paid)
	b.exec("UPDATE seckill_outbox SET at_ms = at_ms - 7200000 WHERE status <> 'PAID'")
	s.mind(nil)
	testenv.Eventually(t, 30*time.Second, "the rest of the first order is told", func() bool { return len(s.of(old[0])) == 1 })
	b.emptied()
	if s.told != 1 || !slices.Equal(s.of(old[0]), []order.Status{order.Paid}) {
		t.Errorf("told %d times, %v of the first; want only what was not given up", s.told, s.of(old[0]))
	}
}

// TestBadOrdersKeepTheirPauses: orders that the shop never takes are not all told again each time another one is.
func TestBadOrdersKeepTheirPauses(t *testing.T) {
	t.Parallel()
	b, s := setup(t), newShop()
	bad := b.land(2 * downAfter)
	s.mind(func(e store.Event) error {
		if slices.Contains(bad, e.ID) {
			return errors.New("never heard of it")
		}
		return nil
	})
	b.worker(Config{Poll: 10 * time.Millisecond}, s, Pace{Parallel: 1, RetryMin: 30 * time.Minute, RetryMax: time.Hour})
	for round := range 20 {
		id := b.land(1)[0]
		testenv.Eventually(t, 20*time.Second, fmt.Sprintf("good order %d is told", round), func() bool { return len(s.of(id)) == 1 })
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if most := 2 * len(bad); s.failed > most { // the first try, and one when the listener first answers
		t.Errorf("%d tries of %d bad orders within a moment, want at most %d", s.failed, len(bad), most)
	}
}

// TestWaitsForWhatItCanDo: a full window, and pauses that have ended while every delivery is taken, are nothing to hurry for.
func TestWaitsForWhatItCanDo(t *testing.T) {
	now := time.Now()
	for name, make := range map[string]func(*telling){
		"window full": func(t *telling) {
			for n := range int64(windowMost) {
				t.known[n] = true
			}
			t.full = true
		},
		"deliveries taken": func(t *telling) {
			t.underway = t.pace.Parallel
			t.postpone(&chain{at: now.Add(-time.Hour)})
		},
	} {
		held, read := now.Add(time.Hour), now.Add(30*time.Minute)
		tell := &telling{relay: &relay{pace: fast}, window: newWindow()}
		make(tell)
		if len(tell.known) > 0 {
			read = now.Add(-time.Minute)
		}
		if got := tell.wait(held, read); got < 29*time.Minute {
			t.Errorf("%s: waits for %s, want until it can do something", name, got)
		}
	}
}
