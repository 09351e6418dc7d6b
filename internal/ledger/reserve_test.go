package ledger_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestReserveTakesStockAndKeepsAnEntry(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(10, 7)
		r := wish("u1", 3)
		r.Extra = []byte(`{"address":1}`)
		d := t.reserve(r)
		if d.Code != ledger.Reserved || d.Available != 7 || d.Order != r.Order || d.Item != t.item || d.NowMs == 0 {
			t.Fatalf("%+v", d)
		}
		t.want(10, 3)
		e := t.entries()[0]
		if e.Order != r.Order || e.User != "u1" || e.Item != t.item || e.Quantity != 3 || string(e.Extra) != `{"address":1}` || e.ReservedAtMs != d.NowMs {
			t.Fatalf("%+v", e)
		}
		v, err := t.Mine(t.ctx, t.id, "u1")
		if err != nil || v.Order != r.Order || v.Status != order.Processing || v.Quantity != 3 {
			t.Fatalf("%+v, %v", v, err)
		}
	})
}

func TestReserveAgainGivesTheFirstResult(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(10, 7)
		r := wish("u1", 1)
		first := t.reserve(r)
		for range 3 {
			d := t.reserve(r)
			if d.Code != ledger.Again || d.ReservedAtMs != first.NowMs {
				t.Fatalf("%+v", d)
			}
		}
		t.want(10, 1)
		if err := t.MarkQueued(t.ctx, t.id, []ledger.Ack{{Order: r.Order, User: "u1", Item: t.item, Quantity: 1, Partition: 2, Offset: 41}}); err != nil {
			t.Fatal(err)
		}
		if d := t.reserve(r); d.Code != ledger.Again || d.Result == nil || d.Result.Status != order.Queued || d.Result.Offset != 41 {
			t.Fatalf("%+v", d)
		}
		t.settle(ledger.Settlement{Version: 8, Stock: 9, Orders: []ledger.Outcome{landed(r, t.item, order.Confirmed)}})
		if d := t.reserve(r); d.Code != ledger.Decided || d.Result.Status != order.Confirmed {
			t.Fatalf("%+v", d)
		}
		t.want(9, 0)
	})
}

