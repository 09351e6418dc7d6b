package ledger_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func (b *bench) begin() string {
	b.Helper()
	l, err := b.LoadBegin(b.ctx, b.activity())
	if err != nil {
		b.Fatal(err)
	}
	return l.Epoch
}

// A rebuild after Redis forgot everything: buyers and results from MySQL, open reservations from Kafka.
func TestE12ALoadRebuildsExactly(t *testing.T) {
	everyRedis(t, func(t *bench) {
		live, dead, queued := wish("live", 2), wish("dead", 1), wish("queued", 3)
		epoch := t.begin()
		if d := t.reserve(wish("u1", 1)); d.Code != ledger.NotLoaded && d.Code != ledger.IsRecovering {
			t.Fatalf("during the load: %+v", d)
		}
		err := t.LoadOrders(t.ctx, t.id, epoch, []ledger.Outcome{landed(live, t.item, order.Paid), landed(dead, t.item, order.Failed)})
		if err != nil {
			t.Fatal(err)
		}
		if err := t.LoadEntries(t.ctx, t.id, epoch, []ledger.Entry{
			{Order: queued.Order, User: "queued", Item: t.item, Quantity: 3, ReservedAtMs: time.Now().UnixMilli()},
		}); err != nil {
			t.Fatal(err)
		}
		s, err := t.LoadFinish(t.ctx, t.id, epoch, 50, 8, ledger.Open)
		if err != nil || !s.Loaded || s.Available != 5 || s.BuyersLen != 2 {
			t.Fatalf("%+v, %v", s, err)
		}
		t.want(8, 3)
		for user, want := range map[string]ledger.Code{"live": ledger.AlreadyHas, "queued": ledger.AlreadyHas, "dead": ledger.Reserved} {
			if d := t.reserve(wish(user, 1)); d.Code != want {
				t.Fatalf("%s: %+v", user, d)
			}
		}
		if d := t.reserve(queued); d.Code != ledger.Again {
			t.Fatalf("a repeat of the queued order: %+v", d)
		}
		if got := t.release(queued, time.Hour); got != ledger.Kept {
			t.Fatalf("a loaded reservation cannot be released: %v", got)
		}
		if v, err := t.Lookup(t.ctx, t.id, live.Order); err != nil || v.Status != order.Paid {
			t.Fatalf("%+v, %v", v, err)
		}
	})
}

func TestALoadKeepsSurvivorsAndDropsWhatHasLanded(t *testing.T) {
	b := onRedis(t)
	b.load(10, 1)
	landedOne, open := wish("landed", 2), wish("open", 1)
	b.mustReserve(landedOne)
	b.mustReserve(open)
	b.redis("DEL", b.keys.Stock, b.keys.Pending)
	epoch := b.begin()
	if err := b.LoadOrders(b.ctx, b.id, epoch, []ledger.Outcome{landed(landedOne, b.item, order.Confirmed)}); err != nil {
		t.Fatal(err)
	}
	survivors := b.entries()
	if len(survivors) != 1 || survivors[0].Order != open.Order {
		t.Fatalf("%+v", survivors)
	}
	if err := b.LoadEntries(b.ctx, b.id, epoch, survivors); err != nil {
		t.Fatal(err)
	}
	if _, err := b.LoadFinish(b.ctx, b.id, epoch, 2, 8, ledger.Open); err != nil {
		t.Fatal(err)
	}
	b.want(8, 1)
	if d := b.reserve(wish("open", 1)); d.Code != ledger.AlreadyHas {
		t.Fatalf("%+v", d)
	}
}

// E106 in small: settles that arrive between each two steps of a load.
func TestE106SettlesDuringALoad(t *testing.T) {
	b := onRedis(t)
	r := wish("u1", 2)
	epoch := b.begin()
	// The worker lands and settles r after the load's snapshot (stock 10, r not there) and before its entry is put back.
	confirm := ledger.Settlement{Version: 5, Stock: 8, Source: ledger.FromBinlog, Orders: []ledger.Outcome{landed(r, b.item, order.Confirmed)}}
	b.settle(confirm)
	if err := b.LoadEntries(b.ctx, b.id, epoch, []ledger.Entry{{Order: r.Order, User: "u1", Item: b.item, Quantity: 2, ReservedAtMs: 1}}); err != nil {
		t.Fatal(err)
	}
	if s := b.settle(confirm); !s.NotLoaded { // and once more behind it: its entry goes only together with its stock
		t.Fatalf("%+v", s)
	}
	if _, err := b.LoadFinish(b.ctx, b.id, epoch, 4, 10, ledger.Open); err != nil {
		t.Fatal(err)
	}
	b.want(10, 2) // 8 available: the truth
	b.settle(confirm)
	b.want(8, 0)
}

