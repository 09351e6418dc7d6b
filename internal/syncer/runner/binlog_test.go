package runner_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/syncer/binlog"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestSaleReachesRedisByBinlogAlone(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	a := b.Activity(20)
	_, h := b.Syncer()
	b.Loaded(a, "")
	b.Ready(h)
	for i := range 5 {
		b.Buy(a, fmt.Sprintf("u%d", i), 2)
	}
	if s := b.Look(a); s.Available != 10 || s.Pending != 10 {
		t.Fatalf("available %d, pending %d after five orders of 2: want 10 and 10", s.Available, s.Pending)
	}
	b.Land(false) // the worker dies before it settles
	b.Equal(a)
	if s := b.Look(a); s.Stock != 10 {
		t.Fatalf("stock %d, want 10", s.Stock)
	}
}

// TestPlaceAfterATakeover: a stream that goes on by GTID is told the head of the file first. What is kept, and shown, remains the
// place that was noted; on another server, where nobody knows it, it is the GTID alone until something commits.
func TestPlaceAfterATakeover(t *testing.T) {
	t.Parallel()
	server := testenv.StartMySQL(t)
	b := synctest.NewOn(t, server.DSN("shop"), synctest.Quiet)
	a := b.Activity(10)
	stream := b.OpenParts(b.Cfg).Stream
	from, err := stream.Note(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if from.GTID == "" {
		t.Fatal("the server has no GTIDs: nothing is tried")
	}
	first := func(from binlog.Position, change bool) binlog.Position {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		places := make(places, 100)
		ended := make(chan error, 1)
		go func() { ended <- stream.Run(ctx, from, places, func() {}) }()
		var got binlog.Position
		for done := false; !done; {
			select {
			case got = <-places:
				done = !change || got.GTID != from.GTID
				if change && !done {
					b.Restock(a, 1)
				}
			case err := <-ended:
				t.Fatalf("the stream ended: %v", err)
			}
		}
		cancel()
		<-ended
		return got
	}
	if got := first(from, false); got != from {
		t.Errorf("at the start of a stream from %+v the place is %+v", from, got)
	}
	elsewhere := from
	elsewhere.Server, elsewhere.File, elsewhere.Offset = "another server", "other.000007", 700
	if got := first(elsewhere, false); got.File != "" || got.Offset != 0 || got.GTID != from.GTID {
		t.Errorf("at the start of a stream from another server's place it is %+v, want no file", got)
	}
	if got := first(elsewhere, true); got.File != from.File || got.Offset <= from.Offset || got.Server != from.Server {
		t.Errorf("after a commit the place is %+v, want one behind %s:%d", got, from.File, from.Offset)
	}
}

// places is a sink that hears of the places alone.
type places chan binlog.Position

func (p places) Synced(at binlog.Position)                        { p <- at }
func (p places) Apply(context.Context, *binlog.Transaction) error { return nil }
func (p places) Sells(int64) bool                                 { return true }
func (p places) Doubt(string, error)                              {}

func TestRestockAndCancelReachRedis(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	a := b.Activity(2)
	_, h := b.Syncer()
	b.Loaded(a, "")
	b.Ready(h)
	o := b.Buy(a, "u1", 2)
	b.Land(true)
	b.Equal(a)
	if _, code := b.Reserve(a, "u2", 1); code != ledger.SoldOut {
		t.Fatalf("code %d, want sold out", code)
	}
	b.Restock(a, 1)
	testenv.Eventually(t, 20*time.Second, "the restock to reach redis", func() bool { return b.Look(a).Available == 1 })
	b.Exec("UPDATE orders SET status = 'CANCELLED' WHERE order_id = ?", o.ID)
	b.Equal(a)
	if s := b.Look(a); s.Stock != 3 || s.BuyersLen != 0 {
		t.Fatalf("stock %d and %d buyers after the cancel, want 3 and 0", s.Stock, s.BuyersLen)
	}
	v, err := b.Ledger.Lookup(t.Context(), a.ID, o.ID)
	if err != nil || v.Status != "CANCELLED" {
		t.Fatalf("the buyer sees %q (%v), want CANCELLED", v.Status, err)
	}
	b.MustReserve(a, "u1", 3)
}

func TestActivityTableReachesRedis(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet, func(c *runner.Config) { c.ActivityInterval = time.Hour })
	_, h := b.Syncer()
	b.Ready(h)
	a := b.Activity(5)
	b.Loaded(a, "")
	testenv.Eventually(t, 20*time.Second, "the catalogue to list the activity", func() bool {
		c, err := b.Ledger.Catalogue(t.Context())
		return err == nil && c.Activities[a.ID] == a
	})
	for _, state := range []ledger.State{ledger.Paused, ledger.Open, ledger.Closed} {
		b.Exec("UPDATE activity SET state = ? WHERE activity_id = ?", string(state), a.ID)
		testenv.Eventually(t, 20*time.Second, "the state "+string(state)+" to reach redis", func() bool { return b.Look(a).State == state })
	}
}

// E45: an activity's row is given another item in the middle of the sale. The stock that the log has of that item does not become
// what is on sale.
func TestE45ItemOfAnActivityChangedInTheLog(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	a, other := b.Activity(10), b.Activity(5000)
	_, h := b.Syncer()
	b.Loaded(a, "")
	b.Ready(h)
	o := b.Buy(a, "u1", 2)
	b.Land(true)
	b.Exec("UPDATE activity SET item_id = ? WHERE activity_id = ?", other.Item, a.ID)
	b.Restock(a, 0) // so that the log has a younger row of either
	b.Restock(other, 1)
	b.Exec("UPDATE orders SET status = 'PAID' WHERE order_id = ?", o.ID)
	testenv.Eventually(t, 20*time.Second, "the log to be applied that far", func() bool {
		v, err := b.Ledger.Lookup(t.Context(), a.ID, o.ID)
		return err == nil && v.Status == order.Paid
	})
	if s := b.Look(a); s.Stock != 8 || !s.Loaded {
		t.Errorf("redis sells %d units, want the 8 of the item that it was loaded with: %+v", s.Stock, s)
	}
}

// BenchmarkCommitToRedis says how long a change of the stock takes from COMMIT to Redis, in quantiles; the goal is a p99 below
// 50 ms on a quiet machine. It is measured from before the statement is sent, with autocommit, to the first look at Redis that
// shows the change, both from this process.
//
//	make services
//	env $(grep -v ^SECKILL_ .services/env) go test -run '^$' -bench CommitToRedis -benchtime 2000x ./internal/syncer/runner
func BenchmarkCommitToRedis(t *testing.B) {
	b := synctest.New(t, synctest.Quiet)
	a := b.Activity(5)
	_, h := b.Syncer()
	b.Loaded(a, "")
	b.Ready(h)
	took := make([]time.Duration, 0, t.N)
	stock := b.Stock(a)
	t.ResetTimer()
	for range t.N {
		stock++
		at := time.Now()
		b.Restock(a, 1)
		for b.Look(a).Stock != stock {
			if time.Since(at) > 10*time.Second {
				t.Fatal("a restock takes more than ten seconds")
			}
		}
		took = append(took, time.Since(at))
	}
	t.StopTimer()
	slices.Sort(took)
	for name, q := range map[string]float64{"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1} {
		t.ReportMetric(float64(took[int(q*float64(len(took)-1))].Microseconds())/1000, "ms-"+name)
	}
}
