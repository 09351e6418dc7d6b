package runner_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// inTheMiddle makes a sale with everything in it: landed, dead, and queued orders.
func inTheMiddle(b *synctest.Bench, a ledger.Activity) {
	b.Helper()
	b.Buy(a, "landed", 3)
	dead := b.Buy(a, "dead", 2)
	b.Land(true)
	b.Exec("UPDATE orders SET status = 'EXPIRED' WHERE order_id = ?", dead.ID)
	testenv.Eventually(b, 20*time.Second, "the dead order to free its buyer", func() bool { return b.Look(a).BuyersLen == 1 })
	b.Buy(a, "queued", 4)
}

// rebuilt checks what inTheMiddle made.
func rebuilt(b *synctest.Bench, a ledger.Activity, initial int64) {
	b.Helper()
	s := b.Look(a)
	if s.Stock != initial-3 || s.Pending != 4 || s.LedgerLen != 1 || s.BuyersLen != 2 {
		b.Errorf("rebuilt: %+v; want stock %d, pending 4 in one entry, two buyers", s, initial-3)
	}
	for user, want := range map[string]ledger.Code{"landed": ledger.AlreadyHas, "queued": ledger.AlreadyHas} {
		if _, code := b.Reserve(a, user, 1); code != want {
			b.Errorf("%s buys again: code %d, want %d", user, code, want)
		}
	}
	b.Land(true)
	b.Equal(a)
}

// E115, E12: Redis is emptied in the middle of a sale. Until it is rebuilt buyers hear 503: at no moment is the activity
// unknown or sold out.
func TestE12E115RedisIsEmptied(t *testing.T) {
	t.Parallel()
	for name, empty := range map[string]func(b *synctest.Bench){
		"flushed":   func(b *synctest.Bench) { b.Client().FlushAll(b.Context()) },
		"restarted": func(b *synctest.Bench) { b.Server.Restart() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := synctest.New(t, synctest.Quiet)
			a, _, h := following(t, b, 20)
			inTheMiddle(b, a)
			stop := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() { watchForLies(b, a, stop) })
			epoch := b.Look(a).Epoch
			empty(b)
			b.Loaded(a, epoch)
			close(stop)
			wg.Wait()
			rebuilt(b, a, 20)
			b.Ready(h)
		})
	}
}

// watchForLies asks as gateways do, all the time.
func watchForLies(b *synctest.Bench, a ledger.Activity, stop chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		c, err := b.Ledger.Catalogue(b.Context())
		if err == nil {
			if _, listed := c.Activities[a.ID]; !listed {
				b.Error("the catalogue is there without the activity: 404")
				return
			}
		}
		id, _ := order.NewID()
		ds, err := b.Ledger.Reserve(b.Context(), a.ID, []ledger.Reservation{{
			// Too many units for anybody: refused with TooMany while on sale, so that nothing is reserved.
			Order: id, Nonce: id, User: fmt.Sprintf("w%d", i), Quantity: 11, NotAfterMs: time.Now().Add(time.Second).UnixMilli(),
		}})
		if err != nil {
			continue
		}
		switch ds[0].Code {
		case ledger.TooMany, ledger.NotLoaded, ledger.IsRecovering, ledger.WrongServer, ledger.TooLate:
		default:
			b.Errorf("a buyer hears code %d", ds[0].Code)
			return
		}
	}
}

