package landing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// TestE42PoisonIsSetAside: whatever can never become an order goes to the dead letters with its reason, its reservation is
// settled where its id can be read, and the next message flows.
func TestE42PoisonIsSetAside(t *testing.T) {
	cases := []struct {
		name     string
		spoil    func(b *bench, o *order.Order) Record
		why      string
		readable bool
	}{
		{"not JSON", func(b *bench, _ *order.Order) Record { return b.raw([]byte(`{"v":1,`)) }, "unexpected end", false},
		{"empty", func(b *bench, _ *order.Order) Record { return b.raw(nil) }, "unexpected end", false},
		{"10 MiB", func(b *bench, _ *order.Order) Record { return b.raw(make([]byte, 10<<20)) }, "invalid character", false},
		{"negative quantity", func(b *bench, o *order.Order) Record { o.Quantity = -3; return b.record(o) }, "quantity -3", true},
		{"no quantity", func(b *bench, o *order.Order) Record { o.Quantity = 0; return b.record(o) }, "quantity 0", true},
		{"version of the future", func(b *bench, o *order.Order) Record { o.V = 2; return b.record(o) }, "v 2", true},
		{"unknown activity", func(b *bench, o *order.Order) Record { o.Activity = 77; return b.record(o) }, "activity_id 77", true},
		{"another item", func(b *bench, o *order.Order) Record { o.Item = 78; return b.record(o) }, "item_id 78", true},
		{"no user", func(b *bench, o *order.Order) Record { o.User = ""; return b.record(o) }, "user_id", false},
		{"id in capitals", func(b *bench, o *order.Order) Record { o.ID = strings.ToUpper(o.ID); return b.record(o) }, "order_id", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := onFakes(t)
			bad := b.order()
			poison := c.spoil(b, bad)
			good := b.order()
			got := b.mustLand(poison, b.record(good))
			if got.Landed != 1 || got.Refused != 1 {
				t.Fatalf("tally %+v: want one landed, one refused", got)
			}
			if b.store.rows[good.ID].Status != order.Confirmed {
				t.Error("the next message did not flow")
			}
			if len(b.letters.records) != 1 || string(b.letters.records[0].Value) != string(poison.Value) {
				t.Fatalf("dead letters %v: want the record as it was", b.letters.records)
			}
			if why := b.letters.why[0].Error(); !strings.Contains(why, c.why) {
				t.Errorf("reason %q: want it to name %q", why, c.why)
			}
			row, recorded := b.store.rows[bad.ID]
			if recorded != c.readable || recorded && (row.Status != order.Failed || row.Reason != order.ReasonInvalid) {
				t.Errorf("row %+v, %v: want a failed one exactly where the id is readable (%v)", row, recorded, c.readable)
			}
			settled := slices.ContainsFunc(b.ledger.settled, func(s ledger.Settlement) bool {
				return s.Activity == bad.Activity && s.Orders[0].Order == bad.ID && s.Orders[0].Dead && s.Version == 0
			})
			if settled != c.readable {
				t.Errorf("settlements %+v: want the refused order settled as dead exactly where its id is readable (%v)", b.ledger.settled, c.readable)
			}
		})
	}
}

// TestE42RefusedOrderThatHasARow: a broken copy of an order that landed must not bury it.
func TestE42RefusedOrderThatHasARow(t *testing.T) {
	b := onFakes(t)
	o := b.order()
	b.mustLand(b.record(o))
	spoilt := *o
	spoilt.Quantity = -1
	b.mustLand(b.record(&spoilt))
	last := b.ledger.settled[len(b.ledger.settled)-1]
	if last.Orders[0].Status != order.Confirmed || last.Orders[0].Dead {
		t.Fatalf("settled as %+v: want what MySQL holds, a confirmed order", last.Orders[0])
	}
}

// TestE42FailedRowRefusedToo: a refused order for which MySQL will not even have a failed row is in the dead letters and holds up nobody;
// its reservation is left to the sweep.
func TestE42FailedRowRefusedToo(t *testing.T) {
	b := onFakes(t)
	b.store.broken = &store.ErrRowRefused{Err: errors.New("a trigger of the shop's")}
	bad, good := b.order(), b.order()
	bad.Quantity = -3
	if got := b.mustLand(b.record(bad), b.record(good)); got.Landed != 1 || got.Refused != 1 || got.Released != 0 {
		t.Fatalf("tally %+v: want one landed, one refused and not released", got)
	}
	if len(b.letters.records) != 1 || len(b.ledger.settled) != 1 || b.ledger.settled[0].Orders[0].Order != good.ID {
		t.Errorf("%d dead letters, settled %+v: want one letter and the good order settled alone", len(b.letters.records), b.ledger.settled)
	}
}

