package ledger_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

func isNotExecuted(err error) bool { return errors.Is(err, ledger.ErrNotExecuted) }

// E90: the worker's confirm and the binlog's apply of three orders (one of them failed, one cancelled later) and a
// restock, in every order and repeated. Whatever came when, Redis ends equal to MySQL, and at no step has it more to sell
// than MySQL would still give.
func TestE90SettleInAnyOrderEndsInOneState(t *testing.T) {
	b := onRedis(t)
	for seed := range uint64(150) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			b := newBench(t, b.rdb)
			settleInAnyOrder(t, b, rand.New(rand.NewPCG(seed, 1)))
		})
	}
}

func settleInAnyOrder(t *testing.T, b *bench, rnd *rand.Rand) {
	b.load(10, 100)
	r1, r2, r3 := wish("u1", 2), wish("u2", 1), wish("u3", 3)
	for _, r := range []ledger.Reservation{r1, r2, r3} {
		b.mustReserve(r)
	}
	confirm := func(r ledger.Reservation) ledger.Outcome { return landed(r, b.item, order.Confirmed) }
	failed, cancelled := landed(r2, b.item, order.Failed), landed(r3, b.item, order.Cancelled)
	// MySQL's history: r1 lands (stock 8), r2 fails (8), r3 lands (5), restock of 4 (9), r3 is cancelled (12).
	history := []ledger.Settlement{
		{Version: 101, Stock: 8, Orders: []ledger.Outcome{confirm(r1)}},
		{Version: 101, Stock: 8, Orders: []ledger.Outcome{failed}},
		{Version: 102, Stock: 5, Orders: []ledger.Outcome{confirm(r3)}},
		{Version: 103, Stock: 9},
		{Version: 104, Stock: 12, Orders: []ledger.Outcome{cancelled}},
	}
	// Each may come from the worker and from the binlog, up to twice. Only the binlog's own order is fixed, and it may
	// start over; it has the last word.
	var calls []ledger.Settlement
	for range 1 + rnd.IntN(2) {
		for _, s := range history {
			s.Source = ledger.FromWorker
			calls = append(calls, s)
		}
	}
	rnd.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
	for range 1 + rnd.IntN(2) {
		at := rnd.IntN(len(calls) + 1)
		for _, s := range history {
			s.Source = ledger.FromBinlog
			calls = append(calls[:at], append([]ledger.Settlement{s}, calls[at:]...)...)
			at += 1 + rnd.IntN(len(calls)-at)
		}
	}
	for i, s := range calls {
		b.settle(s)
		x := b.look()
		if !x.Loaded || x.Pending < 0 || x.Available > 12 {
			t.Fatalf("after call %d: %+v", i, x)
		}
		// At this version of MySQL, the units of orders that it has not decided are still reserved.
		owed := map[int64]int64{100: 6, 101: 3, 102: 0, 103: 0, 104: 0}[x.Version]
		stock := map[int64]int64{100: 10, 101: 8, 102: 5, 103: 9, 104: 12}[x.Version]
		if x.Stock != stock {
			t.Fatalf("after call %d: stock %d at version %d, MySQL had %d", i, x.Stock, x.Version, stock)
		}
		if newest := seen(calls[:i+1]); newest == x.Version && x.Available > stock-owed+r2.Quantity {
			t.Fatalf("after call %d: available %d above the truth %d", i, x.Available, stock-owed)
		}
	}
	b.want(12, 0)
	for r, want := range map[*ledger.Reservation]order.Status{&r1: order.Confirmed, &r2: order.Failed, &r3: order.Cancelled} {
		v, err := b.Lookup(b.ctx, b.id, r.Order)
		if err != nil || v.Status != want || v.User != r.User {
			t.Fatalf("%+v, %v; want %s", v, err, want)
		}
	}
	buyers, err := b.BuyersOf(b.ctx, b.id, []string{"u1", "u2", "u3"})
	if err != nil || buyers[0] != r1.Order || buyers[1] != "" || buyers[2] != "" {
		t.Fatalf("%v, %v", buyers, err)
	}
}

func seen(calls []ledger.Settlement) int64 {
	newest := int64(100)
	for _, s := range calls {
		newest = max(newest, s.Version)
	}
	return newest
}

func TestE91ConfirmLowersStockAndPendingTogether(t *testing.T) {
	b := onRedis(t)
	b.load(3, 1)
	var all []ledger.Reservation
	for i := range 3 {
		r := wish(fmt.Sprint("u", i), 1)
		b.mustReserve(r)
		all = append(all, r)
	}
	for i, r := range all {
		s := b.settle(ledger.Settlement{Version: int64(i + 2), Stock: int64(2 - i), Orders: []ledger.Outcome{landed(r, b.item, order.Confirmed)}})
		if s.Available != 0 || s.Dropped != 1 || !s.Advanced {
			t.Fatalf("%+v", s)
		}
	}
	b.want(0, 0)
}

