package ratelimit

import (
	"context"
	"sync/atomic"
	"time"
)

// leakyBucket lets requests out one by one, every so often. Those that come earlier wait for their turn, in the order in
// which they came; a queue that is full, or so long that the wait would be, refuses at once. It needs no goroutine of its
// own: the first of a queue waits for the time, the others for being the first.
type leakyBucket struct {
	*table[queue]
	every   int64 // nanoseconds from one to the next, rounded up: never laxer than the rate
	most    int   // waiting of one key
	wait    int64 // nanoseconds that one may have to wait
	open    int64 // waiting of all keys
	waiting atomic.Int64
}

// queue is a key's bucket.
type queue struct {
	next        int64 // the earliest time that the next one may leave
	first, last *waiter
	n           int
}

type waiter struct {
	turn         chan struct{} // closed when it becomes the first
	before, next *waiter
}

func newLeakyBucket(o Options) *leakyBucket {
	l := &leakyBucket{
		every: (int64(o.Rate.Per) + o.Rate.Limit - 1) / o.Rate.Limit,
		most:  o.Queue, wait: int64(o.Wait), open: int64(o.MaxWaiting),
	}
	l.table = newTable(o.MaxKeys, o.Now, func(q *queue, now int64) bool { return q.n == 0 && q.next <= now })
	return l
}

// Allow returns when it is the request's turn, at once when there is no room to wait, and when ctx ends; then the request
// has left the queue and those behind it have moved up.
func (l *leakyBucket) Allow(ctx context.Context, key string) Result {
	s, now := l.acquire(key)
	if s == nil {
		return l.refusal(time.Duration(l.every), 0, true)
	}
	q := &s.state
	if q.n == 0 && q.next <= now {
		q.next = now + l.every
		s.mu.Unlock()
		return Result{OK: true, Limit: 1, Reset: time.Duration(l.every)}
	}
	full := q.next + int64(q.n)*l.every - now // how long this one would wait
	if retry, ok := l.room(q, full, now); !ok {
		s.mu.Unlock()
		return l.refusal(time.Duration(retry), time.Duration(full), false)
	}
	w := &waiter{turn: make(chan struct{})}
	q.push(w)
	s.mu.Unlock()
	defer l.waiting.Add(-1)
	if l.await(ctx, s, w) {
		return Result{OK: true, Limit: 1, Reset: time.Duration(l.every)}
	}
	return l.refusal(time.Duration(l.every), 0, false)
}

// room takes a place among those that wait, or says how soon there may be one.
func (l *leakyBucket) room(q *queue, wait, now int64) (retry int64, ok bool) {
	switch {
	case wait > l.wait:
		return wait - l.wait, false
	case q.n >= l.most:
		return max(q.next-now, 1), false
	case l.waiting.Add(1) > l.open:
		l.waiting.Add(-1)
		return l.every, false
	}
	return 0, true
}

func (l *leakyBucket) refusal(retry, reset time.Duration, full bool) Result {
	return Result{Limit: 1, RetryAfter: retry, Reset: max(reset, retry), Full: full}
}

// await waits for the waiter's turn and takes it out of its queue. It is false when ctx ended before.
func (l *leakyBucket) await(ctx context.Context, s *slot[queue], w *waiter) bool {
	select {
	case <-w.turn:
	case <-ctx.Done():
		return l.leave(s, w)
	}
	s.mu.Lock()
	d := s.state.next - int64(l.now())
	s.mu.Unlock()
	t := time.NewTimer(time.Duration(d))
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return l.leave(s, w)
		}
		if ctx.Err() != nil {
			return l.leave(s, w) // a turn is not for those who have left
		}
		s.mu.Lock()
		now := int64(l.now())
		if d := s.state.next - now; d > 0 {
			s.mu.Unlock()
			t.Reset(time.Duration(d))
			continue
		}
		q := &s.state
		q.remove(w)
		if q.n > 0 {
			q.next += l.every // a late timer does not slow those behind down
		} else {
			q.next = now + l.every
		}
		s.mu.Unlock()
		return true
	}
}

// leave takes a waiter out whose client has gone. It returns false.
func (l *leakyBucket) leave(s *slot[queue], w *waiter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.remove(w)
	return false
}

func (q *queue) push(w *waiter) {
	w.before = q.last
	if q.last == nil {
		q.first = w
		close(w.turn)
	} else {
		q.last.next = w
	}
	q.last = w
	q.n++
}

// remove takes a waiter out, and tells the next one if it is first now.
func (q *queue) remove(w *waiter) {
	if w.next != nil {
		w.next.before = w.before
	} else {
		q.last = w.before
	}
	if w.before != nil {
		w.before.next = w.next
	} else if q.first = w.next; q.first != nil {
		close(q.first.turn)
	}
	q.n--
}