// TestE42RowRefusedByMySQL: the one row that MySQL will not have goes, the rest of its batch lands.
func TestE42RowRefusedByMySQL(t *testing.T) {
	b := onFakes(t)
	orders := []*order.Order{b.order(), b.order(), b.order(), b.order()}
	bad := orders[2].ID
	b.store.land = func(_ int, batch []*order.Order) error {
		if i := slices.IndexFunc(batch, func(o *order.Order) bool { return o.ID == bad }); i >= 0 {
			return &store.ErrRowRefused{Index: i, Err: errors.New("data too long")}
		}
		return nil
	}
	var records []Record
	for _, o := range orders {
		records = append(records, b.record(o))
	}
	if got := b.mustLand(records...); got.Landed != 3 || got.Refused != 1 {
		t.Fatalf("tally %+v: want three landed, one refused", got)
	}
	if len(b.letters.records) != 1 || b.letters.records[0].Offset != records[2].Offset {
		t.Fatalf("dead letters %+v: want the third record", b.letters.records)
	}
	if b.store.rows[bad].Status != order.Failed {
		t.Errorf("row of the refused order %+v: want a failed one", b.store.rows[bad])
	}
}

// TestE104MissingInventoryRow: a shop that writes the row anew makes it missing for a while; only when it stays away for all
// of MissingWait do its orders fail, and then it is not waited for once more by every batch.
func TestE104MissingInventoryRow(t *testing.T) {
	t.Run("comes back", func(t *testing.T) {
		b := onFakes(t)
		b.cfg.MissingWait = time.Minute
		var red error
		b.store.land = func(n int, _ []*order.Order) error {
			if n <= 3*b.cfg.UnknownTries {
				red = b.health.red(stepRows)
				return store.ErrNoInventory
			}
			return nil
		}
		if got := b.mustLand(b.record(b.order()), b.record(b.order())); got.Landed != 2 || len(b.letters.records) != 0 {
			t.Fatalf("tally %+v, %d dead letters", got, len(b.letters.records))
		}
		if !errors.Is(red, store.ErrNoInventory) || b.health.red(stepRows) != nil {
			t.Errorf("health meanwhile %v, afterwards %v: want red with the cause, then well", red, b.health.red(stepRows))
		}
		if len(b.missing.rows) != 0 {
			t.Error("the row is still noted as missing")
		}
	})
	t.Run("stays away", func(t *testing.T) {
		b := onFakes(t)
		away := true
		b.store.land = func(int, []*order.Order) error {
			if away {
				return store.ErrNoInventory
			}
			return nil
		}
		began := time.Now()
		o := b.order()
		got := b.mustLand(b.record(o), b.record(b.order()))
		if took := time.Since(began); got.Refused != 2 || len(b.letters.records) != 2 || took < b.cfg.MissingWait {
			t.Fatalf("tally %+v, %d dead letters after %s", got, len(b.letters.records), took)
		}
		if row := b.store.rows[o.ID]; row.Reason != order.ReasonInvalid || b.health.red(stepRows) != nil {
			t.Errorf("row %+v, health %v", row, b.health.red(stepRows))
		}
		calls := b.store.calls
		b.mustLand(b.record(b.order()))
		if n := b.store.calls - calls; n != b.cfg.UnknownTries {
			t.Errorf("the next batch looked %d times, want %d: the wait is over", n, b.cfg.UnknownTries)
		}
		away = false
		b.mustLand(b.record(b.order()))
		if len(b.missing.rows) != 0 {
			t.Error("a row that is back would not be waited for when it goes away again")
		}
	})
}

// TestRowWithoutAStockIsRemembered: orders that are left open say nothing of the row, so that it is not waited for anew after each of them.
func TestRowWithoutAStockIsRemembered(t *testing.T) {
	b := onFakes(t)
	b.store.land = func(int, []*order.Order) error { return fmt.Errorf("%w: it is NULL", store.ErrNoStock) }
	if got := b.mustLand(b.record(b.order())); got.Refused != 1 {
		t.Fatalf("tally %+v, want it refused", got)
	}
	b.store.land, b.store.gone = nil, true
	b.mustLand(b.record(b.order()))
	if len(b.missing.rows) != 1 {
		t.Error("a landing that saw no row ended the absence")
	}
	b.store.gone = false
	b.mustLand(b.record(b.order()))
	if len(b.missing.rows) != 0 {
		t.Error("a landing that saw the row did not end the absence")
	}
}