// Slices: more orders than one script call takes, and stock never too high between them.
func TestSettleInSlices(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(500, 1)
		var outcomes []ledger.Outcome
		for i := range 300 {
			r := wish(fmt.Sprint("u", i), 1)
			t.mustReserve(r)
			outcomes = append(outcomes, landed(r, t.item, order.Confirmed))
		}
		s := t.settle(ledger.Settlement{Version: 2, Stock: 200, Orders: outcomes})
		if s.Dropped != 300 || s.Available != 200 {
			t.Fatalf("%+v", s)
		}
		t.want(200, 0)
	})
}

func TestE89RollbackTwiceIsOnce(t *testing.T) {
	b := onRedis(t)
	b.load(10, 1)
	r := wish("u1", 2)
	b.mustReserve(r)
	for range 3 {
		if got := b.release(r, time.Minute); got != ledger.ReleasedNow {
			t.Fatalf("release: %v", got)
		}
		b.settle(ledger.Settlement{Version: 1, Stock: 10, Orders: []ledger.Outcome{landed(r, b.item, order.Failed)}})
	}
	b.want(10, 0)
	// And after a confirm it is refused.
	r = wish("u1", 1)
	b.mustReserve(r)
	b.settle(ledger.Settlement{Version: 2, Stock: 9, Orders: []ledger.Outcome{landed(r, b.item, order.Confirmed)}})
	if got := b.release(r, time.Minute); got != ledger.KeptDecided {
		t.Fatalf("release: %v", got)
	}
	b.want(9, 0)
}

// A pending that would fall below zero closes the activity: clamping it would hide an oversell.
func TestE89PendingBelowZeroClosesTheActivity(t *testing.T) {
	b := onRedis(t)
	b.load(10, 1)
	r := wish("u1", 2)
	b.mustReserve(r)
	b.redis("SET", b.keys.Pending, "1")
	s := b.settle(ledger.Settlement{Version: 2, Stock: 8, Orders: []ledger.Outcome{landed(r, b.item, order.Confirmed)}})
	if !s.Broken {
		t.Fatalf("%+v", s)
	}
	if x := b.look(); x.State != ledger.Recovering || x.LedgerLen != 1 {
		t.Fatalf("%+v", x)
	}
}

func TestE107SettleOfWhatIsNotLoaded(t *testing.T) {
	everyRedis(t, func(t *bench) {
		r := wish("u1", 1)
		s := t.settle(ledger.Settlement{Version: 2, Stock: 8, Orders: []ledger.Outcome{landed(r, t.item, order.Confirmed)}})
		if !s.NotLoaded {
			t.Fatalf("%+v", s)
		}
		n, err := t.rdb.Exists(t.ctx, t.keys.Stock).Result()
		if err != nil || n != 0 {
			t.Fatalf("wrote something: %d, %v", n, err)
		}
		if v, err := t.Lookup(t.ctx, t.id, r.Order); err != nil || v.Found {
			t.Fatalf("%+v, %v", v, err)
		}
	})
}

func TestResultsOfTheWorkerDoNotOverwriteTheBinlogs(t *testing.T) {
	b := onRedis(t)
	b.load(10, 1)
	r := wish("u1", 1)
	b.mustReserve(r)
	b.settle(ledger.Settlement{Version: 2, Stock: 9, Source: ledger.FromBinlog, Orders: []ledger.Outcome{landed(r, b.item, order.Confirmed)}})
	b.settle(ledger.Settlement{Version: 3, Stock: 10, Source: ledger.FromBinlog, Orders: []ledger.Outcome{landed(r, b.item, order.Cancelled)}})
	b.settle(ledger.Settlement{Version: 2, Stock: 9, Source: ledger.FromWorker, Orders: []ledger.Outcome{landed(r, b.item, order.Confirmed)}})
	v, err := b.Mine(b.ctx, b.id, "u1")
	if err != nil || v.Status != order.Cancelled || v.Order != r.Order {
		t.Fatalf("%+v, %v", v, err)
	}
	b.mustReserve(wish("u1", 1)) // I6
	b.want(10, 1)
}

// A dead order frees its buyer by compare: it must not take the place of the user's next order.
func TestADeadOrderFreesOnlyItsOwnPlace(t *testing.T) {
	b := onRedis(t)
	b.load(10, 1)
	first := wish("u1", 1)
	b.mustReserve(first)
	dead := ledger.Settlement{Version: 1, Stock: 10, Orders: []ledger.Outcome{landed(first, b.item, order.Failed)}}
	b.settle(dead)
	second := wish("u1", 1)
	b.mustReserve(second)
	b.settle(dead)
	if d := b.reserve(wish("u1", 1)); d.Code != ledger.AlreadyHas || d.LiveOrder != second.Order {
		t.Fatalf("%+v", d)
	}
	b.want(10, 1)
}

