package kafka

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// message is one record on its way.
type message struct {
	key, value []byte
	headers    []*sarama.RecordHeader
	size       int // upper bound of its bytes in a batch
	at         time.Time
	state      atomic.Int32
	done       chan struct{} // closed after ack and err are set; nil if then is there
	ack        Ack
	err        error
	then       func(Ack, error) // called in place of closing done
	until      time.Time        // not to be handed over later; zero: no such bound
}

// States that a message may leave `queued` (0) for, once. Whoever wins the change decides: a lane hands it over, or its sender
// gives it up, which then is the proof that it was never sent.
const (
	sending = 1
	dropped = 2
)

func (m *message) take(state int32) bool { return m.state.CompareAndSwap(0, state) }

func newMessage(key, value []byte, headers map[string]string) *message {
	const overhead = 100 // varints, offsets, and the head of a batch with one record
	m := &message{
		key: key, value: value, at: time.Now(),
		size: overhead + len(key) + len(value),
	}
	if len(headers) == 0 {
		return m
	}
	names := make([]string, 0, len(headers))
	for name := range headers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		m.headers = append(m.headers, &sarama.RecordHeader{Key: []byte(name), Value: []byte(headers[name])})
		m.size += 10 + len(name) + len(headers[name])
	}
	return m
}

// lane is the way to one partition.
type lane struct {
	p    *Producer
	key  laneKey
	wire wire // touched by run only

	mu     sync.Mutex
	queue  []*message
	closed bool
	down   error     // set: refuses everything until a probe succeeds
	busy   time.Time // when the oldest message on the wire was sent by its caller; zero: none
	wake   chan struct{}
}

func newLane(p *Producer, key laneKey) *lane {
	return &lane{p: p, key: key, wake: make(chan struct{}, 1)}
}

// put queues a message.
func (l *lane) put(m *message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return notSent("the producer is closed")
	case l.down != nil:
		return notSent("%w", l.down)
	}
	l.queue = append(l.queue, m)
	l.signal()
	return nil
}

func (l *lane) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// close lets what is queued be sent and refuses the rest.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.signal()
}

// age is the age of the oldest unsettled message.
func (l *lane) age() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	oldest := l.busy
	for _, m := range l.queue {
		if m.state.Load() != dropped {
			if oldest.IsZero() || m.at.Before(oldest) {
				oldest = m.at
			}
			break // they are in order, nearly
		}
	}
	if oldest.IsZero() {
		return 0
	}
	return time.Since(oldest)
}

// err says whether the lane is down or stalled.
func (l *lane) err() error {
	l.mu.Lock()
	down, busy := l.down, l.busy
	l.mu.Unlock()
	if down != nil {
		return down
	}
	if !busy.IsZero() {
		if age := time.Since(busy); age > l.p.opt.stall() {
			return stalled(l.key, age)
		}
	}
	return nil
}

// run is the lane's goroutine.
func (l *lane) run(ctx context.Context) {
	defer l.wire.reset()
	defer l.refuse(errClosed)
	failures := 0
	for {
		batch, more := l.next(ctx)
		if !more {
			return
		}
		if len(batch) == 0 {
			continue
		}
		err := l.deliver(ctx, batch)
		l.mu.Lock()
		l.busy = time.Time{}
		l.mu.Unlock()
		if err == nil {
			failures = 0
			continue
		}
		l.refuse(err)
		l.p.log.Warn("kafka partition is down", zap.String("topic", l.key.topic), zap.Int32("partition", l.key.partition), zap.Error(err))
		if !l.recover(ctx, err, failures) {
			return
		}
		failures++ // a probe that succeeds does not prove that producing does, so flapping slows down
		l.p.log.Info("kafka partition is tried again", zap.String("topic", l.key.topic), zap.Int32("partition", l.key.partition))
	}
}

