// Package gate keeps a small view of the sales in memory, so that whatever can be refused without Redis is refused
// without Redis. It never admits: the reserve script does, by Redis time. The view is at most seconds old and says so: when
// it can no longer be trusted, everything is unavailable.
package gate

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// Reason is a refusal's word in the HTTP contract; the empty reason refuses nothing.
type Reason string

// The refusals that the gate can tell.
const (
	Pass        Reason = ""
	NotFound    Reason = "not_found"
	NotStarted  Reason = "not_started"
	Ended       Reason = "ended"
	SoldOut     Reason = "sold_out"
	Unavailable Reason = "unavailable"
)

// Source is where the view comes from; *ledger.Ledger is one.
type Source interface {
	Catalogue(ctx context.Context) (*ledger.Catalogue, error)
	Inspect(ctx context.Context, activities ...int64) ([]ledger.Snapshot, error)
	Subscribe(ctx context.Context) <-chan ledger.Event
}

// Options of New; the zero value has the defaults.
type Options struct {
	CataloguePoll time.Duration // default 1 s
	InspectPoll   time.Duration // default 500 ms
	StaleAfter    time.Duration // a view not renewed for so long makes everything unavailable; default 3 s
	Logger        *zap.Logger   // default: none
	// OnChange is told, soon after, that a sale is in another state than at the look before. It must not block. Default: none.
	OnChange func(Change)
}

// Change is a sale's change of state, in the words of States.
type Change struct {
	Activity ledger.Activity
	From, To string
}

// Verdict is the gate's answer. Pass means: ask the script.
type Verdict struct {
	Reason     Reason
	Why        string           // for people and logs, e.g. "paused"; empty on Pass
	StartsAtMs int64            // NotStarted
	RetryAfter time.Duration    // Unavailable
	Activity   *ledger.Activity // as far as known; nil for NotFound and before the first view. Not to be changed.
}

// View is what anyone may see of a sale.
type View struct {
	Activity     ledger.Activity
	State        string // not_started, open, paused, recovering or ended
	ServerTimeMs int64  // Redis time by the best estimate
	SoldOut      bool
	Available    int64            // as of the last look; -1: not known
	AgeMs        int64            // how old the look is; -1: there was none
	Snapshot     *ledger.Snapshot // the last look, for the admin page; nil before it
}

// Gate is the view. Use it after Start; before, everything is unavailable.
type Gate struct {
	src Source
	o   Options
	log *zap.Logger

	view      atomic.Pointer[view]
	ready     chan struct{}
	readyOnce sync.Once

	lookAt    chan struct{} // asks for a look at the active activities now
	readAgain chan struct{} // asks for the catalogue now

	listeners atomic.Pointer[[]*func(ledger.Event)]
	mu        sync.Mutex // guards what follows, and writes of listeners
	stop      context.CancelFunc
	stopped   bool
	running   sync.WaitGroup
}

// New makes a gate. Nothing runs and nothing dials before Start.
func New(src Source, o Options) *Gate {
	o.CataloguePoll = cmp.Or(o.CataloguePoll, time.Second)
	o.InspectPoll = cmp.Or(o.InspectPoll, 500*time.Millisecond)
	o.StaleAfter = cmp.Or(o.StaleAfter, 3*time.Second)
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return &Gate{
		src: src, o: o, log: o.Logger, ready: make(chan struct{}),
		lookAt: make(chan struct{}, 1), readAgain: make(chan struct{}, 1),
	}
}

// Start begins to poll and to listen; it returns at once and may be called twice. After Stop it does nothing.
func (g *Gate) Start() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop != nil || g.stopped {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	g.running.Go(func() { g.pollCatalogue(ctx) })
	g.running.Go(func() { g.pollActivities(ctx) })
	g.running.Go(func() { g.listen(ctx) })
}

// Stop ends everything that Start began and waits for it. It may be called twice, and before Start.
func (g *Gate) Stop() {
	g.mu.Lock()
	g.stopped = true
	stop := g.stop
	g.mu.Unlock()
	if stop != nil {
		stop()
	}
	g.running.Wait()
}

// Ready is closed after the first answer from Redis about the catalogue. A request that arrives right after start-up may
// wait for it a little instead of hearing 503.
func (g *Gate) Ready() <-chan struct{} { return g.ready }

// Listen calls fn with every event until cancel is called. fn must not block. A call may still be under way when cancel
// returns.
func (g *Gate) Listen(fn func(ledger.Event)) (cancel func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	// A list is never changed once it is stored, since events pass without a lock.
	var old []*func(ledger.Event)
	if p := g.listeners.Load(); p != nil {
		old = *p
	}
	list := append(slices.Clone(old), &fn)
	g.listeners.Store(&list)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		rest := slices.DeleteFunc(slices.Clone(*g.listeners.Load()), func(f *func(ledger.Event)) bool { return f == &fn })
		g.listeners.Store(&rest)
	}
}
