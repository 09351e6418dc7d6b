package ledger

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
)

// What syncers do: see packages load, compare and follow. Both may be at it, as when a leader was paused and wakes up late.
// What takes them several steps is a routine that pauses between any two, so that everything else may come in between.
type syncer struct {
	loading, comparing *routine
	pin                int // where the binlog stood before the load that runs
	marks              []modelMark
	republished        map[string]int // order → how many budgets had passed
}

type routine struct {
	next func() (ended, bool)
	stop func()
}

type ended struct {
	done bool
	err  error
}

type leftOff struct{}

func begin(run func(pause func()) error) *routine {
	next, stop := iter.Pull(func(yield func(ended) bool) {
		defer func() {
			if r := recover(); r != nil && r != (leftOff{}) {
				panic(r)
			}
		}()
		err := run(func() {
			if !yield(ended{}) {
				panic(leftOff{})
			}
		})
		yield(ended{true, err})
	})
	return &routine{next, stop}
}

// step goes on to one of the next pauses. It forgets the routine at its end.
func (r *routine) step(w *world, forget **routine) error {
	var at ended
	for at, _ = r.next(); !at.done && w.chance(0.7); at, _ = r.next() {
	}
	if at.done {
		r.stop()
		*forget = nil
	}
	if errors.Is(at.err, ErrFenced) {
		return nil // another load took over
	}
	return at.err
}

func (s *syncer) die() {
	for _, r := range []**routine{&s.loading, &s.comparing} {
		if *r != nil {
			(*r).stop()
			*r = nil
		}
	}
	s.marks, s.republished = nil, nil
}

func (s *syncer) loadOn(w *world) error {
	if s.loading == nil {
		v, err := w.look()
		if err != nil || (v.loaded && v.same) {
			return err
		}
		s.pin = w.position
		s.loading = begin(func(pause func()) error { return s.load(w, v.version, pause) })
	}
	return s.loading.step(w, &s.loading)
}

func (s *syncer) loadNow(w *world) error {
	for {
		if err := s.loadOn(w); err != nil || s.loading == nil {
			return err
		}
	}
}

func (s *syncer) load(w *world, had int64, pause func()) error {
	now := w.now()
	begun, err := w.l.LoadBegin(w.ctx, Activity{ID: w.id, Item: 1, StartsAtMs: now - 1000, EndsAtMs: now + 3_600_000, MaxPerUser: 9, State: Open})
	if err != nil {
		return err
	}
	before := w.n
	pause()
	w.outwait(before)
	pause()
	var snap tables
	if w.off[ruleKafkaFirst] {
		snap = w.mysql.clone()
		pause()
	}
	from := w.committed
	pause()
	open := map[string]Entry{}
	for _, r := range w.log[from:] {
		open[r.Order] = Entry{Order: r.Order, User: r.User, Item: 1, Quantity: r.Quantity, ReservedAtMs: w.now()}
	}
	pause()
	w.touchPast(had)
	pause()
	if snap.orders == nil {
		snap = w.mysql.clone()
	}
	pause()
	var rows []Outcome
	for _, id := range slices.Sorted(maps.Keys(snap.orders)) {
		delete(open, id)
		rows = append(rows, outcome(snap.orders[id]))
	}
	if err := w.l.LoadOrders(w.ctx, w.id, begun.Epoch, rows); err != nil {
		return err
	}
	pause()
	v, err := w.look()
	if err != nil {
		return err
	}
	pause()
	var keep, drop []Entry
	for _, e := range v.entries {
		if _, published := open[e.Order]; published || !begun.Doubtful {
			keep = append(keep, e)
		} else {
			drop = append(drop, e)
		}
	}
	if err := w.l.LoadEntries(w.ctx, w.id, begun.Epoch, keep); err != nil {
		return err
	}
	if err := w.l.LoadDrop(w.ctx, w.id, begun.Epoch, drop); err != nil {
		return err
	}
	pause()
	for _, id := range slices.Sorted(maps.Keys(open)) {
		if err := w.l.LoadEntries(w.ctx, w.id, begun.Epoch, []Entry{open[id]}); err != nil {
			return err
		}
	}
	pause()
	if _, err := w.l.LoadFinish(w.ctx, w.id, begun.Epoch, snap.version, snap.stock, Open); err != nil {
		return err
	}
	if !w.off[ruleBinlogGoesBack] {
		w.position = min(w.position, s.pin)
	}
	return w.knowsBuyers(snap)
}

// outwait lets everything end that began before the load closed the activity: reserve calls and publications.
func (w *world) outwait(before int) {
	if !w.off[ruleLoadOutwaitsCalls] {
		w.expired = max(w.expired, before)
	}
	if w.off[ruleLoadOutwaitsPublish] {
		return
	}
	for _, p := range w.publish {
		if !w.old(p.r.Order) && w.chance(0.7) {
			w.log = append(w.log, p.r)
			w.queued[p.r.Order] = true
		}
	}
	w.publish = nil
	w.grown = max(w.grown, before)
	w.budgets++
}

// touchPast moves the row past a version that Redis has and MySQL has lost.
func (w *world) touchPast(had int64) {
	if had > w.mysql.version && !w.off[ruleAheadIsTouched] {
		w.mysql.version = had
		w.change(0)
		w.commit()
	}
}

func (w *world) knowsBuyers(snap tables) error {
	v, err := w.look()
	if err != nil {
		return err
	}
	for user, id := range snap.live {
		if w.mysql.live[user] == id && v.buyers[user] != id {
			return fmt.Errorf("I3: after a load %s holds %q, not %s", user, v.buyers[user], id)
		}
	}
	return nil
}

// follow applies the next transaction of the binlog.
func (w *world) follow() error {
	if w.behind { // a replica was promoted that misses what we have seen
		return w.loadAgain()
	}
	if w.position == len(w.binlog) {
		return nil
	}
	if err := w.settle(w.binlog[w.position]); err != nil {
		return err
	}
	w.applied = max(w.applied, w.position+1)
	if w.chance(0.8) { // else the syncer dies before it keeps the position
		w.position++
	}
	return nil
}

// loadAgain is for when the binlog cannot be followed from where it was left.
func (w *world) loadAgain() error {
	if !w.off[ruleLostPositionLoads] {
		if err := w.l.SetRecovering(w.ctx, w.id, "the position is lost"); err != nil {
			return err
		}
	}
	w.position, w.applied, w.behind = len(w.binlog), len(w.binlog), false
	for i := range w.syncers {
		w.syncers[i].pin = w.position // what a load had pinned is gone
	}
	return nil
}
