package compare

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/syncer/lost"
)

// Records is what comparing needs of Kafka.
type Records interface {
	Committed(ctx context.Context, group, topic string) (map[int32]int64, error)
	HighWater(ctx context.Context, topic string) (map[int32]int64, error)
	Oldest(ctx context.Context, topic string) (map[int32]int64, error)
	OffsetsAt(ctx context.Context, topic string, t time.Time) (map[int32]int64, error)
	Read(ctx context.Context, topic string, from, to map[int32]int64,
		fn func(partition int32, offset int64, ts time.Time, key, value []byte) error) error
}

// Publisher publishes an order again.
type Publisher interface {
	Publish(ctx context.Context, o *order.Order, headers map[string]string) (kafka.Ack, error)
}

// DefaultRepairCap is the most buyers, or units of stock at an equal version, that one run mends in one activity.
const DefaultRepairCap = 1000

// Comparer compares. One run at a time; the proofs of the sweep are carried over from run to run.
type Comparer struct {
	Ledger    *ledger.Ledger
	Store     *store.Store
	Records   Records
	Publisher Publisher
	Lost      *lost.Alarm
	Topic     string
	Group     string
	Timings   ledger.Timings
	// Cap bounds what one run mends in one activity. A larger difference is an alarm that asks for `force`.
	// Default: DefaultRepairCap.
	Cap int
	// LoadBack is how far back a load reads Kafka; here only to warn where it should and does not.
	LoadBack time.Duration
	Log      *zap.Logger

	warned      sync.Once
	mu          sync.Mutex
	marks       []mark
	republished map[string]int64 // order → Redis time at which it was published again
}

// Options say how to compare.
type Options struct {
	DryRun bool // report, change nothing
	// Young looks up reservations of every age in MySQL, not only old ones: after a load that the binlog's stream did not
	// go back for. None of them is published again before its time.
	Young bool
}

// Run compares activities, those of MySQL that Redis should have.
func (c *Comparer) Run(ctx context.Context, activities []ledger.Activity, opt Options) (*Report, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Cap <= 0 {
		c.Cap = DefaultRepairCap
	}
	began := time.Now()
	r := &Report{AtMs: began.UnixMilli(), DryRun: opt.DryRun}
	proof, proofErr := c.proof(ctx, activities)
	if proofErr != nil {
		r.Alarms = append(r.Alarms, "old reservations were not swept: "+proofErr.Error())
	}
	for _, a := range activities {
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		one := &work{Comparer: c, opt: opt, proof: proof, out: Activity{ID: a.ID, Item: a.Item, State: string(a.State)}}
		if err := one.run(ctx); err != nil {
			one.out.Error = err.Error()
		}
		r.Activities = append(r.Activities, one.out)
		if one.lostSince != 0 && (r.LostSince == 0 || one.lostSince < r.LostSince) {
			r.LostSince = one.lostSince
		}
	}
	if err := c.lost(ctx, r); err != nil {
		r.Alarms = append(r.Alarms, err.Error())
	}
	r.TookMs = time.Since(began).Milliseconds()
	return r, ctx.Err()
}

// work is the comparison of one activity.
type work struct {
	*Comparer
	opt       Options
	proof     *proof
	out       Activity
	now       int64  // Redis time
	epoch     string // of the load that is compared
	lostSince int64
}

