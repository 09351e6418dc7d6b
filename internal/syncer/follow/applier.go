package follow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/crashpoint"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/syncer/binlog"
)

// Ledger is what following needs of Redis.
type Ledger interface {
	Settle(ctx context.Context, s ledger.Settlement) (ledger.Settled, error)
	SetActivity(ctx context.Context, a ledger.Activity) (bool, error)
	FreeBuyers(ctx context.Context, activity int64, buyers []ledger.Buyer) (int, error)
}

// Store is what following needs of MySQL, for rows in doubt.
type Store interface {
	LockInventory(ctx context.Context, item int64, maxHold time.Duration) (*store.Locked, error)
	ActivityNow(ctx context.Context, id int64) (ledger.Activity, error)
	Activity(ctx context.Context, id int64) (ledger.Activity, error)
	OrdersWithActivity(ctx context.Context, ids []string) (map[string]store.ActivityOrder, error)
}

// Directory knows the activities, and is told what the log says of them.
type Directory interface {
	// OfItem lists the activities that sell an item and are not retired.
	OfItem(item int64) []int64
	// Changed says that a row of the activity table changed.
	Changed(a ledger.Activity)
	// Look says that the activity table must be read again.
	Look()
	// NeedsLoad says that an activity's keys cannot be trusted.
	NeedsLoad(activity int64, why error)
	// NeedsCompare says that an activity must be compared soon; 0: all of them.
	NeedsCompare(activity int64)
}

// Metrics counts; its methods may be called from anywhere.
type Metrics interface {
	Applied(rows int, took time.Duration)
	Doubt(table string)
}

// Applier is the binlog's sink.
type Applier struct {
	Ledger    Ledger
	Store     Store
	Directory Directory
	Metrics   Metrics
	Tracker   *Tracker
	// Turn is had by whoever writes rows of the activity table to Redis, from before he reads them until they are written: what was read
	// earlier is never written later.
	Turn sync.Locker
	Log  *zap.Logger
	// Blocked is told why a transaction cannot be applied yet, and nil once it has been.
	Blocked func(err error)
}

// lockBound is how long a row in doubt may be locked, in the one round trip that reads it.
const lockBound = 200 * time.Millisecond

// Synced implements binlog.Sink.
func (a *Applier) Synced(p binlog.Position) { a.Tracker.Synced(p) }

// Sells implements binlog.Sink.
func (a *Applier) Sells(item int64) bool { return len(a.Directory.OfItem(item)) > 0 }

// Doubt implements binlog.Sink.
func (a *Applier) Doubt(table string, _ error) { a.Metrics.Doubt(table) }

// Apply implements binlog.Sink. It tries until Redis has the transaction or ctx ends: with Redis down the stream waits
// here, and should the server give up on it meanwhile, it goes on from the kept position.
func (a *Applier) Apply(ctx context.Context, t *binlog.Transaction) error {
	a.Tracker.Applying()
	began := time.Now()
	wait := 20 * time.Millisecond
	for {
		err := a.apply(ctx, t)
		if err == nil {
			a.Blocked(nil)
			a.Metrics.Applied(len(t.Items)+len(t.Orders)+len(t.Activities)+len(t.Deleted), time.Since(began))
			crashpoint.Here("after_row")
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		a.Blocked(err)
		a.Log.Warn("a transaction of mysql cannot be applied to redis yet; trying again", zap.Duration("in", wait), zap.Error(err))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, 2*time.Second)
	}
}

// apply may be repeated from the start after an error.
func (a *Applier) apply(ctx context.Context, t *binlog.Transaction) error {
	stocks, orders := map[int64]binlog.Stock{}, map[int64][]ledger.Outcome{}
	for item, s := range t.Items {
		stocks[item] = s
	}
	for _, o := range t.Orders {
		orders[o.Activity] = append(orders[o.Activity], o.Outcome)
	}
	if err := a.resolve(ctx, t, stocks, orders); err != nil {
		return err
	}
	for _, act := range t.Activities {
		if err := a.activity(ctx, act.ID, act); err != nil {
			return err
		}
	}
	for _, o := range t.Deleted {
		// An order that is deleted is nobody's any more. Should the ledger still have it, the sweep decides.
		if _, err := a.Ledger.FreeBuyers(ctx, o.Activity, []ledger.Buyer{{User: o.User, Order: o.Order}}); err != nil {
			return err
		}
	}
	return a.settle(ctx, stocks, orders)
}

// settle sends each activity what concerns it: the orders with the stock of their item, and the stock alone to every
// other activity of that item.
func (a *Applier) settle(ctx context.Context, stocks map[int64]binlog.Stock, orders map[int64][]ledger.Outcome) error {
	todo := map[int64]ledger.Settlement{}
	for activity, out := range orders {
		s := ledger.Settlement{Activity: activity, Item: out[0].Item, Source: ledger.FromBinlog, Orders: out}
		if stock, ok := stocks[out[0].Item]; ok && sameItem(out) {
			s.Version, s.Stock = versionOf(stock)
		}
		todo[activity] = s
	}
	for item, stock := range stocks {
		for _, activity := range a.Directory.OfItem(item) {
			if s, there := todo[activity]; there && s.Version != 0 {
				continue
			}
			s := todo[activity]
			s.Activity, s.Item, s.Source = activity, item, ledger.FromBinlog
			s.Version, s.Stock = versionOf(stock)
			todo[activity] = s
		}
	}
	for _, s := range todo {
		done, err := a.Ledger.Settle(ctx, s)
		if err != nil {
			return err
		}
		if done.Broken {
			a.Directory.NeedsLoad(s.Activity, errors.New("its keys contradict each other"))
		}
	}
	return nil
}

