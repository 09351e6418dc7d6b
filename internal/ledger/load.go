package ledger

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/order"
)

// Load is a load that has begun.
type Load struct {
	Epoch     string
	BeganMs   int64 // Redis time
	Survivors int64 // entries that the ledger still held
	// Doubtful says that the survivors were made on another server, or before it lost writes. One that neither Kafka nor
	// MySQL knows may be the reservation of an order that was released, and its buyer refused: it must be dropped
	// (LoadDrop). On the same server it is one whose gateway died, and is kept (LoadEntries) for the sweep to publish.
	Doubtful bool
}

// LoadBegin closes an activity (state recovering) under a new epoch and fences every earlier load of it. Keys of a wrong
// type are dropped, and so are the buyers, who are built anew; stock, version, pending and ledger stay.
func (l *Ledger) LoadBegin(ctx context.Context, a Activity) (Load, error) {
	epoch := uuid.NewString()
	r, err := l.reply(ctx, loadBeginScript, KeysOf(a.ID).base(0),
		EventsChannel, a.ID, epoch, a.Item, a.StartsAtMs, a.EndsAtMs, a.MaxPerUser, l.retentionMs)
	if err != nil {
		return Load{}, errorf(a.ID, "begin the load of", err)
	}
	return Load{Epoch: epoch, BeganMs: r.num(0), Survivors: r.num(1), Doubtful: r.num(2) == 1}, nil
}

// LoadOrders writes orders of MySQL: a live one holds its buyer, a dead one does not, each loses its ledger entry and gets
// a result. ErrFenced when another load began or the server changed.
func (l *Ledger) LoadOrders(ctx context.Context, activity int64, epoch string, orders []Outcome) error {
	k := KeysOf(activity)
	now := l.nowMs()
	for len(orders) > 0 {
		part := orders[:min(slice, len(orders))]
		orders = orders[len(part):]
		keys := k.base(2 * len(part))
		args := make([]any, 0, 3+4*len(part))
		args = append(args, epoch, len(part), l.retentionMs)
		for _, o := range part {
			keys = append(keys, k.Result(o.Order), k.LastOrder(o.User))
			args = append(args, o.Order, o.User, flag(o.Dead), outcomeResult(o, now))
		}
		if err := l.fenced(ctx, activity, loadOrdersScript, keys, args...); err != nil {
			return err
		}
	}
	return nil
}

// LoadEntries puts back open reservations, where the ledger lacks them: records of Kafka that have not landed, and those
// that the ledger kept (for their buyers' sake). They can no longer be released, only settled or published again.
func (l *Ledger) LoadEntries(ctx context.Context, activity int64, epoch string, entries []Entry) error {
	k := KeysOf(activity)
	for len(entries) > 0 {
		part := entries[:min(slice, len(entries))]
		entries = entries[len(part):]
		args := make([]any, 0, 2+4*len(part))
		args = append(args, epoch, len(part))
		for _, e := range part {
			args = append(args, e.Order, e.User, e.Quantity, encodeEntry(e))
		}
		if err := l.fenced(ctx, activity, loadEntriesScript, k.base(0), args...); err != nil {
			return err
		}
	}
	return nil
}

// LoadDrop drops survivors as if they had been released: see Load.Doubtful. It must come after the wait for the publish
// budget and after Kafka and MySQL were read, so that nothing can publish them any more.
func (l *Ledger) LoadDrop(ctx context.Context, activity int64, epoch string, entries []Entry) error {
	k := KeysOf(activity)
	for len(entries) > 0 {
		part := entries[:min(slice, len(entries))]
		entries = entries[len(part):]
		keys := k.base(2 * len(part))
		args := make([]any, 0, 3+3*len(part))
		args = append(args, epoch, len(part), l.retentionMs)
		for _, e := range part {
			keys = append(keys, k.Result(e.Order), k.LastOrder(e.User))
			args = append(args, e.Order, e.Quantity, tombstone(order.ReasonReleased, e.User, e.Item, e.Quantity))
		}
		if err := l.fenced(ctx, activity, loadDropScript, keys, args...); err != nil {
			return err
		}
	}
	return nil
}

