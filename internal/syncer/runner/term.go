package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/crashpoint"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/syncer/binlog"
	"github.com/seckillgate/seckillgate/internal/syncer/follow"
	"github.com/seckillgate/seckillgate/internal/syncer/load"
)

// term is the work of one leader while it leads.
type term struct {
	*Syncer
	lose    context.CancelCauseFunc
	turn    sync.Mutex // see follow.Applier
	dir     *directory
	tracker *follow.Tracker
	applier *follow.Applier
	loader  load.Loader
	loads   loads
	status  statusBoard
	primed  bool // Redis has been told of every activity in this term
}

func newTerm(s *Syncer, lose context.CancelCauseFunc) *term {
	return &term{Syncer: s, lose: lose, dir: newDirectory(s.parts.Config.EndGrace), loader: *s.parts.Loader}
}

// run works until ctx ends. Everything it starts has ended when it returns.
func (t *term) run(ctx context.Context) {
	t.health.Set(healthBinlog, errors.New("starting"))
	t.health.Set(healthTable, errors.New("not read yet"))
	if !t.try(ctx, healthTable, t.readTable) {
		return
	}
	var from binlog.Position
	if !t.try(ctx, healthBinlog, func(ctx context.Context) error {
		var err error
		from, err = t.keptPosition(ctx)
		return err
	}) {
		return
	}
	t.begin(from)
	t.health.Set(healthApply, nil)
	t.health.Set(healthCompare, nil)
	if from.IsZero() && !t.startAnew(ctx) {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { t.follow(ctx) })
	wg.Go(func() { t.keep(ctx) })
	wg.Go(func() { t.table(ctx) })
	wg.Go(func() { t.watch(ctx) })
	wg.Go(func() { t.compare(ctx) })
	wg.Go(func() { t.report(ctx) })
	wg.Wait()
	t.loads.wait()
}

// startAnew closes everything where no place in the binlog is kept, before anything else begins: a load that has begun already would be
// overtaken by it and wait twice. false when ctx ended.
func (t *term) startAnew(ctx context.Context) bool {
	t.log.Info("no binlog position is kept, as at the first start: everything is loaded")
	why := fmt.Errorf("%w: there is no binlog position", binlog.ErrLoadAgain)
	if !t.try(ctx, healthBinlog, func(ctx context.Context) error { return t.loadAgain(ctx, why) }) {
		return false
	}
	t.health.Set(healthBinlog, why) // until the stream runs
	return true
}

// begin makes what works from a position on.
func (t *term) begin(from binlog.Position) {
	t.tracker = follow.NewTracker(from)
	t.applier = &follow.Applier{
		Ledger: t.parts.Ledger, Store: t.parts.Store, Directory: t.dir, Metrics: t.metrics, Tracker: t.tracker,
		Turn: &t.turn, Log: t.log,
		Blocked: func(err error) { t.health.Set(healthApply, err) },
	}
	t.loader.Turn = &t.turn
	t.loader.Pin = func() func(bool) { return t.tracker.Pin().Done }
	t.loads.init()
}