// E13, E14: single keys are deleted, expire, or are of another type.
func TestE13E14SingleKeysAreLost(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(c *redis.Client, k ledger.Keys, b *synctest.Bench){
		"stock deleted":    func(c *redis.Client, k ledger.Keys, b *synctest.Bench) { c.Del(b.Context(), k.Stock) },
		"pending deleted":  func(c *redis.Client, k ledger.Keys, b *synctest.Bench) { c.Del(b.Context(), k.Pending) },
		"version deleted":  func(c *redis.Client, k ledger.Keys, b *synctest.Bench) { c.Del(b.Context(), k.Version) },
		"buyers deleted":   func(c *redis.Client, k ledger.Keys, b *synctest.Bench) { c.Del(b.Context(), k.Buyers) },
		"ledger deleted":   func(c *redis.Client, k ledger.Keys, b *synctest.Bench) { c.Del(b.Context(), k.Ledger) },
		"activity deleted": func(c *redis.Client, k ledger.Keys, b *synctest.Bench) { c.Del(b.Context(), k.Activity) },
		"stock expires": func(c *redis.Client, k ledger.Keys, b *synctest.Bench) {
			c.PExpire(b.Context(), k.Stock, time.Millisecond)
		},
		"pending is a word": func(c *redis.Client, k ledger.Keys, b *synctest.Bench) { c.Set(b.Context(), k.Pending, "abc", 0) },
		"stock is a hash": func(c *redis.Client, k ledger.Keys, b *synctest.Bench) {
			c.Del(b.Context(), k.Stock)
			c.HSet(b.Context(), k.Stock, "a", "b")
		},
		"buyers is a text": func(c *redis.Client, k ledger.Keys, b *synctest.Bench) { c.Set(b.Context(), k.Buyers, "abc", 0) },
		"ledger is a text": func(c *redis.Client, k ledger.Keys, b *synctest.Bench) { c.Set(b.Context(), k.Ledger, "abc", 0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := synctest.New(t, synctest.Quiet)
			a, _, h := following(t, b, 20)
			inTheMiddle(b, a)
			epoch := b.Look(a).Epoch
			spoil(b.Client(), ledger.KeysOf(a.ID), b)
			b.Loaded(a, epoch)
			rebuilt(b, a, 20)
			b.Ready(h)
		})
	}
}

// E11: a Redis comes back from an older state, without writes that it had acknowledged. Reservations that are in Kafka
// are not forgotten; nobody who was told "queued" is; surplus buyers are told so by MySQL.
func TestE11OldSnapshot(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	a, _, h := following(t, b, 10)
	b.Buy(a, "before", 1)
	if err := b.Client().Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		b.Buy(a, fmt.Sprintf("lost%d", i), 1)
	}
	unpublished := b.MustReserve(a, "unpublished", 1)
	epoch := b.Look(a).Epoch
	b.Server.Kill()
	b.Server.Restart()
	if _, code := b.Reserve(a, "late", 1); code != ledger.WrongServer && code != ledger.IsRecovering {
		t.Fatalf("code %d from a server that lost writes, want none of its own", code)
	}
	b.Loaded(a, epoch)
	if s := b.Look(a); s.Stock != 10 || s.Pending != 6 || s.BuyersLen != 6 {
		t.Fatalf("%+v; want stock 10, six pending of six buyers", s)
	}
	b.Land(true)
	b.Equal(a)
	b.Ready(h)
	rows, err := b.Store.Orders(t.Context(), []string{unpublished.ID})
	if err != nil || len(rows) != 0 {
		t.Fatalf("an order that was never published landed: %v, %v", rows, err)
	}
	if s := b.Stock(a); s != 4 {
		t.Fatalf("stock %d, want 4", s)
	}
}