func TestE101ARefusedOrderNeverLandsByALateCopy(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(1, 1)
		other := wish("other", 1)
		t.mustReserve(other)
		r := wish("u1", 1) // copy A is stuck somewhere; copy B is refused
		if d := t.reserve(r); d.Code != ledger.SoldOut {
			t.Fatalf("%+v", d)
		}
		if got := t.release(r, time.Minute); got != ledger.ReleasedNow {
			t.Fatalf("the fence: %v", got)
		}
		t.release(other, time.Minute)
		t.want(1, 0)
		if d := t.reserve(r); d.Code != ledger.Decided || d.Result.Reason != order.ReasonReleased {
			t.Fatalf("copy A: %+v", d)
		}
		t.want(1, 0)
		// The tombstone is gone, as it would be after a Redis that lost it: the deadline holds.
		t.redis("DEL", t.keys.Result(r.Order))
		r.NotAfterMs = time.Now().Add(-2 * time.Second).UnixMilli()
		if d := t.reserve(r); d.Code != ledger.TooLate {
			t.Fatalf("copy A without a tombstone: %+v", d)
		}
		t.load(1, 1)
		if d := t.reserve(r); d.Code != ledger.TooLate {
			t.Fatalf("copy A after a load: %+v", d)
		}
		t.want(1, 0)
	})
}

func TestE102ReleaseKeepsWhatTheSweepMayHavePublished(t *testing.T) {
	b := onRedis(t)
	b.load(10, 1)
	r := wish("u1", 1)
	b.mustReserve(r)
	age := func() bool {
		now, err := b.rdb.Time(b.ctx).Result()
		return err == nil && now.UnixMilli() > b.entries()[0].ReservedAtMs+5
	}
	for !age() { // a few milliseconds by the server's clock
	}
	if got := b.release(r, time.Millisecond); got != ledger.Kept {
		t.Fatalf("release of an entry older than the publish budget: %v", got)
	}
	b.want(10, 1)
	if got := b.release(r, time.Hour); got != ledger.ReleasedNow {
		t.Fatalf("release: %v", got)
	}
	b.want(10, 0)
}

// Two requests with one Idempotency-Key share an order. Once the second has met it, the first can no longer release it:
// the second may have published it.
func TestReleaseKeepsWhatAnotherRequestMet(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(10, 1)
		first := wish("u1", 1)
		t.mustReserve(first)
		if d := t.reserve(first); d.Code != ledger.Again { // its own repeat changes nothing
			t.Fatalf("%+v", d)
		}
		if got := t.release(first, time.Minute); got != ledger.ReleasedNow {
			t.Fatalf("release: %v", got)
		}
		first = wish("u1", 1)
		second := first
		second.Nonce = "another"
		t.mustReserve(first)
		if d := t.reserve(second); d.Code != ledger.Again {
			t.Fatalf("%+v", d)
		}
		for _, r := range []ledger.Reservation{first, second} {
			if got := t.release(r, time.Minute); got != ledger.Kept {
				t.Fatalf("release: %v", got)
			}
		}
		t.want(10, 1)
	})
}

func TestE97AReleaseOfWhatWasNeverReservedBlocksALateExecution(t *testing.T) {
	b := onRedis(t)
	b.load(10, 1)
	r := wish("u1", 1)
	r.Item = b.item
	if got := b.release(r, time.Minute); got != ledger.ReleasedNow {
		t.Fatalf("release: %v", got)
	}
	if d := b.reserve(r); d.Code != ledger.Decided {
		t.Fatalf("%+v", d)
	}
	if v, err := b.Lookup(b.ctx, b.id, r.Order); err != nil || v.Item != b.item || v.Quantity != 1 {
		t.Errorf("its buyer is told %+v, %v", v, err)
	}
	b.want(10, 0)
}

// The tombstone of a refusal stops copies of the call for good, and says that it is no order to show.
func TestARefusalsTombstone(t *testing.T) {
	b := onRedis(t)
	b.load(10, 1)
	r := wish("u1", 1)
	r.Refused = true
	for range 2 {
		if got := b.release(r, time.Minute); got != ledger.ReleasedNow {
			t.Fatalf("release: %v", got)
		}
	}
	if d := b.reserve(r); d.Code != ledger.Decided || d.Result.Reason != order.ReasonRefused {
		t.Fatalf("%+v", d)
	}
	b.want(10, 0)
}

// Shops use all of BIGINT for their items; a double would round them.
func TestItemsBeyondTheDoubles(t *testing.T) {
	for _, item := range []int64{1<<53 + 1, 1796011263608303617, math.MaxInt64} {
		b := onRedis(t)
		b.item = item
		b.load(10, 1)
		if d := b.reserve(wish("u1", 1)); d.Code != ledger.Reserved || d.Item != item {
			t.Fatalf("%+v", d)
		}
		if e := b.entries()[0]; e.Item != item {
			t.Fatalf("%+v", e)
		}
		if s := b.look(); s.Activity.Item != item {
			t.Fatalf("%+v", s)
		}
		if _, err := b.SetActivity(b.ctx, b.activity()); err != nil {
			t.Fatal(err)
		}
		other := b.activity()
		other.Item--
		if _, err := b.SetActivity(b.ctx, other); err == nil {
			t.Fatal("an item that differs by one was taken for the same")
		}
	}
}
