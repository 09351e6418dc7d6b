package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/syncer/lost"
)

// Records is what a load needs of Kafka.
type Records interface {
	Committed(ctx context.Context, group, topic string) (map[int32]int64, error)
	HighWater(ctx context.Context, topic string) (map[int32]int64, error)
	OffsetsAt(ctx context.Context, topic string, t time.Time) (map[int32]int64, error)
	Read(ctx context.Context, topic string, from, to map[int32]int64,
		fn func(partition int32, offset int64, ts time.Time, key, value []byte) error) error
}

// Loader loads activities, any number at a time, but each only once at a time.
type Loader struct {
	Ledger  *ledger.Ledger
	Store   *store.Store
	Records Records
	Topic   string // of orders
	Group   string // of the workers
	Timings ledger.Timings
	Locks   *Locks
	Lost    *lost.Alarm
	// Back is how far before the workers' offsets Kafka is read, for orders that MySQL was short of stock for and that are to be
	// tried again: only the ledger knew of them, and Redis may have lost it. 0: no further.
	Back time.Duration
	Log  *zap.Logger
	// Turn is had from before a row of the activity table is read until it is written to Redis. nil where nothing else in this process
	// does that.
	Turn sync.Locker
	// Pin holds the binlog's place before a load begins; what it gives is called with the outcome. nil where no stream
	// runs in this process.
	Pin func() (done func(loaded bool))
}

// Report says what a load did and how long it took.
type Report struct {
	Activity int64        `json:"activity_id"`
	Item     int64        `json:"item_id"`
	Epoch    string       `json:"epoch"`
	State    ledger.State `json:"state"`
	Stock    int64        `json:"stock"`
	Version  int64        `json:"version"`
	Pending  int64        `json:"pending"`
	Orders   int          `json:"orders"`   // rows of MySQL
	Buyers   int64        `json:"buyers"`   // live ones, and holders of open reservations
	Kept     int          `json:"kept"`     // reservations that the ledger still had
	Dropped  int          `json:"dropped"`  // reservations of another server that neither Kafka nor MySQL knows
	Restored int          `json:"restored"` // reservations made again from Kafka
	WaitMs   int64        `json:"wait_ms"`  // until nothing old could still happen
	KafkaMs  int64        `json:"kafka_ms"` // reading records not landed
	RowsMs   int64        `json:"rows_ms"`  // reading MySQL and writing Redis
	LockMs   int64        `json:"lock_ms,omitempty"`
	// LostCommits: MySQL was behind what Redis had seen.
	LostCommits bool  `json:"lost_commits,omitempty"`
	ClosedMs    int64 `json:"closed_ms"` // all of it: how long buyers heard 503
}

// Load loads one activity of MySQL. ErrBusy: somebody else is at it. ErrItemBusy: its item is not free yet; nothing was
// changed. ledger.ErrFenced: a newer load took over. After any other error the activity stays closed: load it again.
func (l *Loader) Load(ctx context.Context, activity int64) (Report, error) {
	return l.locked(ctx, activity, func(ctx context.Context, a ledger.Activity) (Report, error) {
		p, err := l.prepare(ctx, a, false)
		if err != nil {
			return Report{}, err
		}
		return p.report, p.finish(ctx, p.version, p.stock)
	})
}

// locked runs a load under the activity's lock, and with the binlog pinned.
func (l *Loader) locked(ctx context.Context, activity int64, run func(context.Context, ledger.Activity) (Report, error)) (r Report, err error) {
	held, release, err := l.Locks.Take(ctx, activity)
	if err != nil {
		return Report{}, err
	}
	defer release()
	if l.Pin != nil {
		done := l.Pin()
		defer func() { done(err == nil) }()
	}
	a, err := l.Store.Activity(held, activity)
	if err != nil {
		return Report{}, err
	}
	if err := store.ValidActivity(a); err != nil {
		return Report{}, fmt.Errorf("load activity %d: %w: mend its row", activity, err)
	}
	if err := l.free(held, a); err != nil {
		return Report{}, err
	}
	r, err = run(held, a)
	if err != nil && held.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", context.Cause(held), err)
	}
	return r, err
}

// prepared is a load with everything written but its end.
type prepared struct {
	l              *Loader
	activity       ledger.Activity
	epoch          string
	doubtful       bool  // see ledger.Load
	had            int64 // the version that Redis had
	began          time.Time
	version, stock int64
	report         Report
}