// LoadFinish opens the activity: stock and version, pending as the sum of the ledger, and the state (the stricter one, if it
// changed during the load). What settled since the load's snapshot is not in it: the binlog must resume from before that.
func (l *Ledger) LoadFinish(ctx context.Context, activity int64, epoch string, version, stock int64, state State) (Snapshot, error) {
	switch state {
	case Open, Paused, Closed:
	default:
		return Snapshot{}, fmt.Errorf("finish the load of activity %d: state %q is not one of open, paused, closed", activity, state)
	}
	err := l.fenced(ctx, activity, loadFinishScript, KeysOf(activity).base(0),
		EventsChannel, activity, epoch, version, stock, string(state))
	if err != nil {
		return Snapshot{}, err
	}
	s, err := l.Inspect(ctx, activity)
	if err != nil {
		return Snapshot{}, err
	}
	return s[0], nil
}

// fenced runs a script that answers 0 when the load may no longer write.
func (l *Ledger) fenced(ctx context.Context, activity int64, s *redis.Script, keys []string, args ...any) error {
	n, err := l.run(ctx, s, keys, args...).Int64()
	if err != nil {
		return errorf(activity, "load", err)
	}
	if n == 0 {
		return errorf(activity, "load", ErrFenced)
	}
	return nil
}

// SetActivity applies a row of MySQL's activity table to an activity that Redis knows, and reports whether it knows it.
// While a load is under way the state stays recovering.
func (l *Ledger) SetActivity(ctx context.Context, a Activity) (bool, error) {
	n, err := l.run(ctx, activityScript, KeysOf(a.ID).base(0),
		EventsChannel, a.ID, a.Item, a.StartsAtMs, a.EndsAtMs, a.MaxPerUser, string(a.State), l.retentionMs).Int64()
	if err != nil {
		return false, errorf(a.ID, "change", err)
	}
	if n == 2 {
		return true, fmt.Errorf("change activity %d in redis: its item was changed to %d, but an item never changes once loaded; close it and create another activity", a.ID, a.Item)
	}
	return n != 0, nil
}

// SetRecovering closes an activity until it is loaded again, and fences a load under way: what made it necessary may have
// come after that load's snapshot. An activity that Redis does not know needs no closing.
func (l *Ledger) SetRecovering(ctx context.Context, activity int64, why string) error {
	err := l.run(ctx, recoveringScript, KeysOf(activity).base(0), EventsChannel, activity, cleanReason(why)).Err()
	if err != nil {
		return errorf(activity, "close", err)
	}
	return nil
}

// Inspect takes one consistent look at each activity, in one round trip.
func (l *Ledger) Inspect(ctx context.Context, activities ...int64) ([]Snapshot, error) {
	if len(activities) == 0 {
		return nil, nil
	}
	// A pipeline cannot recover from NOSCRIPT, so it sends the script's digest and falls back to single calls.
	cmds := make([]*redis.Cmd, len(activities))
	_, _ = l.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, id := range activities {
			cmds[i] = inspectScript.EvalSha(ctx, p, KeysOf(id).base(0))
		}
		return nil
	})
	received := time.Now()
	out := make([]Snapshot, len(activities))
	for i, id := range activities {
		v, err := cmds[i].Slice()
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			v, err = l.run(ctx, inspectScript, KeysOf(id).base(0)).Slice()
		}
		if err != nil {
			return nil, errorf(id, "inspect", err)
		}
		out[i] = snapshotOf(id, v)
		l.clock.observe(out[i].NowMs, received) // so that a gateway knows the clock before its first order
	}
	return out, nil
}

func snapshotOf(activity int64, r reply) Snapshot {
	s := Snapshot{
		Exists: r.num(0) == 1, Problem: r.str(1), State: State(r.str(2)), SameServer: r.num(3) == 1, ServerVisible: r.num(4) == 1,
		Stock: r.num(9), Version: r.num(10), Pending: r.num(11), LedgerLen: r.num(12), BuyersLen: r.num(13),
		Epoch: r.str(14), NowMs: r.num(15), Loaded: r.num(16) == 1, StockPresent: r.str(9) != "",
		Activity: Activity{
			ID: activity, Item: r.num(5), StartsAtMs: r.num(6), EndsAtMs: r.num(7), MaxPerUser: r.num(8), State: State(r.str(2)),
		},
	}
	if s.Loaded {
		s.Available = s.Stock - s.Pending
	}
	return s
}

// ScanLedger reads a slice of the open reservations. Cursor 0 begins, and 0 comes back at the end; an entry may come twice.
func (l *Ledger) ScanLedger(ctx context.Context, activity int64, cursor uint64, count int64) ([]Entry, uint64, error) {
	kv, next, err := l.rdb.HScan(ctx, KeysOf(activity).Ledger, cursor, "", count).Result()
	if err != nil {
		return nil, 0, errorf(activity, "scan the ledger of", err)
	}
	entries := make([]Entry, 0, len(kv)/2)
	for i := 0; i+1 < len(kv); i += 2 {
		e, err := decodeEntry(kv[i], kv[i+1])
		if err != nil {
			return nil, 0, errorf(activity, "scan the ledger of", err)
		}
		entries = append(entries, e)
	}
	return entries, next, nil
}

