package runner

import (
	"context"
	"errors"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/syncer/binlog"
)

// Status is what `seckill-syncer status` shows.
type Status struct {
	AtMs       int64            `json:"at_ms"`
	Leader     string           `json:"leader"` // "" for none
	Catalogue  bool             `json:"catalogue"`
	Binlog     BinlogStatus     `json:"binlog"`
	Activities []ActivityStatus `json:"activities"`
	ComparedMs int64            `json:"compared_at_ms,omitempty"`
	// Problem is what the leader says is wrong; "" when it is well, or there is none.
	Problem string `json:"problem,omitempty"`
}

// BinlogStatus says how far Redis follows MySQL.
type BinlogStatus struct {
	Kept     binlog.Position `json:"kept"`   // where a new leader would begin
	Server   binlog.Position `json:"server"` // where MySQL is
	CaughtUp bool            `json:"caught_up"`
	LagMs    int64           `json:"lag_ms"` // -1: not known
}

// ActivityStatus is one activity on both sides.
type ActivityStatus struct {
	ID         int64       `json:"activity_id"`
	Item       int64       `json:"item_id"`
	Title      string      `json:"title"`
	StartsAtMs int64       `json:"starts_at_ms"`
	EndsAtMs   int64       `json:"ends_at_ms"`
	StateMySQL string      `json:"state_mysql"`
	StateRedis string      `json:"state_redis"` // "" where Redis does not have it
	Problem    string      `json:"problem,omitempty"`
	Redis      StockStatus `json:"redis"`
	MySQL      StockStatus `json:"mysql"`
	Pending    int64       `json:"pending"`
	Ledger     int64       `json:"ledger"`
	Buyers     int64       `json:"buyers"`
	OldestMs   int64       `json:"oldest_ms"` // age of the oldest reservation, of those looked at
	Drift      bool        `json:"drift"`     // equal versions and different stock, or Redis ahead
	LastRepair *LastRepair `json:"last_repair,omitempty"`
}

// StockStatus is a stock with its version.
type StockStatus struct {
	Stock   int64 `json:"stock"`
	Version int64 `json:"version"`
}

// Wanted reads the activities of MySQL that Redis should have, and those that are over and have something open there; with ids, only
// those, over or not.
func (p *Parts) Wanted(ctx context.Context, ids ...int64) ([]ledger.Activity, error) {
	if len(ids) > 0 {
		var out []ledger.Activity
		for _, id := range ids {
			a, err := p.Store.Activity(ctx, id)
			if err != nil {
				return nil, err
			}
			out = append(out, a)
		}
		return out, nil
	}
	rows, err := p.Store.Activities(ctx)
	if err != nil {
		return nil, err
	}
	d := newDirectory(p.Config.EndGrace)
	d.Read(rows)
	if c, err := p.Ledger.Catalogue(ctx); err == nil { // else nobody knows what else there is
		d.LeaveOpen(c.Activities)
	}
	return d.Tended(time.Now(), true), nil
}

// Status asks both sides, and reads what the leader told.
func (p *Parts) Status(ctx context.Context, ids ...int64) (*Status, error) {
	s := &Status{AtMs: time.Now().UnixMilli(), Binlog: BinlogStatus{LagMs: -1}}
	activities, err := p.Wanted(ctx, ids...)
	if err != nil {
		return nil, err
	}
	board, told, err := p.ReadBoard(ctx)
	if err != nil {
		return nil, err
	}
	holder, err := p.Ledger.LeaseHolder(ctx)
	if err != nil {
		return nil, err
	}
	s.Leader = holderName(holder)
	if told && s.Leader == board.Name {
		s.Problem, s.Binlog.LagMs, s.ComparedMs = board.Problem, board.LagMs, board.ComparedAt
	}
	if _, err := p.Ledger.Catalogue(ctx); err == nil {
		s.Catalogue = true
	} else if !errors.Is(err, ledger.ErrNoCatalogue) {
		return nil, err
	}
	if err := p.binlogStatus(ctx, &s.Binlog); err != nil {
		return nil, err
	}
	for _, a := range activities {
		one, err := p.activityStatus(ctx, a)
		if err != nil {
			return nil, err
		}
		if r, ok := board.LastRepairs[a.ID]; ok {
			one.LastRepair = &r
		}
		s.Activities = append(s.Activities, one)
	}
	return s, nil
}

