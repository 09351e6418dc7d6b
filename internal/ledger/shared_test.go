package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

func TestCatalogueMissingIsNotEmpty(t *testing.T) {
	everyRedis(t, func(t *bench) {
		if _, err := t.Catalogue(t.ctx); !errors.Is(err, ledger.ErrNoCatalogue) {
			t.Fatal(err)
		}
		timings := ledger.Timings{ReserveDeadlineMs: 2000, PublishBudgetMs: 5000, HorizonMs: 30000}
		if err := t.PutCatalogue(t.ctx, &ledger.Catalogue{Timings: timings}); err != nil {
			t.Fatal(err)
		}
		c, err := t.Catalogue(t.ctx)
		if err != nil || len(c.Activities) != 0 || c.Timings != timings {
			t.Fatalf("%+v, %v", c, err)
		}
		a := t.activity()
		a.Title = "秒杀"
		c.Activities = map[int64]ledger.Activity{a.ID: a}
		if err := t.PutCatalogue(t.ctx, c); err != nil {
			t.Fatal(err)
		}
		if c, err = t.Catalogue(t.ctx); err != nil || c.Activities[a.ID] != a {
			t.Fatalf("%+v, %v", c, err)
		}
		for range 5000 { // more than a script can give to one command
			a.ID++
			c.Activities[a.ID] = a
		}
		if err := t.PutCatalogue(t.ctx, c); err != nil {
			t.Fatal(err)
		}
		if all, err := t.Catalogue(t.ctx); err != nil || !maps.Equal(all.Activities, c.Activities) || all.Timings != timings {
			t.Fatalf("%d activities, %v; want %d", len(all.Activities), err, len(c.Activities))
		}
	})
}

func TestLandedOnlyMovesForward(t *testing.T) {
	everyRedis(t, func(t *bench) {
		for _, at := range []map[int32]ledger.LandedAt{
			{0: {Offset: 10, TimeMs: 100}, 1: {Offset: 5, TimeMs: 50}},
			{0: {Offset: 9, TimeMs: 90}},
			{1: {Offset: 6, TimeMs: 60}},
		} {
			if err := t.SetLanded(t.ctx, at); err != nil {
				t.Fatal(err)
			}
		}
		got, err := t.Landed(t.ctx)
		if err != nil || got[0] != (ledger.LandedAt{Offset: 10, TimeMs: 100}) || got[1] != (ledger.LandedAt{Offset: 6, TimeMs: 60}) {
			t.Fatalf("%+v, %v", got, err)
		}
	})
}

func TestLeaseAndPosition(t *testing.T) {
	everyRedis(t, func(t *bench) {
		step := func(what string, got bool, err error, want bool) {
			t.Helper()
			if err != nil || got != want {
				t.Fatalf("%s: %v, %v", what, got, err)
			}
		}
		ok, err := t.Lease(t.ctx, "a", time.Minute)
		step("a takes it", ok, err, true)
		ok, err = t.Lease(t.ctx, "b", time.Minute)
		step("b must wait", ok, err, false)
		ok, err = t.SavePosition(t.ctx, "b", "9")
		step("b may not save", ok, err, false)
		ok, err = t.SavePosition(t.ctx, "a", "5")
		step("a saves", ok, err, true)
		if err := t.DropLease(t.ctx, "b"); err != nil {
			t.Fatal(err)
		}
		if who, err := t.LeaseHolder(t.ctx); err != nil || who != "a" {
			t.Fatal(who, err)
		}
		if err := t.DropLease(t.ctx, "a"); err != nil {
			t.Fatal(err)
		}
		ok, err = t.Lease(t.ctx, "b", time.Minute)
		step("b takes it", ok, err, true)
		if p, err := t.Position(t.ctx); err != nil || p != "5" {
			t.Fatal(p, err)
		}
	})
}

// A lease that has lost its expiry ends all the same, one lease later.
func TestLeaseWithoutAnEnd(t *testing.T) {
	everyRedis(t, func(t *bench) {
		if ok, err := t.Lease(t.ctx, "a", time.Minute); err != nil || !ok {
			t.Fatal(ok, err)
		}
		if err := t.rdb.Persist(t.ctx, "seckill:{syncer}:leader").Err(); err != nil {
			t.Fatal(err)
		}
		if ok, err := t.Lease(t.ctx, "b", time.Second); err != nil || ok {
			t.Fatalf("b must wait: %v, %v", ok, err)
		}
		testenv.Eventually(t.T, 30*time.Second, "b takes it", func() bool {
			ok, err := t.Lease(t.ctx, "b", time.Second)
			return err == nil && ok
		})
	})
}

// Gateways hear of what they cache: sold out, open again, decided orders, changed states.
func TestEvents(t *testing.T) {
	everyRedis(t, func(t *bench) {
		ctx, cancel := context.WithCancel(t.ctx)
		events := t.Subscribe(ctx)
		next := func(what string, is func(ledger.Event) bool) {
			t.Helper()
			deadline := time.After(30 * time.Second)
			for {
				select {
				case e := <-events:
					if is(e) {
						return
					}
				case <-deadline:
					t.Fatalf("no event: %s", what)
				}
			}
		}
		next("connected", func(e ledger.Event) bool { return e.Catalogue })
		t.load(2, 1)
		next("opened", func(e ledger.Event) bool { return e.Activity == t.id && e.State == ledger.Open && e.Available == 2 })
		r := wish("u1", 2)
		t.mustReserve(r)
		next("sold out", func(e ledger.Event) bool { return e.Activity == t.id && e.Available == 0 && e.State == "" })
		t.settle(ledger.Settlement{Version: 2, Stock: 2, Orders: []ledger.Outcome{landed(r, t.item, order.Failed)}})
		next("failed, and open again", func(e ledger.Event) bool {
			return e.Available == 2 && len(e.Outcomes) == 1 && e.Outcomes[0] == ledger.EventOutcome{Order: r.Order, Status: order.Failed}
		})
		cancel()
		testenv.Eventually(t, 30*time.Second, "the subscription ends", func() bool {
			select {
			case _, open := <-events:
				return !open
			default:
				return false
			}
		})
	})
}

