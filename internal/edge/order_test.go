package edge

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func code(c ledger.Code) reply { return reply{d: ledger.Decision{Code: c}} }

func repeated(c ledger.Code) reply { return reply{d: ledger.Decision{Code: c, Repeated: true}} }

// TestOrder walks every way through the flow. counts are reserve, publish and release calls.
func TestOrder(t *testing.T) {
	t.Parallel()
	notSent := fmt.Errorf("queue full: %w", ErrNotSent)
	result := func(s order.Status, reason string) *ledger.Result { return &ledger.Result{Status: s, Reason: reason} }
	keyed := func(r *Request) { r.IdempotencyKey = "k" }
	for name, c := range map[string]struct {
		request func(*Request)
		world   func(*world)
		http    int
		reason  Reason
		status  order.Status
		cause   Cause
		counts  [3]int
		tries   bool          // the key was refused before: the next id is tried
		within  time.Duration // default: at once
	}{
		"reserved and published": {
			http: 202, status: order.Queued, cause: CausePublished, counts: [3]int{1, 1, 0},
		},
		"publish slower than the buyer waits": {
			world: func(w *world) { w.publishes[0].late = 3 * time.Second },
			http:  202, status: order.Processing, cause: CausePublishing, counts: [3]int{1, 1, 0}, within: time.Second,
		},
		"E24 publish not confirmed: nothing is taken back": {
			world: func(w *world) { w.publishes[0].err = errLost },
			http:  202, status: order.Processing, cause: CauseUnconfirmed, counts: [3]int{1, 1, 0},
		},
		"never sent, released": {
			world: func(w *world) { w.publishes[0].err = notSent },
			http:  503, reason: Unavailable, cause: CauseNotSent, counts: [3]int{1, 1, 1},
		},
		"E102 never sent, but old": {
			world: func(w *world) { w.publishes[0].err = notSent; w.releases[0].rel = ledger.Kept },
			http:  202, status: order.Processing, cause: CauseNotSent, counts: [3]int{1, 1, 1},
		},
		"never sent, and decided meanwhile": {
			world: func(w *world) { w.publishes[0].err = notSent; w.releases[0].rel = ledger.KeptDecided },
			http:  202, status: order.Processing, cause: CauseNotSent, counts: [3]int{1, 1, 1},
		},
		"E102 never sent, release unanswered": {
			world: func(w *world) {
				w.publishes[0].err = notSent
				w.releases = []reply{{err: errLost, late: time.Hour}, {rel: ledger.ReleasedNow}}
			},
			http: 202, status: order.Processing, cause: CauseNotSent, counts: [3]int{1, 1, 2}, within: releaseTimeout,
		},
		"E102 never sent, release answered the second time": {
			world: func(w *world) {
				w.publishes[0].err = notSent
				w.releases = []reply{{err: errLost}, {rel: ledger.ReleasedNow}}
			},
			http: 503, reason: Unavailable, cause: CauseNotSent, counts: [3]int{1, 1, 2}, within: 2 * releaseBackoff,
		},
		"E01 first reply lost, then found": {
			world: func(w *world) { w.reserves = []reply{{err: errLost, late: 300 * time.Millisecond}, code(ledger.Again)} },
			http:  202, status: order.Queued, cause: CausePublished, counts: [3]int{2, 1, 0}, within: 350 * time.Millisecond,
		},
		"found again, then not sent: one's own, so released": {
			world: func(w *world) {
				w.reserves = []reply{{err: errLost}, code(ledger.Again)}
				w.publishes[0].err = notSent
			},
			http: 503, reason: Unavailable, cause: CauseNotSent, counts: [3]int{2, 1, 1}, within: 50 * time.Millisecond,
		},
		"first reply lost, first copy did not run": {
			world: func(w *world) { w.reserves = []reply{{err: errLost}, code(ledger.Reserved)} },
			http:  202, status: order.Queued, cause: CausePublished, counts: [3]int{2, 1, 0}, within: 50 * time.Millisecond,
		},
		"E01 every reply lost": {
			world: func(w *world) { w.reserves = []reply{{err: errLost}} },
			http:  202, status: order.Processing, cause: CauseUnknown, counts: [3]int{reserveTries, 0, 1}, within: time.Second,
		},
		"E18 redis answers after the budget": {
			world: func(w *world) { w.reserves[0].late = 2 * time.Second },
			http:  202, status: order.Processing, cause: CauseUnknown, counts: [3]int{1, 0, 1}, within: 800 * time.Millisecond,
		},
		"unknown, then not executed: still unknown": {
			world: func(w *world) { w.reserves = []reply{{err: errLost}, {err: ledger.ErrNotExecuted}} },
			http:  202, status: order.Processing, cause: CauseUnknown, counts: [3]int{reserveTries, 0, 1}, within: time.Second,
		},
		"E08 not executed": {
			world: func(w *world) { w.reserves[0].err = fmt.Errorf("pool: %w", ledger.ErrNotExecuted) },
			http:  503, reason: Unavailable, cause: CauseNotReserved, counts: [3]int{1, 0, 0},
		},
		"again, already queued": {
			request: keyed, world: func(w *world) {
				w.reserves[0].d = ledger.Decision{Code: ledger.Again, Result: result(order.Queued, "")}
			},
			http: 202, status: order.Queued, cause: CauseRepeat, counts: [3]int{1, 0, 0},
		},
		"again, never confirmed: published once more": {
			request: keyed, world: func(w *world) {
				w.reserves[0].d = ledger.Decision{Code: ledger.Again, ReservedAtMs: -1000}
				w.views["any"] = ledger.View{Found: true, Status: order.Processing, User: buyer, Quantity: 1}
			},
			http: 202, status: order.Queued, cause: CausePublished, counts: [3]int{1, 1, 0},
		},
		"again, not sent: never taken back, another request may have sent it": {
			request: keyed, world: func(w *world) {
				w.reserves[0] = code(ledger.Again)
				w.views["any"] = ledger.View{Found: true, Status: order.Processing, User: buyer, Quantity: 1}
				w.publishes[0].err = notSent
			},
			http: 202, status: order.Processing, cause: CauseNotSent, counts: [3]int{1, 1, 0},
		},
		"again, too old to publish": {
			request: keyed, world: func(w *world) {
				w.reserves[0].d = ledger.Decision{Code: ledger.Again, ReservedAtMs: -2500}
				w.views["any"] = ledger.View{Found: true, Status: order.Processing, User: buyer, Quantity: 1}
			},
			http: 202, status: order.Processing, cause: CauseNotSent, counts: [3]int{1, 0, 0},
		},
		"again, but for another quantity": {
			request: keyed, world: func(w *world) {
				w.reserves[0] = code(ledger.Again)
				w.views["any"] = ledger.View{Found: true, Status: order.Processing, User: buyer, Quantity: 2}
			},
			http: 202, status: order.Processing, cause: CauseRepeat, counts: [3]int{1, 0, 0},
		},
		"decided": {
			request: keyed, world: func(w *world) {
				w.reserves[0].d = ledger.Decision{Code: ledger.Decided, Result: result(order.Confirmed, "")}
			},
			http: 202, status: order.Confirmed, cause: CauseRepeat, counts: [3]int{1, 0, 0},
		},
		"decided: released before": {
			request: keyed, world: func(w *world) {
				w.reserves[0].d = ledger.Decision{Code: ledger.Decided, Result: result(order.Failed, order.ReasonReleased)}
			},
			http: 202, status: order.Failed, cause: CauseRepeat, counts: [3]int{1, 0, 0},
		},
		"decided: refused before, judged anew": {
			request: keyed, world: func(w *world) {
				w.reserves = []reply{
					{d: ledger.Decision{Code: ledger.Decided, Result: result(order.Failed, order.ReasonRefused)}},
					{d: ledger.Decision{Code: ledger.Reserved, Available: 5}},
				}
			},
			http: 202, status: order.Queued, cause: CausePublished, counts: [3]int{2, 1, 0}, tries: true,
		},
		"decided: refused before, time and again": {
			request: keyed, world: func(w *world) {
				w.reserves[0].d = ledger.Decision{Code: ledger.Decided, Result: result(order.Failed, order.ReasonRefused)}
			},
			http: 503, reason: Unavailable, cause: CauseNotReserved, counts: [3]int{9, 0, 0}, tries: true,
		},
		"has ordered": {
			world: func(w *world) { w.reserves[0].d = ledger.Decision{Code: ledger.AlreadyHas, LiveOrder: "x"} },
			http:  409, reason: AlreadyOrdered, cause: CauseScript, counts: [3]int{1, 0, 0},
		},
		"has ordered, by this very key": {
			request: keyed, world: func(w *world) {
				w.reserves[0].d = ledger.Decision{Code: ledger.AlreadyHas, LiveOrder: "own"}
				w.views["any"] = ledger.View{Found: true, Status: order.Paid, User: buyer}
			},
			http: 202, status: order.Paid, cause: CauseRepeat, counts: [3]int{1, 0, 0},
		},
		"has ordered, by this very key, result gone": {
			request: keyed, world: func(w *world) {
				w.reserves[0].d = ledger.Decision{Code: ledger.AlreadyHas, LiveOrder: "own"}
			},
			http: 202, status: order.Processing, cause: CauseRepeat, counts: [3]int{1, 0, 0},
		},
		"sold out":     {world: func(w *world) { w.reserves[0] = code(ledger.SoldOut) }, http: 409, reason: SoldOut, cause: CauseScript, counts: [3]int{1, 0, 0}},
		"ended":        {world: func(w *world) { w.reserves[0] = code(ledger.IsEnded) }, http: 410, reason: Ended, cause: CauseScript, counts: [3]int{1, 0, 0}},
		"not started":  {world: func(w *world) { w.reserves[0] = code(ledger.NotStarted) }, http: 403, reason: NotStarted, cause: CauseScript, counts: [3]int{1, 0, 0}},
		"paused":       {world: func(w *world) { w.reserves[0] = code(ledger.IsPaused) }, http: 503, reason: Unavailable, cause: CauseScript, counts: [3]int{1, 0, 0}},
		"recovering":   {world: func(w *world) { w.reserves[0] = code(ledger.IsRecovering) }, http: 503, reason: Unavailable, cause: CauseScript, counts: [3]int{1, 0, 0}},
		"not loaded":   {world: func(w *world) { w.reserves[0] = code(ledger.NotLoaded) }, http: 503, reason: Unavailable, cause: CauseScript, counts: [3]int{1, 0, 0}},
		"wrong server": {world: func(w *world) { w.reserves[0] = code(ledger.WrongServer) }, http: 503, reason: Unavailable, cause: CauseScript, counts: [3]int{1, 0, 0}},
		"too late":     {world: func(w *world) { w.reserves[0] = code(ledger.TooLate) }, http: 503, reason: Unavailable, cause: CauseScript, counts: [3]int{1, 0, 0}},
		"bad key":      {world: func(w *world) { w.reserves[0] = code(ledger.BadKey) }, http: 503, reason: Unavailable, cause: CauseScript, counts: [3]int{1, 0, 0}},
		"too many":     {world: func(w *world) { w.reserves[0] = code(ledger.TooMany) }, http: 400, reason: BadRequest, cause: CauseScript, counts: [3]int{1, 0, 0}},
		"too frequent": {world: func(w *world) { w.reserves[0] = code(ledger.TooFrequent) }, http: 429, reason: TooFrequent, cause: CauseScript, counts: [3]int{1, 0, 0}},
		"unknown code": {world: func(w *world) { w.reserves[0] = code(99) }, http: 503, reason: Unavailable, cause: CauseScript, counts: [3]int{1, 0, 0}},
		"E101 refused after a repeat, fenced": {
			world: func(w *world) { w.reserves = []reply{{err: errLost}, code(ledger.SoldOut)} },
			http:  409, reason: SoldOut, cause: CauseScript, counts: [3]int{2, 0, 1}, within: 50 * time.Millisecond,
		},
		"E101 refused, and the client had repeated": {
			world: func(w *world) { w.reserves[0] = repeated(ledger.SoldOut) },
			http:  409, reason: SoldOut, cause: CauseScript, counts: [3]int{1, 0, 1},
		},
		"E101 refused, but a copy has reserved": {
			world: func(w *world) { w.reserves[0] = repeated(ledger.TooFrequent); w.releases[0].rel = ledger.Kept },
			http:  202, status: order.Processing, cause: CauseFence, counts: [3]int{1, 0, 1},
		},
		"E101 refused, fence unanswered, then answered": {
			world: func(w *world) {
				w.reserves[0] = repeated(ledger.AlreadyHas)
				w.releases = []reply{{err: errLost}, {err: errLost}, {rel: ledger.ReleasedNow}}
			},
			http: 409, reason: AlreadyOrdered, cause: CauseScript, counts: [3]int{1, 0, 3}, within: 5 * releaseBackoff,
		},
		"E101 refused, fence unanswered as long as the buyer waits": {
			world: func(w *world) {
				w.reserves[0] = repeated(ledger.AlreadyHas)
				w.releases = []reply{{err: errLost, late: time.Hour}, {rel: ledger.ReleasedNow}}
			},
			http: 202, status: order.Processing, cause: CauseFence, counts: [3]int{1, 0, 2}, within: time.Second,
		},
		"E101 unavailable after a repeat, fenced": {
			world: func(w *world) { w.reserves[0] = repeated(ledger.WrongServer) },
			http:  503, reason: Unavailable, cause: CauseScript, counts: [3]int{1, 0, 1},
		},
		"E25 kafka not healthy": {
			world: func(w *world) { w.unhealthy = map[int64]error{saleID: errors.New("no leader")} },
			http:  503, reason: Unavailable, cause: CauseProducer,
		},
		"E25 kafka not healthy for another sale": {
			world: func(w *world) { w.unhealthy = map[int64]error{saleID + 1: errors.New("no leader")} },
			http:  202, status: order.Queued, cause: CausePublished, counts: [3]int{1, 1, 0},
		},
		"redis clock unknown": {
			world: func(w *world) { w.reserves = nil },
			http:  202, status: order.Queued, cause: CausePublished, counts: [3]int{1, 1, 0},
		},
		"E77 no user":        {request: func(r *Request) { r.User = "" }, http: 401, reason: NoUser, cause: CauseInput},
		"E110 blank at end":  {request: func(r *Request) { r.User = "u1 " }, http: 400, reason: BadRequest, cause: CauseInput},
		"E110 blank only":    {request: func(r *Request) { r.User = " " }, http: 400, reason: BadRequest, cause: CauseInput},
		"user too long":      {request: func(r *Request) { r.User = strings.Repeat("u", 129) }, http: 400, reason: BadRequest, cause: CauseInput},
		"user with control":  {request: func(r *Request) { r.User = "a\x1fb" }, http: 400, reason: BadRequest, cause: CauseInput},
		"quantity 0":         {request: func(r *Request) { r.Quantity = 0 }, http: 400, reason: BadRequest, cause: CauseInput},
		"quantity negative":  {request: func(r *Request) { r.Quantity = -1 }, http: 400, reason: BadRequest, cause: CauseInput},
		"over the limit":     {request: func(r *Request) { r.Quantity = 4 }, http: 400, reason: BadRequest, cause: CauseInput},
		"E32 extra too long": {request: func(r *Request) { r.Extra = json.RawMessage(`"` + strings.Repeat("x", 1100) + `"`) }, http: 400, reason: BadRequest, cause: CauseInput},
		"extra not JSON":     {request: func(r *Request) { r.Extra = json.RawMessage(`{`) }, http: 400, reason: BadRequest, cause: CauseInput},
		"key too long":       {request: func(r *Request) { r.IdempotencyKey = strings.Repeat("k", 65) }, http: 400, reason: BadRequest, cause: CauseInput},
		"key with control":   {request: func(r *Request) { r.IdempotencyKey = "a\n" }, http: 400, reason: BadRequest, cause: CauseInput},
		"unknown activity":   {request: func(r *Request) { r.Activity = 999 }, http: 404, reason: NotFound, cause: CauseGate},
		"sold out in memory": {world: func(w *world) { w.snap.Available = 0 }, http: 409, reason: SoldOut, cause: CauseGate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, Options{}, func(w *world) {
				if c.world != nil {
					c.world(w)
				}
				if w.reserves == nil {
					w.reserves = newWorld().reserves
				}
			}, func(t *testing.T, w *world, e *Edge) {
				r := wish()
				if c.request != nil {
					c.request(&r)
				}
				began := time.Now()
				o := e.Order(t.Context(), r)
				took := time.Since(began)
				if (o.Detail != "") != (o.Reason == BadRequest) {
					t.Errorf("a bad request, and nothing else, says what is wrong: %+v", o)
				}
				if o.HTTP != c.http || o.Reason != c.reason || o.Status != c.status || o.Cause != c.cause {
					t.Errorf("got %+v", o)
				}
				if took > c.within {
					t.Errorf("answered after %v, want within %v", took, c.within)
				}
				advance(10 * time.Second) // whatever goes on ends
				synctest.Wait()
				w.mu.Lock()
				defer w.mu.Unlock()
				if got := [3]int{len(w.reserved), len(w.published), len(w.released)}; got != c.counts {
					t.Errorf("reserved, published, released %v times, want %v", got, c.counts)
				}
				// Another try under a key that was refused before is another call, by design.
				calls := append(w.reserved, w.released...)
				if c.tries {
					calls = calls[len(calls)-1:]
				}
				for _, res := range calls {
					if c.tries && res.Order == w.reserved[0].Order {
						t.Errorf("the fenced id was used again: %+v", res)
					}
					if !c.tries && res.Order != w.reserved[0].Order || res.Nonce != calls[0].Nonce || res.NotAfterMs != w.reserved[0].NotAfterMs {
						t.Errorf("one request made two different calls: %+v and %+v", w.reserved[0], res)
					}
				}
				if o.Reason == Accepted && (o.OrderID != calls[0].Order || !order.ValidID(o.OrderID)) {
					t.Errorf("accepted as %q, reserved as %q", o.OrderID, w.reserved[0].Order)
				}
				if o.Reason == Unavailable && (o.RetryAfter < time.Second || o.RetryAfter > 3*time.Second) {
					t.Errorf("retry after %v", o.RetryAfter)
				}
				for _, p := range w.published {
					if err := p.Validate(); err != nil {
						t.Errorf("published an order that no worker takes: %v", err)
					}
				}
			})
		})
	}
}

