package load_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/syncer/load"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// E12, E13, E100: everything that a sale needs is rebuilt, and what is in flight is not forgotten.
// A load whose outcome Redis cannot sell from has failed, and says so: one that ended well would be begun again at once.
func TestLoadOfWhatCannotBeSold(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a := b.Activity(20)
	b.Exec("DROP TRIGGER inventory_seckill_bu")
	b.Exec("UPDATE inventory SET version = 9007199254740994 WHERE item_id = ?", a.Item)
	r, err := b.Loader.Load(t.Context(), a.ID)
	if err == nil || !strings.Contains(err.Error(), "version 9007199254740994") {
		t.Errorf("%+v, %v; want an error that names the version", r, err)
	}
	b.Exec("UPDATE inventory SET version = 1 WHERE item_id = ?", a.Item)
	b.Load(a)
	if s := b.Look(a); !s.Loaded || s.Stock != 20 {
		t.Errorf("%+v", s)
	}
}

func TestE12E13E100LoadIsExact(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a := b.Activity(20)
	b.Load(a)
	landed := b.Buy(a, "landed", 3)
	dead := b.Buy(a, "dead", 2)
	b.Land(true)
	b.Exec("UPDATE orders SET status = 'EXPIRED' WHERE order_id = ?", dead.ID)
	queued := b.Buy(a, "queued", 4)         // Kafka has it, MySQL not yet
	open := b.MustReserve(a, "reserved", 5) // its gateway died before it published
	b.Client().FlushAll(t.Context())
	if s := b.Look(a); s.Exists {
		t.Fatal("redis still has the activity")
	}
	if _, code := b.Reserve(a, "late", 1); code != ledger.NotLoaded {
		t.Fatalf("code %d from an empty redis, want not loaded", code)
	}
	r, err := b.Loader.Load(t.Context(), a.ID)
	if err != nil {
		t.Fatal(err)
	}
	s := b.Look(a)
	if !s.Loaded || s.Stock != 17 || s.Pending != 4 || s.LedgerLen != 1 || s.BuyersLen != 2 {
		t.Fatalf("after the load: %+v (report %+v); want stock 17, pending 4 for the one queued order, two buyers", s, r)
	}
	for user, code := range map[string]ledger.Code{
		"landed": ledger.AlreadyHas, "queued": ledger.AlreadyHas, "dead": ledger.Reserved, open.User: ledger.Reserved,
	} {
		if _, got := b.Reserve(a, user, 1); got != code {
			t.Errorf("%s buys again: code %d, want %d", user, got, code)
		}
	}
	for o, want := range map[*order.Order]order.Status{landed: order.Confirmed, dead: order.Expired, queued: order.Processing} {
		if v, err := b.Ledger.Lookup(t.Context(), a.ID, o.ID); err != nil || v.Status != want {
			t.Errorf("order of %s is %q (%v), want %s", o.User, v.Status, err, want)
		}
	}
	if r.Restored != 1 || r.Orders != 2 || r.WaitMs < 700 {
		t.Errorf("report %+v: want one reservation restored, two rows and at least 700 ms of waiting", r)
	}
}

// E12, E39: the topic was made anew, or its log cut short, and what the workers committed lies beyond its end. What waits in it is
// in flight all the same.
func TestE12E39LoadFromALogMadeAnew(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a := b.Activity(10)
	b.Load(a)
	b.Commit(map[int32]int64{0: 1000, 1: 1000, 2: 1000})
	b.Buy(a, "queued", 4)
	b.Client().FlushAll(t.Context())
	b.Load(a)
	if s := b.Look(a); s.Available != 6 || s.Pending != 4 || s.LedgerLen != 1 {
		t.Fatalf("after the load: %+v; want 6 available and pending 4 for the one queued order", s)
	}
	if _, code := b.Reserve(a, "queued", 1); code != ledger.AlreadyHas {
		t.Errorf("its buyer buys again: code %d, want already ordered", code)
	}
}

// A reservation that only the ledger knows survives a load that Redis itself survives.
func TestLoadKeepsTheLedger(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a := b.Activity(10)
	b.Load(a)
	b.MustReserve(a, "u", 3)
	b.Client().Del(t.Context(), ledger.KeysOf(a.ID).Stock)
	b.Load(a)
	if s := b.Look(a); s.Stock != 10 || s.Pending != 3 || s.LedgerLen != 1 || s.BuyersLen != 1 {
		t.Fatalf("after the load: %+v; want stock 10, pending 3, one entry, one buyer", s)
	}
	if _, code := b.Reserve(a, "u", 1); code != ledger.AlreadyHas {
		t.Fatalf("code %d, want already ordered", code)
	}
}