// TestE104MissingActivityRow: the row of an activity that Redis has was deleted, before this worker saw it.
func TestE104MissingActivityRow(t *testing.T) {
	t.Run("comes back", func(t *testing.T) {
		b := onFakes(t)
		b.cfg.MissingWait = time.Minute
		b.ledger.has = map[int64]bool{b.activity: true}
		delete(b.store.activities, b.activity)
		stranger := newOrder(testenv.ID(), b.item, "stranger")
		var red error
		go func() {
			for red == nil && t.Context().Err() == nil {
				<-time.After(time.Millisecond)
				red = b.health.red(stepRows)
			}
			b.store.mu.Lock()
			defer b.store.mu.Unlock()
			b.store.activities[b.activity] = b.item
		}()
		got := b.mustLand(b.record(b.order()), b.record(stranger))
		if got.Landed != 1 || got.Refused != 1 || b.store.rows[stranger.ID].Status != order.Failed {
			t.Fatalf("tally %+v: want the order landed, that of an unknown activity refused", got)
		}
		if !errors.Is(red, errUnknownActivity) || b.health.red(stepRows) != nil {
			t.Errorf("health meanwhile %v, afterwards %v: want red with the cause, then well", red, b.health.red(stepRows))
		}
	})
	t.Run("stays away", func(t *testing.T) {
		b := onFakes(t)
		b.ledger.has = map[int64]bool{b.activity: true}
		delete(b.store.activities, b.activity)
		began := time.Now()
		if got := b.mustLand(b.record(b.order())); got.Refused != 1 || time.Since(began) < b.cfg.MissingWait {
			t.Fatalf("tally %+v after %s", got, time.Since(began))
		}
	})
	t.Run("unknown from the start", func(t *testing.T) {
		b := onFakes(t)
		b.cfg.MissingWait = time.Minute // mustLand would give up before
		if got := b.mustLand(b.record(newOrder(testenv.ID(), testenv.ID(), "x"))); got.Refused != 1 || b.health.ever[stepRows] {
			t.Fatalf("tally %+v, health was ever red: %v", got, b.health.ever[stepRows])
		}
	})
	t.Run("known to this worker", func(t *testing.T) {
		b := onFakes(t)
		b.mustLand(b.record(b.order()))
		delete(b.store.activities, b.activity)
		if got := b.mustLand(b.record(b.order())); got.Landed != 1 {
			t.Fatalf("tally %+v", got)
		}
	})
}

// TestTransientIsNeverADeadLetter: MySQL, Redis and the dead-letter topic are each waited for in place, with health red
// meanwhile.
func TestTransientIsNeverADeadLetter(t *testing.T) {
	away := errors.New("connection refused")
	t.Run("mysql", func(t *testing.T) {
		b := onFakes(t)
		var redMeanwhile error
		b.store.land = func(n int, _ []*order.Order) error {
			if n <= 20 {
				redMeanwhile = b.health.red(stepMySQL)
				return away
			}
			return nil
		}
		if got := b.mustLand(b.record(b.order())); got.Landed != 1 || len(b.letters.records) != 0 {
			t.Fatalf("tally %+v, dead letters %v", got, b.letters.records)
		}
		if !errors.Is(redMeanwhile, away) || b.health.red(stepMySQL) != nil {
			t.Errorf("health meanwhile %v, afterwards %v: want red with the cause, then well", redMeanwhile, b.health.red(stepMySQL))
		}
	})
	t.Run("redis", func(t *testing.T) {
		b := onFakes(t)
		b.ledger.answer = func(n int) (ledger.Settled, error) {
			if n <= 20 {
				return ledger.Settled{}, away
			}
			return ledger.Settled{}, nil
		}
		b.mustLand(b.record(b.order()))
		if b.store.calls != 1 || len(b.ledger.settled) != 1 || !b.health.ever[stepRedis] || b.health.red(stepRedis) != nil {
			t.Errorf("%d transactions, %d settled, health %v", b.store.calls, len(b.ledger.settled), b.health.now)
		}
	})
	t.Run("dead letters", func(t *testing.T) {
		b := onFakes(t)
		b.letters.fail = 20
		b.mustLand(b.raw([]byte("?")), b.record(b.order()))
		if len(b.letters.records) != 1 || !b.health.ever[stepDeadLetter] || b.health.red(stepDeadLetter) != nil {
			t.Errorf("dead letters %v, health %v", b.letters.records, b.health.now)
		}
	})
}