// A tombstone says `refused` if and only if its buyer was refused: behind a refusal his next request is a new try, and behind an order's id
// it is about that order. The order is taken back just when its buyer is to be answered, and the answers to its releases may be lost.
func TestTombstoneSaysWhatTheBuyerHeard(t *testing.T) {
	for name, c := range map[string]struct {
		publish, release time.Duration
		lost             int // so many answers
	}{
		"taken back as the time is over":           {publish: time.Second},
		"the release outlasts the time":            {publish: 900 * time.Millisecond, release: 200 * time.Millisecond},
		"the release begins when time is over":     {publish: 1100 * time.Millisecond},
		"both are over long before the answer":     {publish: 100 * time.Millisecond, release: 100 * time.Millisecond},
		"the release takes longer than the time":   {publish: 10 * time.Millisecond, release: 1500 * time.Millisecond},
		"the first answer is lost":                 {lost: 100},
		"the first answer is lost, late":           {publish: 950 * time.Millisecond, lost: 100},
		"no answer for as long as the buyer waits": {lost: 2000},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(w *world) {
				w.publishes = []reply{{err: fmt.Errorf("%w: down", ErrNotSent), late: c.publish}}
				w.releases = make([]reply, c.lost, c.lost+1)
				for i := range w.releases {
					w.releases[i].err = errLost
				}
				w.releases = append(w.releases, reply{rel: ledger.ReleasedNow, late: c.release})
			}, func(t *testing.T, w *world, e *Edge) {
				heard := make([]Outcome, 100)
				var wg sync.WaitGroup
				for i := range heard {
					wg.Go(func() {
						r := wish()
						r.User, r.IdempotencyKey = fmt.Sprint("u", i), "k"
						heard[i] = e.Order(t.Context(), r)
					})
				}
				wg.Wait()
				testenv.Eventually(t, time.Hour, "all are decided", func() bool { return e.Stats().Open == 0 })
				w.mu.Lock()
				defer w.mu.Unlock()
				last := map[string]bool{} // what the tombstone of a user's order says
				for _, res := range w.released {
					last[res.User] = res.Refused
				}
				for i, o := range heard {
					user := fmt.Sprint("u", i)
					word, released := last[user]
					if refused := o.Reason != Accepted; !released || refused != word {
						t.Fatalf("%s heard %d %q %q, and the tombstone says refused=%v (%v)", user, o.HTTP, o.Reason, o.Status, word, released)
					}
				}
			})
		})
	}
}

