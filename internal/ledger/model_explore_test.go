package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// play runs the steps and reports after how many something broke.
func play(ctx context.Context, srv *modelServer, id int64, seed uint64, steps []step, off rules) (int, error) {
	w, err := newWorld(ctx, srv, id, seed, off)
	defer func() {
		for i := range w.syncers {
			w.syncers[i].die()
		}
		_ = w.forget()
	}()
	if err != nil {
		return 0, err
	}
	for i, s := range steps {
		if err := w.do(s); err != nil {
			return i + 1, err
		}
		if err := w.check(); err != nil {
			return i + 1, err
		}
	}
	return len(steps), w.quiet()
}

// stepsOf gives the steps of a run. In every fourth MySQL may lose commits: the accepted limits of that make its checks weaker.
func stepsOf(seed uint64, n int) []step {
	from := actions
	if seed%4 == 0 {
		from = failoverActions
	}
	rnd := rand.New(rand.NewPCG(seed, 2))
	steps := make([]step, n)
	for i := range steps {
		steps[i] = step{from[rnd.IntN(len(from))], rnd.Uint64()}
	}
	return steps
}

// shrink leaves out every step without which it still breaks.
func shrink(steps []step, breaks func([]step) bool) []step {
	for before := len(steps) + 1; len(steps) < before; {
		before = len(steps)
		for size := len(steps) / 2; size >= 1; size /= 2 {
			for at := 0; at+size <= len(steps); {
				shorter := slices.Concat(steps[:at], steps[at+size:])
				if breaks(shorter) {
					steps = shorter
				} else {
					at += size
				}
			}
		}
	}
	return steps
}

// counterexample is the first thing that broke.
type counterexample struct {
	seed  uint64
	steps []step
	err   error
}

func (c *counterexample) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %v; %d steps are enough:", c.seed, c.err, len(c.steps))
	for i, s := range c.steps {
		fmt.Fprintf(&b, "\n  %2d %s", i+1, s.action)
	}
	return b.String()
}

// runLength is how many steps a run has before it comes to rest: some are short, so that little comes after a fault and can
// hide it.
func runLength(seed uint64) int { return 25 << (seed / 4 % 5) }

// meanLength is that of five times four runs.
const meanLength = 25 * (1 + 2 + 4 + 8 + 16) / 5

// explore plays about so many random steps, several runs at a time, the first with the given seed. It ends with the first
// that breaks something, which it gives shrunk, and says how many steps it played until then.
func explore(ctx context.Context, srv *modelServer, first uint64, steps int, off rules) (int, *counterexample) {
	const atOnce = 24
	var next, played atomic.Int64
	var mu sync.Mutex
	var bad *counterexample
	var wg sync.WaitGroup
	next.Store(int64(first) - 1)
	last := int64(first) - 1 + int64((steps+meanLength-1)/meanLength)
	broken := func() bool { mu.Lock(); defer mu.Unlock(); return bad != nil }
	for range atOnce {
		wg.Go(func() {
			for seed := next.Add(1); seed <= last && !broken(); seed = next.Add(1) {
				todo := stepsOf(uint64(seed), runLength(uint64(seed)))
				at, err := play(ctx, srv, seed, uint64(seed), todo, off)
				played.Add(int64(at))
				if err == nil {
					continue
				}
				mu.Lock()
				if bad == nil || uint64(seed) < bad.seed {
					bad = &counterexample{uint64(seed), todo[:at], err}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if bad != nil {
		again := func(s []step) error { _, err := play(ctx, srv, int64(bad.seed), bad.seed, s, off); return err }
		bad.steps = shrink(bad.steps, func(s []step) bool { return again(s) != nil })
		bad.err = again(bad.steps)
	}
	return int(played.Load()), bad
}
