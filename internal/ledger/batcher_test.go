package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

// held is a reserve call that waits until it is let go, so that the next batch gathers behind it.
type held struct {
	entered chan []Reservation
	release chan error
}

func newHeld() *held {
	return &held{entered: make(chan []Reservation), release: make(chan error)}
}

func (h *held) reserve(_ context.Context, _ int64, members []Reservation) ([]Decision, error) {
	h.entered <- members
	if err := <-h.release; err != nil {
		return nil, err
	}
	out := make([]Decision, len(members))
	for i, m := range members {
		out[i] = Decision{Order: m.Order, Code: Reserved, Available: m.Quantity}
	}
	return out, nil
}

// Reserve joins and waits for the answer, or until ctx ends.
func (b *Batcher) Reserve(ctx context.Context, activity int64, r Reservation) (Decision, error) {
	done := make(chan struct{})
	m := &Member{Reservation: r, Answered: func() { close(done) }}
	if err := b.Join(activity, m); err != nil {
		return Decision{}, err
	}
	select {
	case <-done:
	case <-ctx.Done():
		if err := m.Leave(); err != nil {
			return Decision{}, err
		}
		<-done
	}
	return m.Answer()
}

type asked struct {
	d   Decision
	err error
}

func ask(ctx context.Context, b *Batcher, id string, quantity int64) chan asked {
	got := make(chan asked, 1)
	go func() {
		d, err := b.Reserve(ctx, 1, Reservation{Order: id, Quantity: quantity})
		got <- asked{d, err}
	}()
	return got
}

func waitQueued(t *testing.T, b *Batcher, n int) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, fmt.Sprintf("%d wait", n), func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		q := b.lanes[1]
		return q != nil && len(q.waiting) == n
	})
}

func TestBatcherGathersWhileACallIsUnderWay(t *testing.T) {
	h := newHeld()
	b := newBatcher(h.reserve, BatcherOptions{MaxBatch: 3})
	first := ask(t.Context(), b, "o0", 1)
	if got := <-h.entered; len(got) != 1 {
		t.Fatalf("a lone member waits for nobody, but its batch has %d", len(got))
	}
	answers := make([]chan asked, 5)
	for i := range answers {
		answers[i] = ask(t.Context(), b, fmt.Sprint("o", i+1), int64(i+1))
	}
	waitQueued(t, b, 5)
	for _, want := range []int{3, 2} {
		h.release <- nil
		if got := <-h.entered; len(got) != want {
			t.Fatalf("a batch of %d, want %d", len(got), want)
		}
	}
	h.release <- nil
	if a := <-first; a.err != nil {
		t.Fatal(a.err)
	}
	for i, c := range answers {
		if a := <-c; a.err != nil || a.d.Order != fmt.Sprint("o", i+1) || a.d.Available != int64(i+1) {
			t.Fatalf("member %d got another's answer: %+v", i, a)
		}
	}
	b.Close()
	if len(b.lanes) != 0 {
		t.Fatalf("%d lanes stay", len(b.lanes))
	}
}

func TestBatcherTellsQueuedFromSent(t *testing.T) {
	h := newHeld()
	b := newBatcher(h.reserve, BatcherOptions{MaxQueue: 2})
	ctx, cancel := context.WithCancel(t.Context())
	sent := ask(ctx, b, "sent", 1)
	<-h.entered
	queued := ask(ctx, b, "queued", 1)
	waitQueued(t, b, 1)
	stays := ask(t.Context(), b, "stays", 1)
	waitQueued(t, b, 2)
	surplus := &Member{Reservation: Reservation{Order: "surplus", Quantity: 1}, Answered: func() {}}
	if err := b.Join(1, surplus); !errors.Is(err, ErrNotExecuted) {
		t.Fatalf("a full queue: %v", err)
	}
	cancel()
	if a := <-queued; !errors.Is(a.err, ErrNotExecuted) {
		t.Fatalf("gave up in the queue: %v", a.err)
	}
	if a := <-sent; !errors.Is(a.err, ErrUnknown) {
		t.Fatalf("gave up during the call: %v", a.err)
	}
	h.release <- nil
	if got := <-h.entered; len(got) != 1 || got[0].Order != "stays" {
		t.Fatalf("the next batch: %+v", got)
	}
	h.release <- nil
	if a := <-stays; a.err != nil {
		t.Fatal(a.err)
	}
	b.Close()
	if a := <-ask(t.Context(), b, "late", 1); !errors.Is(a.err, ErrNotExecuted) {
		t.Fatalf("after Close: %v", a.err)
	}
}

// A failed call makes each of its members unknown, and no other.
func TestBatcherFailsWholeCalls(t *testing.T) {
	h := newHeld()
	b := newBatcher(h.reserve, BatcherOptions{})
	first := ask(t.Context(), b, "a", 1)
	<-h.entered
	second, third := ask(t.Context(), b, "b", 1), ask(t.Context(), b, "c", 1)
	waitQueued(t, b, 2)
	h.release <- nil
	<-h.entered
	h.release <- fmt.Errorf("%w: eof", ErrUnknown)
	if a := <-first; a.err != nil {
		t.Fatal(a.err)
	}
	for _, c := range []chan asked{second, third} {
		if a := <-c; !errors.Is(a.err, ErrUnknown) {
			t.Fatal(a.err)
		}
	}
	b.Close()
}

func TestBatcherUnderLoadAnswersEverybody(t *testing.T) {
	b := newBatcher(func(_ context.Context, activity int64, members []Reservation) ([]Decision, error) {
		out := make([]Decision, len(members))
		for i, m := range members {
			out[i] = Decision{Order: m.Order, Item: activity}
		}
		return out, nil
	}, BatcherOptions{})
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			for j := range 200 {
				id := fmt.Sprint(i, "-", j)
				d, err := b.Reserve(t.Context(), int64(i%3), Reservation{Order: id})
				if err != nil || d.Order != id || d.Item != int64(i%3) {
					t.Errorf("%s: %+v, %v", id, d, err)
				}
			}
		})
	}
	all.Wait()
	b.Close()
}
