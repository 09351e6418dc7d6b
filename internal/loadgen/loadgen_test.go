package loadgen

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/internal/told"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gateway is a stand-in that sells `stock` units and then says "sold out".
type gateway struct {
	stock  atomic.Int64
	polls  atomic.Int64
	stall  func(n int64) // called with the number of the request
	seen   atomic.Int64
	mu     sync.Mutex
	orders map[string]string
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	user := r.Header.Get("X-User")
	if r.Method == http.MethodGet {
		// The first question after an order finds it queued still.
		if g.polls.Add(1)%2 == 1 {
			fmt.Fprint(w, `{"status":"queued"}`)
			return
		}
		fmt.Fprint(w, `{"status":"confirmed"}`)
		return
	}
	n := g.seen.Add(1)
	if g.stall != nil {
		g.stall(n)
	}
	var body struct{ Quantity int64 }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Quantity < 1 {
		w.WriteHeader(400)
		fmt.Fprint(w, `{"code":400,"reason":"bad_request"}`)
		return
	}
	if g.stock.Add(-body.Quantity) < 0 {
		g.stock.Add(body.Quantity)
		w.WriteHeader(409)
		fmt.Fprint(w, `{"code":409,"reason":"sold_out"}`)
		return
	}
	id := fmt.Sprintf("order-%d", n)
	g.mu.Lock()
	g.orders[user] = id
	g.mu.Unlock()
	w.WriteHeader(202)
	fmt.Fprintf(w, `{"code":202,"order_id":%q,"status":"queued","status_url":"/seckill/7/orders/%s"}`, id, id)
}

func start(t *testing.T, g *gateway) Config {
	t.Helper()
	g.orders = map[string]string{}
	srv := httptest.NewServer(g)
	t.Cleanup(srv.Close)
	return Config{
		Target: srv.URL, Activity: 7,
		Identify: func(n int) (Buyer, error) {
			user := fmt.Sprintf("u%d", n)
			return Buyer{User: user, Header: http.Header{"X-User": {user}}}, nil
		},
	}
}

func TestClosedLoopTellsEachBuyerOnce(t *testing.T) {
	g := &gateway{}
	g.stock.Store(30)
	cfg := start(t, g)
	var file bytes.Buffer
	cfg.Requests, cfg.Concurrency, cfg.Follow = 200, 8, 10*time.Second
	cfg.Told = told.NewWriter(&file)
	stats := NewStats()
	if err := Run(t.Context(), cfg, stats); err != nil {
		t.Fatal(err)
	}
	if err := cfg.Told.Close(); err != nil {
		t.Fatal(err)
	}
	f := stats.Figures()
	if f.Answers["queued"] != 30 || f.Answers["sold_out"] != 170 || f.Answered != 200 || f.InFlight != 0 {
		t.Fatalf("figures %+v", f)
	}
	if f.Final["confirmed"] != 30 || f.Accepted.Count != 30 || f.Refused.Count != 170 {
		t.Fatalf("figures %+v", f)
	}
	users, accepted := map[string]bool{}, 0
	err := told.Read(&file, 7, func(r *told.Record) error {
		users[r.User] = true
		if r.Accepted() {
			accepted++
			if r.Final != "confirmed" || r.OrderID != g.orders[r.User] {
				t.Errorf("record %+v", r)
			}
		}
		return nil
	})
	if err != nil || len(users) != 200 || accepted != 30 {
		t.Fatalf("%d users, %d accepted, %v", len(users), accepted, err)
	}
}

// TestOpenLoopSeesAStall: a gateway that stops for a while must show in the latency of every request that was due
// meanwhile, although few of them were open at that time.
func TestOpenLoopSeesAStall(t *testing.T) {
	const stall = 500 * time.Millisecond
	g := &gateway{}
	g.stock.Store(1 << 40)
	var gate sync.RWMutex
	g.stall = func(n int64) {
		if n == 50 {
			gate.Lock()
			defer gate.Unlock()
			<-time.After(stall)
			return
		}
		gate.RLock()
		defer gate.RUnlock()
	}
	cfg := start(t, g)
	cfg.Rate, cfg.Requests, cfg.MaxInFlight = 200, 200, 4
	stats := NewStats()
	if err := Run(t.Context(), cfg, stats); err != nil {
		t.Fatal(err)
	}
	f := stats.Figures()
	if f.Answered != 200 {
		t.Fatalf("answered %d", f.Answered)
	}
	// About 100 of the 200 requests were due during the stall; only 4 were open.
	if f.All.P90 < stall/4 {
		t.Errorf("p90 is %s: the stall of %s is hidden", f.All.P90, stall)
	}
	if f.Late < 20 {
		t.Errorf("%d requests counted as late", f.Late)
	}
}