// The refusals, each with the state that causes it. No refusal may change anything but the user's window.
func TestE13E14E15E88ReserveRefuses(t *testing.T) {
	now := time.Now().UnixMilli()
	for name, c := range map[string]struct {
		change  func(*ledger.Activity)
		prepare func(*bench)
		wish    func(*ledger.Reservation)
		want    ledger.Code
	}{
		"E88 before the start": {change: func(a *ledger.Activity) { a.StartsAtMs = now + 60_000 }, want: ledger.NotStarted},
		"E88 after the end":    {change: func(a *ledger.Activity) { a.EndsAtMs = now - 1 }, want: ledger.IsEnded},
		"closed":               {change: func(a *ledger.Activity) { a.State = ledger.Closed }, want: ledger.IsEnded},
		"paused":               {change: func(a *ledger.Activity) { a.State = ledger.Paused }, want: ledger.IsPaused},
		"recovering":           {prepare: func(b *bench) { _ = b.SetRecovering(b.ctx, b.id, "test") }, want: ledger.IsRecovering},
		"recovering before the start": {
			change:  func(a *ledger.Activity) { a.StartsAtMs = now + 60_000 },
			prepare: func(b *bench) { _ = b.SetRecovering(b.ctx, b.id, "test") }, want: ledger.IsRecovering,
		},
		"not after":                  {wish: func(r *ledger.Reservation) { r.NotAfterMs = now - 5_000 }, want: ledger.TooLate},
		"sold out":                   {wish: func(r *ledger.Reservation) { r.Quantity = 6 }, want: ledger.SoldOut},
		"too many":                   {wish: func(r *ledger.Reservation) { r.Quantity = 11 }, want: ledger.TooMany},
		"zero":                       {wish: func(r *ledger.Reservation) { r.Quantity = 0 }, want: ledger.TooMany},
		"negative":                   {wish: func(r *ledger.Reservation) { r.Quantity = -1 }, want: ledger.TooMany},
		"a state of a later version": {prepare: func(b *bench) { b.redis("HSET", b.keys.Activity, "state", "raffle") }, want: ledger.IsRecovering},
		"E13 stock deleted":          {prepare: func(b *bench) { b.redis("DEL", b.keys.Stock) }, want: ledger.NotLoaded},
		"E13 pending deleted":        {prepare: func(b *bench) { b.redis("DEL", b.keys.Pending) }, want: ledger.NotLoaded},
		"E13 version deleted":        {prepare: func(b *bench) { b.redis("DEL", b.keys.Version) }, want: ledger.NotLoaded},
		"E13 ledger deleted": {prepare: func(b *bench) {
			b.mustReserve(wish("other", 1))
			b.redis("DEL", b.keys.Ledger)
		}, want: ledger.NotLoaded},
		"E13 buyers deleted": {prepare: func(b *bench) {
			b.mustReserve(wish("other", 1))
			b.redis("DEL", b.keys.Buyers)
		}, want: ledger.NotLoaded},
		"E15 never loaded":             {prepare: func(b *bench) { b.redis("DEL", b.keys.Activity) }, want: ledger.NotLoaded},
		"E14 pending not a number":     {prepare: func(b *bench) { b.redis("SET", b.keys.Pending, "abc") }, want: ledger.NotLoaded},
		"E14 stock of a wrong type":    {prepare: func(b *bench) { b.redis("DEL", b.keys.Stock); b.redis("HSET", b.keys.Stock, "a", "b") }, want: ledger.NotLoaded},
		"E14 ledger of a wrong type":   {prepare: func(b *bench) { b.redis("SET", b.keys.Ledger, "abc") }, want: ledger.NotLoaded},
		"E14 buyers of a wrong type":   {prepare: func(b *bench) { b.redis("SET", b.keys.Buyers, "abc") }, want: ledger.NotLoaded},
		"E14 activity of a wrong type": {prepare: func(b *bench) { b.redis("SET", b.keys.Activity, "abc") }, want: ledger.NotLoaded},
		"E14 negative stock":           {prepare: func(b *bench) { b.redis("SET", b.keys.Stock, "-1") }, want: ledger.NotLoaded},
		"E105 another run id":          {prepare: func(b *bench) { b.redis("HSET", b.keys.Activity, "server", "aa:bb") }, want: ledger.WrongServer},
	} {
		t.Run(name, func(t *testing.T) {
			b := onRedis(t)
			a := b.activity()
			if c.change != nil {
				c.change(&a)
			}
			b.loadAs(a, 5, 1)
			if c.prepare != nil {
				c.prepare(b)
			}
			r := wish("u1", 1)
			if c.wish != nil {
				c.wish(&r)
			}
			window := b.keys.UserWindow("u1")
			before := b.dump(window, b.keys.Result(r.Order))
			d := b.reserve(r)
			if d.Code != c.want || d.Order != r.Order {
				t.Fatalf("got %+v, want code %d", d, c.want)
			}
			if after := b.dump(window, b.keys.Result(r.Order)); after != before {
				t.Fatalf("a refusal changed something:\n%s\n%s", before, after)
			}
		})
	}
}

// E88: from before the start to after the end buyers try all the time, through gateways whose own clocks differ. Redis' clock
// alone decides, to the millisecond, and nothing is reserved outside of the sale.
func TestE88OnlyBetweenStartAndEnd(t *testing.T) {
	t.Parallel()
	b := onRedis(t)
	a := b.activity()
	a.StartsAtMs = b.look().NowMs + 500
	a.EndsAtMs = a.StartsAtMs + 500
	b.loadAs(a, 1_000_000, 1)
	var reserved, early, late atomic.Int64
	var wg sync.WaitGroup
	for gateway := range 4 {
		wg.Go(func() {
			l := ledger.New(b.rdb, ledger.Options{})
			for i := 0; ; i++ {
				r := wish(fmt.Sprintf("g%d u%d", gateway, i), 1)
				d, err := l.Reserve(b.ctx, b.id, []ledger.Reservation{r})
				if err != nil {
					t.Error(err)
					return
				}
				at := d[0].NowMs
				want := ledger.Reserved
				switch {
				case at < a.StartsAtMs:
					want = ledger.NotStarted
					early.Add(1)
				case at >= a.EndsAtMs:
					want = ledger.IsEnded
					late.Add(1)
				default:
					reserved.Add(1)
				}
				if d[0].Code != want {
					t.Errorf("%d ms after the start: code %d, want %d", at-a.StartsAtMs, d[0].Code, want)
					return
				}
				if at > a.EndsAtMs+50 {
					return
				}
			}
		})
	}
	wg.Wait()
	if early.Load() == 0 || reserved.Load() == 0 || late.Load() == 0 {
		t.Fatalf("%d before, %d within, %d after: want some of each", early.Load(), reserved.Load(), late.Load())
	}
	b.want(1_000_000, reserved.Load())
}

