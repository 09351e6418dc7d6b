package gate

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// Defaults of ledger.Timings, for a catalogue that does not carry them.
const (
	defaultReserveDeadlineMs = 2_000
	defaultPublishBudgetMs   = 5_000
	defaultHorizonMs         = 30_000
)

const (
	// soldOutFor is how long the sold-out flag stands without being confirmed. Looks confirm it twice in that time; when
	// they fail, the script is asked again.
	soldOutFor = time.Second
	// unknownClock is how far the local clock may be off the server's, as long as nothing is known of that one. Within it
	// of a start or an end the script decides.
	unknownClock = 5 * time.Second
	// busy is what buyers are asked to wait when a sale is unavailable.
	busy = time.Second
)

// view is one reading of the catalogue. It is never changed, but its entries are.
type view struct {
	at      time.Time // when the reading began
	missing bool      // Redis has no catalogue
	entries map[int64]*entry
	timings ledger.Timings
}

// entry is what is known of one activity. Its parts are replaced as a whole, so that Judge reads without a lock.
type entry struct {
	id     int64
	asked  atomic.Int64 // local epoch ms of the last request for it
	listed atomic.Pointer[ledger.Activity]
	look   atomic.Pointer[look]
	log    *zap.Logger
	mu     sync.Mutex // serializes writers of look, and guards what follows
	away   bool       // it was logged that the sale is unavailable

	announced string // the state as of the last look; its only user is the one that looks
}

// look is the last look at the activity's own keys, and what events and decisions said since.
type look struct {
	snap      ledger.Snapshot
	sent      time.Time // the server's clock was read after this local time
	received  time.Time // and before this one; zero: never looked
	failing   time.Time // since when looks have failed; zero: they do not
	state     ledger.State
	loaded    bool
	soldOut   bool
	soldOutAt time.Time // when soldOut was confirmed last
	available int64     // -1: not known
	nowMs     int64     // Redis time of the availability
}

// phase is where an activity stands, by what the gate knows.
type phase uint8

const (
	phaseOpen phase = iota
	phaseNotStarted
	phaseEnded
	phasePaused
	phaseRecovering
	phaseUnknown
)

// Judge refuses what can be refused from memory. It costs no Redis call and no allocation.
func (g *Gate) Judge(activity int64, now time.Time) Verdict {
	e, why := g.find(activity, now)
	if e == nil {
		if why == "" {
			return Verdict{Reason: NotFound, Why: "not in the catalogue"}
		}
		return Verdict{Reason: Unavailable, Why: why, RetryAfter: busy}
	}
	e.ask(now)
	l, a := e.known(now, g.o.StaleAfter)
	v := Verdict{Activity: a}
	earliest, latest := l.serverTime(now)
	switch e.phase(l, a, earliest, latest, now, g.o.StaleAfter) {
	case phaseEnded:
		v.Reason, v.Why = Ended, "ended"
	case phaseNotStarted:
		v.Reason, v.Why, v.StartsAtMs = NotStarted, "not started", a.StartsAtMs
	case phaseRecovering:
		v.Reason, v.Why, v.RetryAfter = Unavailable, "recovering", busy
	case phasePaused:
		v.Reason, v.Why, v.RetryAfter = Unavailable, "paused", busy
	case phaseUnknown:
		v.Reason, v.Why, v.RetryAfter = Unavailable, "redis does not answer", busy
	case phaseOpen:
		if l != nil && l.soldOut && now.Sub(l.soldOutAt) <= soldOutFor {
			v.Reason, v.Why = SoldOut, "sold out"
		}
	}
	return v
}

// find gives the entry of an activity, or why there can be none; the empty word means that it does not exist.
func (g *Gate) find(activity int64, now time.Time) (*entry, string) {
	v := g.view.Load()
	switch {
	case v == nil:
		return nil, "no view of redis yet"
	case now.Sub(v.at) > g.o.StaleAfter:
		return nil, "redis does not answer"
	case v.missing:
		return nil, "no catalogue"
	}
	return v.entries[activity], ""
}

// ask notes that somebody cares. It writes once a second at most, since every request passes here.
func (e *entry) ask(now time.Time) {
	if ms := now.UnixMilli(); ms-e.asked.Load() >= 1000 {
		e.asked.Store(ms)
	}
}

// known gives the look, nil if it is too old to count, and the activity as the script would read it.
func (e *entry) known(now time.Time, staleAfter time.Duration) (*look, *ledger.Activity) {
	l, a := e.look.Load(), e.listed.Load()
	if l == nil || l.received.IsZero() && l.failing.IsZero() {
		return nil, a
	}
	if now.Sub(l.received) > staleAfter && l.failing.IsZero() {
		return nil, a // nobody asked for it lately, so nobody looked
	}
	if l.snap.Exists && l.snap.Activity.EndsAtMs > 0 {
		a = &l.snap.Activity
	}
	return l, a
}

// serverTime bounds the server's clock, in epoch ms.
func (l *look) serverTime(now time.Time) (earliest, latest int64) {
	if l == nil || l.received.IsZero() {
		ms := now.UnixMilli()
		return ms - unknownClock.Milliseconds(), ms + unknownClock.Milliseconds()
	}
	// The answer's time was cut to whole milliseconds, and clocks do not run exactly alike.
	const slack = 2
	return l.snap.NowMs + now.Sub(l.received).Milliseconds() - slack, l.snap.NowMs + now.Sub(l.sent).Milliseconds() + slack
}

