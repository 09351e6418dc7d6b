package loadgen

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seckillgate/seckillgate/internal/told"
)

// Run plays the buyers until the configured end or until ctx ends, and adds what they saw to stats, which other goroutines
// may read meanwhile. Requests that are open when ctx ends are still waited for, each at most for its timeout. The error is
// about the configuration or the record of what was told; a gateway that refuses or fails is not one.
func Run(ctx context.Context, cfg Config, stats *Stats) error {
	cfg.setDefaults()
	if err := cfg.Validate(); err != nil {
		return err
	}
	r := &run{cfg: cfg, stats: stats, client: newClient(&cfg)}
	defer r.client.close()
	stats.start(time.Now())
	var err error
	if cfg.Rate > 0 {
		err = r.open(ctx)
	} else {
		err = r.closed(ctx)
	}
	stats.end(time.Now())
	r.follow(ctx)
	return err
}

type run struct {
	cfg    Config
	stats  *Stats
	client *client

	next sync.Mutex // guards n and calls of Identify
	n    int

	mu       sync.Mutex
	accepted []*accepted
}

// accepted is an order to ask after.
type accepted struct {
	rec   told.Record
	url   string
	buyer Buyer
}

var errDone = errors.New("all requests are sent")

// buyer gives the next request's buyer.
func (r *run) buyer() (Buyer, int, error) {
	r.next.Lock()
	defer r.next.Unlock()
	if r.cfg.Requests > 0 && r.n >= r.cfg.Requests {
		return Buyer{}, 0, errDone
	}
	n := r.n
	r.n++
	if r.cfg.Buyers > 0 {
		n %= r.cfg.Buyers
	}
	n += r.cfg.First
	b, err := r.cfg.Identify(n)
	return b, n, err
}

// open sends request k at its due time, start + k/rate, whatever became of the earlier ones.
func (r *run) open(ctx context.Context) error {
	start := time.Now()
	places := make(chan struct{}, r.cfg.MaxInFlight)
	var wg sync.WaitGroup
	defer wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for k := 0; ; k++ {
		due := start.Add(time.Duration(float64(k) / r.cfg.Rate * float64(time.Second)))
		if r.cfg.Duration > 0 && due.Sub(start) >= r.cfg.Duration {
			return nil
		}
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return nil
			}
		}
		b, n, err := r.buyer()
		if errors.Is(err, errDone) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		wg.Go(func() {
			defer func() { <-places }()
			r.one(ctx, b, n, due)
		})
	}
}

// closed has a fixed number of buyers ask one after the other.
func (r *run) closed(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	start := time.Now()
	var wg sync.WaitGroup
	for range r.cfg.Concurrency {
		wg.Go(func() {
			for ctx.Err() == nil {
				if r.cfg.Duration > 0 && time.Since(start) >= r.cfg.Duration {
					return
				}
				b, n, err := r.buyer()
				if err != nil {
					cancel(err)
					return
				}
				r.one(ctx, b, n, time.Now())
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, errDone) && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// lateBy is the delay from which a request counts as late: more than a timer's usual slack.
const lateBy = 5 * time.Millisecond

// one sends a request that was due at the given time.
func (r *run) one(ctx context.Context, b Buyer, n int, due time.Time) {
	r.stats.sent(time.Since(due) > lateBy)
	// Not ctx: an order that is already on its way is not taken back by the end of the run.
	rec, url := r.client.buy(context.WithoutCancel(ctx), b, r.cfg.Quantity(n))
	r.stats.answered(&rec, time.Since(due))
	if rec.Accepted() && r.cfg.Follow > 0 {
		r.mu.Lock()
		r.accepted = append(r.accepted, &accepted{rec: rec, url: url, buyer: b})
		r.mu.Unlock()
		return
	}
	if r.cfg.Told != nil {
		r.cfg.Told.Write(&rec)
	}
}

// Bounds of asking after orders.
const (
	followers = 64
	longPoll  = 10 * time.Second
)

// follow asks after the accepted orders until each is final, or the time is up.
func (r *run) follow(ctx context.Context) {
	if len(r.accepted) == 0 {
		return
	}
	asked, cancel := context.WithTimeout(ctx, r.cfg.Follow)
	defer cancel()
	work := make(chan *accepted)
	var wg sync.WaitGroup
	for range followers {
		wg.Go(func() {
			for a := range work {
				for asked.Err() == nil && a.rec.Final == "" {
					began := time.Now()
					a.rec.Final, a.rec.FinalReason = r.client.status(asked, a.buyer, a.url, longPoll)
					if a.rec.Final == "" && time.Since(began) < time.Second {
						pause(asked, time.Second) // it did not wait: an error, or a gateway that is too busy to hold the request
					}
				}
				status := a.rec.Final
				if status == "" {
					status = "undecided"
				}
				r.stats.finally(status)
				if r.cfg.Told != nil {
					r.cfg.Told.Write(&a.rec)
				}
			}
		})
	}
	for _, a := range r.accepted {
		work <- a
	}
	close(work)
	wg.Wait()
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
