package outbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/crashpoint"
	"github.com/seckillgate/seckillgate/internal/store"
)

const (
	readAtOnce = 1000
	// lookBack is how many numbers each read goes back, for transactions that commit in another order than they began in. Not to the
	// beginning each time: there lie the events that were taken out just now, until the server has cleared them away.
	lookBack = 5000
	// windowMost bounds the events in memory. Past it the rest waits in MySQL: with that many orders failing, the listener is broken.
	windowMost = 20_000
	// Told events leave the outbox together: after that many, or that long after the first.
	takeAtOnce = 1000
	takeEvery  = 20 * time.Millisecond
	// heldEvery is how often the lead is confirmed. It is also how often the whole outbox is walked in search of events whose
	// transaction was slower than that of a later number.
	heldEvery = time.Second
	// standBy is how often a worker that does not lead asks for it.
	standBy = time.Second
	// stopGrace is how long deliveries that are under way may take to end.
	stopGrace = 3 * time.Second
	// downAfter is how many failures in a row mean that the listener is down, and not that an order is at fault.
	downAfter = 3
)

// relay tells one listener.
type relay struct {
	sink     store.Sink
	listener Listener
	pace     Pace
	poll     time.Duration
	store    Store
	log      *zap.Logger
	metrics  *metrics
	wake     chan struct{}
}