// phase never says that a sale is over or has not begun while that is in doubt: the script decides then, by Redis time.
func (e *entry) phase(l *look, a *ledger.Activity, earliest, latest int64, now time.Time, staleAfter time.Duration) phase {
	state := a.State
	if l != nil && l.state != "" {
		state = l.state
	}
	switch {
	case state == ledger.Closed || e.listed.Load().State == ledger.Closed, earliest >= a.EndsAtMs:
		return phaseEnded
	case latest < a.StartsAtMs:
		return phaseNotStarted
	case l != nil && !l.failing.IsZero() && now.Sub(l.failing) > staleAfter:
		return phaseUnknown
	case state == ledger.Recovering, l != nil && !l.received.IsZero() && !l.loaded:
		return phaseRecovering
	case state == ledger.Paused:
		return phasePaused
	case state != ledger.Open:
		return phaseRecovering // a state that this version does not know never sells
	}
	return phaseOpen
}

// View shows an activity for countdowns; the reason is Pass, NotFound or Unavailable.
func (g *Gate) View(activity int64, now time.Time) (View, Reason) {
	e, why := g.find(activity, now)
	if e == nil {
		if why == "" {
			return View{}, NotFound
		}
		return View{}, Unavailable
	}
	e.ask(now)
	return e.view(now, g.o.StaleAfter)
}

// Views shows every activity of the catalogue, by id; the reason is Pass or Unavailable.
func (g *Gate) Views(now time.Time) ([]View, Reason) {
	if _, why := g.find(0, now); why != "" {
		return nil, Unavailable
	}
	entries := g.view.Load().entries
	out := make([]View, 0, len(entries))
	for _, e := range entries {
		e.ask(now)
		v, _ := e.view(now, g.o.StaleAfter)
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b View) int { return cmp.Compare(a.Activity.ID, b.Activity.ID) })
	return out, Pass
}

// States counts the activities by state: those of View, with `sold_out` for what is open but sold out, and `unavailable` for all
// while Redis does not answer. Unlike View it is no sign that somebody cares for them.
func (g *Gate) States(now time.Time) map[string]int {
	n := map[string]int{}
	for _, state := range states {
		n[state] = 0
	}
	v := g.view.Load()
	if v == nil {
		return n
	}
	_, why := g.find(0, now)
	for _, e := range v.entries {
		state := stateUnavailable
		if why == "" {
			state = e.state(now, g.o.StaleAfter)
		}
		n[state]++
	}
	return n
}

// States that View does not have.
const (
	stateSoldOut     = "sold_out"
	stateUnavailable = "unavailable"
)

var states = []string{"not_started", "open", stateSoldOut, "paused", "recovering", "ended", stateUnavailable}

// state is the view in one word.
func (e *entry) state(now time.Time, staleAfter time.Duration) string {
	v, reason := e.view(now, staleAfter)
	switch {
	case reason != Pass:
		return stateUnavailable
	case v.State == "open" && v.SoldOut:
		return stateSoldOut
	}
	return v.State
}

func (e *entry) view(now time.Time, staleAfter time.Duration) (View, Reason) {
	l, a := e.known(now, staleAfter)
	v := View{Activity: *a, Available: -1, AgeMs: -1, ServerTimeMs: now.UnixMilli()}
	v.Activity.ID, v.Activity.Title = e.id, e.listed.Load().Title
	if l != nil && !l.received.IsZero() {
		earliest, latest := l.serverTime(now)
		v.ServerTimeMs = (earliest + latest) / 2
		v.Available, v.AgeMs, v.Snapshot = l.available, now.Sub(l.received).Milliseconds(), &l.snap
		// For people an old flag is better than none; only refusals need it fresh.
		v.SoldOut = l.soldOut
	}
	// Nobody is refused by a countdown, so the best guess of the time will do.
	switch e.phase(l, a, v.ServerTimeMs, v.ServerTimeMs, now, staleAfter) {
	case phaseEnded:
		v.State = "ended"
	case phaseNotStarted:
		v.State = "not_started"
	case phasePaused:
		v.State = "paused"
	case phaseRecovering:
		v.State = "recovering"
	case phaseUnknown:
		return v, Unavailable
	case phaseOpen:
		v.State = "open"
		// The catalogue alone does not open a sale: what has not been looked at yet may not be loaded yet.
		if l == nil || l.received.IsZero() {
			v.State = "recovering"
		}
	}
	return v, Pass
}

// Timings are the protocol's bounds as the catalogue gives them, with the defaults for what it does not.
func (g *Gate) Timings() ledger.Timings {
	var t ledger.Timings
	if v := g.view.Load(); v != nil {
		t = v.timings
	}
	t.ReserveDeadlineMs = cmp.Or(t.ReserveDeadlineMs, defaultReserveDeadlineMs)
	t.PublishBudgetMs = cmp.Or(t.PublishBudgetMs, defaultPublishBudgetMs)
	t.HorizonMs = cmp.Or(t.HorizonMs, defaultHorizonMs)
	return t
}
