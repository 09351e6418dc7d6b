package landing

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// progress knows how far each claimed partition has landed, reports it to Redis (it serves buyers' positions and the
// sweep) and watches that it moves.
type progress struct {
	ledger  Ledger
	metrics *Metrics
	log     *zap.Logger
	every   time.Duration

	mu    sync.Mutex
	parts map[int32]*partition
	dirty map[int32]ledger.LandedAt // not yet reported
}

// partition is the state of one claim.
type partition struct {
	next      int64        // the next offset to land
	highWater func() int64 // the next offset that Kafka will give out, as of the last fetch
	end       int64        // the same, as of the last time that we asked: a fetch that is stuck does not tell
	oldest    time.Time    // record time of the first record of the running batch; zero when none runs
	behind    time.Time    // since when records have been waiting and none has landed; zero when none waits
}

func newProgress(l Ledger, m *Metrics, every time.Duration, log *zap.Logger) *progress {
	return &progress{
		ledger: l, metrics: m, log: log, every: every,
		parts: make(map[int32]*partition), dirty: make(map[int32]ledger.LandedAt),
	}
}

// claimed starts a partition at the offset that the group has committed. It is reported at once: everything below it has
// landed, and a partition that is idle would otherwise never be heard of.
func (p *progress) claimed(part int32, next int64, highWater func() int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parts[part] = &partition{next: next, highWater: highWater}
	p.dirty[part] = ledger.LandedAt{Offset: next}
}

// batch notes that landing of a batch begins.
func (p *progress) batch(part int32, first Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.parts[part]; s != nil {
		s.oldest = first.Time
	}
}

// landed notes that everything up to and including last is done.
func (p *progress) landed(part int32, last Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.parts[part]; s != nil {
		s.next, s.oldest, s.behind = last.Offset+1, time.Time{}, time.Time{}
	}
	p.dirty[part] = ledger.LandedAt{Offset: last.Offset + 1, TimeMs: last.Time.UnixMilli()}
}

// released forgets a partition that went to another worker.
func (p *progress) released(part int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.parts, part)
	p.metrics.lagMessages.DeleteLabelValues(strconv.Itoa(int(part)))
	p.metrics.lagSeconds.DeleteLabelValues(strconv.Itoa(int(part)))
}

// run reports until ctx ends, and once more then.
func (p *progress) run(ctx context.Context) {
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.report(ctx)
		case <-ctx.Done():
			p.report(context.WithoutCancel(ctx))
			return
		}
	}
}

// report writes what has changed. A report that fails is made again with the next: it only makes others wait longer.
func (p *progress) report(ctx context.Context) {
	p.mu.Lock()
	at := p.dirty
	p.dirty = make(map[int32]ledger.LandedAt)
	p.mu.Unlock()
	if len(at) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err := p.ledger.SetLanded(ctx, at)
	if err == nil {
		return
	}
	p.log.Debug("could not report progress, will do so with the next report", zap.Error(err))
	p.mu.Lock()
	defer p.mu.Unlock()
	for part, l := range at {
		if _, newer := p.dirty[part]; !newer {
			p.dirty[part] = l
		}
	}
}

// claims lists the partitions that this worker has.
func (p *progress) claims() []int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.parts))
}

// seen notes where a partition ends.
func (p *progress) seen(part int32, end int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.parts[part]; s != nil {
		s.end = end
	}
}

// measure updates the lag figures, and returns an error when records are waiting in a partition and none has landed for
// that long, whether the batch hangs or nothing is fetched.
func (p *progress) measure(stallAfter time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var stalled error
	for part, s := range p.parts {
		label := strconv.Itoa(int(part))
		lag := max(0, s.highWater()-s.next, s.end-s.next)
		p.metrics.lagMessages.WithLabelValues(label).Set(float64(lag))
		age := 0.0
		if !s.oldest.IsZero() {
			age = max(0, time.Since(s.oldest).Seconds())
		}
		p.metrics.lagSeconds.WithLabelValues(label).Set(age)
		switch {
		case lag == 0:
			s.behind = time.Time{}
		case s.behind.IsZero():
			s.behind = time.Now()
		case time.Since(s.behind) > stallAfter:
			stalled = fmt.Errorf("partition %d: %d records from offset %d on are waiting and none has landed for %s",
				part, lag, s.next, time.Since(s.behind).Round(time.Second))
		}
	}
	return stalled
}