// TestKeyWhileItsReleaseIsUnanswered: an order is taken back, its tombstone says `refused`, but no answer of that arrives and its buyer is given
// its id. His next request with the same key is about that order: it makes no other one.
func TestKeyWhileItsReleaseIsUnanswered(t *testing.T) {
	bubble(t, Options{}, func(w *world) {
		refused := &ledger.Result{Status: order.Failed, Reason: order.ReasonRefused}
		w.reserves = []reply{
			{d: ledger.Decision{Code: ledger.Reserved, Available: 5}},
			{d: ledger.Decision{Code: ledger.Decided, Result: refused}},
			{d: ledger.Decision{Code: ledger.Reserved, Available: 5}},
		}
		w.publishes[0].err = ErrNotSent
		w.releases = []reply{{err: errLost}}
	}, func(t *testing.T, w *world, e *Edge) {
		r := wish()
		r.IdempotencyKey = "k"
		first := e.Order(t.Context(), r)
		if first.Status != order.Processing {
			t.Fatalf("its release is unanswered: %+v", first)
		}
		again := e.Order(t.Context(), r)
		if again.OrderID != first.OrderID || again.Status != order.Failed || again.StatusReason != order.ReasonReleased {
			t.Errorf("one key, two orders: %+v, then %+v", first, again)
		}
		w.set(func() { w.releases = []reply{{rel: ledger.ReleasedNow}} })
	})
}