// Buyer is a user and the live order that he holds.
type Buyer struct {
	User, Order string
	InLedger    bool // the order has not been decided yet
}

// ScanBuyers reads a slice of the buyers and says of each whether its order was in the ledger when the slice was read, or
// a moment later: an order that is in neither the ledger nor MySQL, read in this order, is held by nobody.
func (l *Ledger) ScanBuyers(ctx context.Context, activity int64, cursor uint64, count int64) ([]Buyer, uint64, error) {
	k := KeysOf(activity)
	kv, next, err := l.rdb.HScan(ctx, k.Buyers, cursor, "", count).Result()
	if err != nil {
		return nil, 0, errorf(activity, "scan the buyers of", err)
	}
	buyers := make([]Buyer, 0, len(kv)/2)
	ids := make([]string, 0, len(kv)/2)
	for i := 0; i+1 < len(kv); i += 2 {
		buyers = append(buyers, Buyer{User: kv[i], Order: kv[i+1]})
		ids = append(ids, kv[i+1])
	}
	if len(ids) == 0 {
		return buyers, next, nil
	}
	held, err := l.rdb.HMGet(ctx, k.Ledger, ids...).Result()
	if err != nil {
		return nil, 0, errorf(activity, "scan the buyers of", err)
	}
	for i := range buyers {
		buyers[i].InLedger = held[i] != nil
	}
	return buyers, next, nil
}

// BuyersOf gives the order that Redis holds for each user, "" for none.
func (l *Ledger) BuyersOf(ctx context.Context, activity int64, users []string) ([]string, error) {
	if len(users) == 0 {
		return nil, nil
	}
	v, err := l.rdb.HMGet(ctx, KeysOf(activity).Buyers, users...).Result()
	if err != nil {
		return nil, errorf(activity, "read the buyers of", err)
	}
	out := make([]string, len(v))
	for i := range v {
		out[i], _ = v[i].(string)
	}
	return out, nil
}

// AddBuyers records live orders of MySQL that Redis forgot, where the user holds none, and reports how many it added. The
// caller reads MySQL again afterwards and settles those that died meanwhile, or they would be locked out.
func (l *Ledger) AddBuyers(ctx context.Context, activity int64, buyers []Buyer) (int, error) {
	return l.mendBuyers(ctx, "add", activity, buyers)
}

// FreeBuyers frees users by compare on the order id, unless the ledger has the order, and reports how many it freed.
func (l *Ledger) FreeBuyers(ctx context.Context, activity int64, buyers []Buyer) (int, error) {
	return l.mendBuyers(ctx, "free", activity, buyers)
}

func (l *Ledger) mendBuyers(ctx context.Context, what string, activity int64, buyers []Buyer) (int, error) {
	changed := 0
	for len(buyers) > 0 {
		part := buyers[:min(slice, len(buyers))]
		buyers = buyers[len(part):]
		args := make([]any, 0, 2+2*len(part))
		args = append(args, what, len(part))
		for _, b := range part {
			args = append(args, b.User, b.Order)
		}
		n, err := l.run(ctx, buyersScript, KeysOf(activity).base(0), args...).Int()
		if err != nil {
			return changed, errorf(activity, "mend the buyers of", err)
		}
		changed += n
	}
	return changed, nil
}

// RepairStock sets the stock at an equal version, if it still is what the caller saw.
func (l *Ledger) RepairStock(ctx context.Context, activity, version, have, want int64) (bool, error) {
	n, err := l.run(ctx, repairScript, KeysOf(activity).base(0), EventsChannel, activity, version, have, want).Int()
	if err != nil {
		return false, errorf(activity, "repair the stock of", err)
	}
	return n == 1, nil
}

// Retire removes an ended activity's keys. It refuses while reservations are open. Results keep their own time to live.
func (l *Ledger) Retire(ctx context.Context, activity int64) error {
	n, err := l.run(ctx, retireScript, KeysOf(activity).base(0)).Int()
	if err != nil {
		return errorf(activity, "retire", err)
	}
	if n == 0 {
		return fmt.Errorf("retire activity %s: it has not ended or reservations are open", strconv.FormatInt(activity, 10))
	}
	return nil
}
