package gate

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is Redis as the gate sees it. It counts what it is asked.
type source struct {
	mu        sync.Mutex
	catalogue *ledger.Catalogue
	err       error
	snaps     map[int64]ledger.Snapshot
	lookErr   map[int64]error
	looks     atomic.Int32
	reads     atomic.Int32
	asked     map[int64]int
	events    chan ledger.Event
}

func newSource(as ...ledger.Activity) *source {
	s := &source{
		catalogue: &ledger.Catalogue{Activities: map[int64]ledger.Activity{}}, snaps: map[int64]ledger.Snapshot{},
		lookErr: map[int64]error{}, asked: map[int64]int{}, events: make(chan ledger.Event),
	}
	for _, a := range as {
		s.catalogue.Activities[a.ID] = a
		s.snaps[a.ID] = snapshot(a, 10)
	}
	return s
}

func (s *source) Catalogue(context.Context) (*ledger.Catalogue, error) {
	s.reads.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.catalogue, s.err
}

func (s *source) Inspect(_ context.Context, ids ...int64) ([]ledger.Snapshot, error) {
	s.looks.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]ledger.Snapshot, 0, len(ids))
	for _, id := range ids {
		if err := s.lookErr[id]; err != nil {
			return nil, err
		}
		s.asked[id]++
		out = append(out, s.snaps[id])
	}
	return out, s.err
}