func TestE84OneUserManyClicksReservesOnce(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(10, 1)
		var got [15]int
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 2 { // two gateways at once, each with a batch
			batch := make([]ledger.Reservation, 50)
			for i := range batch {
				batch[i] = wish("u1", 1)
			}
			all.Go(func() {
				d, err := t.Reserve(t.ctx, t.id, batch)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, x := range d {
					got[x.Code]++
				}
			})
		}
		all.Wait()
		if got[ledger.Reserved] != 1 || got[ledger.AlreadyHas] != 99 {
			t.Fatalf("codes: %v", got)
		}
		t.want(10, 1)
	})
}

func TestE94ALargeWishThatDoesNotFitDisturbsNobody(t *testing.T) {
	b := onRedis(t)
	b.load(2, 1)
	d, err := b.Reserve(b.ctx, b.id, []ledger.Reservation{wish("a", 3), wish("b", 1), wish("c", 3), wish("d", 1), wish("e", 1)})
	if err != nil {
		t.Fatal(err)
	}
	want := []ledger.Code{ledger.SoldOut, ledger.Reserved, ledger.SoldOut, ledger.Reserved, ledger.SoldOut}
	for i := range d {
		if d[i].Code != want[i] {
			t.Fatalf("member %d: %+v", i, d[i])
		}
	}
	if d[0].Available != 2 || d[4].Available != 0 {
		t.Fatalf("available: %d, %d", d[0].Available, d[4].Available)
	}
	b.want(2, 2)
}

func TestUserWindow(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(1, 1)
		t.mustReserve(wish("first", 1))
		r := wish("u1", 1)
		r.Window = 5 * time.Second
		// Sold out uses the window up, and a repeat of that very call is not a second try.
		for range 2 {
			if d := t.reserve(r); d.Code != ledger.SoldOut {
				t.Fatalf("%+v", d)
			}
		}
		second := wish("u1", 1)
		second.Window = 5 * time.Second
		d := t.reserve(second)
		if d.Code != ledger.TooFrequent || d.RetryAfter <= 0 || d.RetryAfter > 5*time.Second {
			t.Fatalf("%+v", d)
		}
		t.want(1, 1)
	})
}

// A refusal that comes before the window has not used it up.
func TestUserWindowIsNotUsedByEarlierRefusals(t *testing.T) {
	b := onRedis(t)
	a := b.activity()
	a.State = ledger.Paused
	b.loadAs(a, 5, 1)
	r := wish("u1", 1)
	r.Window = time.Minute
	if d := b.reserve(r); d.Code != ledger.IsPaused {
		t.Fatalf("%+v", d)
	}
	a.State = ledger.Open
	if _, err := b.SetActivity(b.ctx, a); err != nil {
		t.Fatal(err)
	}
	next := wish("u1", 1)
	next.Window = time.Minute
	b.mustReserve(next)
}

