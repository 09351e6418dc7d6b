// Package ledger is the reservation protocol: Redis scripts and the Go calls around them. Redis holds a copy of each
// activity's stock, and the ledger of the reservations that MySQL has not decided yet; what can be sold is stock minus the
// sum of the ledger. Every call is keyed by order id and may be repeated, reordered or lost without selling a unit twice
// or leaking one.
//
// A call's error is one of three: nothing was executed (ErrNotExecuted, from Reserve), fenced (ErrFenced, from loads), or
// anything else, which is unknown: the call may have taken effect.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/crashpoint"
	"github.com/seckillgate/seckillgate/internal/order"
)

// DefaultRetention is how long results and tombstones outlive the end of their activity.
const DefaultRetention = 24 * time.Hour

// slice bounds how many orders one script call takes, so that none holds Redis for much more than a millisecond.
const slice = 64

// Options configures a Ledger.
type Options struct {
	// Retention is how long results and tombstones outlive the end of their activity, and the least that they stand.
	// It must outlive every reserve deadline. What the syncer's ledger has is kept with each activity, and all processes go by
	// it; that of the others counts for activities that are not in Redis. Default: DefaultRetention.
	Retention time.Duration
}

// Ledger runs the protocol's scripts on one Redis (single, Sentinel or Cluster). It is safe for concurrent use.
type Ledger struct {
	rdb         redis.UniversalClient
	retentionMs int64
	readTimeout time.Duration
	clock       clock
}

// New makes a Ledger on a client, whose own retries must be off (redisconn sees to it). It does not dial.
func New(rdb redis.UniversalClient, o Options) *Ledger {
	if o.Retention <= 0 {
		o.Retention = DefaultRetention
	}
	watchAttempts(rdb)
	return &Ledger{rdb: rdb, retentionMs: o.Retention.Milliseconds(), readTimeout: readTimeout(rdb)}
}

func readTimeout(rdb redis.UniversalClient) time.Duration {
	switch c := rdb.(type) {
	case *redis.Client:
		return c.Options().ReadTimeout
	case *redis.ClusterClient:
		return c.Options().ReadTimeout
	}
	return 0
}

func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// Settle tells Redis what MySQL decided, in slices. The version comes with the first slice: stock may be too low for a
// moment, never too high.
func (l *Ledger) Settle(ctx context.Context, s Settlement) (Settled, error) {
	var all Settled
	orders := s.Orders
	for {
		part := orders[:min(slice, len(orders))]
		orders = orders[len(part):]
		one, err := l.settle(ctx, s, part)
		if err != nil {
			return all, errorf(s.Activity, "settle", err)
		}
		all.NotLoaded = all.NotLoaded || one.NotLoaded
		all.Broken = all.Broken || one.Broken
		all.Advanced = all.Advanced || one.Advanced
		all.Dropped += one.Dropped
		all.Available = one.Available
		if len(orders) == 0 || one.NotLoaded || one.Broken {
			return all, nil
		}
		crashpoint.Here("mid_settle")
	}
}

func (l *Ledger) settle(ctx context.Context, s Settlement, orders []Outcome) (Settled, error) {
	k := KeysOf(s.Activity)
	keys := k.base(2 * len(orders))
	args := make([]any, 0, 8+5*len(orders))
	args = append(args, len(orders), EventsChannel, s.Activity, s.Version, s.Stock, flag(s.Source == FromBinlog), l.retentionMs, s.Item)
	now := time.Now().UnixMilli()
	for _, o := range orders {
		keys = append(keys, k.Result(o.Order), k.LastOrder(o.User))
		args = append(args, o.Order, o.User, flag(o.Dead), string(o.Status), outcomeResult(o, now))
	}
	r, err := l.reply(ctx, settleScript, keys, args...)
	if err != nil {
		return Settled{}, err
	}
	return Settled{
		NotLoaded: r.num(0) == 1, Broken: r.num(0) == 2, Available: r.num(2), Dropped: int(r.num(3)), Advanced: r.num(4) == 1,
	}, nil
}

// Release gives back a reservation that provably was never published, or fences one that may never have been made: its
// tombstone stops a copy of the reserve call that is still on its way. maxAge is the publish budget: an older reservation
// is kept, since the sweep may have published it. An error means that nothing is known, be it that the activity is
// not loaded just now: call again.
func (l *Ledger) Release(ctx context.Context, activity int64, r Reservation, maxAge time.Duration) (Released, error) {
	k := KeysOf(activity)
	reason := order.ReasonReleased
	if r.Refused {
		reason = order.ReasonRefused
	}
	a, err := l.reply(ctx, releaseScript, append(k.base(2), k.Result(r.Order), k.LastOrder(r.User)),
		EventsChannel, activity, r.Order, r.Nonce, r.User, maxAge.Milliseconds(), l.retentionMs, tombstone(reason, r.User, r.Item, r.Quantity))
	if err != nil {
		return Kept, errorf(activity, "release order "+r.Order+" of", err)
	}
	return Released(a.num(0)), nil
}

