package landing

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"
)

// row names a row of MySQL that orders need.
type row struct {
	table string // what it is a row of, for people
	id    int64
}

// missing remembers since when rows are away or of no use, over batches, partitions and deliveries, so that a row that stays away is
// waited for once and not once per batch. It holds rows of known activities only, so its size has a bound.
type missing struct {
	mu   sync.Mutex
	rows map[row]*absence
}

type absence struct{ since, last time.Time }

func newMissing() *missing { return &missing{rows: make(map[row]*absence)} }

// missed gives how long a row has been away. An absence of which nothing was heard for longer than memory is another one.
func (m *missing) missed(r row, memory time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	a, ok := m.rows[r]
	if !ok || now.Sub(a.last) > max(memory, time.Minute) {
		a = &absence{since: now}
		m.rows[r] = a
	}
	a.last = now
	return now.Sub(a.since)
}

func (m *missing) found(r row) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.rows, r)
}

// wait is one wait for a row that should be there. Its user calls end.
type wait struct {
	l   *Lander
	row row
	n   int
	red bool
}

// again pauses before the next look, or says that there have been enough: at least UnknownTries and MissingWait.
func (w *wait) again(ctx context.Context, why error) (bool, error) {
	l := w.l
	w.n++
	away := l.missing.missed(w.row, l.cfg.MissingWait)
	left := l.cfg.MissingWait - away
	pause := 4 * l.cfg.RetryMin
	if w.n >= l.cfg.UnknownTries {
		if left <= 0 {
			return false, nil
		}
		pause = min(max(pause, l.pause(w.n)), left)
	}
	l.metrics.retries.WithLabelValues(stepRows).Inc()
	l.log.Warn("row is missing or of no use, looking again in place", zap.String("row", w.row.table), zap.Int64("id", w.row.id),
		zap.Duration("away", away), zap.Duration("left", left), zap.Error(why))
	if !w.red {
		w.red = true
		l.troubles.begin(stepRows, why)
	} else {
		l.troubles.update(stepRows, why)
	}
	return true, sleep(ctx, pause)
}

// found ends the wait well.
func (w *wait) found() {
	w.l.missing.found(w.row)
	w.end()
}

func (w *wait) end() {
	if w.red {
		w.red = false
		w.l.troubles.end(stepRows)
	}
}
