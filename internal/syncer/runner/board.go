package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/syncer/binlog"
	"github.com/seckillgate/seckillgate/internal/syncer/compare"
)

// boardKey is where the leader tells the status command what only it knows. It says nothing that anything depends on.
const boardKey = "seckill:{syncer}:status"

// boardInterval is how often the board is written, and the lag measured.
const boardInterval = time.Second

// Board is what the leader tells of itself.
type Board struct {
	Name        string               `json:"name"`
	AtMs        int64                `json:"at_ms"`
	Position    binlog.Position      `json:"position"`
	LagMs       int64                `json:"lag_ms"`     // -1: not known
	SilenceMs   int64                `json:"silence_ms"` // since MySQL last said anything
	Problem     string               `json:"problem,omitempty"`
	ComparedAt  int64                `json:"compared_at_ms,omitempty"`
	LastRepairs map[int64]LastRepair `json:"last_repairs,omitempty"`
	Drift       map[int64]bool       `json:"drift,omitempty"`
}

// LastRepair is the newest repair of an activity in this leader's term.
type LastRepair struct {
	AtMs int64        `json:"at_ms"`
	Kind compare.Kind `json:"kind"`
	Why  string       `json:"why"`
}

// statusBoard gathers what compare found.
type statusBoard struct {
	mu      sync.Mutex
	at      int64
	repairs map[int64]LastRepair
	drift   map[int64]bool
}

func (b *statusBoard) compared(r *compare.Report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.repairs == nil {
		b.repairs, b.drift = map[int64]LastRepair{}, map[int64]bool{}
	}
	b.at = r.AtMs
	for i := range r.Activities {
		a := &r.Activities[i]
		b.drift[a.ID] = a.Drift
		if n := len(a.Repairs); n > 0 {
			b.repairs[a.ID] = LastRepair{AtMs: r.AtMs, Kind: a.Repairs[n-1].Kind, Why: a.Repairs[n-1].Why}
		}
	}
}

func (b *statusBoard) fill(out *Board) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out.ComparedAt = b.at
	out.LastRepairs, out.Drift = map[int64]LastRepair{}, map[int64]bool{}
	for id, r := range b.repairs {
		out.LastRepairs[id] = r
	}
	for id, d := range b.drift {
		out.Drift[id] = d
	}
}

// report writes the board and measures the lag.
func (t *term) report(ctx context.Context) {
	for pause(ctx, boardInterval) {
		b := Board{Name: t.parts.Config.Name, AtMs: time.Now().UnixMilli(), Position: t.tracker.At(), LagMs: -1}
		b.SilenceMs = t.parts.Stream.Silence().Milliseconds()
		t.metrics.silence.Set(float64(b.SilenceMs) / 1000)
		if lag, ok := t.lag(ctx); ok {
			b.LagMs = lag.Milliseconds()
			t.metrics.lag.Set(lag.Seconds())
		}
		if err := t.health.Err(); err != nil {
			b.Problem = err.Error()
		}
		t.status.fill(&b)
		text, err := json.Marshal(b)
		if err == nil {
			err = t.parts.Redis.Set(ctx, boardKey, text, time.Hour).Err()
		}
		if err != nil && ctx.Err() == nil {
			t.log.Debug("the status board is not written", zap.Error(err))
		}
	}
}

// lag is 0 when Redis has everything that the log has, else the age of the last transaction that it has.
func (t *term) lag(ctx context.Context) (time.Duration, bool) {
	now, err := t.parts.Store.BinlogPosition(ctx)
	if err != nil {
		return 0, false
	}
	at := t.tracker.At()
	end := binlog.Position{Flavor: now.Flavor, GTID: now.GTID, File: now.File, Offset: now.Pos, Server: at.Server}
	reached, ok := at.Reached(end)
	if !ok {
		return 0, false
	}
	if reached {
		return 0, true
	}
	if at.CommittedAtMs == 0 {
		return 0, false
	}
	return time.Since(time.UnixMilli(at.CommittedAtMs)), true
}

// ReadBoard reads what the leader told last. ok is false where there is none.
func (p *Parts) ReadBoard(ctx context.Context) (b Board, ok bool, err error) {
	text, err := p.Redis.Get(ctx, boardKey).Bytes()
	if errors.Is(err, redis.Nil) {
		return b, false, nil
	}
	if err != nil {
		return b, false, fmt.Errorf("read the leader's board: %w", err)
	}
	if err := json.Unmarshal(text, &b); err != nil {
		return b, false, fmt.Errorf("read the leader's board: %w", err)
	}
	return b, true, nil
}
