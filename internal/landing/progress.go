package landing

import (
	"context"
	"fmt"
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
	oldest    time.Time    // record time of the first record of the running batch; zero when none runs
	began     time.Time    // when that batch began
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
		s.oldest, s.began = first.Time, time.Now()
	}
}

// landed notes that everything up to and including last is done.
func (p *progress) landed(part int32, last Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.parts[part]; s != nil {
		s.next, s.oldest = last.Offset+1, time.Time{}
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

// measure updates the lag figures, and returns an error when a partition has records and does not move.
func (p *progress) measure(stallAfter time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var stalled error
	for part, s := range p.parts {
		label := strconv.Itoa(int(part))
		p.metrics.lagMessages.WithLabelValues(label).Set(float64(max(0, s.highWater()-s.next)))
		age := 0.0
		if !s.oldest.IsZero() {
			age = max(0, time.Since(s.oldest).Seconds())
			if running := time.Since(s.began); running > stallAfter {
				stalled = fmt.Errorf("partition %d: the batch from offset %d has been under way for %s", part, s.next, running.Round(time.Second))
			}
		}
		p.metrics.lagSeconds.WithLabelValues(label).Set(age)
	}
	return stalled
}