func (w *work) run(ctx context.Context) error {
	looks, err := w.Ledger.Inspect(ctx, w.out.ID)
	if err != nil {
		return err
	}
	look := looks[0]
	w.now, w.epoch = look.NowMs, look.Epoch
	switch {
	case !look.Exists:
		w.out.Skipped = "not in redis"
	case !look.SameServer:
		w.out.Skipped = "redis is not the server that it was loaded on; it must be loaded again"
	case !look.Loaded:
		w.out.Skipped = "not loaded: " + look.Problem
		if look.State == ledger.Recovering {
			w.out.Skipped = "recovering"
		}
	}
	if look.Exists {
		w.out.State = string(look.State)
	}
	w.out.Redis = Side{look.Stock, look.Version}
	w.out.Pending, w.out.Ledger, w.out.Buyers = look.Pending, look.LedgerLen, look.BuyersLen
	if w.out.Skipped != "" {
		return nil
	}
	if loaded := look.Activity.Item; loaded != w.out.Item {
		w.out.Drift = true
		w.out.alarm("its item was changed from %d to %d in mysql, but what is being sold is %d: set it back, or close the activity and create another",
			loaded, w.out.Item, loaded)
		w.out.Item = loaded
	}
	for _, step := range []func(context.Context) error{w.stock, w.buyersOfRedis, w.buyersOfMySQL, w.sweep} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// stock compares at the version.
func (w *work) stock(ctx context.Context) error {
	stock, version, found, err := w.Store.Inventory(ctx, w.out.Item)
	if errors.Is(err, store.ErrNoStock) {
		w.out.Drift = true
		w.out.alarm("nothing of item %d can be sold: %v", w.out.Item, err)
		return nil
	}
	if err != nil {
		return err
	}
	w.out.MySQL = Side{stock, version}
	have := w.out.Redis
	switch {
	case !found:
		w.out.Drift = true
		w.out.alarm("item %d has no row in the inventory: every order fails until the shop writes it again", w.out.Item)
	case have.Version < version:
		return w.behind(ctx, version, stock)
	case have.Version == version && have.Stock != stock:
		return w.repair(ctx, version, stock)
	case have.Version > version:
		return w.ahead(ctx)
	}
	return nil
}

func (w *work) behind(ctx context.Context, version, stock int64) error {
	from, to := w.out.Redis.Stock, stock
	w.out.add(Repair{Kind: Behind, From: &from, To: &to, Why: "redis had version " + number(w.out.Redis.Version) + " and mysql has " + number(version)})
	if w.opt.DryRun {
		return nil
	}
	_, err := w.Ledger.Settle(ctx, ledger.Settlement{Activity: w.out.ID, Version: version, Stock: stock, Item: w.out.Item, Source: ledger.FromBinlog})
	return err
}

// repair mends a stock that was changed without its version. It is not in doubt: the version is the same on both sides.
func (w *work) repair(ctx context.Context, version, want int64) error {
	have := w.out.Redis.Stock
	w.out.Drift = true
	if abs(have-want) > int64(w.Cap) {
		w.out.overCap = true
		w.out.alarm("stock differs by %d units at the same version, above the cap of %d: redis has %d and mysql %d; check them, then run `seckill-syncer force %d`",
			abs(have-want), w.Cap, have, want, w.out.ID)
		return nil
	}
	w.out.add(Repair{Kind: Stock, From: &have, To: &want, Why: "the stock was changed without its version: is the trigger on the inventory missing? " +
		"run `seckill-worker migrate`, or raise the version in every statement"})
	if w.opt.DryRun {
		return nil
	}
	_, err := w.Ledger.RepairStock(ctx, w.out.ID, version, have, want)
	return err
}

// ahead is proof that MySQL lost commits, once the row has been read under its lock.
func (w *work) ahead(ctx context.Context) error {
	locked, err := w.Store.LockInventory(ctx, w.out.Item, lockBound)
	if err != nil {
		return err
	}
	if err := locked.Release(); err != nil {
		return err
	}
	have := w.out.Redis
	if locked.Version >= have.Version {
		w.out.MySQL = Side{locked.Stock, locked.Version}
		return nil // it was only not visible yet
	}
	since := lost.Since(locked.Version, time.UnixMilli(w.now))
	w.out.Drift = true
	w.lostSince = since.UnixMilli()
	to := locked.Stock
	w.out.add(Repair{Kind: Ahead, From: &have.Stock, To: &to, Why: "redis has version " + number(have.Version) + ", which mysql has lost: it is back at " + number(locked.Version)})
	w.out.alarm("mysql lost its last commits (a fail-over, or a restore): land them again with `%s`", lost.Command(since))
	if w.opt.DryRun {
		return nil
	}
	stock, version, err := w.Store.TouchPast(ctx, w.out.Item, have.Version)
	if err != nil {
		return err
	}
	w.out.MySQL = Side{stock, version}
	_, err = w.Ledger.Settle(ctx, ledger.Settlement{Activity: w.out.ID, Version: version, Stock: stock, Item: w.out.Item, Source: ledger.FromBinlog})
	return err
}

// lockBound is how long a row may be locked for one look at it.
const lockBound = 200 * time.Millisecond

// visible waits until every transaction that the binlog may have shown can be seen by a plain read.
func (w *work) visible(ctx context.Context) error {
	locked, err := w.Store.LockInventory(ctx, w.out.Item, lockBound)
	if errors.Is(err, store.ErrNoInventory) || errors.Is(err, store.ErrNoStock) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("wait for the transactions on item %d: %w", w.out.Item, err)
	}
	if err := locked.Release(); err != nil && !errors.Is(err, store.ErrLockLost) {
		return err
	}
	return nil
}

// rows gives the rows of those orders that have one in this activity. One that bears the id of an order of another activity,
// which only a foreign producer can make, says nothing about ours.
func (w *work) rows(ctx context.Context, ids []string) (map[string]ledger.Outcome, error) {
	found, err := w.Store.OrdersWithActivity(ctx, ids)
	if err != nil {
		return nil, err
	}
	out := make(map[string]ledger.Outcome, len(found))
	for id, o := range found {
		if o.Activity == w.out.ID {
			out[id] = o.Outcome
		}
	}
	return out, nil
}

// settle tells Redis of rows that MySQL has. The stock is read after the rows, so that it includes them: a pending that
// falls without the stock would let too much be sold.
func (w *work) settle(ctx context.Context, rows []ledger.Outcome) error {
	if w.opt.DryRun || len(rows) == 0 {
		return nil
	}
	stock, version, found, err := w.Store.Inventory(ctx, w.out.Item)
	if err != nil {
		return err
	}
	// A dead order stays dead, so its result may be written over any other. A live one may have died since it was read, and
	// the binlog may have said so already: its result is written only where there is none.
	by := map[ledger.Source][]ledger.Outcome{}
	for _, o := range rows {
		source := ledger.FromWorker
		if o.Dead {
			source = ledger.FromBinlog
		}
		by[source] = append(by[source], o)
	}
	for source, orders := range by {
		s := ledger.Settlement{Activity: w.out.ID, Item: w.out.Item, Source: source, Orders: orders}
		if found {
			s.Stock, s.Version = stock, version
		}
		if _, err = w.Ledger.Settle(ctx, s); err != nil {
			return err
		}
	}
	return nil
}