// E116: an admin's pause outlives a load, and so does one that comes while it runs.
func TestE116PauseSurvivesLoad(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	for name, pause := range map[string]func(a ledger.Activity, load func()){
		"before": func(a ledger.Activity, load func()) {
			b.Exec("UPDATE activity SET state = 'paused' WHERE activity_id = ?", a.ID)
			load()
		},
		"during": func(a ledger.Activity, load func()) {
			var wg sync.WaitGroup
			wg.Go(load)
			testenv.Eventually(t, 5*time.Second, "the load to begin", func() bool { return b.Look(a).State == ledger.Recovering })
			b.Exec("UPDATE activity SET state = 'paused' WHERE activity_id = ?", a.ID)
			wg.Wait()
		},
	} {
		a := b.Activity(10)
		b.Load(a)
		pause(a, func() { b.Load(a) })
		if s := b.Look(a); s.State != ledger.Paused || !s.Loaded {
			t.Errorf("paused %s the load: state %s, want paused", name, s.State)
		}
	}
}

// E108: the next activity of an item opens only once the former one's orders are landed and settled.
func TestE108ItemInOneActivityAtATime(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	first := b.Activity(50)
	b.Load(first)
	next := first
	next.ID, next.StartsAtMs, next.EndsAtMs = testenv.ID(), first.EndsAtMs, first.EndsAtMs+3_600_000
	if err := b.Store.CreateActivity(t.Context(), next, nil); err != nil {
		t.Fatal(err)
	}
	busy := func(when string) {
		t.Helper()
		if _, err := b.Loader.Load(t.Context(), next.ID); !errors.Is(err, load.ErrItemBusy) {
			t.Fatalf("load %s: %v, want that the item is busy", when, err)
		}
		if b.Look(next).Exists {
			t.Fatalf("load %s left something in redis", when)
		}
	}
	busy("while the first is open")
	for i := range 5 {
		b.Buy(first, fmt.Sprintf("u%d", i), 1)
	}
	if err := b.Store.SetActivityState(t.Context(), first.ID, ledger.Closed); err != nil {
		t.Fatal(err)
	}
	first.State = ledger.Closed
	if _, err := b.Ledger.SetActivity(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	busy("with five reservations open")
	b.Client().Del(t.Context(), ledger.KeysOf(first.ID).Ledger, ledger.KeysOf(first.ID).Pending)
	busy("with five orders in kafka")
	b.Land(true)
	b.Load(next)
	if s := b.Look(next); s.Stock != 45 || s.Pending != 0 {
		t.Fatalf("the next activity has stock %d and pending %d, want 45 and 0", s.Stock, s.Pending)
	}
}

// E107: a settle on an activity that is not loaded writes nothing, and the load is exact.
func TestE107SettleBeforeLoad(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a := b.Activity(10)
	b.Load(a)
	b.Buy(a, "u", 4)
	b.Client().FlushAll(t.Context())
	b.Land(true)
	if s := b.Look(a); s.Exists {
		t.Fatal("a settle wrote to an activity that is not loaded")
	}
	b.Load(a)
	b.Equal(a)
}

// Two loads at once: one runs, the other is told so.
func TestOneLoadAtATime(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a := b.Activity(10)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var done, busy int
	for range 4 {
		wg.Go(func() {
			_, err := b.Loader.Load(t.Context(), a.ID)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				done++
			case errors.Is(err, load.ErrBusy):
				busy++
			default:
				t.Errorf("load: %v", err)
			}
		})
	}
	wg.Wait()
	if done == 0 || done+busy != 4 {
		t.Fatalf("%d loads done, %d refused", done, busy)
	}
}

// E106: orders land and settle, buyers cancel and the stock changes while a load runs.
func TestE106LoadRacesWithLanding(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	a := b.Activity(1000)
	_, h := b.Syncer()
	b.Loaded(a, "")
	b.Ready(h)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { // buyers, as long as they are let in
		for i := 0; ctx.Err() == nil; i++ {
			if o, code := b.Reserve(a, fmt.Sprintf("u%d", i), int64(1+i%3)); code == ledger.Reserved {
				b.Publish(o)
			}
		}
	})
	wg.Go(func() { // the worker, which loses a settle now and then
		for i := 0; ctx.Err() == nil; i++ {
			b.Land(i%3 != 0)
		}
	})
	wg.Go(func() { // the shop
		for ctx.Err() == nil {
			b.Exec("UPDATE orders SET status = 'CANCELLED' WHERE activity_id = ? AND live = 1 ORDER BY RAND() LIMIT 1", a.ID)
			b.Restock(a, 1)
		}
	})
	epoch := b.Look(a).Epoch
	for range 3 {
		if err := b.Ledger.SetRecovering(t.Context(), a.ID, "test"); err != nil {
			t.Fatal(err)
		}
		epoch = b.Loaded(a, epoch).Epoch
	}
	<-ctx.Done()
	wg.Wait()
	b.Land(true)
	b.Equal(a)
}

