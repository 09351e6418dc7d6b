package caddymodule

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/gate"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/ratelimit"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// fake stands for the edge. Activity 1 sells; what other activities answer stands in verdicts.
type fake struct {
	mu       sync.Mutex
	verdicts map[int64]gate.Verdict
	outcome  func(edge.Request) edge.Outcome
	status   func(edge.Query) (edge.OrderView, edge.Reason)
	steps    chan edge.OrderView // what a stream sees, one after the other
	window   map[string]bool     // keys whose window is closed
	redis    error               // what takeWindow fails with
	waits    chan struct{}       // told of each Wait
	news     chan gate.Change

	activities []activityJSON // for the admin API

	orders  []edge.Request
	windows []string
	asked   int
	drained bool
	closed  bool
}

const anOrder = "01890000-0000-7000-8000-000000000001"

func newFake() *fake {
	return &fake{
		verdicts: map[int64]gate.Verdict{
			1: {Activity: &ledger.Activity{ID: 1, Item: 11}},
			2: {Reason: gate.SoldOut, Activity: &ledger.Activity{ID: 2, Item: 12}},
			3: {Reason: gate.NotStarted, StartsAtMs: 1234567890123, Activity: &ledger.Activity{ID: 3}},
			4: {Reason: gate.Ended, Activity: &ledger.Activity{ID: 4}},
			5: {Reason: gate.Unavailable, Why: "paused", RetryAfter: 1500 * time.Millisecond, Activity: &ledger.Activity{ID: 5}},
		},
		outcome: func(r edge.Request) edge.Outcome {
			return edge.Outcome{HTTP: 202, Activity: r.Activity, OrderID: anOrder, Status: order.Queued, Item: 11, Quantity: r.Quantity}
		},
		status: func(q edge.Query) (edge.OrderView, edge.Reason) {
			if q.User != "bob" || (q.OrderID != anOrder && q.OrderID != "") {
				return edge.OrderView{}, edge.NotFound
			}
			return edge.OrderView{OrderID: anOrder, Activity: q.Activity, Item: 11, Quantity: 2, Status: order.Queued, Position: 7}, edge.Accepted
		},
		steps:  make(chan edge.OrderView, 10),
		window: map[string]bool{},
		waits:  make(chan struct{}, 10),
		news:   make(chan gate.Change, 10),

		activities: []activityJSON{{Activity: 1}},
	}
}

func (f *fake) Admit(activity int64, _ string) gate.Verdict {
	if v, ok := f.verdicts[activity]; ok {
		return v
	}
	return gate.Verdict{Reason: gate.NotFound}
}

func (f *fake) View(activity int64, _ time.Time) (gate.View, edge.Reason) {
	if activity != 1 {
		return gate.View{}, gate.NotFound
	}
	return gate.View{
		Activity: ledger.Activity{ID: 1, Item: 11, StartsAtMs: 1000, EndsAtMs: 2000}, State: "open", ServerTimeMs: 1500, SoldOut: true,
	}, edge.Accepted
}

func (f *fake) Order(_ context.Context, r edge.Request) edge.Outcome {
	f.mu.Lock()
	f.orders = append(f.orders, r)
	f.asked++
	f.mu.Unlock()
	return f.outcome(r)
}

func (f *fake) Status(_ context.Context, q edge.Query) (edge.OrderView, edge.Reason) {
	return f.status(q)
}

func (f *fake) Mine(_ context.Context, activity int64, user string) (edge.OrderView, edge.Reason) {
	return f.status(edge.Query{Activity: activity, User: user})
}

func (f *fake) Wait(ctx context.Context, q edge.Query, d time.Duration) (edge.OrderView, edge.Reason) {
	f.waits <- struct{}{}
	select {
	case v := <-f.steps:
		return v, edge.Accepted
	case <-ctx.Done():
	case <-time.After(d):
	}
	return f.status(q)
}

func (f *fake) follow(q edge.Query) (follower, edge.Reason) {
	return &fakeFollower{f: f, q: q}, edge.Accepted
}

type fakeFollower struct {
	f     *fake
	q     edge.Query
	begun bool
}

func (w *fakeFollower) Next(ctx context.Context, d time.Duration) (edge.OrderView, bool, bool, edge.Reason) {
	v, reason := w.f.status(w.q)
	if !w.begun {
		w.begun = true
		return v, true, false, reason
	}
	select {
	case v := <-w.f.steps:
		return v, true, v.Final, edge.Accepted
	case <-ctx.Done():
		return v, false, true, edge.Accepted
	case <-time.After(d):
		return v, false, false, edge.Accepted
	}
}

func (w *fakeFollower) Close() {}