func TestE113OneBadMemberFailsAlone(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(10, 1)
		t.redis("HSET", t.keys.UserWindow("bad"), "a", "b")
		var batch []ledger.Reservation
		for _, u := range []string{"u1", "bad", "u2", "u3"} {
			r := wish(u, 1)
			r.Window = time.Second
			batch = append(batch, r)
		}
		d, err := t.Reserve(t.ctx, t.id, batch)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []ledger.Code{ledger.Reserved, ledger.BadKey, ledger.Reserved, ledger.Reserved} {
			if d[i].Code != want {
				t.Fatalf("member %d: %+v", i, d[i])
			}
		}
		if !strings.Contains(d[1].Err, "WRONGTYPE") {
			t.Fatalf("%+v", d[1])
		}
		t.want(10, 3)
	})
}

func TestE110UsersThatDifferInCaseAreTwo(t *testing.T) {
	b := onRedis(t)
	b.load(10, 1)
	b.mustReserve(wish("u1", 1))
	b.mustReserve(wish("U1", 1))
	b.mustReserve(wish("用户", 1))
	b.want(10, 3)
}

func TestE04ScriptsThatTheServerForgot(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(10, 1)
		t.mustReserve(wish("u1", 1))
		t.redis("SCRIPT", "FLUSH")
		d := t.reserve(wish("u2", 1))
		if d.Code != ledger.Reserved || d.Repeated {
			t.Fatalf("NOSCRIPT proves that nothing ran, so this is one attempt: %+v", d)
		}
		t.redis("SCRIPT", "FLUSH")
		t.want(10, 2)
	})
}

// E05: scripts that run in a pipeline survive that the server has forgotten them.
func TestE05PipelineAfterScriptFlush(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(10, 1)
		t.mustReserve(wish("u1", 1))
		ids := []int64{t.id, t.id + 1, t.id + 2} // of which one is loaded, each on a node of its own
		if _, err := t.Inspect(t.ctx, ids...); err != nil {
			t.Fatal(err)
		}
		flush := func(ctx context.Context, c *redis.Client) error { return c.ScriptFlush(ctx).Err() }
		var err error
		if c, ok := t.rdb.(*redis.ClusterClient); ok {
			err = c.ForEachMaster(t.ctx, flush)
		} else {
			err = flush(t.ctx, t.rdb.(*redis.Client))
		}
		if err != nil {
			t.Fatal(err)
		}
		s, err := t.Inspect(t.ctx, ids...)
		if err != nil || len(s) != 3 || s[0].Pending != 1 || !s[0].Loaded || s[1].Exists || s[2].Exists {
			t.Fatalf("%+v, %v", s, err)
		}
	})
}

// E06: the keys of an activity share its tag, literally in braces, and so a slot of the cluster, whatever a user is called.
func TestE06KeysOfAnActivityShareASlot(t *testing.T) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: testenv.StartRedisCluster(t, 3), MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	slot := func(key string) int64 {
		n, err := rdb.ClusterKeySlot(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, id := range []int64{1, 42, 1<<53 + 7, 9223372036854775807} {
		k := ledger.KeysOf(id)
		want := slot(fmt.Sprintf("{%d}", id))
		keys := []string{k.Stock, k.Version, k.Pending, k.Ledger, k.Buyers, k.Activity, k.Marker}
		for _, user := range []string{"u1", "{}", "{other}", "a}b{c", "用户", "}{"} {
			keys = append(keys, k.UserWindow(user), k.LastOrder(user), k.Result(user))
		}
		for _, key := range keys {
			if got := slot(key); got != want || !strings.Contains(key, fmt.Sprintf("{%d}", id)) {
				t.Errorf("%s is in slot %d, the activity in %d", key, got, want)
			}
		}
	}
}

// E85: a buyer's mark outlives the user window, and whatever a queue's delay may be: it has no end of its own.
func TestE85TheMarkOutlivesTheWindow(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(10, 1)
		first := wish("u1", 1)
		first.Window = 20 * time.Millisecond
		t.mustReserve(first)
		testenv.Eventually(t, 10*time.Second, "the window is over", func() bool {
			return t.rdb.Exists(t.ctx, t.keys.UserWindow("u1")).Val() == 0
		})
		if ttl := t.rdb.TTL(t.ctx, t.keys.Buyers).Val(); ttl != -1 {
			t.Errorf("the marks end in %v", ttl)
		}
		second := wish("u1", 1)
		second.Window = first.Window
		if d := t.reserve(second); d.Code != ledger.AlreadyHas || d.LiveOrder != first.Order {
			t.Fatalf("%+v", d)
		}
		t.want(10, 1)
	})
}

