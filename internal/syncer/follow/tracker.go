package follow

import (
	"sync"

	"github.com/seckillgate/seckillgate/internal/syncer/binlog"
)

// Tracker knows how far Redis has the binlog, and from where it must be read again. While an activity is being loaded,
// what the stream applies to it is lost on it, so the load pins the place where the stream stood before: no later position
// is kept until the load is done, and then the stream goes back there.
type Tracker struct {
	mu      sync.Mutex
	step    uint64 // grows with every move, forwards or back
	at      binlog.Position
	busy    bool // what comes after at is being applied
	pins    map[*Pin]struct{}
	back    *Pin   // where the stream has to go back to
	kept    uint64 // step of the position that was kept last
	restart chan struct{}
}

// Pin is a place in the binlog that must not be forgotten yet.
type Pin struct {
	tracker *Tracker
	step    uint64
	at      binlog.Position
}

// NewTracker starts at a position.
func NewTracker(at binlog.Position) *Tracker {
	return &Tracker{at: at, step: 1, pins: map[*Pin]struct{}{}, restart: make(chan struct{}, 1)}
}

// Applying notes that what comes next is being applied, until Synced.
func (t *Tracker) Applying() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy = true
}

// Synced notes that Redis has everything up to p.
func (t *Tracker) Synced(p binlog.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at, t.busy = p, false
	t.step++
}

// At is how far Redis has the binlog.
func (t *Tracker) At() binlog.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at
}

// Pin holds the present place. Call it before the load's first step.
func (t *Tracker) Pin() *Pin {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &Pin{tracker: t, step: t.step, at: t.at}
	t.pins[p] = struct{}{}
	return p
}

// Done lets go of the pin. After a load that succeeded the stream goes back to it, if it has moved since or is about to:
// what it is applying may have met the load already, and be lost on it. After one that failed the activity is still closed and
// needs nothing.
func (p *Pin) Done(loaded bool) {
	t := p.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, held := t.pins[p]; !held {
		return
	}
	delete(t.pins, p)
	if !loaded || (p.step == t.step && !t.busy) || (t.back != nil && t.back.step <= p.step) {
		return
	}
	t.back = p
	select {
	case t.restart <- struct{}{}:
	default:
	}
}

// Restart delivers a value when the stream has to go back: end it, and begin again at Start.
func (t *Tracker) Restart() <-chan struct{} { return t.restart }

// Start gives the position at which the stream has to begin, and takes it as reached.
func (t *Tracker) Start() binlog.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-t.restart:
	default:
	}
	t.busy = false
	if t.back == nil {
		return t.at
	}
	t.move(t.back.at, t.back.step)
	t.back = nil
	return t.at
}

// Reset moves to another position altogether, after everything has been closed for loading.
func (t *Tracker) Reset(p binlog.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.back = nil
	t.move(p, 0)
}

// move goes to a place that the step numbers know as `from`. Pins at later places would be ahead of it: they come along.
func (t *Tracker) move(to binlog.Position, from uint64) {
	t.step++
	t.at = to
	for p := range t.pins {
		if p.step > from {
			p.step, p.at = t.step, to
		}
	}
}

// Keep gives the position that may be kept durably, if it is another one than the last time.
func (t *Tracker) Keep() (binlog.Position, uint64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	step, at := t.step, t.at
	oldest := func(p *Pin) {
		if p.step < step {
			step, at = p.step, p.at
		}
	}
	for p := range t.pins {
		oldest(p)
	}
	if t.back != nil {
		oldest(t.back)
	}
	return at, step, step != t.kept && !at.IsZero()
}

// Kept notes that the position of a step was kept.
func (t *Tracker) Kept(step uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = step
}
