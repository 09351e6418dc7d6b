package edge

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

func newQuery(t *testing.T) Query {
	t.Helper()
	id, err := order.NewID()
	if err != nil {
		t.Fatal(err)
	}
	return Query{Activity: saleID, User: buyer, OrderID: id}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	found := func(v ledger.View) func(*world) {
		return func(w *world) { v.Found = true; v.User, v.Item, v.Quantity = buyer, itemID, 2; w.views["any"] = v }
	}
	for name, c := range map[string]struct {
		world  func(*world)
		query  func(*Query)
		after  time.Duration // age of the id
		reason Reason
		want   OrderView
	}{
		"queued": {
			world: found(ledger.View{Status: order.Queued, Partition: 2, Offset: 97}),
			want:  OrderView{Status: order.Queued, Item: itemID, Quantity: 2, Position: 7},
		},
		"queued, landed past it": {
			world: found(ledger.View{Status: order.Queued, Partition: 2, Offset: 80}),
			want:  OrderView{Status: order.Queued, Item: itemID, Quantity: 2, Position: 0},
		},
		"queued in a partition that nothing is known of": {
			world: found(ledger.View{Status: order.Queued, Partition: 3, Offset: 97}),
			want:  OrderView{Status: order.Queued, Item: itemID, Quantity: 2, Position: -1},
		},
		"queued at an unknown offset": {
			world: found(ledger.View{Status: order.Queued, Partition: 2, Offset: -1}),
			want:  OrderView{Status: order.Queued, Item: itemID, Quantity: 2, Position: -1},
		},
		"processing": {
			world: found(ledger.View{Status: order.Processing, Partition: -1}),
			want:  OrderView{Status: order.Processing, Item: itemID, Quantity: 2, Position: -1},
		},
		"confirmed": {
			world: found(ledger.View{Status: order.Confirmed, Partition: -1}),
			want:  OrderView{Status: order.Confirmed, Item: itemID, Quantity: 2, Position: -1, Final: true},
		},
		"failed": {
			world: found(ledger.View{Status: order.Failed, Reason: order.ReasonSoldOut, Partition: -1}),
			want:  OrderView{Status: order.Failed, Reason: order.ReasonSoldOut, Item: itemID, Quantity: 2, Position: -1, Final: true},
		},
		"somebody else's": {
			world: found(ledger.View{Status: order.Queued}), query: func(q *Query) { q.User = "u2" }, reason: NotFound,
		},
		"unknown and young": {want: OrderView{Status: order.Processing, Item: itemID, Position: -1}},
		"unknown and old":   {after: 6 * time.Second, reason: NotFound},
		"unknown, from another gateway's clock": {
			after: -2 * time.Second, want: OrderView{Status: order.Processing, Item: itemID, Position: -1},
		},
		"unknown, from the far future": {after: -time.Hour, reason: NotFound},
		"not an id":                    {query: func(q *Query) { q.OrderID = "x" }, reason: NotFound},
		"upper case":                   {query: func(q *Query) { q.OrderID = "01890A5D-AC96-774B-BCCE-B302099A8057" }, reason: NotFound},
		"no user":                      {query: func(q *Query) { q.User = "" }, reason: NoUser},
		"bad user":                     {query: func(q *Query) { q.User = "u " }, reason: BadRequest},
		"bad activity":                 {query: func(q *Query) { q.Activity = -1 }, reason: NotFound},
		"redis down":                   {world: func(w *world) { w.down = errLost }, reason: Unavailable},
		"E115 not found, keys lost":    {after: time.Minute, world: func(w *world) { w.snap = ledger.Snapshot{} }, reason: Unavailable},
		"E115 not found, not the same server": {
			after: time.Minute, world: func(w *world) { w.snap.SameServer = false }, reason: Unavailable,
		},
		"E115 not found, everything lost": {
			after: time.Minute, world: func(w *world) { w.snap, w.catalogueErr = ledger.Snapshot{}, ledger.ErrNoCatalogue }, reason: Unavailable,
		},
		"not found, not offered": {
			after: time.Minute, world: func(w *world) { w.snap = ledger.Snapshot{}; clear(w.catalogue.Activities) }, reason: NotFound,
		},
		"not found, removed long after the end": {
			after: time.Minute, reason: NotFound, world: func(w *world) {
				w.snap = ledger.Snapshot{}
				a := w.catalogue.Activities[saleID]
				a.EndsAtMs = time.Now().Add(-2 * time.Hour).UnixMilli()
				w.catalogue.Activities[saleID] = a
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, Options{}, nil, func(t *testing.T, w *world, e *Edge) {
				q := Query{Activity: saleID, User: buyer, OrderID: idAt(name, time.Now().Add(-c.after))}
				if c.query != nil {
					c.query(&q)
				}
				if c.world != nil {
					w.set(func() { c.world(w) })
				}
				v, r := e.Status(t.Context(), q)
				if r != c.reason {
					t.Fatalf("reason %q, want %q", r, c.reason)
				}
				if r != Accepted {
					return
				}
				c.want.OrderID, c.want.Activity = q.OrderID, saleID
				v.partition, v.offset = 0, 0
				if v != c.want {
					t.Errorf("got  %+v\nwant %+v", v, c.want)
				}
			})
		})
	}
}

