package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/syncer/follow"
	"github.com/seckillgate/seckillgate/internal/syncer/load"
)

// parallelLoads bounds the loads that run at once; each holds a connection to MySQL.
const parallelLoads = 4

// loads keeps track of the loads of a term.
type loads struct {
	mu      sync.Mutex
	running map[int64]bool
	tried   map[int64]bool      // at least once, whatever came of it
	again   map[int64]time.Time // not before
	failed  map[int64]int       // in a row
	waiting map[int64]string    // for their item to be free
	epochs  map[int64]string    // under which each was last seen loaded
	told    map[int64]bool      // that it is closed
	differs map[int64]difference
	pins    map[int64]*follow.Pin // of what another process loads: where the stream stood when that was noticed
	slots   chan struct{}
	group   sync.WaitGroup
}

func (l *loads) init() {
	l.running, l.tried, l.again = map[int64]bool{}, map[int64]bool{}, map[int64]time.Time{}
	l.failed, l.waiting, l.epochs, l.told = map[int64]int{}, map[int64]string{}, map[int64]string{}, map[int64]bool{}
	l.differs, l.pins = map[int64]difference{}, map[int64]*follow.Pin{}
	l.slots = make(chan struct{}, parallelLoads)
}

func (l *loads) wait() { l.group.Wait() }

// begin claims an activity, if it is not being loaded and its pause is over.
func (l *loads) begin(id int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running[id] || time.Now().Before(l.again[id]) {
		return false
	}
	l.running[id] = true
	return true
}

func (l *loads) end(id int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, id)
	delete(l.waiting, id)
	l.tried[id] = true
	switch {
	case err == nil:
		delete(l.failed, id)
		delete(l.again, id)
	case errors.Is(err, load.ErrItemBusy):
		l.waiting[id] = err.Error()
		l.again[id] = time.Now().Add(time.Second)
	case errors.Is(err, load.ErrBusy), errors.Is(err, ledger.ErrFenced):
		l.again[id] = time.Now().Add(500 * time.Millisecond)
	default:
		l.failed[id]++
		l.again[id] = time.Now().Add(min(250*time.Millisecond<<min(l.failed[id], 6), 10*time.Second))
	}
}

func (l *loads) wasTried(id int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tried[id]
}

func (l *loads) waitsForItem(id int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.waiting[id]
	return ok
}

// seen notes under which epoch an activity is loaded, and says whether that is news. What this term loads itself is none.
func (l *loads) seen(id int64, epoch string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epochs[id] == epoch || l.running[id] {
		return false
	}
	l.epochs[id] = epoch
	return true
}

// hold pins the stream's place while another process loads an activity: what the stream applies to it meanwhile is lost on it, as
// with a load of one's own. A load waits for so long before it reads MySQL that this is noticed in time.
func (l *loads) hold(id int64, pin func() *follow.Pin) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pins[id] == nil {
		l.pins[id] = pin()
	}
}

// letGo has the stream go back for what it passed over, if another process has loaded the activity.
func (l *loads) letGo(id int64, loaded bool) {
	l.mu.Lock()
	pin := l.pins[id]
	delete(l.pins, id)
	l.mu.Unlock()
	if pin != nil {
		pin.Done(loaded)
	}
}

// keepOnly lets go of all activities but these: a pin of one that is gone would hold the kept position for ever.
func (l *loads) keepOnly(ids []int64) {
	l.mu.Lock()
	gone := slices.DeleteFunc(slices.Collect(maps.Keys(l.pins)), func(id int64) bool { return slices.Contains(ids, id) })
	l.mu.Unlock()
	for _, id := range gone {
		l.letGo(id, false)
	}
}

// loaded notes the epoch of this term's own load.
func (l *loads) loaded(id int64, epoch string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epochs[id] = epoch
}

// tell notes whether an activity is closed, and says whether that is news: it was not closed before.
func (l *loads) tell(id int64, closed bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.told[id]
	if closed {
		l.told[id] = true
	} else {
		delete(l.told, id)
	}
	return closed && !was
}

// watch looks at the keys of every activity and loads what is not as it should be.
func (t *term) watch(ctx context.Context) {
	tick := time.NewTicker(t.parts.Config.WatchInterval)
	defer tick.Stop()
	for {
		t.health.Set(healthLoaded, t.watchOnce(ctx))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-t.dir.watch:
		}
	}
}