// Two syncers: one leads; the other takes over when the first one goes, or is thought to have.
func TestLeadership(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet, func(c *runner.Config) { c.Name = "first" })
	a, first, h1 := following(t, b, 10)
	cfg := b.Cfg
	cfg.Name = "second"
	second := b.OpenParts(cfg)
	_, h2 := b.SyncerOn(second)
	testenv.Eventually(t, 20*time.Second, "the second to stand by, well", func() bool { return h2.Err() == nil && h2.Of("lease") == nil })
	holder := func(want string) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, want+" to lead", func() bool {
			got, err := b.Ledger.LeaseHolder(t.Context())
			return err == nil && strings.HasPrefix(got, want)
		})
	}
	holder("first")
	// The first was paused and its lease ran out: it notices and stands back.
	if ok, err := second.Ledger.SavePosition(t.Context(), "second", "x"); ok || err != nil {
		t.Fatalf("the position was kept by one that does not lead: %v, %v", ok, err)
	}
	b.Client().Set(t.Context(), "seckill:{syncer}:leader", "somebody else", 1500*time.Millisecond)
	testenv.Eventually(t, 20*time.Second, "the first to stand back", func() bool { return h1.Of("lease") == nil && !first.Leads() })
	testenv.Eventually(t, 20*time.Second, "one of them to lead again", func() bool {
		got, _ := b.Ledger.LeaseHolder(t.Context())
		return got != "" && got != "somebody else"
	})
	b.Restock(a, 1)
	b.Equal(a)
	first.Stop()
	holder("second")
	b.Restock(a, 1)
	b.Equal(a)
}

// An activity that has ended leaves Redis after its grace, and not before its last reservation is settled.
func TestRetire(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, func(c *runner.Config) { c.EndGrace = 500 * time.Millisecond })
	a, _, h := following(t, b, 10)
	o := b.Buy(a, "u", 1)
	b.Exec("UPDATE activity SET ends_at_ms = ? WHERE activity_id = ?", time.Now().UnixMilli()-1000, a.ID)
	testenv.Eventually(t, 20*time.Second, "the end to reach redis", func() bool { return b.Look(a).Activity.EndsAtMs < time.Now().UnixMilli() })
	never(t, 1500*time.Millisecond, "the activity was removed with a reservation open", func() bool { return !b.Look(a).Exists })
	shown, err := b.All.Wanted(t.Context())
	if err != nil || !slices.ContainsFunc(shown, func(x ledger.Activity) bool { return x.ID == a.ID }) {
		t.Errorf("status and compare are of %v (%v), want also what is over and has a reservation open", shown, err)
	}
	b.Land(true)
	testenv.Eventually(t, 20*time.Second, "the activity to be removed", func() bool {
		c, err := b.Ledger.Catalogue(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, listed := c.Activities[a.ID]
		return !listed && !b.Look(a).Exists
	})
	if v, err := b.Ledger.Lookup(t.Context(), a.ID, o.ID); err != nil || v.Status != order.Confirmed {
		t.Errorf("the result is %q (%v) after the end, want CONFIRMED", v.Status, err)
	}
	b.Ready(h)
}