// idAt is an id that was made at a time of one's choosing: uuid reads the real clock.
func idAt(name string, at time.Time) string {
	id := order.DerivedID(saleID, buyer, name, 0)
	ms := fmt.Sprintf("%012x", at.UnixMilli())
	return ms[:8] + "-" + ms[8:] + id[13:]
}

// TestStatusOfDerivedID: an id made from an Idempotency-Key says nothing of when it was made; this gateway, which did not
// make it, counts from when it was first asked.
func TestStatusOfDerivedID(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, nil, func(t *testing.T, w *world, e *Edge) {
		q := Query{Activity: saleID, User: buyer, OrderID: order.DerivedID(saleID, buyer, "k", 0)}
		for range 4 {
			if v, r := e.Status(t.Context(), q); r != Accepted || v.Status != order.Processing {
				t.Fatalf("within the grace: %q %+v", r, v)
			}
			advance(time.Second)
		}
		advance(2 * time.Second)
		if _, r := e.Status(t.Context(), q); r != NotFound {
			t.Fatalf("after it: %q", r)
		}
	})
}

func TestMine(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, nil, func(t *testing.T, w *world, e *Edge) {
		if _, r := e.Mine(t.Context(), saleID, buyer); r != NotFound {
			t.Errorf("none: %q", r)
		}
		if _, r := e.Mine(t.Context(), saleID, ""); r != NoUser {
			t.Errorf("nobody: %q", r)
		}
		if _, r := e.Mine(t.Context(), 0, buyer); r != NotFound {
			t.Errorf("no activity: %q", r)
		}
		w.set(func() {
			w.mine = ledger.View{Order: "o", Found: true, User: buyer, Status: order.Confirmed, Item: itemID, Quantity: 1, Partition: -1}
		})
		if v, r := e.Mine(t.Context(), saleID, buyer); r != Accepted || v.OrderID != "o" || !v.Final {
			t.Errorf("one: %q %+v", r, v)
		}
		w.set(func() { w.down = errLost })
		if _, r := e.Mine(t.Context(), saleID, buyer); r != Unavailable {
			t.Errorf("redis down: %q", r)
		}
		w.set(func() { w.down = nil })
	})
}

func (w *world) put(q Query, s order.Status) {
	w.set(func() {
		w.views[q.OrderID] = ledger.View{
			Found: true, Status: s, User: q.User, Item: itemID, Quantity: 1, Partition: 2, Offset: 100,
		}
	})
}

// E115: a load that ends between the look for an order and the question whether the activity is loaded. What was not there then
// is there now, and nobody may be told that it does not exist.
func TestE115LoadedBetweenTwoLooks(t *testing.T) {
	v := ledger.View{Found: true, User: buyer, Item: itemID, Quantity: 2, Status: order.Queued, Partition: -1}
	loaded := func(w *world) {
		w.inspected = func() { w.views["any"], w.mine = v, v }
	}
	bubble(t, Options{}, nil, func(t *testing.T, w *world, e *Edge) {
		w.set(func() { loaded(w) })
		got, r := e.Status(t.Context(), Query{Activity: saleID, User: buyer, OrderID: idAt(t.Name(), time.Now().Add(-time.Minute))})
		if r != Accepted || got.Status != order.Queued {
			t.Errorf("%+v, %q; want queued", got, r)
		}
	})
	bubble(t, Options{}, nil, func(t *testing.T, w *world, e *Edge) {
		w.set(func() { loaded(w) })
		if got, r := e.Mine(t.Context(), saleID, buyer); r != Accepted || got.Status != order.Queued {
			t.Errorf("mine: %+v, %q; want queued", got, r)
		}
	})
}