func TestOpenLoopKeepsItsRate(t *testing.T) {
	g := &gateway{}
	cfg := start(t, g)
	cfg.Rate, cfg.Duration, cfg.Buyers, cfg.First = 400, 500*time.Millisecond, 10, 5
	stats := NewStats()
	if err := Run(t.Context(), cfg, stats); err != nil {
		t.Fatal(err)
	}
	if f := stats.Figures(); f.Answered != 200 {
		t.Fatalf("sent %d requests, want 400/s for 0.5 s = 200", f.Answered)
	}
}

func TestWhatIsNotTheGatewaysAnswerIsUnknown(t *testing.T) {
	for cause, h := range map[string]http.HandlerFunc{
		"http 502": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<h1>Bad Gateway</h1>", 502) },
		"http 302": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", 302) },
		"connection closed": func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		},
		"no answer in time": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice that the client has gone
			<-r.Context().Done()
		},
	} {
		t.Run(cause, func(t *testing.T) {
			srv := httptest.NewServer(h)
			defer srv.Close()
			cfg := Config{Target: srv.URL, Activity: 1, Requests: 1, Concurrency: 1, Timeout: 20 * time.Second}
			if cause == "no answer in time" {
				cfg.Timeout = 200 * time.Millisecond
			}
			cfg.Identify = func(int) (Buyer, error) { return Buyer{User: "u"}, nil }
			var file bytes.Buffer
			cfg.Told = told.NewWriter(&file)
			stats := NewStats()
			if err := Run(t.Context(), cfg, stats); err != nil {
				t.Fatal(err)
			}
			if f := stats.Figures(); !f.Nobody() || f.Unknown[cause] != 1 {
				t.Errorf("figures %+v", f)
			}
			if err := cfg.Told.Close(); err != nil {
				t.Fatal(err)
			}
			n := 0
			_ = told.Read(&file, 1, func(r *told.Record) error {
				n++
				if r.Answer != told.Unknown || r.Cause != cause || r.Refused() || r.Accepted() {
					t.Errorf("record %+v", r)
				}
				return nil
			})
			if n != 1 {
				t.Fatalf("%d records", n)
			}
		})
	}
}

func TestTheEndOfTheRunTakesNoOrderBack(t *testing.T) {
	g := &gateway{}
	g.stock.Store(10)
	inside, leave := make(chan struct{}), make(chan struct{})
	g.stall = func(int64) { close(inside); <-leave }
	cfg := start(t, g)
	cfg.Requests, cfg.Concurrency = 1, 1
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-inside; cancel(); close(leave) }()
	stats := NewStats()
	if err := Run(ctx, cfg, stats); err != nil {
		t.Fatal(err)
	}
	if f := stats.Figures(); f.Answers["queued"] != 1 {
		t.Fatalf("answers %v", f.Answers)
	}
}

func TestConfigErrorsNameTheRemedy(t *testing.T) {
	who := func(int) (Buyer, error) { return Buyer{User: "u"}, nil }
	for want, cfg := range map[string]Config{
		"gateway's address":    {Target: "127.0.0.1:80", Activity: 1, Identify: who, Requests: 1},
		"want a positive id":   {Target: "http://h", Identify: who, Requests: 1},
		"must end the run":     {Target: "http://h", Activity: 1, Identify: who},
		"want none below zero": {Target: "http://h", Activity: 1, Identify: who, Requests: 1, Rate: -1},
		"identify: no buyers":  {Target: "http://h", Activity: 1, Requests: 1},
	} {
		if err := Run(t.Context(), cfg, NewStats()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", cfg, err, want)
		}
	}
}
