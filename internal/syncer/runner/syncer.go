// Package runner runs the syncer: one leader among any number of syncers follows the binlog, keeps the catalogue, loads
// what Redis lost and compares; the others stand by.
//
// Why one leader is enough of a safeguard: the lease lives in Redis and only keeps two from doing the work twice. A leader
// that was paused for a minute and wakes up beside its successor does no harm: what it settles is settled by version, its
// loads are fenced by their epoch, its compare acts by compare-and-set, and the position is kept only by the holder of
// the lease, in one step with looking.
package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
)

// Conditions of health. They are all set while a syncer runs: nil where they do not concern a standby.
const (
	healthLease   = "lease"
	healthBinlog  = "binlog"
	healthApply   = "apply"
	healthLoaded  = "loaded"
	healthTable   = "activities"
	healthCompare = "compare"
)

// Health takes the conditions of the process; *telemetry.Health is one.
type Health interface {
	Set(name string, err error)
	Err() error // nil when all are well
}

// Syncer is the daemon. Start returns at once; Stop blocks, may be called twice and before Start.
type Syncer struct {
	parts   *Parts
	holder  string // of the lease: the name, and what makes it this process' own
	health  Health
	metrics *Metrics
	log     *zap.Logger

	leads atomic.Bool

	mu      sync.Mutex
	cancel  context.CancelFunc
	stopped bool
	done    chan struct{}
}

// New makes a syncer of parts that its caller closes after Stop.
func New(parts *Parts, health Health, metrics *Metrics) *Syncer {
	return &Syncer{
		parts: parts, health: health, metrics: metrics, log: parts.Log, done: make(chan struct{}),
		// Two processes that are called alike, as containers easily are, must not take each other's lease for their own.
		holder: parts.Config.Name + holderMark + uuid.NewString(),
	}
}

const holderMark = " #"

// holderName is what people call the holder of the lease.
func holderName(holder string) string {
	name, _, _ := strings.Cut(holder, holderMark)
	return name
}

// Start begins to run for the lease.
func (s *Syncer) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil || s.stopped {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() {
		defer close(s.done)
		s.elect(ctx)
	}()
}

// Stop ends the work, gives up the lease and waits for both.
func (s *Syncer) Stop() {
	s.mu.Lock()
	s.stopped = true
	cancel := s.cancel
	s.mu.Unlock()
	if cancel == nil {
		return
	}
	cancel()
	<-s.done
}

// Leads says whether this syncer leads now.
func (s *Syncer) Leads() bool { return s.leads.Load() }

// elect leads whenever the lease is to be had.
func (s *Syncer) elect(ctx context.Context) {
	s.health.Set(healthLease, errors.New("not known yet"))
	defer s.drop(ctx) // a question that Stop broke off may have been answered with yes
	for ctx.Err() == nil {
		asked := time.Now()
		mine, err := s.parts.Ledger.Lease(ctx, s.holder, s.parts.Config.LeaseTTL)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			s.health.Set(healthLease, fmt.Errorf("the lease cannot be asked for: %w", err))
		case mine:
			s.log.Info("leading")
			s.metrics.leader.Set(1)
			s.leads.Store(true)
			cause := s.lead(ctx, asked)
			s.leads.Store(false)
			s.metrics.leader.Set(0)
			s.log.Info("no longer leading", zap.NamedError("why", cause))
		default:
			s.standBy()
		}
		pause(ctx, s.parts.Config.LeaseTTL/4)
	}
}

// standBy: nothing is wrong with a syncer whose work another one does.
func (s *Syncer) standBy() {
	for _, name := range []string{healthLease, healthBinlog, healthApply, healthLoaded, healthTable, healthCompare} {
		s.health.Set(name, nil)
	}
}

// lead works as long as the lease is held. asked is when it was asked for last: the lease counts from before the question.
func (s *Syncer) lead(ctx context.Context, asked time.Time) error {
	ctx, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	s.health.Set(healthLease, nil)
	var wg sync.WaitGroup
	wg.Go(func() { s.renew(ctx, lose, asked) })
	wg.Go(func() { newTerm(s, lose).run(ctx) })
	<-ctx.Done()
	wg.Wait()
	s.drop(ctx)
	return context.Cause(ctx)
}

// drop gives the lease up, if it is ours, so that another syncer need not wait for its end.
func (s *Syncer) drop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := s.parts.Ledger.DropLease(ctx, s.holder); err != nil {
		s.log.Debug("the lease runs out by itself", zap.Error(err))
	}
}

var errLeaseLost = errors.New("another syncer has the lease")

func (s *Syncer) renew(ctx context.Context, lose context.CancelCauseFunc, good time.Time) {
	ttl := s.parts.Config.LeaseTTL
	for pause(ctx, ttl/4) {
		asked := time.Now()
		mine, err := s.parts.Ledger.Lease(ctx, s.holder, ttl)
		switch {
		case err == nil && mine:
			good = asked
			s.health.Set(healthLease, nil)
		case err == nil:
			lose(errLeaseLost)
			return
		case ctx.Err() == nil:
			s.health.Set(healthLease, fmt.Errorf("the lease cannot be renewed: %w", err))
		}
		if time.Since(good) > ttl*3/4 { // stop before another one may begin
			lose(fmt.Errorf("the lease could not be renewed in time: %w", err))
			return
		}
	}
}

// pause reports whether ctx still lasts after d.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
