package gate

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

const (
	callTimeout = time.Second           // of one call to Redis
	soonest     = 20 * time.Millisecond // between two looks, however many ask for one
	upcoming    = time.Minute           // a sale that starts within it is looked at
	remembered  = time.Minute           // and so is one that was asked for within it
	perCall     = 64                    // activities in one look
	clockJump   = 2_000                 // ms: news older than that are not late, the server's clock was set back
)

// pollCatalogue is the only reader of the catalogue, so there is one reading at a time.
func (g *Gate) pollCatalogue(ctx context.Context) {
	tick := time.NewTicker(g.o.CataloguePoll)
	defer tick.Stop()
	var was error
	for {
		err := g.readCatalogue(ctx)
		if ctx.Err() != nil {
			return
		}
		if (err == nil) != (was == nil) {
			if err != nil {
				g.log.Warn("sales are unavailable", zap.Error(err))
			} else {
				g.log.Info("sales are available again")
			}
		}
		was = err
		if !pause(ctx, soonest) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-g.readAgain:
		}
	}
}

func (g *Gate) readCatalogue(ctx context.Context) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, err := g.src.Catalogue(ctx)
	if errors.Is(err, ledger.ErrNoCatalogue) {
		old := g.view.Load()
		v := &view{at: began, missing: true}
		if old != nil {
			v.entries, v.timings = old.entries, old.timings // kept for when the catalogue is back
		}
		g.view.Store(v)
		g.readyOnce.Do(func() { close(g.ready) })
		return err
	}
	if err != nil {
		return err // the old view ages
	}
	var old map[int64]*entry
	if v := g.view.Load(); v != nil {
		old = v.entries
	}
	v := &view{at: began, entries: make(map[int64]*entry, len(c.Activities)), timings: c.Timings}
	fresh := false
	for id, a := range c.Activities {
		e := old[id]
		if e == nil {
			e = &entry{id: id, log: g.log}
			fresh = true
		}
		e.listed.Store(&a)
		v.entries[id] = e
	}
	g.view.Store(v)
	g.readyOnce.Do(func() { close(g.ready) })
	if fresh {
		kick(g.lookAt)
	}
	return nil
}

// pollActivities looks at the keys of active sales.
func (g *Gate) pollActivities(ctx context.Context) {
	tick := time.NewTicker(g.o.InspectPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-g.lookAt:
		}
		active := g.active(time.Now())
		for len(active) > 0 {
			n := min(perCall, len(active))
			g.inspect(ctx, active[:n])
			active = active[n:]
		}
		if !pause(ctx, soonest) {
			return
		}
	}
}

// active are the sales that are on, or start soon, or that somebody asked for lately.
func (g *Gate) active(now time.Time) []*entry {
	v := g.view.Load()
	if v == nil || v.missing {
		return nil
	}
	var out []*entry
	ms := now.UnixMilli()
	for _, e := range v.entries {
		a := e.listed.Load()
		soon := a.StartsAtMs-upcoming.Milliseconds() <= ms && ms < a.EndsAtMs+unknownClock.Milliseconds()
		if soon && a.State != ledger.Closed || ms-e.asked.Load() < remembered.Milliseconds() {
			out = append(out, e)
		}
	}
	return out
}

func (g *Gate) inspect(ctx context.Context, entries []*entry) {
	ids := make([]int64, len(entries))
	for i, e := range entries {
		ids[i] = e.id
	}
	err := g.look(ctx, ids, entries)
	if err == nil || len(entries) == 1 || ctx.Err() != nil {
		return
	}
	// One shard of a cluster that does not answer must not blind the gate to the others.
	var wg sync.WaitGroup
	places := make(chan struct{}, 8)
	for i, e := range entries {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			_ = g.look(ctx, ids[i:i+1], []*entry{e})
		})
	}
	wg.Wait()
}

func (g *Gate) look(ctx context.Context, ids []int64, entries []*entry) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	sent := time.Now()
	snaps, err := g.src.Inspect(ctx, ids...)
	received := time.Now()
	for i, e := range entries {
		switch {
		case err == nil:
			e.seen(snaps[i], sent, received)
		case len(entries) == 1:
			e.failed(sent)
		default:
			continue // each is looked at again by itself
		}
		g.announce(e, received)
	}
	return err
}

// announce tells a change of state. It is for looks only, which have a pace: a sale whose last units come and go does not
// make a flood of news.
func (g *Gate) announce(e *entry, now time.Time) {
	if g.o.OnChange == nil {
		return
	}
	was, is := e.announced, e.state(now, g.o.StaleAfter)
	e.announced = is
	if was == "" || was == is {
		return
	}
	_, a := e.known(now, g.o.StaleAfter)
	c := Change{Activity: *a, From: was, To: is}
	c.Activity.ID, c.Activity.Title = e.id, e.listed.Load().Title
	g.o.OnChange(c)
}

func (e *entry) failed(at time.Time) {
	e.change(func(l *look) {
		if l.failing.IsZero() {
			l.failing = at
		}
	})
}