// TestOrdersThatWaitForStockOutliveRedis: their records are landed and they have no row, so that only the ledger knew of them. With Redis empty a
// load finds them in Kafka again, with their tries, if it reads back far enough; those that have a row stay as they are.
func TestOrdersThatWaitForStockOutliveRedis(t *testing.T) {
	for name, back := range map[string]time.Duration{"far enough": time.Hour, "not at all": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := synctest.New(t)
			a := b.Activity(10)
			b.Load(a)
			b.Buy(a, "landed", 1)
			b.Land(true)
			waits := b.MustReserve(a, "waits", 2)
			waits.Attempt = 3
			b.Publish(waits)
			high, err := b.Admin.HighWater(t.Context(), b.Cfg.Kafka.Topics.Orders)
			if err != nil {
				t.Fatal(err)
			}
			b.Commit(high) // as the worker does that leaves it open
			if err := b.Client().FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			b.Loader.Back = back
			r, err := b.Loader.Load(t.Context(), a.ID)
			if err != nil {
				t.Fatal(err)
			}
			entries, _, err := b.Ledger.ScanLedger(t.Context(), a.ID, 0, 10)
			if err != nil {
				t.Fatal(err)
			}
			if back == 0 {
				if len(entries) != 0 {
					t.Errorf("%+v", entries)
				}
				return
			}
			if r.Restored != 1 || len(entries) != 1 || entries[0].Order != waits.ID || entries[0].Tries != 3 || b.Look(a).Pending != 2 {
				t.Errorf("report %+v, entries %+v", r, entries)
			}
		})
	}
}

// aged is a topic whose records are all older than they are.
type aged struct {
	load.Records
	by time.Duration
}

func (r aged) OffsetsAt(ctx context.Context, topic string, t time.Time) (map[int32]int64, error) {
	return r.Records.OffsetsAt(ctx, topic, t.Add(r.by))
}

func (r aged) Read(ctx context.Context, topic string, from, to map[int32]int64,
	fn func(partition int32, offset int64, ts time.Time, key, value []byte) error,
) error {
	return r.Records.Read(ctx, topic, from, to, func(p int32, offset int64, ts time.Time, key, value []byte) error {
		return fn(p, offset, ts.Add(-r.by), key, value)
	})
}

// TestOrdersThatWaitForStockBehindABacklog: with workers an hour behind, an order that they have left open just now has a record that
// is an hour old. How far back a load reads counts from where they are.
func TestOrdersThatWaitForStockBehindABacklog(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a := b.Activity(10)
	b.Load(a)
	waits := b.Buy(a, "waits", 2)
	high, err := b.Admin.HighWater(t.Context(), b.Cfg.Kafka.Topics.Orders)
	if err != nil {
		t.Fatal(err)
	}
	b.Commit(high) // as the worker does that leaves it open
	queued := b.Buy(a, "queued", 1)
	if err := b.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	b.Loader.Records, b.Loader.Back = aged{b.Loader.Records, time.Hour}, 5*time.Minute
	if _, err := b.Loader.Load(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*order.Order{waits, queued} {
		if v, err := b.Ledger.Lookup(t.Context(), a.ID, o.ID); err != nil || !v.Found {
			t.Errorf("order of %s: found %t (%v), want it open again", o.User, v.Found, err)
		}
	}
}

// TestOrdersThatWaitForStockOutliveAFailOver: a server that may have lost writes keeps them, for they were published; a reservation
// that no worker has met may have been released there, and is dropped.
func TestOrdersThatWaitForStockOutliveAFailOver(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a := b.Activity(10)
	b.Load(a)
	waits := b.Buy(a, "waits", 2)
	b.MustReserve(a, "perhaps released", 3)
	high, err := b.Admin.HighWater(t.Context(), b.Cfg.Kafka.Topics.Orders)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Ledger.Postpone(t.Context(), a.ID, map[string]int64{waits.ID: 1}); err != nil {
		t.Fatal(err)
	}
	b.Commit(high)
	if err := b.Client().HSet(t.Context(), ledger.KeysOf(a.ID).Activity, "server", "another:one").Err(); err != nil {
		t.Fatal(err)
	}
	r, err := b.Loader.Load(t.Context(), a.ID)
	if err != nil {
		t.Fatal(err)
	}
	entries, _, err := b.Ledger.ScanLedger(t.Context(), a.ID, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	if r.Kept != 1 || r.Dropped != 1 || len(entries) != 1 || entries[0].Order != waits.ID || entries[0].Tries != 1 || b.Look(a).Pending != 2 {
		t.Errorf("report %+v, entries %+v; want the order that waits for stock kept, the other one dropped", r, entries)
	}
}
