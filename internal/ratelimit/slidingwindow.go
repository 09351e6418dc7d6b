package ratelimit

import (
	"context"
	"time"
)

// slidingWindow lets at most limit pass in any span of time as long as per, wherever it begins. It keeps a log of what
// passed, as a ring of cells. Up to maxCells a cell is one passage and the answer is exact to the nanosecond. Beyond, those
// that passed within one grain of time share a cell and count until the last of them leaves the window: that can only refuse
// what came up to a grain too early, never let through, and it bounds a key's memory whatever the limit.
type slidingWindow struct {
	*table[passages]
	limit int64
	per   int64 // nanoseconds
	grain int64 // nanoseconds that share a cell; 0: none do
	cells int   // a ring's greatest length
}

// maxCells bounds a key's log: 64 cells of 16 bytes.
const maxCells = 64

// passages is a key's log.
type passages struct {
	ring  []cell
	first int32 // index of the oldest cell
	used  int32
	total int64 // sum of all cells
}

// cell is passages: how many, and when the last of them was.
type cell struct{ at, n int64 }

func newSlidingWindow(o Options) *slidingWindow {
	l := &slidingWindow{limit: o.Rate.Limit, per: int64(o.Rate.Per), cells: int(min(o.Rate.Limit, maxCells))}
	if o.Rate.Limit > maxCells {
		// Rounded up: a window touches one grain more than fit into it.
		l.grain = (l.per + maxCells - 2) / (maxCells - 1)
	}
	l.table = newTable(o.MaxKeys, o.Now, func(p *passages, now int64) bool {
		p.forget(now - l.per)
		return p.total == 0
	})
	return l
}

// Allow lets the key pass if it has not passed limit times within the last per.
func (l *slidingWindow) Allow(_ context.Context, key string) Result {
	s, now := l.acquire(key)
	if s == nil {
		return Result{Limit: l.limit, RetryAfter: time.Duration(l.per / l.limit), Reset: time.Duration(l.per), Full: true}
	}
	defer s.mu.Unlock()
	p := &s.state
	p.forget(now - l.per)
	if p.total >= l.limit {
		return Result{
			Limit:      l.limit,
			RetryAfter: time.Duration(p.ring[p.first].at + l.per - now),
			Reset:      time.Duration(p.last().at + l.per - now),
		}
	}
	p.pass(now, l.grain, l.cells)
	return Result{OK: true, Limit: l.limit, Remaining: l.limit - p.total, Reset: time.Duration(l.per)}
}

// forget drops what passed at or before a time.
func (p *passages) forget(until int64) {
	for p.used > 0 && p.ring[p.first].at <= until {
		p.total -= p.ring[p.first].n
		p.used--
		if p.first++; int(p.first) == len(p.ring) {
			p.first = 0
		}
	}
}

func (p *passages) last() *cell { return &p.ring[(int(p.first)+int(p.used)-1)%len(p.ring)] }

func (p *passages) pass(now, grain int64, most int) {
	p.total++
	if grain > 0 && p.used > 0 {
		if c := p.last(); c.at/grain == now/grain {
			c.at, c.n = now, c.n+1
			return
		}
	}
	if int(p.used) == len(p.ring) {
		p.grow(most)
	}
	p.used++
	*p.last() = cell{now, 1}
}

// grow doubles the ring: most keys of a large crowd pass once or twice.
func (p *passages) grow(most int) {
	ring := make([]cell, min(max(2*len(p.ring), 1), most))
	n := copy(ring, p.ring[p.first:])
	copy(ring[n:], p.ring[:p.first])
	p.ring, p.first = ring, 0
}