func TestALoadIsFencedByTheNextOne(t *testing.T) {
	everyRedis(t, func(t *bench) {
		old := t.begin()
		current := t.begin()
		if err := t.LoadOrders(t.ctx, t.id, old, []ledger.Outcome{landed(wish("u1", 1), t.item, order.Paid)}); !errors.Is(err, ledger.ErrFenced) {
			t.Fatal(err)
		}
		if _, err := t.LoadFinish(t.ctx, t.id, old, 1, 1, ledger.Open); !errors.Is(err, ledger.ErrFenced) {
			t.Fatal(err)
		}
		if _, err := t.LoadFinish(t.ctx, t.id, current, 1, 1, ledger.Open); err != nil {
			t.Fatal(err)
		}
		// And one that comes back after its activity has opened.
		if err := t.LoadEntries(t.ctx, t.id, current, []ledger.Entry{{Order: wish("u", 1).Order, User: "u", Item: t.item, Quantity: 1}}); !errors.Is(err, ledger.ErrFenced) {
			t.Fatal(err)
		}
	})
}

// What closed the activity during a load may have come after that load's snapshot, so the load must not open it.
func TestALoadIsFencedByAClosing(t *testing.T) {
	everyRedis(t, func(t *bench) {
		epoch := t.begin()
		if err := t.SetRecovering(t.ctx, t.id, "the binlog position is lost"); err != nil {
			t.Fatal(err)
		}
		if err := t.LoadOrders(t.ctx, t.id, epoch, []ledger.Outcome{landed(wish("u1", 1), t.item, order.Paid)}); !errors.Is(err, ledger.ErrFenced) {
			t.Fatal(err)
		}
		if _, err := t.LoadFinish(t.ctx, t.id, epoch, 1, 1, ledger.Open); !errors.Is(err, ledger.ErrFenced) {
			t.Fatal(err)
		}
		if _, err := t.LoadFinish(t.ctx, t.id, t.begin(), 1, 1, ledger.Open); err != nil {
			t.Fatal(err)
		}
	})
}

func TestE116APauseDuringALoadSurvives(t *testing.T) {
	b := onRedis(t)
	epoch := b.begin()
	a := b.activity()
	a.State = ledger.Paused
	if known, err := b.SetActivity(b.ctx, a); err != nil || !known {
		t.Fatal(known, err)
	}
	if s := b.look(); s.State != ledger.Recovering {
		t.Fatalf("%+v", s)
	}
	s, err := b.LoadFinish(b.ctx, b.id, epoch, 1, 10, ledger.Open)
	if err != nil || s.State != ledger.Paused {
		t.Fatalf("%+v, %v", s, err)
	}
}

// A restart with the data kept is another server: what it lost of the last second nobody knows.
func TestE12ARestartedServerIsNoticedByTheReserveItself(t *testing.T) {
	server := testenv.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	b := newBench(t, singleClient(t, server.Addr))
	b.load(10, 1)
	b.mustReserve(wish("u1", 1))
	server.Kill()
	server.Restart()
	var d []ledger.Decision
	testenv.Eventually(t, 5*time.Second, "redis answers again", func() bool {
		var err error
		d, err = b.Reserve(b.ctx, b.id, []ledger.Reservation{wish("u2", 1)})
		return err == nil
	})
	if d[0].Code != ledger.WrongServer {
		t.Fatalf("%+v", d[0])
	}
	if s := b.look(); s.SameServer || s.Stock != 10 || s.Pending != 1 {
		t.Fatalf("%+v", s)
	}
}

// E105: fail-over and back. The old master's run id is the one of the load again; its replication id is not.
func TestE105FailOverAndBack(t *testing.T) {
	first, second := testenv.StartRedis(t), testenv.StartRedis(t)
	a, b := newBench(t, singleClient(t, first.Addr)), singleClient(t, second.Addr)
	replicate(t, b, first.Addr)
	a.load(10, 1)
	a.mustReserve(wish("u1", 1))
	onSecond := ledger.New(b, ledger.Options{})
	reserve := func(l *ledger.Ledger) ledger.Code {
		d, err := l.Reserve(a.ctx, a.id, []ledger.Reservation{wish("u2", 1)})
		if err != nil {
			t.Fatal(err)
		}
		return d[0].Code
	}
	testenv.Eventually(t, 10*time.Second, "the replica has the reservation", func() bool {
		return b.Get(a.ctx, a.keys.Pending).Val() == "1"
	})
	if err := b.Do(a.ctx, "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	if code := reserve(onSecond); code != ledger.WrongServer {
		t.Fatalf("on the promoted replica: code %d", code)
	}
	replicate(t, a.rdb, second.Addr)
	if err := a.rdb.Do(a.ctx, "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	if code := reserve(a.Ledger); code != ledger.WrongServer {
		t.Fatalf("on the old master again: code %d", code)
	}
}