func (t *term) watchOnce(ctx context.Context) error {
	wanted := t.dir.Tended(time.Now(), false)
	ids := make([]int64, len(wanted))
	for i, a := range wanted {
		ids[i] = a.ID
	}
	t.loads.keepOnly(ids)
	looks, err := t.parts.Ledger.Inspect(ctx, ids...)
	if err != nil {
		return fmt.Errorf("redis cannot be looked at: %w", err)
	}
	bad := map[int64]string{}
	for i, look := range looks {
		a := wanted[i]
		why := problem(look)
		if doubt, suspected := t.dir.Suspect(a.ID); suspected && why == "" {
			why = doubt
		}
		if other := outOfTurn(a, look.NowMs, wanted); why == "" && other != "" {
			if err := t.parts.Ledger.SetRecovering(ctx, a.ID, other); err != nil {
				return err
			}
			why = other
			t.log.Info("an activity gives its item back until its turn comes", zap.Int64("activity", a.ID), zap.String("because", why))
		}
		closed := why != "" && !t.loads.waitsForItem(a.ID)
		if t.loads.tell(a.ID, closed) {
			t.logClosed(a, why, look.NowMs)
		}
		if why == "" {
			if t.loads.seen(a.ID, look.Epoch) {
				// Loaded by another process, or before this term began: what the stream passed over meanwhile shows now.
				t.loads.letGo(a.ID, true)
				t.dir.LoadedElsewhere(a.ID)
			}
			if err := t.mend(ctx, a, look); err != nil {
				t.log.Warn("an activity in redis differs from its row and cannot be mended yet", zap.Int64("activity", a.ID), zap.Error(err))
			}
			continue
		}
		if closed {
			bad[a.ID] = why
		}
		if !look.Exists {
			kick(t.dir.look) // the catalogue may be gone too
		}
		t.beginLoad(ctx, a, why)
	}
	t.metrics.activities.Set(float64(len(wanted)))
	t.metrics.closed.Set(float64(len(bad)))
	if len(bad) == 0 {
		return nil
	}
	var text []string
	for _, id := range slices.Sorted(maps.Keys(bad)) {
		text = append(text, fmt.Sprintf("%d (%s)", id, bad[id]))
	}
	return fmt.Errorf("activities closed until they are loaded: %s", strings.Join(text, ", "))
}

// outOfTurn says which activity has the item before a that has not begun yet: one that was made, moved or opened again after a had
// been loaded. What that one sells is not in a's ledger, so a has to be loaded anew once it is over (E108).
func outOfTurn(a ledger.Activity, nowMs int64, all []ledger.Activity) string {
	if nowMs >= a.StartsAtMs || a.State == ledger.Closed {
		return ""
	}
	for _, o := range all {
		if o.ID != a.ID && o.Item == a.Item && o.State != ledger.Closed && nowMs < o.EndsAtMs && load.Before(o, a) {
			return fmt.Sprintf("activity %d has item %d first", o.ID, o.Item)
		}
	}
	return ""
}

// difference is what Redis and the activity table say of one activity that is loaded.
type difference struct {
	have, want ledger.Activity
	since      time.Time
	told       bool
}

// onItsWay is how long a change may take to be seen in both: the binlog shows it to Redis before a reader of MySQL sees it.
const onItsWay = 250 * time.Millisecond

// lasting says whether a difference has lasted for longer than a change is on its way.
func (l *loads) lasting(id int64, have, want ledger.Activity) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if have == want {
		delete(l.differs, id)
		return false
	}
	d, there := l.differs[id]
	if !there || d.have != have || d.want != want {
		l.differs[id] = difference{have: have, want: want, since: time.Now()}
		return false
	}
	return time.Since(d.since) >= onItsWay
}

// mended says whether it is news that a difference was mended. One that comes back at once is none.
func (l *loads) mended(id int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.differs[id]
	news := !d.told
	d.told, d.since = true, time.Now()
	l.differs[id] = d
	return news
}

