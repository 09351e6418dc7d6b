package invariant

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/told"
)

// Sources are the systems to read. Kafka may be nil; I4 then rests on what buyers were told.
type Sources struct {
	Ledger *ledger.Ledger
	Store  *store.Store
	Kafka  *kafka.Admin
	Topic  string // of orders
	Group  string // of the workers
}

// Check waits until the activity is quiet, at most for the given time, reads its end state and judges it. A state that
// looks broken is read again until the time is up, since it may only be on its way. What is broken is in the report; an
// error means that there is no verdict.
func Check(ctx context.Context, src Sources, activity int64, records []told.Record, o Options, within time.Duration) (*Report, error) {
	deadline := time.Now().Add(within)
	g := &gatherer{src: src, activity: activity}
	if err := g.mark(ctx); err != nil {
		return nil, err
	}
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		late := !time.Now().Before(deadline)
		quiet, err := g.quiet(ctx)
		if err != nil {
			return nil, err
		}
		if quiet || late {
			s, err := g.gather(ctx)
			if err != nil {
				return nil, err
			}
			s.Told = records
			if r := Judge(s, o); late || r.OK() {
				return r, nil
			}
		}
		t := time.NewTimer(min(pause, max(time.Until(deadline), time.Millisecond)))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		}
	}
}

// Bounds of the pause between two looks.
const (
	minPause = 50 * time.Millisecond
	maxPause = 2 * time.Second
)

type gatherer struct {
	src      Sources
	activity int64

	marks     map[int32]int64 // high-water marks of the orders topic when the check began
	published map[string]int  // read once, up to the marks
	bad       int
	expired   int64
}

// mark notes how far the orders topic reaches: what counts as "all orders".
func (g *gatherer) mark(ctx context.Context) error {
	if g.src.Kafka == nil {
		return nil
	}
	var err error
	if g.marks, err = g.src.Kafka.HighWater(ctx, g.src.Topic); err != nil {
		return fmt.Errorf("read how far the orders reach: %w", err)
	}
	return nil
}

// behind is how many records below the marks the workers have not committed and can still land: those that Kafka has removed
// are not among them.
func (g *gatherer) behind(ctx context.Context) (int64, error) {
	if g.src.Kafka == nil {
		return 0, nil
	}
	committed, err := g.src.Kafka.Committed(ctx, g.src.Group, g.src.Topic)
	if err != nil {
		return 0, fmt.Errorf("read how far the workers are: %w", err)
	}
	oldest, err := g.src.Kafka.Oldest(ctx, g.src.Topic)
	if err != nil {
		return 0, fmt.Errorf("read which orders are kept: %w", err)
	}
	var n int64
	for p, mark := range g.marks {
		n += max(0, mark-max(0, committed[p], oldest[p]))
	}
	return n, nil
}

// quiet is a cheap look at whether the work seems done.
func (g *gatherer) quiet(ctx context.Context) (bool, error) {
	behind, err := g.behind(ctx)
	if err != nil || behind > 0 {
		return false, err
	}
	a, snap, err := g.redis(ctx)
	if err != nil {
		return false, err
	}
	if !snap.Exists && a.State == ledger.Closed {
		return true, nil // retired
	}
	stock, _, _, err := g.src.Store.Inventory(ctx, a.Item)
	if err != nil {
		return false, fmt.Errorf("read the stock of item %d: %w", a.Item, err)
	}
	return snap.Loaded && snap.Pending == 0 && snap.LedgerLen == 0 && snap.Stock == stock, nil
}

func (g *gatherer) redis(ctx context.Context) (ledger.Activity, ledger.Snapshot, error) {
	a, err := g.src.Store.Activity(ctx, g.activity)
	if err != nil {
		return a, ledger.Snapshot{}, err
	}
	snaps, err := g.src.Ledger.Inspect(ctx, g.activity)
	if err != nil {
		return a, ledger.Snapshot{}, err
	}
	if len(snaps) != 1 {
		return a, ledger.Snapshot{}, fmt.Errorf("look at activity %d in redis: %d answers, want 1", g.activity, len(snaps))
	}
	return a, snaps[0], nil
}

// gather reads the whole state: Kafka and Redis first and MySQL last, so that what has landed meanwhile is not missed.
func (g *gatherer) gather(ctx context.Context) (*State, error) {
	s := &State{Buyers: map[string]string{}}
	if err := g.orders(ctx); err != nil {
		return nil, err
	}
	s.Published, s.Unreadable, s.Expired = maps.Clone(g.published), g.bad, g.expired
	var err error
	if s.Behind, err = g.behind(ctx); err != nil {
		return nil, err
	}
	if s.Activity, s.Redis, err = g.redis(ctx); err != nil {
		return nil, err
	}
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		var part []ledger.Entry
		if part, cursor, err = g.src.Ledger.ScanLedger(ctx, g.activity, cursor, scan); err != nil {
			return nil, fmt.Errorf("read the reservations of activity %d: %w", g.activity, err)
		}
		s.Ledger = append(s.Ledger, part...)
	}
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		var part []ledger.Buyer
		if part, cursor, err = g.src.Ledger.ScanBuyers(ctx, g.activity, cursor, scan); err != nil {
			return nil, fmt.Errorf("read the buyers of activity %d: %w", g.activity, err)
		}
		for _, b := range part {
			s.Buyers[b.User] = b.Order
		}
	}
	return s, g.mysql(ctx, s)
}

// scan is how many entries of a hash one call reads.
const scan = 500

func (g *gatherer) mysql(ctx context.Context, s *State) (err error) {
	view, err := g.src.Store.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("begin a view of mysql: %w", err)
	}
	defer func() { err = errors.Join(err, view.Close()) }()
	if s.Stock, s.Version, s.Inventory, err = view.Inventory(ctx, s.Activity.Item); err != nil {
		return fmt.Errorf("read the stock of item %d: %w", s.Activity.Item, err)
	}
	err = view.Orders(ctx, g.activity, func(part []ledger.Outcome) error {
		s.Orders = append(s.Orders, part...)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the orders of activity %d: %w", g.activity, err)
	}
	return nil
}

// orders reads the activity's records of the orders topic, once.
func (g *gatherer) orders(ctx context.Context) error {
	if g.src.Kafka == nil || g.published != nil {
		return nil
	}
	oldest, err := g.src.Kafka.Oldest(ctx, g.src.Topic)
	if err != nil {
		return fmt.Errorf("read which orders are kept: %w", err)
	}
	published, bad := map[string]int{}, 0
	err = g.src.Kafka.Read(ctx, g.src.Topic, oldest, g.marks,
		func(_ int32, _ int64, _ time.Time, _, value []byte) error {
			o, err := order.Decode(value)
			switch {
			case o.Activity != g.activity:
			case err != nil:
				bad++
			default:
				published[o.ID]++
			}
			return nil
		})
	if err != nil {
		return fmt.Errorf("read topic %s: %w", g.src.Topic, err)
	}
	for _, n := range oldest {
		g.expired += n
	}
	g.published, g.bad = published, bad
	return nil
}