func (f *fake) takeWindow(_ context.Context, key string, _ time.Duration) (bool, time.Duration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.windows = append(f.windows, key)
	if f.redis != nil {
		return false, 0, f.redis
	}
	if f.window[key] {
		return false, 2500 * time.Millisecond, nil
	}
	f.window[key] = true
	return true, 0, nil
}

func (f *fake) takeRate(context.Context, string, ratelimit.Rate) (ratelimit.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return ratelimit.Result{OK: f.redis == nil}, f.redis
}

func (f *fake) overview(time.Time) overview {
	return overview{
		Activities: f.activities,
		Producer:   healthJSON{Error: "no leader", OldestUnackedSec: 1.5},
		Orders:     ordersJSON{InWork: 3, Undecided: 1, Waiting: 12},
	}
}

// figures says how many orders were asked for, as if all had been published.
func (f *fake) figures(time.Time) figures {
	f.mu.Lock()
	defer f.mu.Unlock()
	return figures{activities: map[string]int{"open": 1}, totals: totals{acked: uint64(f.asked)}}
}

func (f *fake) changes() <-chan gate.Change { return f.news }

func (f *fake) looked() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (f *fake) drain(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drained = true
	return nil
}

func (f *fake) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		close(f.news)
	}
	f.closed = true
	return nil
}

// calls gives the orders and windows so far, and forgets them.
func (f *fake) calls() ([]edge.Request, []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o, w := f.orders, f.windows
	f.orders, f.windows = nil, nil
	return o, w
}

// run runs Caddy in this process with a site and a fake edge, and gives its address. One test at a time: Caddy is global.
func run(t *testing.T, f *fake, lines ...string) string {
	t.Helper()
	return runWith(t, f, "", lines...)
}

// runWith is run with more global options.
func runWith(t *testing.T, f *fake, options string, lines ...string) string {
	t.Helper()
	was := newBackend
	newBackend = func(settings, *zap.Logger) (backend, error) { return f, nil }
	t.Cleanup(func() { newBackend = was })
	addr := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	load(t, strings.Replace(global, "{\n", "{\n"+options, 1)+"http://"+addr+" {\n"+strings.Join(lines, "\n")+"\n}\n")
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return "http://" + addr
}

// load has Caddy run a Caddyfile, like a reload does.
func load(t *testing.T, caddyfile string) {
	t.Helper()
	if err := tryLoad(t, caddyfile); err != nil {
		t.Fatal(err)
	}
}

// loadLogging is load with the log that the Caddyfile asks for.
func loadLogging(t *testing.T, caddyfile string) {
	t.Helper()
	if err := tryLoadWith(t, caddyfile, true); err != nil {
		t.Fatal(err)
	}
}

func tryLoad(t *testing.T, caddyfile string) error {
	t.Helper()
	return tryLoadWith(t, caddyfile, false)
}

func tryLoadWith(t *testing.T, caddyfile string, ownLog bool) error {
	t.Helper()
	config, err := adapt(caddyfile)
	if err != nil {
		t.Fatal(err)
	}
	var cfg caddy.Config
	if err := caddy.StrictUnmarshalJSON([]byte(config), &cfg); err != nil {
		t.Fatal(err)
	}
	if cfg.Admin == nil {
		cfg.Admin = &caddy.AdminConfig{Disabled: true}
	}
	cfg.Admin.Config = &caddy.ConfigSettings{Persist: new(bool)}
	if !ownLog {
		cfg.Logging = quiet()
	}
	if cfg.AppsRaw["tls"] == nil { // no lock files, no cleaning of the user's own certificates
		cfg.AppsRaw["tls"] = json.RawMessage(`{"disable_storage_check":true,"disable_storage_clean":true}`)
	}
	raw, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	// The old server closes its idle connections, maybe just when one is used again.
	defer http.DefaultClient.CloseIdleConnections()
	return caddy.Load(raw, true)
}

type response struct {
	status int
	header http.Header
	body   string
}

// call makes a request. Headers are pairs.
func request(t *testing.T, method, url, body string, headers ...string) response {
	t.Helper()
	var b io.Reader
	if body != "" {
		b = bytes.NewBufferString(body)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, url, b)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return do(t, r)
}

func do(t *testing.T, r *http.Request) response {
	t.Helper()
	// While a reload hands a port on, the old server resets and closes connections, new ones too.
	var last error
	for range 10 {
		if r.GetBody != nil {
			r.Body, _ = r.GetBody()
		}
		res, err := tryDo(r)
		if err == nil {
			return res
		}
		last = err
	}
	t.Fatal(last)
	return response{}
}

func tryDo(r *http.Request) (response, error) {
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return response{}, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	return response{res.StatusCode, res.Header, string(raw)}, err
}
