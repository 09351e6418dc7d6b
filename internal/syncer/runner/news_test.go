package runner_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/syncer/load"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// A sale that Redis forgot is told of at once, not only when it is loaded again; and once.
func TestAForgottenSaleIsToldAtOnce(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.InfoLevel)
	b := synctest.New(t, synctest.Quiet, func(c *runner.Config) { c.PublishBudget = 2 * time.Second; c.Horizon = 4 * time.Second })
	p := *b.All
	p.Log = zap.New(core)
	loader := *p.Loader
	loader.Log = p.Log
	p.Loader = &loader
	a := b.Activity(5)
	_, h := b.SyncerOn(&p)
	b.Ready(h)
	epoch := b.Loaded(a, "").Epoch
	text := fmt.Sprintf("activity %d is closed: not in redis; loading it takes about 2.2s", a.ID)
	before := logs.FilterMessage(text).Len() // of the first load
	seen := logs.Len()
	news := func() bool { return logs.FilterMessage(text).Len() > before }
	for try := 0; try < 3 && !news(); try++ { // again, should the syncer not have seen yet that the first load is over
		b.Client().FlushAll(t.Context())
		for until := time.Now().Add(time.Second); !news() && time.Now().Before(until); {
			<-time.After(5 * time.Millisecond)
		}
	}
	if !news() {
		t.Fatal("the syncer does not say what buyers see")
	}
	if b.Look(a).Loaded {
		t.Error("it was told only when it was over")
	}
	b.Loaded(a, epoch)
	b.Ready(h)
	var told int
	for _, l := range logs.All()[seen:] {
		if l.Message == text {
			told++
			if l.Level != zap.WarnLevel {
				t.Errorf("%+v", l)
			}
		}
	}
	// The loss may have taken the lease along: then the next term, which knows nothing of it, tells once more.
	terms := 0
	for _, l := range logs.All()[seen:] {
		if l.Message == "leading" {
			terms++
		}
	}
	if told < 1 || told > 1+terms {
		t.Errorf("told %d times of one loss, with %d new terms", told, terms)
	}
}

// A sale that has begun is listed while it is being loaded, so that its buyers hear 503 and not 404. One that lies ahead is
// loaded first, which makes its load short.
func TestWhenANewSaleIsListed(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet, func(c *runner.Config) { c.PublishBudget = 5 * time.Second; c.Horizon = 10 * time.Second })
	p, logs := observed(b, b.Cfg)
	_, h := b.SyncerOn(p)
	b.Ready(h)
	testenv.Eventually(t, 20*time.Second, "the catalogue to be there: without it every load waits", func() bool {
		_, err := b.Ledger.Catalogue(t.Context())
		return err == nil
	})
	ahead := ledger.Activity{ID: testenv.ID(), Item: testenv.ID(), Title: "ahead", MaxPerUser: 1, State: ledger.Open}
	ahead.StartsAtMs = time.Now().Add(time.Minute).UnixMilli()
	ahead.EndsAtMs = ahead.StartsAtMs + 60_000
	b.Create(ahead, 5)
	testenv.Eventually(t, 20*time.Second, "the sale that lies ahead to be loaded", func() bool { return b.Look(ahead).Loaded })
	begun := b.Activity(5)
	testenv.Eventually(t, 20*time.Second, "the sale that has begun to be listed", func() bool {
		c, err := b.Ledger.Catalogue(t.Context())
		if err != nil {
			return false
		}
		_, listed := c.Activities[begun.ID]
		return listed
	})
	if b.Look(begun).Loaded {
		t.Error("it was listed only when it was loaded")
	}
	b.Loaded(begun, "")
	// What each load waited for gateways that may have orders of its sale under way.
	least := (b.Cfg.PublishBudget + b.Cfg.ReserveDeadline).Milliseconds()
	if wait := waited(t, logs, ahead.ID); wait >= least {
		t.Errorf("the load of a sale that lies ahead waited %d ms for nobody", wait)
	}
	if wait := waited(t, logs, begun.ID); wait < least {
		t.Errorf("the load of a sale that has begun waited only %d ms, want %d", wait, least)
	}
}

// waited reads from the report of an activity's first load how long it waited.
func waited(t *testing.T, logs *observer.ObservedLogs, activity int64) int64 {
	t.Helper()
	var reports []observer.LoggedEntry
	testenv.Eventually(t, 20*time.Second, "the report of the load", func() bool { // it is logged a moment after the sale is open
		reports = logs.FilterMessage("loaded").FilterField(zap.Int64("activity", activity)).All()
		return len(reports) > 0
	})
	report, ok := reports[0].ContextMap()["report"].(load.Report)
	if !ok {
		t.Fatalf("no report in %v", reports[0].ContextMap())
	}
	return report.WaitMs
}

// The first start closes everything before it loads anything: what it closed afterwards would be loaded twice, and wait twice.
func TestTheFirstStartLoadsOnce(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	p, logs := observed(b, b.Cfg)
	a := b.Activity(5)
	_, h := b.SyncerOn(p)
	b.Loaded(a, "")
	b.Ready(h)
	anew, begun := -1, -1
	for i, l := range logs.All() {
		switch {
		case l.Message == "no binlog position is kept, as at the first start: everything is loaded":
			anew = i
		case strings.Contains(l.Message, "not in redis") && begun < 0:
			begun = i
		case strings.Contains(l.Message, "begins again"):
			t.Errorf("%+v", l)
		}
	}
	if anew < 0 || begun < anew {
		t.Errorf("line %d closes everything, line %d begins a load", anew, begun)
	}
}