func (p *Parts) binlogStatus(ctx context.Context, b *BinlogStatus) error {
	text, err := p.Ledger.Position(ctx)
	if err != nil {
		return err
	}
	if b.Kept, err = binlog.ParsePosition(text); err != nil {
		b.Kept = binlog.Position{} // the daemon says so, and loads again
	}
	now, err := p.Store.BinlogPosition(ctx)
	if err != nil {
		return err
	}
	b.Server = binlog.Position{Flavor: now.Flavor, GTID: now.GTID, File: now.File, Offset: now.Pos, Server: b.Kept.Server}
	b.CaughtUp, _ = b.Kept.Reached(b.Server)
	return nil
}

// looked bounds the reservations that one status looks at.
const looked = 20_000

func (p *Parts) activityStatus(ctx context.Context, a ledger.Activity) (ActivityStatus, error) {
	one := ActivityStatus{
		ID: a.ID, Item: a.Item, Title: a.Title, StartsAtMs: a.StartsAtMs, EndsAtMs: a.EndsAtMs, StateMySQL: string(a.State),
	}
	// Redis first: were MySQL read first, a sale under way would look as if Redis were ahead.
	looks, err := p.Ledger.Inspect(ctx, a.ID)
	if err != nil {
		return one, err
	}
	look := looks[0]
	one.Problem = problem(look)
	if look.Exists {
		one.StateRedis = string(look.State)
	}
	one.Redis = StockStatus{look.Stock, look.Version}
	one.Pending, one.Ledger, one.Buyers = look.Pending, look.LedgerLen, look.BuyersLen
	stock, version, found, err := p.Store.Inventory(ctx, a.Item)
	none := errors.Is(err, store.ErrNoStock)
	if err != nil && !none {
		return one, err
	}
	one.MySQL = StockStatus{stock, version}
	if !found && one.Problem == "" {
		one.Problem = "mysql has no inventory row"
	}
	if none && one.Problem == "" {
		one.Problem = "in mysql " + store.ErrNoStock.Error()
	}
	if look.Loaded && found && !none {
		one.Drift = look.Version > version || (look.Version == version && look.Stock != stock)
	}
	for cursor, n := uint64(0), 0; n < looked && look.LedgerLen > 0; {
		entries, next, err := p.Ledger.ScanLedger(ctx, a.ID, cursor, 1000)
		if err != nil {
			return one, err
		}
		for _, e := range entries {
			one.OldestMs = max(one.OldestMs, look.NowMs-e.ReservedAtMs)
		}
		n += len(entries)
		if cursor = next; cursor == 0 {
			break
		}
	}
	return one, nil
}

// List puts a loaded activity in the catalogue, where no daemon does.
func (p *Parts) List(ctx context.Context, a ledger.Activity) error {
	c, err := p.Ledger.Catalogue(ctx)
	missing := errors.Is(err, ledger.ErrNoCatalogue)
	if err != nil && !missing {
		return err
	}
	if missing {
		all, err := p.Wanted(ctx)
		if err != nil {
			return err
		}
		c = &ledger.Catalogue{Activities: map[int64]ledger.Activity{}, Timings: p.Config.Timings()}
		for _, x := range all {
			c.Activities[x.ID] = x
		}
	}
	if have, listed := c.Activities[a.ID]; listed && have == a && !missing {
		return nil
	}
	c.Activities[a.ID] = a
	return p.Ledger.PutCatalogue(ctx, c)
}