func replicate(t *testing.T, replica redis.UniversalClient, of string) {
	t.Helper()
	host, port := of[:len("127.0.0.1")], of[len("127.0.0.1:"):]
	if err := replica.Do(t.Context(), "REPLICAOF", host, port).Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, "the replica is in sync", func() bool {
		return contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
}

// A pending of 200,000 units in 100,000 entries does not slow what buyers wait for: no script but the load's last step
// walks the ledger.
func TestE17ReserveDoesNotWalkTheLedger(t *testing.T) {
	b := onRedis(t)
	b.load(1_000_000, 1)
	const many = 20_000
	for i := range many / 500 {
		batch := make([]ledger.Reservation, 500)
		for j := range batch {
			batch[j] = wish(fmt.Sprint("u", i*500+j), 2)
		}
		if _, err := b.Reserve(b.ctx, b.id, batch); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.rdb.ConfigResetStat(b.ctx).Err(); err != nil {
		t.Fatal(err)
	}
	r := wish("last", 1)
	b.mustReserve(r)
	b.look()
	b.settle(ledger.Settlement{Version: 2, Stock: 999_999, Orders: []ledger.Outcome{landed(r, b.item, order.Confirmed)}})
	stats := b.rdb.Info(b.ctx, "commandstats").Val()
	for _, whole := range []string{"cmdstat_hvals", "cmdstat_hgetall", "cmdstat_hkeys", "cmdstat_keys", "cmdstat_smembers"} {
		if contains(stats, whole) {
			t.Errorf("a script on the buyers' path ran %s", whole)
		}
	}
	b.want(999_999, 2*many)
}

func TestBuyersAreMendedByCompare(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(10, 1)
		open, stale := wish("open", 1), wish("stale", 1)
		t.mustReserve(open)
		if n, err := t.AddBuyers(t.ctx, t.id, []ledger.Buyer{{User: "stale", Order: stale.Order}, {User: "open", Order: stale.Order}}); err != nil || n != 1 {
			t.Fatal(n, err)
		}
		var all []ledger.Buyer
		for cursor := uint64(0); ; {
			part, next, err := t.ScanBuyers(t.ctx, t.id, cursor, 10)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, part...)
			if cursor = next; cursor == 0 {
				break
			}
		}
		if len(all) != 2 {
			t.Fatalf("%+v", all)
		}
		for _, x := range all {
			if x.InLedger != (x.User == "open") {
				t.Fatalf("%+v", x)
			}
		}
		n, err := t.FreeBuyers(t.ctx, t.id, []ledger.Buyer{{User: "stale", Order: open.Order}, {User: "open", Order: open.Order}, {User: "stale", Order: stale.Order}})
		if err != nil || n != 1 {
			t.Fatal(n, err)
		}
		t.mustReserve(wish("stale", 1))
	})
}

func TestRepairStockIsCompareAndSetAtOneVersion(t *testing.T) {
	b := onRedis(t)
	b.load(10, 7)
	for _, c := range []struct {
		version, have, want int64
		done                bool
	}{{6, 10, 5, false}, {8, 10, 5, false}, {7, 9, 5, false}, {7, 10, 5, true}} {
		if done, err := b.RepairStock(b.ctx, b.id, c.version, c.have, c.want); err != nil || done != c.done {
			t.Fatalf("%+v: %v, %v", c, done, err)
		}
	}
	b.want(5, 0)
}

func TestRetireRefusesWhileReservationsAreOpen(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(10, 1)
		r := wish("u1", 1)
		t.mustReserve(r)
		a := t.activity()
		if err := t.Retire(t.ctx, t.id); err == nil {
			t.Fatal("retired an activity on sale")
		}
		a.State = ledger.Closed
		if _, err := t.SetActivity(t.ctx, a); err != nil {
			t.Fatal(err)
		}
		if err := t.Retire(t.ctx, t.id); err == nil {
			t.Fatal("retired with an open reservation")
		}
		t.settle(ledger.Settlement{Version: 2, Stock: 9, Orders: []ledger.Outcome{landed(r, t.item, order.Confirmed)}})
		if err := t.Retire(t.ctx, t.id); err != nil {
			t.Fatal(err)
		}
		if v, err := t.Lookup(t.ctx, t.id, r.Order); err != nil || v.Status != order.Confirmed {
			t.Fatalf("the result must outlive its activity: %+v, %v", v, err)
		}
	})
}