// E14, E32: all looks well, and every order is refused, since Redis takes no writes or Kafka no records. The log says why: once, and
// later how many more there were, but not a line for each.
func TestE14E32RefusedOrdersAreExplained(t *testing.T) {
	for name, c := range map[string]struct {
		world     func(w *world)
		says, why string
	}{
		"redis is full": {
			func(w *world) { w.reserves[0].err = fmt.Errorf("%w: OOM command not allowed", ledger.ErrNotExecuted) },
			"redis takes no reservations", "OOM",
		},
		"redis is full, with a user window": {
			func(w *world) { w.reserves[0].d = ledger.Decision{Code: ledger.BadKey, Err: "OOM command not allowed"} },
			"redis takes no reservations", "OOM",
		},
		"redis tells no time": {
			func(w *world) { w.down = errors.New("NOPERM no right to run the command time") },
			"redis takes no reservations", "NOPERM",
		},
		"kafka refuses the records": {
			func(w *world) { w.publishes[0].err = fmt.Errorf("%w: message too large", ErrNotSent) },
			"kafka takes no records", "too large",
		},
	} {
		t.Run(name, func(t *testing.T) {
			core, logs := observer.New(zap.WarnLevel)
			bubble(t, Options{Logger: zap.New(core)}, nil, func(t *testing.T, w *world, e *Edge) {
				w.set(func() { c.world(w) })
				for range 5 {
					if o := e.Order(t.Context(), wish()); o.Reason != Unavailable {
						t.Fatalf("%+v", o)
					}
				}
				w.set(func() { w.down = nil }) // or nothing would be sold after complainEvery
				advance(complainEvery)
				w.set(func() { c.world(w) })
				e.Order(t.Context(), wish())
			})
			got := logs.FilterMessageSnippet(c.says).All()
			if len(got) != 2 || !strings.Contains(fmt.Sprint(got[0].ContextMap()["error"]), c.why) || got[1].ContextMap()["refused"] != int64(5) {
				t.Errorf("logged %+v; want two lines with the cause, the second for five orders", got)
			}
		})
	}
}