// run leads whenever nobody else does.
func (r *relay) run(ctx context.Context) {
	leads := r.metrics.leads.WithLabelValues(r.sink.String())
	for n := 0; ctx.Err() == nil; {
		lead, err := r.store.Lead(ctx, r.sink)
		pause := jitter(standBy)
		switch {
		case err == nil && lead != nil:
			leads.Set(1)
			err = r.lead(ctx, lead)
			lead.Close()
			leads.Set(0)
			n = 0
		case err == nil:
			n = 0
		}
		if err != nil && ctx.Err() == nil {
			pause = backoff(n, 100*time.Millisecond, 5*time.Second)
			n++
			r.log.Warn("cannot tell outcomes just now, trying again", zap.Duration("pause", pause), zap.Error(err))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// delivered is what a delivery came to.
type delivered struct {
	c   *chain
	err error
}

// telling is one time of leading.
type telling struct {
	*relay
	*window
	results  chan delivered
	underway int
	failures int   // in a row
	rounds   int64 // events told
	highest  int64 // event read
	again    int64 // where the walk in search of late ones stands
	full     bool  // the last read found as much as it may
	first    time.Time
}

// lead tells until ctx ends or the lead is lost.
func (r *relay) lead(ctx context.Context, lead *store.Lead) (err error) {
	t := &telling{relay: r, window: newWindow(), results: make(chan delivered, r.pace.Parallel)}
	// Deliveries outlive ctx by a grace, and never the lead.
	work, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	defer func() { t.end(ctx, abandon, err == nil) }()
	var read, held time.Time
	for {
		now := time.Now()
		if !now.Before(held) {
			if err := lead.Held(ctx); err != nil {
				return stopped(ctx, err)
			}
			if err := t.walk(ctx); err != nil {
				return stopped(ctx, err)
			}
			held = now.Add(heldEvery)
		}
		if (t.full || !now.Before(read)) && len(t.known) < windowMost {
			if err := t.read(ctx); err != nil {
				return stopped(ctx, err)
			}
			read = now.Add(r.poll)
		}
		t.send(work, now)
		if err := t.take(ctx); err != nil {
			return stopped(ctx, err)
		}
		timer := time.NewTimer(t.wait(held, read))
		select {
		case d := <-t.results:
			t.note(d)
		case <-r.wake:
			read = time.Time{}
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// wait is how long there is nothing to do unless somebody reports something: until the lead is confirmed or the outbox is read, a
// pause ends, or what was told is taken out. Only what there is room for counts, or a loop that cannot do it would spin.
func (t *telling) wait(held, read time.Time) time.Duration {
	room, idle := len(t.known) < windowMost, t.underway < t.pace.Parallel
	wait := time.Until(held)
	if room {
		wait = min(wait, time.Until(read))
	}
	if len(t.later) > 0 && idle {
		wait = min(wait, time.Until(t.later[0].at))
	}
	if len(t.told) > 0 {
		wait = min(wait, takeEvery)
	}
	if t.full && room && idle {
		wait = 0
	}
	return wait
}

// stopped drops an error that only says that ctx has ended.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// read takes in what is new.
func (t *telling) read(ctx context.Context) error {
	after := t.highest
	if len(t.known) < readAtOnce/2 { // little is left there: look again for what transactions beside the last ones wrote
		after = max(0, after-lookBack)
	}
	events, err := t.store.Events(ctx, t.sink, after, readAtOnce)
	if err != nil {
		return err
	}
	for _, e := range events {
		t.add(e)
		t.highest = max(t.highest, e.Seq)
	}
	t.full = len(events) == readAtOnce
	return nil
}

// walk goes a step through what was read already, in search of numbers whose transactions committed late, and of what was taken out
// by somebody else.
func (t *telling) walk(ctx context.Context) error {
	events, err := t.store.Events(ctx, t.sink, t.again, readAtOnce)
	if err != nil {
		return err
	}
	from, upto := t.again, t.highest
	t.again = 0
	if len(events) == readAtOnce {
		if last := events[len(events)-1].Seq; last < t.highest {
			upto, t.again = last, last
		}
	}
	there := make(map[int64]bool, len(events))
	for _, e := range events {
		if e.Seq > upto {
			break
		}
		there[e.Seq] = true
		if len(t.known) < windowMost {
			t.add(e)
		}
	}
	t.missing(from, upto, there)
	return nil
}

// send begins what may be told now.
func (t *telling) send(ctx context.Context, now time.Time) {
	for t.underway < t.pace.Parallel {
		c := t.next(now)
		if c == nil {
			return
		}
		e := c.events[0]
		if e.Gone {
			t.metrics.events.WithLabelValues(t.sink.String(), "gone").Inc()
			t.done(c)
			continue
		}
		t.underway++
		go func() {
			began := time.Now()
			err := t.listener.Deliver(ctx, e)
			t.metrics.seconds.WithLabelValues(t.sink.String()).Observe(time.Since(began).Seconds())
			t.results <- delivered{c, err}
		}()
	}
}

// note takes in what a delivery came to, and those that have ended meanwhile.
func (t *telling) note(d delivered) {
	for {
		t.noteOne(d)
		select {
		case d = <-t.results:
		default:
			return
		}
	}
}

func (t *telling) noteOne(d delivered) {
	t.underway--
	if d.err == nil {
		crashpoint.Here("after_deliver")
		t.metrics.events.WithLabelValues(t.sink.String(), "told").Inc()
		if len(t.told) == 0 {
			t.first = time.Now()
		}
		t.done(d.c)
		if t.failures >= downAfter {
			t.log.Info("the listener answers again", zap.Int("failures", t.failures))
			t.hurry()
		}
		t.failures = 0
		t.rounds++
		return
	}
	t.failures++
	d.c.own = d.c.tries > 0 && d.c.round != t.rounds
	d.c.round = t.rounds
	t.metrics.events.WithLabelValues(t.sink.String(), "failed").Inc()
	pause := backoff(d.c.tries, t.pace.RetryMin, t.pace.RetryMax)
	var later *Later
	if errors.As(d.err, &later) {
		pause = min(max(pause, later.After), t.pace.RetryMax)
	}
	d.c.tries++
	d.c.at = time.Now().Add(pause)
	t.postpone(d.c)
	if t.failures == 1 || t.failures == downAfter || d.c.tries > 5 {
		t.log.Warn("an outcome was not taken and is told again", zap.String("order", d.c.events[0].ID), zap.Int("tries", d.c.tries),
			zap.Int("failures_in_a_row", t.failures), zap.Duration("pause", pause), zap.Error(d.err))
	}
}

// take removes what was told from the outbox, once it is much or some time has passed.
func (t *telling) take(ctx context.Context) error {
	if len(t.told) == 0 || len(t.told) < takeAtOnce && t.underway > 0 && time.Since(t.first) < takeEvery {
		return nil
	}
	if err := t.store.Told(ctx, t.sink, t.told); err != nil {
		return err
	}
	crashpoint.Here("after_told")
	t.taken()
	return nil
}

// end lets what is under way end and takes what was told from the outbox, within a bound. Without the lead it waits for nothing.
func (t *telling) end(ctx context.Context, abandon context.CancelFunc, mine bool) {
	grace := stopGrace
	if !mine {
		grace = 0
	}
	bound := time.AfterFunc(grace, abandon)
	defer bound.Stop()
	for t.underway > 0 {
		d := <-t.results
		t.underway--
		if d.err == nil {
			t.metrics.events.WithLabelValues(t.sink.String(), "told").Inc()
			t.done(d.c)
		}
	}
	if len(t.told) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	if err := t.store.Told(ctx, t.sink, t.told); err != nil {
		t.log.Warn("outcomes that were told stay in the outbox and are told again", zap.Int("events", len(t.told)), zap.Error(err))
	}
}

// backoff doubles from least to most and is jittered by half.
func backoff(n int, least, most time.Duration) time.Duration {
	d := most
	if n < 16 {
		d = min(d, least<<n)
	}
	return d/2 + rand.N(d/2+1)
}

func jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2) }