// TestE107SettleThatRedisCannotTake: an activity that is not loaded, or that contradicts itself, is for the syncer to load.
func TestE107SettleThatRedisCannotTake(t *testing.T) {
	for name, answer := range map[string]ledger.Settled{"not loaded": {NotLoaded: true}, "broken": {Broken: true}} {
		t.Run(name, func(t *testing.T) {
			b := onFakes(t)
			b.ledger.answer = func(int) (ledger.Settled, error) { return answer, nil }
			if got := b.mustLand(b.record(b.order())); got.Landed != 1 || b.ledger.calls != 1 {
				t.Fatalf("tally %+v after %d settles: want it to count as done", got, b.ledger.calls)
			}
		})
	}
}

// TestEndedWorkMarksNothing: once the context has ended Land says so, soon, whatever step it was in.
func TestEndedWorkMarksNothing(t *testing.T) {
	away := errors.New("away")
	steps := map[string]func(b *bench){
		"mysql":        func(b *bench) { b.store.land = func(int, []*order.Order) error { return away } },
		"redis":        func(b *bench) { b.ledger.answer = func(int) (ledger.Settled, error) { return ledger.Settled{}, away } },
		"dead letters": func(b *bench) { b.letters.fail = 1 << 30 },
		"inventory": func(b *bench) {
			b.cfg.MissingWait = time.Hour
			b.store.land = func(int, []*order.Order) error { return store.ErrNoInventory }
		},
	}
	for name, breakIt := range steps {
		t.Run(name, func(t *testing.T) {
			b := onFakes(t)
			breakIt(b)
			ctx, cancel := context.WithCancelCause(t.Context())
			gone := errors.New("the session has ended")
			time.AfterFunc(20*time.Millisecond, func() { cancel(gone) })
			began := time.Now()
			_, err := b.Land(ctx, []Record{b.raw([]byte("?")), b.record(b.order())})
			if !errors.Is(err, gone) {
				t.Errorf("error %v: want it to carry why the work ended", err)
			}
			took := time.Since(began)
			if took > 10*time.Second {
				t.Errorf("took %s to give up", took)
			}
			t.Logf("gave up after %s", took)
			for _, step := range []string{stepMySQL, stepRedis, stepDeadLetter, stepRows} {
				if err := b.health.red(step); err != nil {
					t.Errorf("health %s is still red: %v", step, err)
				}
			}
		})
	}
}

// TestItemsAndActivitiesOfABatch: a transaction per item, a settlement per activity, results for all.
func TestItemsAndActivitiesOfABatch(t *testing.T) {
	b := onFakes(t)
	second, other := testenv.ID(), testenv.ID()
	b.store.activities[second] = b.item // a second activity of the same item
	otherItem := testenv.ID()
	b.store.activities[other] = otherItem
	again := b.order()
	got := b.mustLand(b.record(again), b.record(newOrder(other, otherItem, "x")), b.record(newOrder(second, b.item, "y")), b.record(again))
	if got.Landed != 3 || got.Redone != 1 {
		t.Errorf("tally %+v: want three landed, one repeated", got)
	}
	if len(b.store.batches) != 2 || len(b.store.batches[0]) != 3 || len(b.store.batches[1]) != 1 {
		t.Errorf("transactions %v: want one of three records and one of one", b.store.batches)
	}
	var activities []int64
	for _, s := range b.ledger.settled {
		activities = append(activities, s.Activity)
		if s.Version == 0 || s.Source != ledger.FromWorker {
			t.Errorf("settlement %+v: want MySQL's version, from the worker", s)
		}
	}
	if !slices.Equal(activities, []int64{b.activity, second, other}) {
		t.Errorf("settled activities %v", activities)
	}
	if len(b.results.got) != 3 || b.results.got[0].Activity != b.activity || b.results.got[0].Status != order.Confirmed {
		t.Errorf("results %+v", b.results.got)
	}
}

// TestHealthIsRedWhileAnyPartitionFails: one that recovers must not hide another that does not.
func TestHealthIsRedWhileAnyPartitionFails(t *testing.T) {
	h := newFakeHealth()
	tr := &troubles{health: h, count: make(map[string]int)}
	err := errors.New("x")
	tr.begin(stepMySQL, err)
	tr.begin(stepMySQL, err)
	tr.end(stepMySQL)
	if h.red(stepMySQL) == nil {
		t.Error("green while one of two partitions is still failing")
	}
	tr.end(stepMySQL)
	if h.red(stepMySQL) != nil {
		t.Error("red after both recovered")
	}
}