// What the settings of Redis lack is told in one line each, by the name under which it can be accepted, and of every master of
// a cluster.
func TestCheck(t *testing.T) {
	t.Parallel()
	names := func(b *bench) string {
		t.Helper()
		found, err := b.Check(b.ctx)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, f := range found {
			out = append(out, f.Name)
			if f.Fatal != (f.Name == "maxmemory_policy") || strings.Contains(f.Text, "\n") {
				t.Errorf("%+v", f)
			}
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	primary, replica := testenv.StartRedis(t, "--appendonly", "yes"), testenv.StartRedis(t)
	b := newBench(t, singleClient(t, primary.Addr))
	want := func(want string) {
		t.Helper()
		if got := names(b); got != want {
			t.Errorf("found %q, want %q", got, want)
		}
	}
	want("")
	b.redis("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	want("maxmemory_policy")
	b.redis("CONFIG", "SET", "maxmemory-policy", "noeviction")
	b.redis("CONFIG", "SET", "appendonly", "no")
	want("persistence")
	b.redis("CONFIG", "SET", "appendonly", "yes")
	replica.ReplicaOf(primary.Addr)
	want("min_replicas")
	b.redis("CONFIG", "SET", "min-replicas-to-write", "1")
	want("")
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: testenv.StartRedisCluster(t, 3), MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	b = newBench(t, rdb)
	want("persistence persistence persistence")
}

// How long results stand is the syncer's to say, which loads the activity, and not the process's that happens to write them.
func TestRetentionIsTheSyncers(t *testing.T) {
	everyRedis(t, func(t *bench) {
		const retention = 10 * time.Minute
		syncer := ledger.New(t.rdb, ledger.Options{Retention: retention})
		a := t.activity()
		begin := func() {
			load, err := syncer.LoadBegin(t.ctx, a)
			if err == nil {
				_, err = syncer.LoadFinish(t.ctx, a.ID, load.Epoch, 1, 10, ledger.Open)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		begin()
		orders := []ledger.Reservation{wish("u1", 1), wish("u2", 1), wish("u3", 1)}
		for _, r := range orders {
			t.mustReserve(r)
		}
		if _, err := t.Release(t.ctx, a.ID, orders[0], time.Minute); err != nil {
			t.Fatal(err)
		}
		t.settle(ledger.Settlement{Version: 2, Stock: 9, Orders: []ledger.Outcome{landed(orders[1], t.item, order.Confirmed)}})
		if err := t.MarkQueued(t.ctx, a.ID, []ledger.Ack{{Order: orders[2].Order, User: "u3", Item: t.item, Quantity: 1}}); err != nil {
			t.Fatal(err)
		}
		most := time.Until(time.UnixMilli(a.EndsAtMs)) + retention + time.Minute
		for i, r := range orders {
			ttl, err := t.rdb.PTTL(t.ctx, ledger.KeysOf(a.ID).Result(r.Order)).Result()
			if err != nil || ttl <= retention/2 || ttl > most {
				t.Errorf("result %d stands for %v, want up to %v; %v", i, ttl, most, err)
			}
		}
		// It follows the syncer when that is set otherwise.
		syncer = ledger.New(t.rdb, ledger.Options{Retention: 2 * retention})
		if known, err := syncer.SetActivity(t.ctx, a); err != nil || !known {
			t.Fatal(known, err)
		}
		if got, err := t.rdb.HGet(t.ctx, t.keys.Activity, "retention").Int64(); err != nil || got != (2*retention).Milliseconds() {
			t.Errorf("the activity keeps a retention of %d ms: %v", got, err)
		}
	})
}

// E14: what stands in the activity as its retention, after a hand or a disk has mangled it, or of a load by an older version, leaves
// nothing half done and no result without an end.
func TestE14MangledRetention(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(10, 1)
		for i, mangled := range []string{"0", "", "x", "-5", "1e9", "missing"} {
			dropped, landedOne := wish(fmt.Sprintf("u%d", i), 1), wish(fmt.Sprintf("v%d", i), 1)
			t.mustReserve(dropped)
			t.mustReserve(landedOne)
			// Over, so that nothing but the retention is left of the time that results stand.
			ends := t.rdb.HGet(t.ctx, t.keys.Activity, "ends_at").Val()
			if err := t.rdb.HSet(t.ctx, t.keys.Activity, "ends_at", 1, "retention", mangled).Err(); err != nil {
				t.Fatal(err)
			}
			if mangled == "missing" {
				t.rdb.HDel(t.ctx, t.keys.Activity, "retention")
			}
			if got, err := t.Release(t.ctx, t.id, dropped, time.Minute); err != nil || got != ledger.ReleasedNow {
				t.Errorf("%q: release: %v, %v", mangled, got, err)
			}
			t.settle(ledger.Settlement{Orders: []ledger.Outcome{landed(landedOne, t.item, order.Confirmed)}})
			t.want(10, 0)
			for _, r := range []ledger.Reservation{dropped, landedOne} {
				if ttl := t.rdb.PTTL(t.ctx, ledger.KeysOf(t.id).Result(r.Order)).Val(); ttl <= 0 || ttl > ledger.DefaultRetention {
					t.Errorf("%q: a result stands for %v, want up to %v", mangled, ttl, ledger.DefaultRetention)
				}
			}
			t.rdb.HSet(t.ctx, t.keys.Activity, "ends_at", ends)
		}
	})
}