// next waits for messages and takes what fits into one batch. It is false once the lane is closed and empty.
func (l *lane) next(ctx context.Context) ([]*message, bool) {
	for {
		// Whoever is about to queue a message gets the chance to, since one batch is cheaper than two. A lone message does not
		// wait: with nobody else ready to run this returns at once.
		runtime.Gosched()
		l.mu.Lock()
		if len(l.queue) > 0 {
			batch := l.gather()
			l.mu.Unlock()
			return batch, true
		}
		closed := l.closed
		l.mu.Unlock()
		if closed {
			return nil, false
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
			return nil, false
		}
	}
}

// gather takes messages off the queue. It needs l.mu.
func (l *lane) gather() []*message {
	var batch []*message
	size, i := 0, 0
	now := time.Now()
	latest := now.Add(-l.p.opt.handover())
	for ; i < len(l.queue); i++ {
		m := l.queue[i]
		if len(batch) == maxBatch || (len(batch) > 0 && size+m.size > l.p.cfg.MaxMessageBytes) {
			break
		}
		switch {
		case (m.at.Before(latest) || !m.until.IsZero() && now.After(m.until)) && m.take(dropped):
			l.p.finish(m, Ack{}, notSent("topic %q: its turn did not come within %s", l.key.topic, l.p.opt.handover()))
		case m.take(sending):
			size += m.size
			batch = append(batch, m)
			if l.busy.IsZero() || m.at.Before(l.busy) {
				l.busy = m.at
			}
		default: // dropped by its sender
			l.p.inFlight.Add(-1)
		}
	}
	rest := copy(l.queue, l.queue[i:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	return batch
}

// refuse marks the lane as down and settles what is queued: none of it was sent.
func (l *lane) refuse(err error) {
	l.mu.Lock()
	l.down = fmt.Errorf("topic %q partition %d: %w", l.key.topic, l.key.partition, err)
	queue, down := l.queue, l.down
	l.queue = nil
	l.mu.Unlock()
	for _, m := range queue {
		if m.take(dropped) {
			l.p.finish(m, Ack{}, notSent("%w", down))
		} else {
			l.p.inFlight.Add(-1)
		}
	}
}

// replicasAnyway is when a partition that had too few replicas in sync is tried again although no more have come: the topic's
// min.insync.replicas may have been lowered.
const replicasAnyway = 30 * time.Second

// recover probes until the partition's leader answers, then opens the lane again. It is false if the lane is to end.
func (l *lane) recover(ctx context.Context, cause error, failures int) bool {
	began, tooFew := time.Now(), 0
	if errors.Is(cause, sarama.ErrNotEnoughReplicas) {
		tooFew = l.replicas()
	}
	for n := failures; ; n++ {
		if !l.rest(ctx, backoff(n)) {
			return false
		}
		probe, cancel := context.WithTimeout(ctx, l.p.opt.attempt())
		err := l.connect(probe)
		cancel()
		if n := l.replicas(); err == nil && tooFew > 0 && n <= tooFew && time.Since(began) < replicasAnyway {
			err = fmt.Errorf("%d replicas in sync: %w", n, sarama.ErrNotEnoughReplicas)
		}
		if err == nil {
			break
		}
		l.wire.doubt()
		l.mu.Lock()
		l.down = fmt.Errorf("topic %q partition %d: %w", l.key.topic, l.key.partition, err)
		l.mu.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = nil
	return true
}

// replicas is the number of replicas in sync when the metadata was last read.
func (l *lane) replicas() int {
	info := l.p.cluster.topic(l.key.topic)
	if info == nil || int(l.key.partition) >= len(info.partitions) {
		return 0
	}
	return info.partitions[l.key.partition].isr
}

// rest waits; it is false once the lane is closed or ctx ends.
func (l *lane) rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		l.mu.Lock()
		closed := l.closed
		l.mu.Unlock()
		if closed {
			return false
		}
		select {
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		case <-l.wake:
		}
	}
}
