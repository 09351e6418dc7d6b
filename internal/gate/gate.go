// Package gate keeps a small view of the sales in memory, so that whatever can be refused without Redis is refused
// without Redis. It never admits: the reserve script does, by Redis time. The view is at most seconds old and says so: when
// it can no longer be trusted, everything is unavailable.
package gate

import (
	"context"
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
type Gate struct{}

// New makes a gate. Nothing runs and nothing dials before Start.
func New(src Source, o Options) *Gate { panic("stub") }

// Start begins to poll and to listen; it returns at once and may be called twice.
func (g *Gate) Start() { panic("stub") }

// Stop ends everything that Start began and waits for it. It may be called twice, and before Start.
func (g *Gate) Stop() { panic("stub") }

// Ready is closed after the first successful look at the catalogue. A request that arrives right after start-up may
// wait for it a little instead of hearing 503.
func (g *Gate) Ready() <-chan struct{} { panic("stub") }

// Judge refuses what can be refused from memory. It costs no Redis call and no allocation.
func (g *Gate) Judge(activity int64, now time.Time) Verdict { panic("stub") }

// View shows an activity for countdowns; the reason is Pass, NotFound or Unavailable.
func (g *Gate) View(activity int64, now time.Time) (View, Reason) { panic("stub") }

// Views shows every activity of the catalogue, by id; the reason is Pass or Unavailable.
func (g *Gate) Views(now time.Time) ([]View, Reason) { panic("stub") }

// Timings are the protocol's bounds as the catalogue gives them, with the defaults for what it does not.
func (g *Gate) Timings() ledger.Timings { panic("stub") }

// Observe takes in what a decision of the reserve script says about the activity.
func (g *Gate) Observe(activity int64, d ledger.Decision) { panic("stub") }

// Listen calls fn with every event until cancel is called. fn must not block.
func (g *Gate) Listen(fn func(ledger.Event)) (cancel func()) { panic("stub") }