func TestE98StockOfOneGoesToOne(t *testing.T) {
	b := onRedis(t)
	b.load(1, 1)
	batcher := ledger.NewBatcher(b.Ledger, ledger.BatcherOptions{MaxBatch: 16})
	defer batcher.Close()
	var reserved, refused sync.Map
	var all sync.WaitGroup
	for i := range 500 {
		all.Go(func() {
			d, err := batcher.Reserve(b.ctx, b.id, wish(strings.Repeat("u", 1+i%100)+string(rune('a'+i/100)), 1))
			switch {
			case err != nil:
				t.Error(err)
			case d.Code == ledger.Reserved:
				reserved.Store(i, true)
			default:
				refused.Store(i, true)
			}
		})
	}
	all.Wait()
	n := 0
	reserved.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Fatalf("%d reservations of one unit", n)
	}
	b.want(1, 1)
}

// Out of memory between a reservation's first and second write must not leave a half: Redis asks only before the first.
func TestE14OutOfMemory(t *testing.T) {
	b := onRedis(t)
	b.load(1_000_000, 1)
	b.redis("CONFIG", "SET", "maxmemory", "1")
	before := b.dump()
	r := wish("u1", 1)
	_, err := b.Reserve(b.ctx, b.id, []ledger.Reservation{r})
	if err == nil || !strings.Contains(err.Error(), "OOM") || !isNotExecuted(err) {
		t.Fatalf("want a refusal that proves that nothing ran, got %v", err)
	}
	r.Window = time.Second
	d := b.reserve(r)
	if d.Code != ledger.BadKey || !strings.Contains(d.Err, "OOM") {
		t.Fatalf("%+v", d)
	}
	if after := b.dump(); after != before {
		t.Fatalf("changed:\n%s\n%s", before, after)
	}
}

// E14: a right that is taken away while scripts run stops them half-way. Redis never offers more than MySQL has and nobody holds
// (I5), however often the call is repeated.
func TestE14RightTakenAwayHalfWay(t *testing.T) {
	srv := testenv.StartRedis(t)
	admin := singleClient(t, srv.Addr)
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "gateway", "on", ">secret", "~*", "&*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr, Username: "gateway", Password: "secret", MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	for _, right := range []string{"incrby", "decrby", "hset", "hdel", "set", "publish"} {
		for _, call := range []string{"reserve", "settle", "release"} {
			t.Run(call+" without "+right, func(t *testing.T) {
				b := newBench(t, rdb)
				b.load(10, 1)
				mine, other := wish("mine", 3), wish("other", 2)
				b.mustReserve(mine)
				b.mustReserve(other)
				mysql, landedOne := int64(10), ""
				again := wish("again", 4)
				again.NotAfterMs += time.Minute.Milliseconds()
				acl(t, admin, "-"+right)
				for range 3 {
					switch call { // stopped half-way or not
					case "reserve":
						_, _ = b.Reserve(b.ctx, b.id, []ledger.Reservation{again})
					case "settle":
						mysql, landedOne = 7, mine.Order
						_, _ = b.Settle(b.ctx, ledger.Settlement{
							Activity: b.id, Version: 2, Stock: 7, Orders: []ledger.Outcome{landed(mine, b.item, order.Confirmed)},
						})
					case "release":
						_, _ = b.Release(b.ctx, b.id, mine, time.Minute)
					}
					held := int64(0)
					for _, e := range b.entries() {
						if e.Order != landedOne {
							held += e.Quantity
						}
					}
					if s := b.look(); s.Stock-s.Pending > mysql-held {
						t.Errorf("redis offers %d - %d units; mysql has %d, of which %d are held", s.Stock, s.Pending, mysql, held)
					}
				}
				acl(t, admin, "+"+right)
			})
		}
	}
}

func acl(t *testing.T, admin *redis.Client, rule string) {
	t.Helper()
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "gateway", rule).Err(); err != nil {
		t.Fatal(err)
	}
}