func (e *entry) seen(s ledger.Snapshot, sent, received time.Time) {
	e.change(func(l *look) {
		l.snap, l.sent, l.received, l.failing = s, sent, received, time.Time{}
		l.loaded, l.state = s.Loaded && s.SameServer, s.State
		if s.Loaded {
			l.availability(s.Available, s.NowMs, received)
		} else {
			l.available, l.soldOut = -1, false
		}
	})
}

// change replaces the look by a changed copy.
func (e *entry) change(f func(*look)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	next := &look{available: -1}
	if l := e.look.Load(); l != nil {
		*next = *l
	}
	f(next)
	e.look.Store(next)
	e.tell(next, time.Now())
}

// tell logs when a sale under way becomes unavailable for want of its state in Redis, and when it is there again. e.mu is
// held.
func (e *entry) tell(l *look, now time.Time) {
	if l.received.IsZero() {
		return
	}
	away := !l.loaded || l.state == ledger.Recovering
	if away == e.away {
		return
	}
	a, ms := e.listed.Load(), now.UnixMilli()
	if away && (a.State == ledger.Closed || ms < a.StartsAtMs || ms >= a.EndsAtMs) {
		return // nobody could buy anyway
	}
	e.away = away
	if away {
		e.log.Warn("a sale is unavailable until the syncer has loaded it", zap.Int64("activity", e.id), zap.String("because", because(l)))
	} else {
		e.log.Info("the sale is available again", zap.Int64("activity", e.id), zap.String("state", string(l.state)))
	}
}

func because(l *look) string {
	switch {
	case !l.snap.Exists:
		return "redis does not have it"
	case l.snap.Loaded && !l.snap.SameServer:
		return "redis is not the server that it was loaded on"
	case l.snap.Problem != "":
		return l.snap.Problem
	}
	return "recovering"
}

// availability takes in how many units were available at a Redis time. Late news do not undo newer ones.
func (l *look) availability(available, nowMs int64, at time.Time) {
	if d := l.nowMs - nowMs; d > 0 && d <= clockJump {
		return
	}
	l.available, l.nowMs = max(available, 0), nowMs
	l.soldOut = available <= 0
	if l.soldOut {
		l.soldOutAt = at
	}
}

// Observe takes in what a decision of the reserve script says about the activity. It costs a few nanoseconds unless
// something changed.
func (g *Gate) Observe(activity int64, d ledger.Decision) {
	v := g.view.Load()
	if v == nil {
		return
	}
	e := v.entries[activity]
	if e == nil {
		return
	}
	switch d.Code {
	case ledger.Reserved, ledger.SoldOut:
		// A refusal of 3 with 2 left is sold_out too, but the sale is not.
		now := time.Now()
		if l := e.look.Load(); l != nil && l.soldOut == (d.Available <= 0) && (!l.soldOut || now.Sub(l.soldOutAt) < soldOutFor/4) {
			return
		}
		e.change(func(l *look) { l.availability(d.Available, d.NowMs, now) })
	case ledger.WrongServer, ledger.NotLoaded, ledger.IsRecovering:
		// Until the next look nobody else needs to ask.
		e.change(func(l *look) {
			if !l.received.IsZero() {
				l.loaded = false
			}
		})
		kick(g.lookAt)
	case ledger.IsPaused, ledger.IsEnded:
		kick(g.lookAt)
	default: // it concerns one buyer or order
	}
}

// listen takes in what the scripts tell all gateways.
func (g *Gate) listen(ctx context.Context) {
	for ev := range g.src.Subscribe(ctx) {
		g.take(ev)
		if list := g.listeners.Load(); list != nil {
			for _, fn := range *list {
				(*fn)(ev)
			}
		}
	}
}

func (g *Gate) take(ev ledger.Event) {
	if ev.Catalogue {
		kick(g.readAgain)
		if ev.Activity == 0 {
			kick(g.lookAt) // connected again: events may have been missed
		}
		return
	}
	v := g.view.Load()
	if v == nil {
		return
	}
	e := v.entries[ev.Activity]
	if e == nil {
		return
	}
	l := e.look.Load()
	if ev.State == "" {
		// Most events only say that orders were decided. Availability 0 without a state may also come from a settle during
		// a load, which the state known here tells.
		if l == nil || !l.loaded || l.soldOut == (ev.Available <= 0) && !l.soldOut {
			return
		}
	}
	now := time.Now()
	e.change(func(l *look) {
		if d := l.nowMs - ev.NowMs; d > 0 && d <= clockJump && ev.State == "" {
			return
		}
		switch ev.State {
		case "":
		case ledger.Recovering:
			l.state, l.loaded = ev.State, false
			return
		default:
			if l.state == ledger.Recovering || !l.loaded {
				// Whether a load is over is for a look to say: a row's change during a load tells only the row's state.
				kick(g.lookAt)
				return
			}
			l.state = ev.State
		}
		l.availability(ev.Available, ev.NowMs, now)
	})
}

func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// pause waits and is false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