// The leader died between taking an activity off the list and removing its keys. A row that Redis refuses for good, the item of a loaded
// activity was changed, stops nothing meanwhile.
func TestRetireWhatWasForgotten(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, func(c *runner.Config) { c.EndGrace = 500 * time.Millisecond })
	a, s, _ := following(t, b, 10)
	other := b.Activity(5)
	b.Loaded(other, "")
	s.Stop()
	b.Exec("UPDATE activity SET ends_at_ms = ? WHERE activity_id = ?", time.Now().UnixMilli()-1000, a.ID)
	b.Exec("UPDATE activity SET item_id = item_id + 1 WHERE activity_id = ?", other.ID)
	c, err := b.Ledger.Catalogue(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	delete(c.Activities, a.ID)
	if err := b.Ledger.PutCatalogue(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	b.Syncer()
	testenv.Eventually(t, 20*time.Second, "the activity to be removed", func() bool { return !b.Look(a).Exists })
	if !b.Look(other).Loaded {
		t.Error("the other activity is not loaded any more")
	}
}

// What is open in an activity that is long over still comes to its end: nobody else would publish what a gateway has left, and the item's
// next activity waits for it.
func TestRetireSweepsFirst(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(b *synctest.Bench, a ledger.Activity){
		"as it is":     func(*synctest.Bench, ledger.Activity) {},
		"to be loaded": func(b *synctest.Bench, a ledger.Activity) { b.Client().Del(b.Context(), ledger.KeysOf(a.ID).Stock) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := synctest.New(t, func(c *runner.Config) { c.EndGrace, c.Horizon = time.Millisecond, 3*time.Second })
			a, _, h := following(t, b, 10)
			o := b.MustReserve(a, "u", 2) // its gateway died
			b.Exec("UPDATE activity SET ends_at_ms = ? WHERE activity_id = ?", time.Now().UnixMilli()-1000, a.ID)
			testenv.Eventually(t, 20*time.Second, "the end to reach redis", func() bool { return b.Look(a).Activity.EndsAtMs < time.Now().UnixMilli() })
			spoil(b, a)
			testenv.Eventually(t, 30*time.Second, "the activity to be removed", func() bool {
				b.Land(true)
				c, err := b.Ledger.Catalogue(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				_, listed := c.Activities[a.ID]
				return !listed && !b.Look(a).Exists
			})
			if v, err := b.Ledger.Lookup(t.Context(), a.ID, o.ID); err != nil || v.Status != order.Confirmed {
				t.Errorf("the result is %q (%v) after the end, want CONFIRMED", v.Status, err)
			}
			b.Ready(h)
		})
	}
}

// never polls for something that must not happen.
func never(t *testing.T, d time.Duration, what string, cond func() bool) {
	t.Helper()
	end := time.After(d)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-end:
			return
		case <-tick.C:
			if cond() {
				t.Fatal(what)
			}
		}
	}
}

// E108 by the daemon: the next activity of an item opens by itself once the former is over.
func TestE108NextActivityOfAnItem(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	first, _, h := following(t, b, 10)
	b.Buy(first, "u", 2)
	next := first
	next.ID, next.StartsAtMs = testenv.ID(), first.StartsAtMs+1
	b.Exec("INSERT INTO activity (activity_id, item_id, title, starts_at_ms, ends_at_ms, max_per_user, state) VALUES (?, ?, 'next', ?, ?, 10, 'open')",
		next.ID, next.Item, next.StartsAtMs, next.EndsAtMs)
	b.Exec("UPDATE activity SET state = 'closed' WHERE activity_id = ?", first.ID)
	never(t, time.Second, "the next activity opened with an order of the former queued", func() bool { return b.Look(next).Loaded })
	b.Land(true)
	b.Loaded(next, "")
	if s := b.Look(next); s.Stock != 8 {
		t.Fatalf("stock %d, want 8", s.Stock)
	}
	b.Buy(next, "u", 1)
	b.Land(true)
	b.Equal(next)
	b.Ready(h)
}

// E108 with the sales made in the wrong order: the later one is in Redis already when the one before it is made.
func TestE108EarlierActivityMadeLater(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	later := b.Activity(1)
	now := time.Now().UnixMilli()
	later.StartsAtMs, later.EndsAtMs = now+3_600_000, now+7_200_000
	b.Exec("UPDATE activity SET starts_at_ms = ?, ends_at_ms = ? WHERE activity_id = ?", later.StartsAtMs, later.EndsAtMs, later.ID)
	_, h := b.Syncer()
	b.Loaded(later, "")
	b.Ready(h)

	earlier := later
	earlier.ID, earlier.StartsAtMs, earlier.EndsAtMs = testenv.ID(), now-1000, now+1_800_000
	b.Exec("INSERT INTO activity (activity_id, item_id, title, starts_at_ms, ends_at_ms, max_per_user, state) VALUES (?, ?, 'earlier', ?, ?, 10, 'open')",
		earlier.ID, earlier.Item, earlier.StartsAtMs, earlier.EndsAtMs)
	b.Loaded(earlier, "")
	testenv.Eventually(t, 20*time.Second, "the later sale gives the item back", func() bool { return !b.Look(later).Loaded })
	b.Buy(earlier, "u", 1) // queued, not landed
	b.Ready(h)             // whose turn has not come is no alarm

	// The operator brings the later one forward: it has to wait for the order, which takes the only unit.
	b.Exec("UPDATE activity SET state = 'closed' WHERE activity_id = ?", earlier.ID)
	b.Exec("UPDATE activity SET starts_at_ms = ? WHERE activity_id = ?", now-500, later.ID)
	never(t, time.Second, "the later sale opened with an order of the former queued", func() bool { return b.Look(later).Loaded })
	b.Land(true)
	b.Loaded(later, "")
	if s := b.Look(later); s.Stock != 0 {
		t.Fatalf("stock %d, want 0", s.Stock)
	}
	b.Ready(h)
}