// mend makes a loaded activity what its row in MySQL says, where no event of the binlog will: a read of the table that was
// late may have undone a change.
func (t *term) mend(ctx context.Context, a ledger.Activity, look ledger.Snapshot) error {
	have := inKeys(look.Activity, a)
	have.State = look.State
	if !t.loads.lasting(a.ID, have, a) {
		return nil
	}
	t.turn.Lock()
	defer t.turn.Unlock()
	row, err := t.parts.Store.Activity(ctx, a.ID)
	if errors.Is(err, store.ErrNoActivity) {
		kick(t.dir.look)
		return nil
	}
	if err != nil {
		return err
	}
	if row != a {
		t.dir.Changed(row)
	}
	if have == inKeys(row, a) {
		return nil
	}
	if _, err := t.parts.Ledger.SetActivity(ctx, row); err != nil {
		return err
	}
	if t.loads.mended(a.ID) {
		t.metrics.repairs.WithLabelValues("activity").Inc()
		t.log.Warn("repaired: an activity in redis differed from its row in mysql", zap.Int64("activity", a.ID),
			zap.Any("redis", have), zap.Any("mysql", row))
	}
	return nil
}

// inKeys is an activity with what its keys do not hold, the title, and what never changes there, taken from another.
func inKeys(a, from ledger.Activity) ledger.Activity {
	a.ID, a.Item, a.Title = from.ID, from.Item, from.Title
	return a
}

// logClosed tells at once what buyers see already; what comes of the load is logged at its end.
func (t *term) logClosed(a ledger.Activity, why string, nowMs int64) {
	if nowMs < a.StartsAtMs || nowMs >= a.EndsAtMs || a.State != ledger.Open {
		t.log.Info(fmt.Sprintf("activity %d, which sells nothing now, is loaded: %s", a.ID, why), zap.Int64("activity", a.ID))
		return
	}
	takes := t.parts.Config.PublishBudget + t.parts.Config.ReserveDeadline
	t.log.Warn(fmt.Sprintf("activity %d is closed: %s; loading it takes about %s", a.ID, why, takes), zap.Int64("activity", a.ID))
}

// problem says why an activity has to be loaded, "" if it has not.
func problem(s ledger.Snapshot) string {
	switch {
	case !s.Exists:
		return "not in redis"
	case s.State == ledger.Recovering:
		return "recovering"
	case !s.Loaded:
		return s.Problem
	case !s.SameServer:
		return "redis is not the server that it was loaded on"
	}
	return ""
}

func (t *term) beginLoad(ctx context.Context, a ledger.Activity, why string) {
	if !t.loads.begin(a.ID) {
		return
	}
	t.loads.group.Go(func() {
		select {
		case t.loads.slots <- struct{}{}:
			defer func() { <-t.loads.slots }()
		case <-ctx.Done():
			t.loads.end(a.ID, ctx.Err())
			return
		}
		err := t.load(ctx, a, why)
		if errors.Is(err, load.ErrBusy) {
			t.loads.hold(a.ID, t.tracker.Pin)
		} else {
			t.loads.letGo(a.ID, false)
		}
		t.loads.end(a.ID, err)
		kick(t.dir.watch)
		kick(t.dir.look) // the catalogue lists what has been tried
	})
}

func (t *term) load(ctx context.Context, a ledger.Activity, why string) error {
	log := t.log.With(zap.Int64("activity", a.ID))
	report, err := t.loader.Load(ctx, a.ID)
	switch {
	case err == nil:
		t.dir.Trust(a.ID)
		t.loads.loaded(a.ID, report.Epoch)
		if report.LostCommits {
			t.dir.NeedsCompare(a.ID) // which counts the orders, and keeps the alarm
		}
		t.metrics.loaded(report)
		log.Info("loaded", zap.String("because", why), zap.Any("report", report))
	case ctx.Err() != nil:
	case errors.Is(err, load.ErrItemBusy), errors.Is(err, load.ErrBusy):
		log.Debug("not loaded yet", zap.Error(err))
	case errors.Is(err, ledger.ErrFenced):
		// As at the first start, where everything has to be loaded and some of it is being loaded already.
		log.Info("a load was overtaken by news and begins again", zap.String("because", why), zap.Error(err))
	default:
		t.metrics.loadsFailed.Inc()
		log.Error("a load failed and will be tried again", zap.String("because", why), zap.Error(err))
	}
	return err
}