// TestWait: woken by an event at once; and by its own second look when the event was missed.
func TestWait(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, nil, func(t *testing.T, w *world, e *Edge) {
		q := newQuery(t)
		w.put(q, order.Queued)
		began := time.Now()
		time.AfterFunc(500*time.Millisecond, func() {
			w.put(q, order.Confirmed)
			w.events <- ledger.Event{Activity: saleID, Outcomes: []ledger.EventOutcome{{Order: q.OrderID, Status: order.Confirmed}}}
		})
		v, r := e.Wait(t.Context(), q, 20*time.Second)
		if took := time.Since(began); r != Accepted || v.Status != order.Confirmed || took != 500*time.Millisecond {
			t.Errorf("event: %q %+v after %v", r, v, took)
		}

		w.put(q, order.Queued)
		began = time.Now()
		time.AfterFunc(500*time.Millisecond, func() { w.put(q, order.Failed) })
		v, r = e.Wait(t.Context(), q, 20*time.Second)
		if took := time.Since(began); r != Accepted || v.Status != order.Failed || took > 2*healEvery {
			t.Errorf("missed event: %q %+v after %v", r, v, took)
		}

		w.put(q, order.Queued)
		began = time.Now()
		v, r = e.Wait(t.Context(), q, 2*time.Second)
		if took := time.Since(began); r != Accepted || v.Status != order.Queued || took != 2*time.Second {
			t.Errorf("nothing happens: %q %+v after %v", r, v, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if v, r = e.Wait(ctx, q, time.Minute); r != Accepted || time.Since(began) != time.Second {
			t.Errorf("client leaves: %q %+v after %v", r, v, time.Since(began))
		}
		if _, r = e.Wait(t.Context(), Query{Activity: saleID, User: buyer, OrderID: "x"}, time.Minute); r != NotFound {
			t.Errorf("not an id: %q", r)
		}
		if v, r = e.Wait(t.Context(), q, 0); r != Accepted || v.Status != order.Queued {
			t.Errorf("no wait: %q %+v", r, v)
		}
		time.AfterFunc(time.Second, func() { _ = e.Close(context.Background()) })
		began = time.Now()
		if v, r = e.Wait(t.Context(), q, time.Minute); r != Accepted || v.Status != order.Queued || time.Since(began) != time.Second {
			t.Errorf("gateway closes: %q %+v after %v", r, v, time.Since(began))
		}
	})
}

// TestWatch follows an order as a stream does: a heartbeat when nothing changed, the position as it falls, a Redis that
// goes away and comes back, and the end.
func TestWatch(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, nil, func(t *testing.T, w *world, e *Edge) {
		q := newQuery(t)
		w.put(q, order.Queued)
		watch, r := e.Watch(q)
		if r != Accepted {
			t.Fatal(r)
		}
		defer watch.Close()
		next := func(d time.Duration) (OrderView, bool, bool) {
			v, changed, done, r := watch.Next(t.Context(), d)
			if r != Accepted {
				t.Fatalf("reason %q", r)
			}
			return v, changed, done
		}
		if v, changed, done := next(time.Second); !changed || done || v.Position != 10 {
			t.Fatalf("first: %v %v %+v", changed, done, v)
		}
		if _, changed, done := next(time.Second); changed || done {
			t.Fatalf("heartbeat: %v %v", changed, done)
		}
		w.set(func() { w.landed = map[int32]ledger.LandedAt{2: {Offset: 95}} })
		if v, changed, done := next(10 * time.Second); !changed || done || v.Position != 5 {
			t.Fatalf("position: %v %v %+v", changed, done, v)
		}
		w.set(func() { w.down = errLost })
		if v, changed, done := next(30 * time.Second); changed || done || v.Position != 5 {
			t.Fatalf("redis away: %v %v %+v", changed, done, v)
		}
		w.set(func() { w.down = nil })
		w.put(q, order.Confirmed)
		if v, changed, done := next(30 * time.Second); !changed || !done || v.Status != order.Confirmed || v.Position != -1 {
			t.Fatalf("end: %v %v %+v", changed, done, v)
		}
		if _, changed, done := next(time.Second); changed || !done {
			t.Fatalf("after the end: %v %v", changed, done)
		}
		watch.Close()
		watch.Close()
	})
}