// MarkQueued keeps the Kafka offset of published orders, as long as they are undecided. Losing it costs a buyer only the
// position in the queue.
func (l *Ledger) MarkQueued(ctx context.Context, activity int64, acks []Ack) error {
	k := KeysOf(activity)
	for len(acks) > 0 {
		part := acks[:min(slice, len(acks))]
		acks = acks[len(part):]
		keys := k.base(len(part))
		args := append(make([]any, 0, 2+2*len(part)), len(part), l.retentionMs)
		results, now := make([]string, len(part)), time.Now().UnixMilli()
		for i := range part {
			a := &part[i]
			keys = append(keys, k.Result(a.Order))
			results[i] = encodeResult(Result{
				Status: order.Queued, User: a.User, Item: a.Item, Quantity: a.Quantity,
				Partition: a.Partition, Offset: a.Offset, AtMs: now,
			})
			args = append(args, &a.Order, &results[i])
		}
		if _, err := l.reply(ctx, queuedScript, keys, args...); err != nil {
			return errorf(activity, "mark queued orders of", err)
		}
	}
	return nil
}

// Postpone notes how often MySQL was short of stock for open orders that shall be tried again; the sweep publishes them with that
// number. It says of which orders the ledger keeps it: the others, all of them where the activity is not loaded, would never be
// tried again. The number only grows, so that it may be called twice.
func (l *Ledger) Postpone(ctx context.Context, activity int64, tries map[string]int64) (kept map[string]bool, err error) {
	kept = make(map[string]bool, len(tries))
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(tries)), slice) {
		args := make([]any, 0, 1+2*len(ids))
		args = append(args, len(ids))
		for _, id := range ids {
			args = append(args, id, tries[id])
		}
		a, err := l.reply(ctx, postponeScript, KeysOf(activity).base(0), args...)
		if err != nil {
			return nil, errorf(activity, "postpone orders of", err)
		}
		for i, id := range ids {
			if a.num(0) == 0 && a.num(i+1) == 1 {
				kept[id] = true
			}
		}
	}
	return kept, nil
}

// Lookup finds an order. The ledger is read before the result: settle drops the one and writes the other in one step, so
// an order that is known is seen in one of them.
func (l *Ledger) Lookup(ctx context.Context, activity int64, orderID string) (View, error) {
	k := KeysOf(activity)
	var entry, result *redis.StringCmd
	_, _ = l.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		entry = p.HGet(ctx, k.Ledger, orderID)
		result = p.Get(ctx, k.Result(orderID))
		return nil
	})
	if err := failed(entry, result); err != nil {
		return View{}, errorf(activity, "look up order "+orderID+" of", err)
	}
	v := View{Order: orderID, Partition: -1}
	if result.Err() == nil {
		r, err := decodeResult(result.Val())
		if err != nil {
			return View{}, errorf(activity, "look up order "+orderID+" of", err)
		}
		v.Found, v.Status, v.User, v.Item, v.Quantity = true, r.Status, r.User, r.Item, r.Quantity
		v.Reason, v.Partition, v.Offset = r.Reason, r.Partition, r.Offset
	} else if entry.Err() == nil {
		e, err := decodeEntry(orderID, entry.Val())
		if err != nil {
			return View{}, errorf(activity, "look up order "+orderID+" of", err)
		}
		v.Found, v.Status, v.User, v.Item, v.Quantity = true, order.Processing, e.User, e.Item, e.Quantity
	}
	return v, nil
}

// Mine finds the user's live order, else the last one that died. View.Found is false when there is neither.
func (l *Ledger) Mine(ctx context.Context, activity int64, user string) (View, error) {
	k := KeysOf(activity)
	var live, last *redis.StringCmd
	_, _ = l.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		live = p.HGet(ctx, k.Buyers, user)
		last = p.Get(ctx, k.LastOrder(user))
		return nil
	})
	if err := failed(live, last); err != nil {
		return View{}, errorf(activity, "look up a user's order of", err)
	}
	switch {
	case live.Err() == nil:
		return l.Lookup(ctx, activity, live.Val())
	case last.Err() == nil:
		return l.Lookup(ctx, activity, last.Val())
	}
	return View{}, nil
}

// failed is the first error of a pipeline that is not "there is none".
func failed(cmds ...*redis.StringCmd) error {
	for _, c := range cmds {
		if err := c.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return nil
}

// TakeWindow opens the user window outside of a reservation, for routes that only throttle. It reports whether it was
// free, and how long it stays closed if not.
func (l *Ledger) TakeWindow(ctx context.Context, key, value string, window time.Duration) (bool, time.Duration, error) {
	ok, err := l.rdb.SetNX(ctx, key, value, window).Result()
	if err != nil || ok {
		return ok, 0, err
	}
	rest, err := l.rdb.PTTL(ctx, key).Result()
	return false, max(rest, 0), err
}

// UserWindowKey is the key of a user's window in an activity; ScopeWindowKey that of a named scope outside of activities.
func UserWindowKey(activity int64, user string) string { return KeysOf(activity).UserWindow(user) }

// ScopeWindowKey is the key of a user's window in a named scope. Scopes have a prefix that no activity id can have.
func ScopeWindowKey(scope, user string) string {
	return fmt.Sprintf("seckill:user_freq:{scope:%s}:%s", scope, user)
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