func (l *Loader) prepare(ctx context.Context, a ledger.Activity, pause bool) (*prepared, error) {
	skip, err := l.neverOpened(ctx, a)
	if err != nil {
		return nil, err
	}
	looks, err := l.Ledger.Inspect(ctx, a.ID)
	if err != nil {
		return nil, err
	}
	p := &prepared{l: l, activity: a, began: time.Now(), had: looks[0].Version}
	begun, err := l.Ledger.LoadBegin(ctx, a)
	if err != nil {
		return nil, err
	}
	p.epoch, p.doubtful = begun.Epoch, begun.Doubtful
	p.report = Report{Activity: a.ID, Item: a.Item, Epoch: begun.Epoch}
	if !skip || pause {
		if err := l.outwait(ctx); err != nil {
			return nil, err
		}
	}
	p.report.WaitMs = since(p.began)
	at := time.Now()
	open, err := l.notLanded(ctx, func(id int64) bool { return id == a.ID })
	if err != nil {
		return nil, fmt.Errorf("load activity %d: %w", a.ID, err)
	}
	p.report.KafkaMs = since(at)
	at = time.Now()
	if err := p.rows(ctx, open); err != nil {
		return nil, fmt.Errorf("load activity %d: %w", a.ID, err)
	}
	p.report.RowsMs = since(at)
	return p, nil
}

// neverOpened says that no reserve call can ever have succeeded: the catalogue is there and does not list the activity,
// and its start lies ahead by Redis' clock.
func (l *Loader) neverOpened(ctx context.Context, a ledger.Activity) (bool, error) {
	c, err := l.Ledger.Catalogue(ctx)
	if errors.Is(err, ledger.ErrNoCatalogue) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if _, listed := c.Activities[a.ID]; listed {
		return false, nil
	}
	s, err := l.Ledger.Inspect(ctx, a.ID)
	if err != nil {
		return false, err
	}
	return !s[0].Exists && s[0].NowMs < a.StartsAtMs, nil
}

// clockMargin covers the difference between Redis' clock, which the deadlines are on, and this process' own.
const clockMargin = 100 * time.Millisecond

// outwait lets everything end that began before the activity was closed.
func (l *Loader) outwait(ctx context.Context) error {
	d := time.Duration(l.Timings.ReserveDeadlineMs+l.Timings.PublishBudgetMs)*time.Millisecond + clockMargin
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// rows reads one snapshot of MySQL and writes it, then puts back the reservations that have no row in it.
func (p *prepared) rows(ctx context.Context, open map[string]ledger.Entry) error {
	if err := p.visible(ctx); err != nil {
		return err
	}
	snap, err := p.l.Store.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = snap.Close() }()
	stock, version, found, err := snap.Inventory(ctx, p.activity.Item)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("item %d: %w: insert one, with its stock", p.activity.Item, store.ErrNoInventory)
	}
	p.stock, p.version = stock, version
	err = snap.Orders(ctx, p.activity.ID, func(part []ledger.Outcome) error {
		for _, o := range part {
			delete(open, o.Order)
		}
		p.report.Orders += len(part)
		return p.l.Ledger.LoadOrders(ctx, p.activity.ID, p.epoch, part)
	})
	if err != nil {
		return err
	}
	if err := snap.Close(); err != nil {
		p.l.Log.Debug("a snapshot of mysql did not end well", zap.Error(err))
	}
	return p.entries(ctx, open)
}

// visible waits until every transaction that the binlog may have shown already can also be seen in a snapshot: the binlog
// has it first, but its lock on the inventory row is held until it can be seen.
func (p *prepared) visible(ctx context.Context) error {
	locked, err := p.l.Store.LockInventory(ctx, p.activity.Item, 200*time.Millisecond)
	if errors.Is(err, store.ErrNoInventory) {
		return fmt.Errorf("item %d: %w: insert one, with its stock", p.activity.Item, err)
	}
	if err != nil {
		return err
	}
	if err := locked.Release(); err != nil && !errors.Is(err, store.ErrLockLost) {
		return err // had once is enough
	}
	if p.had <= locked.Version {
		return nil
	}
	// MySQL has lost commits that Redis had seen. Its row moves past them, or a settle of a lost one that is still on its
	// way would look newer; and the alarm has their orders landed again.
	p.report.LostCommits = true
	since := lost.Since(locked.Version, time.Now())
	p.l.Log.Error("mysql lost its last commits: land them again", zap.Int64("activity", p.activity.ID), zap.String("with", lost.Command(since)))
	if err := p.l.Lost.Raise(ctx, since); err != nil {
		return err
	}
	_, _, err = p.l.Store.TouchPast(ctx, p.activity.Item, p.had)
	return err
}