// TestManyWaiters: ten thousand that wait cost one subscription, a bounded number of looks, and one reading of the landed
// offsets a second.
func TestManyWaiters(t *testing.T) {
	t.Parallel()
	const waiters = 10_000
	bubble(t, Options{MaxWaiters: waiters}, nil, func(t *testing.T, w *world, e *Edge) {
		queries := make([]Query, waiters)
		for i := range queries {
			queries[i] = newQuery(t)
			w.put(queries[i], order.Queued)
		}
		var wg sync.WaitGroup
		for _, q := range queries {
			wg.Go(func() {
				if v, r := e.Wait(t.Context(), q, time.Minute); r != Accepted || v.Status != order.Confirmed {
					t.Errorf("%q %+v", r, v)
				}
			})
		}
		synctest.Wait()
		if n := e.Stats().Waiters; n != waiters {
			t.Fatalf("%d wait", n)
		}
		if _, r := e.Watch(queries[0]); r != Unavailable {
			t.Errorf("one more stream: %q", r)
		}
		if v, r := e.Wait(t.Context(), queries[0], time.Minute); r != Accepted || v.Status != order.Queued {
			t.Errorf("one more long-poll answers at once: %q %+v", r, v)
		}
		w.set(func() { w.lookups, w.landeds = 0, 0 })
		advance(20 * time.Second)
		w.set(func() {
			if w.lookups > 20*500+50 {
				t.Errorf("%d looks in 20 s, want at most 500 a second", w.lookups)
			}
			if w.landeds > 21 {
				t.Errorf("landed offsets read %d times in 20 s", w.landeds)
			}
		})
		for i := 0; i < waiters; i += 64 {
			var ev ledger.Event
			for _, q := range queries[i:min(i+64, waiters)] {
				w.put(q, order.Confirmed)
				ev.Outcomes = append(ev.Outcomes, ledger.EventOutcome{Order: q.OrderID, Status: order.Confirmed})
			}
			w.events <- ev
		}
		began := time.Now()
		wg.Wait()
		if took := time.Since(began); took != 0 {
			t.Errorf("the last was woken after %v", took)
		}
	})
}

func TestMessages(t *testing.T) {
	t.Parallel()
	// As the contract has them.
	for reason, want := range map[Reason]struct {
		http int
		zh   string
	}{
		BadRequest: {400, "请求参数错误"}, NoUser: {401, "请先登录"}, NotStarted: {403, "活动尚未开始"}, NotFound: {404, "活动不存在"},
		SoldOut: {409, "已售罄"}, AlreadyOrdered: {409, "您已参与本次活动"}, Ended: {410, "活动已结束"}, TooLarge: {413, "请求体过大"},
		TooEarly: {425, "请重试"}, RateLimited: {429, "请求过于频繁，请稍后再试"}, TooFrequent: {429, "请勿重复提交"},
		Unavailable: {503, "系统繁忙，请稍后再试"}, "made up": {503, "系统繁忙，请稍后再试"},
	} {
		if HTTPStatus(reason) != want.http || Message(reason, Chinese) != want.zh {
			t.Errorf("%s: %d %s", reason, HTTPStatus(reason), Message(reason, Chinese))
		}
		if en := Message(reason, English); en == "" || en == want.zh {
			t.Errorf("%s in English: %q", reason, en)
		}
	}
	if HTTPStatus(Accepted) != 202 {
		t.Error("accepted is not 202")
	}
}

func TestNegotiate(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]Lang{
		"": Chinese, "en": English, "en-US,en;q=0.9": English, "zh-CN,zh;q=0.9,en;q=0.8": Chinese, "fr": Chinese,
		"fr-FR, en;q=0.3": English, "en;q=0.5, zh;q=0.6": Chinese, "zh;q=0.5,en;q=0.6": English, "en;q=0": Chinese, "*": Chinese,
		"EN-gb": English, "en;q=x,zh;q=0.1": Chinese, "english": Chinese, "zh,en": Chinese, "en,zh": English, ";;,,;q=1": Chinese,
		"en ; q=0.9": English, "en;q=NaN": Chinese, "en;q=2": Chinese,
	} {
		if got := Negotiate(header); got != want {
			t.Errorf("%q: %s, want %s", header, got.Tag(), want.Tag())
		}
	}
}

func FuzzNegotiate(f *testing.F) {
	f.Add("zh-CN,zh;q=0.9,en;q=0.8")
	f.Fuzz(func(t *testing.T, header string) {
		if l := Negotiate(header); l != Chinese && l != English {
			t.Errorf("%q: %d", header, l)
		}
	})
}

// FuzzValidate: whatever a buyer sends, a request that passes makes an order that every worker takes.
func FuzzValidate(f *testing.F) {
	f.Add("u1", "k", int64(1), []byte(`{"a": 1}`))
	f.Add("u1 ", "\x00", int64(-1), []byte(`{`))
	f.Fuzz(func(t *testing.T, user, key string, quantity int64, extra []byte) {
		r := Request{Activity: 1, User: user, IdempotencyKey: key, Quantity: quantity, Extra: extra}
		if reason, _ := validate(&r, 5); reason != Accepted {
			return
		}
		id, err := orderID(&r, 0)
		if err != nil {
			t.Fatal(err)
		}
		o := order.Order{V: order.SchemaVersion, ID: id, Activity: 1, User: r.User, Item: 1, Quantity: r.Quantity, CreatedAtMs: 1, Extra: r.Extra}
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		value, err := o.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := order.Decode(value); err != nil {
			t.Fatal(err)
		}
		for _, c := range fmt.Sprintf("%s%s", r.User, r.Extra) {
			if c < ' ' {
				t.Fatalf("a control character would break the ledger's encoding: %q %q", r.User, r.Extra)
			}
		}
	})
}