// A syncer that comes with another retention has it reach the sales that are loaded already.
func TestRetentionOfTheNextSyncer(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a, s, _ := following(t, b, 10)
	s.Stop()
	cfg := b.All.Config
	cfg.Retention = 2 * time.Hour
	b.SyncerOn(b.OpenParts(cfg))
	testenv.Eventually(t, 20*time.Second, "the retention to change", func() bool {
		kept, err := b.Client().HGet(t.Context(), ledger.KeysOf(a.ID).Activity, "retention").Result()
		return err == nil && kept == strconv.FormatInt(cfg.Retention.Milliseconds(), 10)
	})
}

func TestLifecycle(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	s := runner.New(b.All, &synctest.Health{}, runner.NewMetrics(nil))
	s.Stop()
	s.Start() // after Stop: nothing
	s.Stop()
	for range 5 {
		s := runner.New(b.All, &synctest.Health{}, runner.NewMetrics(nil))
		s.Start()
		s.Start()
		s.Stop()
		s.Stop()
	}
	if holder, err := b.Ledger.LeaseHolder(t.Context()); err != nil || holder != "" {
		t.Fatalf("the lease is held by %q (%v) after all have stopped", holder, err)
	}
}

// Another process loads the sale while the leader follows the binlog: what MySQL commits between that load's snapshot and its end
// reaches Redis all the same.
func TestE106StatusChangesDuringALoadElsewhere(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	a, _, h := following(t, b, 10)
	o := b.Buy(a, "u", 1)
	b.Land(true)
	other := b.OpenParts(b.All.Config)
	other.Redis.AddHook(&beforeFinish{then: func() {
		b.Exec("UPDATE orders SET status = 'PAID' WHERE order_id = ?", o.ID)
		at := time.Now().UnixMilli()
		testenv.Eventually(t, 20*time.Second, "the leader to pass the change", func() bool {
			board, _, err := b.All.ReadBoard(t.Context())
			return err == nil && board.AtMs > at && board.LagMs == 0
		})
	}})
	if _, err := other.Loader.Load(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, "the buyer to see that his order is paid", func() bool {
		v, err := b.Ledger.Lookup(t.Context(), a.ID, o.ID)
		return err == nil && v.Status == "PAID"
	})
	caughtUp(b) // the place in the binlog is kept again
	b.Ready(h)
}

// beforeFinish does something before the call that ends a load, which has the keys of its activity and six arguments.
type beforeFinish struct {
	once sync.Once
	then func()
}

func (h *beforeFinish) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *beforeFinish) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); args[0] == "evalsha" && len(args) == 3+7+6 && args[2] == 7 {
			h.once.Do(h.then)
		}
		return next(ctx, cmd)
	}
}

func (h *beforeFinish) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// The syncer comes up with everything down, says so, and works once it is there.
func TestStartWithRedisDown(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a := b.Activity(5)
	b.Server.Kill()
	_, h := b.Syncer()
	testenv.Eventually(t, 20*time.Second, "health to tell", func() bool {
		err := h.Of("lease")
		return err != nil && !errors.Is(err, errors.ErrUnsupported)
	})
	b.Server.Restart()
	b.Loaded(a, "")
	b.Ready(h)
}