// try repeats a step that needs a server until it succeeds; false when ctx ended.
func (t *term) try(ctx context.Context, name string, step func(context.Context) error) bool {
	wait := 200 * time.Millisecond
	for {
		err := step(ctx)
		if ctx.Err() != nil {
			return false
		}
		t.health.Set(name, err)
		if err == nil {
			return true
		}
		t.log.Warn("trying again", zap.String("step", name), zap.Duration("in", wait), zap.Error(err))
		if !pause(ctx, wait) {
			return false
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// keptPosition reads where the stream has to go on. One that cannot be read now is an error, to be tried again; one that
// is not there, or means nothing, is the zero position.
func (t *term) keptPosition(ctx context.Context) (binlog.Position, error) {
	text, err := t.parts.Ledger.Position(ctx)
	if err != nil {
		return binlog.Position{}, fmt.Errorf("read the kept binlog position: %w", err)
	}
	p, err := binlog.ParsePosition(text)
	if err != nil {
		t.log.Error("the kept binlog position is of no use", zap.Error(err))
		return binlog.Position{}, nil
	}
	return p, nil
}

// follow streams, one connection after the other.
func (t *term) follow(ctx context.Context) {
	wait := 100 * time.Millisecond
	for ctx.Err() == nil {
		from := t.tracker.Start()
		began := time.Now()
		again, err := t.stream(ctx, from)
		if time.Since(began) > 10*time.Second {
			wait = 100 * time.Millisecond
		}
		switch {
		case ctx.Err() != nil:
			return
		case again:
			continue
		case errors.Is(err, binlog.ErrLoadAgain):
			t.health.Set(healthBinlog, err)
			t.metrics.loadAgain.Inc()
			t.log.Error("the binlog cannot be followed from here: everything is loaded again", zap.Error(err))
			if !t.try(ctx, healthBinlog, func(ctx context.Context) error { return t.loadAgain(ctx, err) }) {
				return
			}
			t.health.Set(healthBinlog, err) // until the stream runs
			continue
		}
		t.health.Set(healthBinlog, err)
		t.log.Warn("the binlog stream is opened again", zap.Duration("in", wait), zap.Error(err))
		if !pause(ctx, wait) {
			return
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// stream runs one connection. again: it was ended to go back to an earlier place.
func (t *term) stream(ctx context.Context, from binlog.Position) (again bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- t.parts.Stream.Run(ctx, from, t.applier, func() {
			t.log.Info("following the binlog", zap.Stringer("from", from))
			t.health.Set(healthBinlog, nil)
		})
	}()
	select {
	case err = <-ended:
		return false, err
	case <-t.tracker.Restart():
		cancel()
		if err := <-ended; err != nil {
			t.log.Debug("the stream was ended to go back", zap.Error(err))
		}
		return true, nil
	}
}

// loadAgain closes every activity that Redis has, notes a position and begins anew from there. What is closed is loaded by
// the watch. The position may be kept at once: that an activity is closed is kept in Redis too.
func (t *term) loadAgain(ctx context.Context, why error) error {
	ids := map[int64]bool{}
	for _, a := range t.dir.Wanted(time.Now()) {
		ids[a.ID] = true
	}
	c, err := t.parts.Ledger.Catalogue(ctx)
	if err != nil && !errors.Is(err, ledger.ErrNoCatalogue) {
		return err
	}
	if c != nil {
		for id := range c.Activities {
			ids[id] = true
		}
	}
	for id := range ids {
		if err := t.parts.Ledger.SetRecovering(ctx, id, why.Error()); err != nil {
			return err
		}
	}
	p, err := t.parts.Stream.Note(ctx)
	if err != nil {
		return err
	}
	t.tracker.Reset(p)
	t.turn.Lock()
	defer t.turn.Unlock()
	return t.readTable(ctx) // what happened to it before the position is in no event that will come
}

// keepInterval is how often the position is kept, at most.
const keepInterval = 200 * time.Millisecond

// keep saves the position once Redis has what lies before it.
func (t *term) keep(ctx context.Context) {
	for pause(ctx, keepInterval) {
		t.keepOnce(ctx)
	}
	// Once more on the way out, so that the next leader has little to repeat.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 500*time.Millisecond)
	defer cancel()
	t.keepOnce(last)
}

func (t *term) keepOnce(ctx context.Context) {
	p, step, fresh := t.tracker.Keep()
	if !fresh {
		return
	}
	crashpoint.Here("before_save_position")
	mine, err := t.parts.Ledger.SavePosition(ctx, t.holder, p.Encode())
	switch {
	case err != nil:
		t.log.Warn("the binlog position cannot be kept; trying again", zap.Error(err))
	case !mine:
		t.lose(errLeaseLost)
	default:
		t.tracker.Kept(step)
	}
}