func (s *source) Subscribe(ctx context.Context) <-chan ledger.Event {
	out := make(chan ledger.Event)
	go func() {
		defer close(out)
		for {
			select {
			case ev := <-s.events:
				select {
				case out <- ev:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func (s *source) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// sale is an activity that started a minute ago and ends in an hour.
func sale(id int64) ledger.Activity {
	now := time.Now().UnixMilli()
	return ledger.Activity{ID: id, Item: 7, StartsAtMs: now - 60_000, EndsAtMs: now + 3_600_000, MaxPerUser: 3, State: ledger.Open}
}

func snapshot(a ledger.Activity, available int64) ledger.Snapshot {
	return ledger.Snapshot{
		Activity: a, Exists: true, Loaded: true, SameServer: true, State: a.State, Stock: available, Available: available,
		NowMs: time.Now().UnixMilli(),
	}
}

// eventually polls with a bound.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	end := time.After(30 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// seen is a gate that has read the catalogue and looked at everything once, and does nothing more by itself.
func seen(t testing.TB, s *source) *Gate {
	t.Helper()
	g := New(s, Options{})
	_ = g.readCatalogue(context.Background())
	if v := g.view.Load(); v != nil {
		for _, e := range v.entries {
			g.inspect(context.Background(), []*entry{e})
		}
	}
	return g
}

func TestJudge(t *testing.T) {
	t.Parallel()
	const id = 1
	now := time.Now()
	for name, c := range map[string]struct {
		change func(*ledger.Activity, *ledger.Snapshot)
		want   Reason
		why    string
	}{
		"on sale":     {func(*ledger.Activity, *ledger.Snapshot) {}, Pass, ""},
		"not started": {func(a *ledger.Activity, s *ledger.Snapshot) { a.StartsAtMs = now.UnixMilli() + 60_000; s.Activity = *a }, NotStarted, "not started"},
		"not started, not loaded": {func(a *ledger.Activity, s *ledger.Snapshot) {
			a.StartsAtMs = now.UnixMilli() + 60_000
			*s = ledger.Snapshot{NowMs: s.NowMs}
		}, NotStarted, "not started"},
		"ended":                   {func(a *ledger.Activity, s *ledger.Snapshot) { a.EndsAtMs = now.UnixMilli() - 1000; s.Activity = *a }, Ended, "ended"},
		"closed":                  {func(_ *ledger.Activity, s *ledger.Snapshot) { s.State = ledger.Closed }, Ended, "ended"},
		"closed in the catalogue": {func(a *ledger.Activity, _ *ledger.Snapshot) { a.State = ledger.Closed }, Ended, "ended"},
		"paused":                  {func(_ *ledger.Activity, s *ledger.Snapshot) { s.State = ledger.Paused }, Unavailable, "paused"},
		"recovering":              {func(_ *ledger.Activity, s *ledger.Snapshot) { s.State, s.Loaded = ledger.Recovering, false }, Unavailable, "recovering"},
		"key lost":                {func(_ *ledger.Activity, s *ledger.Snapshot) { s.Loaded, s.Problem = false, "stock is missing" }, Unavailable, "recovering"},
		"all keys lost":           {func(_ *ledger.Activity, s *ledger.Snapshot) { *s = ledger.Snapshot{NowMs: s.NowMs} }, Unavailable, "recovering"},
		"another server":          {func(_ *ledger.Activity, s *ledger.Snapshot) { s.SameServer = false }, Unavailable, "recovering"},
		"unknown state":           {func(_ *ledger.Activity, s *ledger.Snapshot) { s.State = "haunted" }, Unavailable, "recovering"},
		"sold out":                {func(_ *ledger.Activity, s *ledger.Snapshot) { s.Available = 0 }, SoldOut, "sold out"},
		"sold out and paused":     {func(_ *ledger.Activity, s *ledger.Snapshot) { s.Available, s.State = 0, ledger.Paused }, Unavailable, "paused"},
		"one left":                {func(_ *ledger.Activity, s *ledger.Snapshot) { s.Available = 1 }, Pass, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSource(sale(id))
			a, snap := s.catalogue.Activities[id], s.snaps[id]
			c.change(&a, &snap)
			s.catalogue.Activities[id], s.snaps[id] = a, snap
			v := seen(t, s).Judge(id, time.Now())
			if v.Reason != c.want || v.Why != c.why {
				t.Fatalf("want %q (%s), got %+v", c.want, c.why, v)
			}
			if v.Reason == NotStarted && v.StartsAtMs != a.StartsAtMs {
				t.Errorf("starts at %d, want %d", v.StartsAtMs, a.StartsAtMs)
			}
			if v.Reason == Unavailable && v.RetryAfter <= 0 {
				t.Error("unavailable without a word on when to come back")
			}
			if v.Activity == nil || v.Activity.MaxPerUser != 3 {
				t.Errorf("activity: %+v", v.Activity)
			}
		})
	}
}

// TestUnknownIsNeverNo: whatever the gate cannot know is unavailable, never not_found and never sold_out (E115).
func TestUnknownIsNeverNo(t *testing.T) {
	t.Parallel()
	s := newSource(sale(1))
	s.snaps[1] = snapshot(sale(1), 0)
	g := New(s, Options{})
	if v := g.Judge(1, time.Now()); v.Reason != Unavailable {
		t.Errorf("before the first look: %+v", v)
	}
	if _, r := g.View(1, time.Now()); r != Unavailable {
		t.Errorf("view before the first look: %q", r)
	}
	g = seen(t, s)
	if v := g.Judge(1, time.Now()); v.Reason != SoldOut {
		t.Errorf("with a view: %+v", v)
	}
	if v := g.Judge(2, time.Now()); v.Reason != NotFound {
		t.Errorf("not in the catalogue: %+v", v)
	}
	if v := g.Judge(2, time.Now().Add(4*time.Second)); v.Reason != Unavailable {
		t.Errorf("with an old view: %+v", v)
	}
	s.set(func() { s.err = ledger.ErrNoCatalogue })
	if err := g.readCatalogue(t.Context()); !errors.Is(err, ledger.ErrNoCatalogue) {
		t.Fatal(err)
	}
	for _, id := range []int64{1, 2} {
		if v := g.Judge(id, time.Now()); v.Reason != Unavailable {
			t.Errorf("activity %d without a catalogue: %+v", id, v)
		}
	}
	if _, r := g.Views(time.Now()); r != Unavailable {
		t.Errorf("views without a catalogue: %q", r)
	}
}

// TestE88SaleClock: near a start or an end the gate lets the script decide; farther off it refuses, by Redis time.
func TestE88SaleClock(t *testing.T) {
	t.Parallel()
	now := time.Now()
	redis := now.Add(-time.Hour) // this gateway's clock is an hour ahead
	l := &look{snap: ledger.Snapshot{NowMs: redis.UnixMilli()}, sent: now.Add(-40 * time.Millisecond), received: now, loaded: true, state: ledger.Open}
	for name, c := range map[string]struct {
		starts, ends time.Duration // from Redis time
		want         phase
	}{
		"long before":  {time.Second, time.Hour, phaseNotStarted},
		"just before":  {20 * time.Millisecond, time.Hour, phaseOpen},
		"at the start": {0, time.Hour, phaseOpen},
		"just ended":   {-time.Hour, 0, phaseOpen},
		"over":         {-time.Hour, -10 * time.Millisecond, phaseEnded},
	} {
		a := &ledger.Activity{StartsAtMs: redis.Add(c.starts).UnixMilli(), EndsAtMs: redis.Add(c.ends).UnixMilli(), State: ledger.Open}
		e := &entry{}
		e.listed.Store(a)
		early, late := l.serverTime(now)
		if got := e.phase(l, a, early, late, now, time.Hour); got != c.want {
			t.Errorf("%s: phase %d, want %d", name, got, c.want)
		}
	}
	// Nothing known of Redis's clock: three seconds of difference must not refuse anybody (E88).
	e := &entry{}
	a := &ledger.Activity{StartsAtMs: now.Add(3 * time.Second).UnixMilli(), EndsAtMs: now.Add(time.Hour).UnixMilli(), State: ledger.Open}
	e.listed.Store(a)
	early, late := (*look)(nil).serverTime(now)
	if got := e.phase(nil, a, early, late, now, time.Hour); got != phaseOpen {
		t.Errorf("clock unknown: phase %d, want open", got)
	}
}

// TestE22E78SoldOutFlag follows the flag through decisions, events and looks (E22, E78).
func TestE22E78SoldOutFlag(t *testing.T) {
	t.Parallel()
	s := newSource(sale(1))
	g := seen(t, s)
	judge := func() Reason { return g.Judge(1, time.Now()).Reason }
	at := s.snaps[1].NowMs

	g.Observe(1, ledger.Decision{Code: ledger.SoldOut, Available: 2, NowMs: at + 1})
	if r := judge(); r != Pass {
		t.Fatalf("3 were refused with 2 left: %q, want pass", r)
	}
	g.Observe(1, ledger.Decision{Code: ledger.AlreadyHas, Available: 0, NowMs: at + 2})
	if r := judge(); r != Pass {
		t.Fatalf("a decision that says nothing of the stock: %q, want pass", r)
	}
	g.Observe(1, ledger.Decision{Code: ledger.Reserved, Available: 0, NowMs: at + 3})
	if r := judge(); r != SoldOut {
		t.Fatalf("the last unit went: %q", r)
	}
	if v, _ := g.View(1, time.Now()); !v.SoldOut || v.State != "open" {
		t.Fatalf("view: %+v", v)
	}
	g.take(ledger.Event{Activity: 1, Available: 1, NowMs: at + 5})
	if r := judge(); r != Pass {
		t.Fatalf("a unit came back: %q", r)
	}
	g.Observe(1, ledger.Decision{Code: ledger.SoldOut, Available: 0, NowMs: at + 4})
	if r := judge(); r != Pass {
		t.Fatalf("a late decision undid newer news: %q", r)
	}
	g.take(ledger.Event{Activity: 1, Available: 0, NowMs: at + 6})
	if r := judge(); r != SoldOut {
		t.Fatalf("another gateway sold the last unit: %q", r)
	}
	g.Observe(1, ledger.Decision{Code: ledger.SoldOut, Available: 2, NowMs: at + 6})
	if r := judge(); r != Pass {
		t.Fatalf("3 were refused with 2 left, after it had been sold out: %q, want pass", r)
	}
	g.Observe(1, ledger.Decision{Code: ledger.SoldOut, Available: 0, NowMs: at + 6})
	if v := g.Judge(1, time.Now().Add(soldOutFor+time.Millisecond)); v.Reason != Pass {
		t.Fatalf("a flag that nobody confirmed for a second still refuses: %+v", v)
	}
	s.set(func() {
		snap := snapshot(sale(1), 3)
		snap.NowMs = at + 7
		s.snaps[1] = snap
	})
	g.inspect(t.Context(), []*entry{g.view.Load().entries[1]})
	if r := judge(); r != Pass {
		t.Fatalf("a look found 3: %q", r)
	}
	// A server whose clock is an hour behind took over: its word counts.
	g.Observe(1, ledger.Decision{Code: ledger.SoldOut, Available: 0, NowMs: at - 3_600_000})
	if r := judge(); r != SoldOut {
		t.Fatalf("news of a server with another clock: %q", r)
	}
}

func TestStateEvents(t *testing.T) {
	t.Parallel()
	s := newSource(sale(1))
	g := seen(t, s)
	judge := func() string { return g.Judge(1, time.Now()).Why }
	at := s.snaps[1].NowMs
	g.take(ledger.Event{Activity: 1, State: ledger.Paused, Available: 10, NowMs: at + 1})
	if judge() != "paused" {
		t.Fatalf("paused: %q", judge())
	}
	g.take(ledger.Event{Activity: 1, State: ledger.Open, Available: 10, NowMs: at + 2})
	if judge() != "" {
		t.Fatalf("resumed: %q", judge())
	}
	g.take(ledger.Event{Activity: 1, State: ledger.Recovering, NowMs: at + 3})
	if judge() != "recovering" {
		t.Fatalf("recovering: %q", judge())
	}
	g.take(ledger.Event{Activity: 1, Available: 0, NowMs: at + 4}) // a settle during the load
	g.take(ledger.Event{Activity: 1, State: ledger.Open, NowMs: at + 5})
	if judge() != "recovering" {
		t.Fatalf("a row's change ended the recovery: %q", judge())
	}
	g.inspect(t.Context(), []*entry{g.view.Load().entries[1]})
	if judge() != "" {
		t.Fatalf("loaded: %q", judge())
	}
	for _, code := range []ledger.Code{ledger.WrongServer, ledger.NotLoaded, ledger.IsRecovering} {
		g.Observe(1, ledger.Decision{Code: code})
		if judge() != "recovering" {
			t.Fatalf("code %d: %q", code, judge())
		}
		g.inspect(t.Context(), []*entry{g.view.Load().entries[1]})
	}
	if v, r := g.View(1, time.Now()); r != Pass || v.State != "open" {
		t.Fatalf("view: %q %+v", r, v)
	}
}

// TestEventsWithoutPolls: what the scripts tell is known at once, not at the next look.
func TestEventsWithoutPolls(t *testing.T) {
	t.Parallel()
	s := newSource(sale(1))
	g := New(s, Options{InspectPoll: time.Hour, CataloguePoll: time.Hour, StaleAfter: time.Hour})
	g.Start()
	defer g.Stop()
	eventually(t, "the first look", func() bool { v, r := g.View(1, time.Now()); return r == Pass && v.AgeMs >= 0 })
	s.events <- ledger.Event{Activity: 1, State: ledger.Paused, Available: 10, NowMs: time.Now().UnixMilli()}
	eventually(t, "it is paused", func() bool { return g.Judge(1, time.Now()).Why == "paused" })
	s.set(func() { s.catalogue.Activities[2] = sale(2); s.snaps[2] = snapshot(sale(2), 1) })
	s.events <- ledger.Event{Catalogue: true}
	eventually(t, "another sale is offered", func() bool { return g.Judge(2, time.Now()).Reason == Pass })
}

// TestOneShardDown: an activity whose keys cannot be read becomes unavailable; the others stay.
func TestOneShardDown(t *testing.T) {
	t.Parallel()
	s := newSource(sale(1), sale(2))
	g := New(s, Options{InspectPoll: 25 * time.Millisecond, CataloguePoll: 50 * time.Millisecond, StaleAfter: 3 * time.Second})
	g.Start()
	defer g.Stop()
	eventually(t, "both are on sale", func() bool {
		return g.Judge(1, time.Now()).Reason == Pass && g.Judge(2, time.Now()).Reason == Pass
	})
	s.set(func() { s.lookErr[1] = errors.New("cut") })
	eventually(t, "the one is unavailable", func() bool { return g.Judge(1, time.Now()).Reason == Unavailable })
	if v := g.Judge(2, time.Now()); v.Reason != Pass {
		t.Fatalf("the other: %+v", v)
	}
	s.set(func() { delete(s.lookErr, 1) })
	eventually(t, "it is back", func() bool { return g.Judge(1, time.Now()).Reason == Pass })
}

// TestLifecycle: down at start, up, down again, up again, with the listeners told, and nothing left behind.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	s := newSource(sale(1))
	s.err = errors.New("connection refused")
	g := New(s, Options{InspectPoll: 25 * time.Millisecond, CataloguePoll: 50 * time.Millisecond, StaleAfter: 2 * time.Second})
	var heard atomic.Int32
	cancel := g.Listen(func(ledger.Event) { heard.Add(1) })
	other := g.Listen(func(ledger.Event) {})
	g.Start()
	g.Start()
	eventually(t, "it tried", func() bool { return s.reads.Load() > 1 })
	if v := g.Judge(1, time.Now()); v.Reason != Unavailable {
		t.Fatalf("down at start: %+v", v)
	}
	select {
	case <-g.Ready():
		t.Fatal("ready without an answer")
	default:
	}
	s.set(func() { s.err = nil })
	<-g.Ready()
	eventually(t, "on sale", func() bool { return g.Judge(1, time.Now()).Reason == Pass })
	s.set(func() { s.err = errors.New("gone") })
	eventually(t, "unavailable", func() bool { return g.Judge(1, time.Now()).Reason == Unavailable })
	s.set(func() { s.err = nil; s.catalogue.Activities[9] = sale(9); s.snaps[9] = snapshot(sale(9), 0) })
	s.events <- ledger.Event{Catalogue: true}
	eventually(t, "the new sale is seen", func() bool { return g.Judge(9, time.Now()).Reason == SoldOut })
	eventually(t, "the listener was told", func() bool { return heard.Load() == 1 })
	cancel()
	s.events <- ledger.Event{Activity: 9, Available: 5, NowMs: time.Now().UnixMilli()}
	other()
	s.events <- ledger.Event{Activity: 9, Available: 5, NowMs: time.Now().UnixMilli()}
	if heard.Load() != 1 {
		t.Fatal("a cancelled listener was told")
	}
	g.Stop()
	g.Stop()
	g.Start()
	New(s, Options{}).Stop()
}

// TestOnlyActive: a catalogue of many sales costs looks only for those that matter.
func TestOnlyActive(t *testing.T) {
	t.Parallel()
	far := sale(2)
	far.StartsAtMs += 7_200_000
	far.EndsAtMs += 7_200_000
	over := sale(3)
	over.EndsAtMs = over.StartsAtMs + 1
	soon := sale(4)
	soon.StartsAtMs = time.Now().UnixMilli() + 30_000
	closed := sale(5)
	closed.State = ledger.Closed
	g := New(newSource(sale(1), far, over, soon, closed), Options{})
	if err := g.readCatalogue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(g.active(time.Now())); n != 2 {
		t.Fatalf("%d active, want 2: on sale and soon", n)
	}
	g.Judge(2, time.Now())
	g.Judge(777, time.Now())
	if n := len(g.active(time.Now())); n != 3 {
		t.Fatalf("%d active after one was asked for, want 3", n)
	}
	if n := len(g.active(time.Now().Add(2 * time.Minute))); n != 2 {
		t.Fatalf("%d active two minutes later, want 2", n)
	}
}

// TestNoRedisPerRequest counts calls: refusals and views cost none, and allocate nothing.
func TestNoRedisPerRequest(t *testing.T) {
	t.Parallel()
	s := newSource(sale(1), sale(2))
	s.snaps[2] = snapshot(sale(2), 0)
	g := seen(t, s)
	looks, reads := s.looks.Load(), s.reads.Load()
	now := time.Now()
	for id := range int64(1000) {
		g.Judge(id, now)
		g.View(id, now)
	}
	if s.looks.Load() != looks || s.reads.Load() != reads {
		t.Fatal("a request cost a call to redis")
	}
}

func TestJudgeAllocates(t *testing.T) {
	s := newSource(sale(1))
	s.snaps[1] = snapshot(sale(1), 0)
	g := seen(t, s)
	now := time.Now()
	if n := testing.AllocsPerRun(1000, func() { g.Judge(1, now); g.Judge(2, now) }); n != 0 {
		t.Fatalf("%v allocations, want 0", n)
	}
}

func BenchmarkJudgeSoldOut(b *testing.B) {
	s := newSource(sale(1))
	s.snaps[1] = snapshot(sale(1), 0)
	g := seen(b, s)
	now := time.Now()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if v := g.Judge(1, now); v.Reason != SoldOut {
				b.Errorf("want sold out, got %+v", v)
				return
			}
		}
	})
}
