package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// ErrItemBusy: another activity that sells the same item is not over yet. An item is in one activity at a time, since
// each activity counts its reservations against the whole stock.
var ErrItemBusy = errors.New("the item is still in another activity")

// free checks that the activities that sold the item before are over: closed or past their end, with every reservation
// settled and every order landed (E108).
func (l *Loader) free(ctx context.Context, a ledger.Activity) error {
	all, err := l.Store.Activities(ctx)
	if err != nil {
		return err
	}
	var former []ledger.Activity
	ids := []int64{a.ID}
	for _, o := range all {
		if o.ID != a.ID && o.Item == a.Item && Before(o, a) {
			former = append(former, o)
			ids = append(ids, o.ID)
		}
	}
	if len(former) == 0 {
		return nil
	}
	looks, err := l.Ledger.Inspect(ctx, ids...)
	if err != nil {
		return err
	}
	now := looks[0].NowMs
	if a.State == ledger.Closed || a.EndsAtMs <= now {
		return nil // it sells nothing any more: only its results are wanted back
	}
	for i, o := range former {
		if err := over(o, looks[i+1], now); err != nil {
			return fmt.Errorf("activity %d cannot be loaded: %w: item %d, %w", a.ID, ErrItemBusy, a.Item, err)
		}
	}
	isFormer := func(id int64) bool {
		for _, o := range former {
			if o.ID == id {
				return true
			}
		}
		return false
	}
	open, err := l.notLanded(ctx, isFormer)
	if err != nil {
		return fmt.Errorf("activity %d cannot be loaded: %w", a.ID, err)
	}
	if len(open) == 0 {
		return nil
	}
	rows, err := l.Store.Orders(ctx, keys(open))
	if err != nil {
		return err
	}
	if n := len(open) - len(rows); n > 0 {
		return fmt.Errorf("activity %d cannot be loaded: %w: item %d, of which %d earlier orders are in kafka and not landed; the worker has to catch up",
			a.ID, ErrItemBusy, a.Item, n)
	}
	return nil
}

// Before says that o has the item before a: by start, then by id.
func Before(o, a ledger.Activity) bool {
	return o.StartsAtMs < a.StartsAtMs || (o.StartsAtMs == a.StartsAtMs && o.ID < a.ID)
}

func over(o ledger.Activity, look ledger.Snapshot, now int64) error {
	switch {
	case o.State != ledger.Closed && now < o.EndsAtMs:
		return fmt.Errorf("activity %d, is %s until %s; close it first (seckill-syncer activity close %d)",
			o.ID, o.State, time.UnixMilli(o.EndsAtMs).UTC().Format(time.RFC3339), o.ID)
	case look.Exists && look.State != ledger.Closed && now < look.Activity.EndsAtMs:
		return fmt.Errorf("activity %d, was closed just now and redis still has it %s", o.ID, look.State)
	case look.LedgerLen > 0:
		return fmt.Errorf("activity %d, has %d reservations that are not settled yet", o.ID, look.LedgerLen)
	}
	return nil
}

// notLanded reads the orders that Kafka has past the workers' committed offsets. The committed offsets are read before
// the ends, so that nothing between the two is passed over.
func (l *Loader) notLanded(ctx context.Context, want func(activity int64) bool) (map[string]ledger.Entry, error) {
	from, err := l.Records.Committed(ctx, l.Group, l.Topic)
	if err != nil {
		return nil, fmt.Errorf("read the offsets that group %s committed in topic %s: %w", l.Group, l.Topic, err)
	}
	to, err := l.Records.HighWater(ctx, l.Topic)
	if err != nil {
		return nil, fmt.Errorf("read the ends of topic %s: %w", l.Topic, err)
	}
	for p, offset := range from {
		if offset > to[p] { // of a log that was cut short or made anew since: nothing of this one is known to have landed
			from[p] = -1
		}
	}
	if l.Back > 0 {
		if err := l.further(ctx, from, to); err != nil {
			return nil, err
		}
	}
	open := map[string]ledger.Entry{}
	collect := func(_ int32, _ int64, _ time.Time, _, value []byte) error {
		o, err := order.Decode(value)
		if err != nil || !want(o.Activity) {
			return nil //nolint:nilerr // not an order: the worker sets it aside, it holds nothing
		}
		open[o.ID] = ledger.Entry{
			Order: o.ID, User: o.User, Item: o.Item, Quantity: o.Quantity, ReservedAtMs: o.CreatedAtMs, Extra: o.Extra, Tries: o.Attempt,
		}
		return nil
	}
	err = l.Records.Read(ctx, l.Topic, from, to, collect)
	if errors.Is(err, kafka.ErrOffsetGone) {
		// The worker stops there and says so. What is still kept is all that can be known.
		err = l.Records.Read(ctx, l.Topic, nil, to, collect)
	}
	if err != nil {
		return nil, fmt.Errorf("read the orders of topic %s that are not landed: %w", l.Topic, err)
	}
	return open, nil
}

// further moves from back by Back: before the record that the workers are at, and not before now, for with a backlog whatever was
// left open last is as old as that.
func (l *Loader) further(ctx context.Context, from, to map[int32]int64) error {
	at, first, next := time.Now(), map[int32]int64{}, map[int32]int64{}
	for p, offset := range from {
		if offset >= 0 && offset < to[p] {
			first[p], next[p] = offset, offset+1
		}
	}
	err := l.Records.Read(ctx, l.Topic, first, next, func(_ int32, _ int64, ts time.Time, _, _ []byte) error {
		if ts.Before(at) {
			at = ts
		}
		return nil
	})
	if err != nil && !errors.Is(err, kafka.ErrOffsetGone) { // gone: then everything that is kept is read anyway
		return fmt.Errorf("read where the workers are in topic %s: %w", l.Topic, err)
	}
	earlier, err := l.Records.OffsetsAt(ctx, l.Topic, at.Add(-l.Back))
	if err != nil {
		return fmt.Errorf("read where topic %s was %s before: %w", l.Topic, l.Back, err)
	}
	for p, offset := range from {
		if e, ok := earlier[p]; ok && e >= 0 {
			from[p] = min(offset, e)
		}
	}
	return nil
}

func keys(m map[string]ledger.Entry) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	return out
}