func sameItem(orders []ledger.Outcome) bool {
	for _, o := range orders {
		if o.Item != orders[0].Item {
			return false
		}
	}
	return true
}

// versionOf says what an inventory row means for Redis. A row that is gone has nothing to sell, as of just after its last
// version; whoever writes it anew gets a version from the clock, far above.
func versionOf(s binlog.Stock) (version, stock int64) {
	if s.Deleted {
		return s.Version + 1, 0
	}
	return s.Version, s.Stock
}

// activity brings a row of the activity table that the log says has changed, as it is by now: what is applied again, after the stream went
// back, must not open for a moment what has been paused since. told is what the log says of it, if anything.
func (a *Applier) activity(ctx context.Context, id int64, told ledger.Activity) error {
	a.Turn.Lock()
	defer a.Turn.Unlock()
	act, err := a.row(ctx, id, told)
	if errors.Is(err, store.ErrNoActivity) {
		a.Directory.Look() // it is gone by now
		return nil
	}
	if err != nil {
		return fmt.Errorf("read activity %d, which the binlog shows: %w", id, err)
	}
	known, err := a.Ledger.SetActivity(ctx, act)
	if err != nil && !known {
		return err
	}
	if err != nil { // a known activity whose item was changed: refused for good
		a.Log.Error("a change of the activity table is refused", zap.Int64("activity", act.ID), zap.Error(err))
	}
	a.Directory.Changed(act)
	return nil
}

// row reads a changed row. Where somebody holds it, the commit itself (semi-sync may have it wait) or a later transaction, it is known only
// what it may be: of the log's state and that of a plain read the stricter one counts until the table is read again.
func (a *Applier) row(ctx context.Context, id int64, told ledger.Activity) (ledger.Activity, error) {
	act, err := a.Store.ActivityNow(ctx, id)
	if !store.IsContention(err) {
		return act, err
	}
	a.Directory.Look()
	act, err = a.Store.Activity(ctx, id)
	switch {
	case told.ID == 0, err != nil && !errors.Is(err, store.ErrNoActivity):
		return act, err
	case err == nil && strictness[act.State] > strictness[told.State]:
		told.State = act.State
	}
	return told, nil
}

var strictness = map[ledger.State]int{ledger.Open: 0, ledger.Paused: 1, ledger.Closed: 2}

// ordered says that one of the orders is of an item.
func ordered(orders map[int64][]ledger.Outcome, item int64) bool {
	for _, out := range orders {
		if slices.ContainsFunc(out, func(o ledger.Outcome) bool { return o.Item == item }) {
			return true
		}
	}
	return false
}

// unsellable closes the activities of an item whose stock is no number of units: nobody knows how much may be sold. They are
// loaded once it is one again, and their orders with them; until then these must not be settled, for lack of the stock that
// includes them.
func (a *Applier) unsellable(item int64, why error, stocks map[int64]binlog.Stock, orders map[int64][]ledger.Outcome) {
	delete(stocks, item)
	for activity, out := range orders {
		out = slices.DeleteFunc(slices.Clone(out), func(o ledger.Outcome) bool { return o.Item == item })
		if orders[activity] = out; len(out) == 0 {
			delete(orders, activity)
		}
	}
	for _, activity := range a.Directory.OfItem(item) {
		a.Log.Error("an item on sale has no stock that can be sold: its sale is closed until it has",
			zap.Int64("activity", activity), zap.Int64("item", item), zap.Error(why))
		a.Directory.NeedsLoad(activity, fmt.Errorf("item %d: %w", item, why))
	}
}

// resolve reads what the log left in doubt. The inventory is read under its lock, since the log shows a transaction before
// others can see it: the lock is had only once it is visible.
func (a *Applier) resolve(ctx context.Context, t *binlog.Transaction, stocks map[int64]binlog.Stock, orders map[int64][]ledger.Outcome) error {
	var items []int64
	for _, item := range t.DoubtItems {
		if a.Sells(item) || ordered(orders, item) {
			items = append(items, item)
		}
	}
	if len(t.DoubtOrders) > 0 {
		found, err := a.Store.OrdersWithActivity(ctx, t.DoubtOrders)
		if err != nil {
			return fmt.Errorf("read orders that the binlog left in doubt: %w", err)
		}
		for _, o := range found {
			orders[o.Activity] = append(orders[o.Activity], o.Outcome)
			items = append(items, o.Item) // a stock that includes the order must come with it, or too much is available
			a.Directory.NeedsCompare(o.Activity)
		}
		if len(found) < len(t.DoubtOrders) {
			a.Directory.NeedsCompare(0)
		}
	}
	for _, item := range items {
		locked, err := a.Store.LockInventory(ctx, item, lockBound)
		if errors.Is(err, store.ErrNoInventory) {
			a.Directory.NeedsCompare(0)
			continue
		}
		if errors.Is(err, store.ErrNoStock) {
			a.unsellable(item, err, stocks, orders)
			continue
		}
		if err == nil {
			stocks[item] = binlog.Stock{Version: locked.Version, Stock: locked.Stock}
			err = locked.Release()
		}
		if err != nil {
			return fmt.Errorf("read item %d, which the binlog left in doubt: %w", item, err)
		}
	}
	for _, id := range t.DoubtActivities {
		if err := a.activity(ctx, id, ledger.Activity{}); err != nil {
			return err
		}
	}
	if len(t.DoubtActivities) > 0 {
		a.Directory.Look()
	}
	return nil
}
