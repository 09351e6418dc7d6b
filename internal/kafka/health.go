package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// Healthy is nil, or says why a message sent now would be in danger, for all watched topics and partitions. Before anything is
// known it is nil.
func (p *Producer) Healthy() error {
	p.Start()
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return errClosed
	}
	var errs []error
	for name, t := range p.topics {
		if err := t.err(); err != nil {
			errs = append(errs, err)
			continue
		}
		if info := p.cluster.topic(name); info != nil {
			for i := range info.partitions {
				if err := info.leaderless(name, int32(i)); err != nil {
					errs = append(errs, err)
				}
			}
		}
	}
	for _, l := range p.lanes {
		if err := l.err(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// HealthyFor is Healthy for the one partition that the orders of an activity go to: a partition without a leader need not close
// the others' sales. It is cheap: ask it before each reservation.
func (p *Producer) HealthyFor(activity int64) error {
	p.Start()
	topic := p.cfg.Topics.Orders
	p.mu.RLock()
	t, closed := p.topics[topic], p.closed
	p.mu.RUnlock()
	switch {
	case closed:
		return errClosed
	case t == nil: // not among the watched topics, and never sent to
		return nil
	}
	if err := t.err(); err != nil {
		return err
	}
	n := t.partitions.Load()
	if n == 0 {
		return nil
	}
	part := Partition(ActivityKey(activity), n)
	if info := p.cluster.topic(topic); info != nil && info.err == nil {
		if err := info.leaderless(topic, part); err != nil {
			return err
		}
	}
	p.mu.RLock()
	l := p.lanes[laneKey{topic, part}]
	p.mu.RUnlock()
	if l == nil {
		return nil
	}
	return l.err()
}

var errClosed = errors.New("kafka producer is closed")

// OldestUnacked is the age of the oldest message that is neither acknowledged nor given up; 0 if there is none.
func (p *Producer) OldestUnacked() time.Duration {
	p.mu.RLock()
	defer p.mu.RUnlock()
	var age time.Duration
	for _, l := range p.lanes {
		age = max(age, l.age())
	}
	return age
}

func (t *topicState) err() error {
	if e := t.trouble.Load(); e != nil {
		return *e
	}
	return nil
}

// watch keeps the state of the watched topics.
func (p *Producer) watch(ctx context.Context) {
	var failures int
	for ctx.Err() == nil {
		wait := watchEvery
		if p.lookOnce(ctx, failures > 0) {
			failures = 0
		} else {
			wait = backoff(failures)
			failures++
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-p.kick:
		}
		timer.Stop()
	}
}

// lookOnce asks for the watched topics and says whether all is well. That no broker answers counts from the second time in a row
// on, unless nothing is known yet: one lost reply is no outage.
func (p *Producer) lookOnce(ctx context.Context, again bool) bool {
	p.mu.RLock()
	topics := make(map[string]*topicState, len(p.topics))
	names := make([]string, 0, len(p.topics))
	for name, t := range p.topics {
		topics[name] = t
		names = append(names, name)
	}
	p.mu.RUnlock()

	ask, cancel := context.WithTimeout(ctx, p.opt.attempt())
	defer cancel()
	err := p.cluster.refresh(ask, time.Now(), names...)
	if ctx.Err() != nil {
		return true
	}
	well := err == nil
	for name, t := range topics {
		trouble := err
		info := p.cluster.topic(name)
		if err == nil && info != nil {
			if trouble = info.err; trouble == nil {
				t.partitions.Store(int32(len(info.partitions)))
				if !isClosed(t.known) {
					close(t.known)
				}
			}
			well = well && trouble == nil
		}
		if err != nil && !again && isClosed(t.known) {
			continue
		}
		p.note(name, t, trouble)
	}
	return well
}

// note keeps a topic's state and logs its changes.
func (p *Producer) note(name string, t *topicState, trouble error) {
	before := t.err()
	if trouble == nil {
		t.trouble.Store(nil)
		if before != nil {
			p.log.Info("kafka topic is reachable again", zap.String("topic", name))
		}
		return
	}
	t.trouble.Store(&trouble)
	if before == nil {
		p.log.Error("kafka topic cannot be used", zap.String("topic", name), zap.Error(trouble))
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// backoff is the wait after the n-th failure in a row, from 0: 100 ms doubling up to 2 s.
func backoff(n int) time.Duration { return min(100*time.Millisecond<<min(n, 10), 2*time.Second) }

// pause waits, and says whether it waited to the end.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

var errStalled = errors.New("kafka does not acknowledge")

func stalled(key laneKey, age time.Duration) error {
	return fmt.Errorf("topic %q partition %d: %w: the oldest message waits for %s", key.topic, key.partition, errStalled, age.Round(time.Millisecond))
}