// entries puts back the reservations that the ledger kept, for their buyers' sake, and those that only Kafka knows. What a
// server kept that may have lost writes, and that neither Kafka nor MySQL knows, may have been released before: it is dropped. Not so
// what a worker has met already and left open for want of stock: that was published, so that nobody can have released it.
func (p *prepared) entries(ctx context.Context, open map[string]ledger.Entry) error {
	stayed := map[string]bool{}
	for cursor := uint64(0); ; {
		kept, next, err := p.l.Ledger.ScanLedger(ctx, p.activity.ID, cursor, 500)
		if err != nil {
			return err
		}
		var keep, drop []ledger.Entry
		for _, e := range kept {
			_, published := open[e.Order]
			switch {
			case published:
				stayed[e.Order] = true
				fallthrough
			case !p.doubtful, e.Tries > 0:
				keep = append(keep, e)
			default:
				drop = append(drop, e)
			}
		}
		p.report.Kept += len(keep)
		p.report.Dropped += len(drop)
		if err := p.l.Ledger.LoadEntries(ctx, p.activity.ID, p.epoch, keep); err != nil {
			return err
		}
		if err := p.l.Ledger.LoadDrop(ctx, p.activity.ID, p.epoch, drop); err != nil {
			return err
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	entries := make([]ledger.Entry, 0, len(open))
	for _, e := range open {
		entries = append(entries, e)
	}
	p.report.Restored = len(entries) - len(stayed)
	return p.l.Ledger.LoadEntries(ctx, p.activity.ID, p.epoch, entries)
}

// finish opens the activity in the state that MySQL has now: an admin's pause outlives any load (E116).
func (p *prepared) finish(ctx context.Context, version, stock int64) error {
	now, err := p.l.Store.Activity(ctx, p.activity.ID)
	if err != nil {
		return err
	}
	if err := p.open(ctx, version, stock, now.State); err != nil {
		return err
	}
	p.checkState(ctx)
	return nil
}

// open is the last step in Redis.
func (p *prepared) open(ctx context.Context, version, stock int64, state ledger.State) error {
	snap, err := p.l.Ledger.LoadFinish(ctx, p.activity.ID, p.epoch, version, stock, state)
	if err != nil {
		return err
	}
	if snap.Epoch == p.epoch && !snap.Loaded && snap.State != ledger.Recovering {
		// Whatever it is, to load it again at once would not mend it.
		return fmt.Errorf("activity %d is loaded and cannot be sold: %s (stock %d and version %d of item %d in mysql)",
			p.activity.ID, snap.Problem, stock, version, p.activity.Item)
	}
	p.report.State, p.report.Stock, p.report.Version = snap.State, snap.Stock, snap.Version
	p.report.Pending, p.report.Buyers = snap.Pending, snap.BuyersLen
	p.report.ClosedMs = since(p.began)
	return nil
}

// checkState brings a change of the activity's row that came between the look at it and the opening. A syncer in another process may bring
// a later one meanwhile, which the write here would undo: so the row is looked at once more behind it.
func (p *prepared) checkState(ctx context.Context) {
	if p.l.Turn != nil {
		p.l.Turn.Lock()
		defer p.l.Turn.Unlock()
	}
	var was ledger.Activity
	now, err := p.l.Store.ActivityNow(ctx, p.activity.ID)
	for err == nil && now != was {
		was = now
		if _, err = p.l.Ledger.SetActivity(ctx, now); err == nil {
			now, err = p.l.Store.ActivityNow(ctx, p.activity.ID)
		}
	}
	if err != nil {
		p.l.Log.Warn("an activity was loaded, but not checked for a change of its row meanwhile",
			zap.Int64("activity", p.activity.ID), zap.Error(err))
	}
}

func since(t time.Time) int64 { return time.Since(t).Milliseconds() }
