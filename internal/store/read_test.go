package store

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestRecord(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	o := *b.order(strings.Repeat("ü", 100)+"\xff", -4)
	o.Extra = []byte("no json")
	for range 2 {
		if err := b.Record(t.Context(), o, order.Failed, strings.Repeat("why ", 100)); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := b.Orders(t.Context(), []string{o.ID})
	if err != nil || rows[o.ID].Status != order.Failed || !rows[o.ID].Dead || rows[o.ID].User != strings.Repeat("ü", 64) {
		t.Fatalf("%+v, %v", rows, err)
	}
	landed := b.order("u1", 2)
	b.land(landed)
	if err := b.Record(t.Context(), *landed, order.Failed, "invalid"); err != nil {
		t.Fatal(err)
	}
	want(t, b.land(landed), "CONFIRMED") // a row that is there is the truth
	if err := b.Record(t.Context(), o, order.Confirmed, ""); !errors.Is(err, ErrInvalid) {
		t.Fatalf("a live row without stock: %v", err)
	}
	o.ID = "x"
	if err := b.Record(t.Context(), o, order.Failed, ""); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	b.exact(10)
}

func TestReadLiveOrders(t *testing.T) {
	t.Parallel()
	b := setup(t, 5000)
	all := b.orders(25, 1)
	other := b.order(all[0].User, 1)
	other.Activity++
	b.land(append(all, other)...)
	b.exec("UPDATE orders SET status = 'PAID' WHERE order_id = ?", all[3].ID)
	b.exec("UPDATE orders SET status = 'EXPIRED' WHERE order_id = ?", all[4].ID)

	got := map[string]ledger.Outcome{}
	slices := 0
	for id := ""; ; slices++ {
		part, err := b.LiveOrders(t.Context(), b.activity, id, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range part {
			if o.Order <= id {
				t.Fatal("not in order of ids")
			}
			id = o.Order
			got[id] = o
		}
		if len(part) < 10 {
			break
		}
	}
	if _, dead := got[all[4].ID]; dead || len(got) != 24 || slices != 2 || got[all[3].ID].Status != order.Paid {
		t.Fatalf("%d live orders in %d slices", len(got), slices)
	}
	live, err := b.LiveByUsers(t.Context(), b.activity, []string{all[3].User, all[4].User, "nobody"})
	if err != nil || len(live) != 1 || live[all[3].User].Order != all[3].ID {
		t.Fatalf("%v, %v", live, err)
	}
	with, err := b.OrdersWithActivity(t.Context(), []string{all[4].ID, other.ID})
	if err != nil || len(with) != 2 || !with[all[4].ID].Dead || with[other.ID].Activity != other.Activity {
		t.Fatalf("%v, %v", with, err)
	}
	if none, err := b.Orders(t.Context(), nil); err != nil || len(keys(none)) != 0 {
		t.Fatal(none, err)
	}
}

func TestSnapshotIsOneMoment(t *testing.T) {
	t.Parallel()
	b := setup(t, 5000)
	first := b.orders(1500, 1)
	b.land(first...)
	b.exec("UPDATE orders SET status = 'CANCELLED' WHERE order_id = ?", first[0].ID)
	v, err := b.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = v.Close() }()
	b.land(b.orders(100, 1)...)
	b.exec("UPDATE orders SET status = 'CANCELLED' WHERE order_id = ?", first[1].ID)

	var live, dead, slices int
	err = v.Orders(t.Context(), b.activity, func(part []ledger.Outcome) error {
		slices++
		for _, o := range part {
			if o.Dead {
				dead++
			} else {
				live++
			}
		}
		if slices == 1 {
			b.land(b.orders(10, 1)...) // in the middle of the reading
		}
		return nil
	})
	if err != nil || live != 1499 || dead != 1 || slices != 2 {
		t.Fatalf("%d live and %d dead orders in %d slices: %v", live, dead, slices, err)
	}
	stock, version, found, err := v.Inventory(t.Context(), b.item)
	if err != nil || !found || stock != 5000-1499 || version == 0 {
		t.Fatal(stock, version, found, err)
	}
	if _, err := v.Activity(t.Context(), b.activity); !errors.Is(err, ErrNoActivity) {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	if err := v.Orders(t.Context(), b.activity, func([]ledger.Outcome) error { return stop }); !errors.Is(err, stop) {
		t.Fatal(err)
	}
	if err := errors.Join(v.Close(), v.Close()); err != nil {
		t.Fatal(err)
	}
	if err := v.Orders(t.Context(), b.activity, func([]ledger.Outcome) error { return nil }); err == nil {
		t.Fatal("a closed snapshot still answers")
	}
}

func TestLockInventory(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	l, err := b.LockInventory(t.Context(), b.item, time.Minute)
	if err != nil || l.Stock != 10 || l.Version == 0 {
		t.Fatalf("%+v, %v", l, err)
	}
	if _, err := b.LockInventory(t.Context(), b.item, time.Minute); number(err) != errLockTimeout || !IsTransient(err) {
		t.Fatalf("two hold one lock: %v", err)
	}
	if err := errors.Join(l.Release(), l.Release()); err != nil {
		t.Fatal(err)
	}
	b.unlocked()
	if _, err := b.LockInventory(t.Context(), 404, time.Minute); !errors.Is(err, ErrNoInventory) {
		t.Fatal(err)
	}
}

// E71: the holder is slow, or its connection is lost. The row is free again in time, and the holder learns of it.
func TestE71_LockIsBounded(t *testing.T) {
	b := setup(t, 10)
	l, err := b.LockInventory(t.Context(), b.item, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	o := b.order("u1", 1)
	want(t, b.land(o), "CONFIRMED") // waits no longer than the bound
	<-l.Done()
	if err := l.Release(); !errors.Is(err, ErrLockLost) || IsTransient(err) {
		t.Fatalf("the holder did not learn that it lost the lock: %v", err)
	}

	l, err = b.LockInventory(t.Context(), b.item, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.kill(t.Context(), l.x.who); err != nil {
		t.Fatal(err)
	}
	want(t, b.land(b.orders(1, 1)...), "CONFIRMED")
	if err := l.Release(); !errors.Is(err, ErrLockLost) {
		t.Fatalf("the holder did not learn that its connection was lost: %v", err)
	}
	b.exact(10)
}

func TestActivities(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	ctx := t.Context()
	stock := int64(5)
	a := ledger.Activity{ID: 1, Item: 8, StartsAtMs: 1000, EndsAtMs: 2000, MaxPerUser: 3, State: ledger.Paused, Title: "秒杀"}
	if err := b.CreateActivity(ctx, a, nil); !errors.Is(err, ErrNoInventory) {
		t.Fatalf("an activity without stock: %v", err)
	}
	if err := b.CreateActivity(ctx, a, &stock); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Activity(ctx, 1); err != nil || got != a {
		t.Fatalf("%+v, %v", got, err)
	}
	if s, v, ok, err := b.Inventory(ctx, 8); s != 5 || v == 0 || !ok || err != nil {
		t.Fatal(s, v, ok, err)
	}
	huge := a
	huge.ID, huge.EndsAtMs = 3, ledger.MaxNumber+1
	if err := b.CreateActivity(ctx, huge, &stock); !errors.Is(err, ErrInvalid) {
		t.Fatalf("times that Redis cannot count with: %v", err)
	}
	if err := b.CreateActivity(ctx, a, &stock); !errors.Is(err, ErrActivityExists) {
		t.Fatal(err)
	}
	next := ledger.Activity{ID: 2, Item: 8, StartsAtMs: 1999, EndsAtMs: 3000}
	if err := b.CreateActivity(ctx, next, nil); !errors.Is(err, ErrOverlap) || IsTransient(err) {
		t.Fatalf("two sales of one item at once: %v", err)
	}
	next.StartsAtMs = 2000
	six := int64(6)
	if err := b.CreateActivity(ctx, next, &six); !errors.Is(err, ErrInvalid) {
		t.Fatalf("a stock that the shop has was overwritten: %v", err)
	}
	if err := b.CreateActivity(ctx, next, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.SetActivityState(ctx, 2, ledger.Closed); err != nil {
		t.Fatal(err)
	}
	between := ledger.Activity{ID: 3, Item: 8, StartsAtMs: 2500, EndsAtMs: 2600}
	if err := b.CreateActivity(ctx, between, nil); err != nil {
		t.Fatal(err)
	}
	for _, state := range []ledger.State{ledger.Open, ledger.Paused} {
		if err := b.ChangeActivityState(ctx, 2, state); !errors.Is(err, ErrClosed) || IsTransient(err) {
			t.Fatalf("a closed one is %s by the way: %v", state, err)
		}
	}
	if err := b.ChangeActivityState(ctx, 2, ledger.Closed); err != nil {
		t.Fatalf("closed twice: %v", err)
	}
	if err := b.SetActivityState(ctx, 2, ledger.Open); !errors.Is(err, ErrOverlap) {
		t.Fatalf("reopened into an overlap: %v", err)
	}
	if err := b.SetActivityState(ctx, 99, ledger.Open); !errors.Is(err, ErrNoActivity) {
		t.Fatal(err)
	}
	if err := b.SetActivityState(ctx, 1, ledger.Recovering); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	all, err := b.Activities(ctx)
	if err != nil || len(all) != 3 || all[1].State != ledger.Closed || all[2].MaxPerUser != 1 || all[2].State != ledger.Open {
		t.Fatalf("%+v, %v", all, err)
	}
	for name, bad := range map[string]ledger.Activity{
		"id": {Item: 8, StartsAtMs: 1, EndsAtMs: 2}, "times": {ID: 9, Item: 8, StartsAtMs: 2, EndsAtMs: 2},
		"max": {ID: 9, Item: 8, StartsAtMs: 1, EndsAtMs: 2, MaxPerUser: -1}, "state": {ID: 9, Item: 8, StartsAtMs: 1, EndsAtMs: 2, State: "x"},
	} {
		if err := b.CreateActivity(ctx, bad, nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestActivitiesMadeAtOnceDoNotOverlap(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for i := range 8 {
		wg.Go(func() {
			err := b.CreateActivity(t.Context(), ledger.Activity{ID: int64(i + 1), Item: b.item, StartsAtMs: 1000, EndsAtMs: 2000}, nil)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
			} else if !errors.Is(err, ErrOverlap) && number(err) != errDeadlock && number(err) != errLockTimeout {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := b.count("SELECT COUNT(*) FROM activity"); made != 1 || n != 1 {
		t.Fatalf("%d made, %d there", made, n)
	}
}

func TestTouch(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	_, was, _, _ := b.Inventory(t.Context(), b.item)
	stock, is, err := b.Touch(t.Context(), b.item)
	if err != nil || stock != 10 || is <= was {
		t.Fatal(stock, was, is, err)
	}
	if _, _, err := b.Touch(t.Context(), 404); !errors.Is(err, ErrNoInventory) {
		t.Fatal(err)
	}
	if _, _, err := b.TouchPast(t.Context(), b.item, ledger.MaxNumber); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
}

func TestBinlogPosition(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	was, err := b.BinlogPosition(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	flavor, err := b.Flavor(t.Context())
	if err != nil || was.Flavor != flavor || was.File == "" || was.Pos == 0 {
		t.Fatalf("%+v, %v", was, err)
	}
	if flavor == MariaDB && was.GTID == "" {
		t.Fatal("MariaDB without a GTID")
	}
	b.land(b.order("u1", 1))
	testenv.Eventually(t, 5*time.Second, "the position moves", func() bool {
		is, err := b.BinlogPosition(t.Context())
		return err == nil && (is.Pos > was.Pos || is.File > was.File)
	})
}
