package caddymodule

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// configs makes Caddyfiles for reloads: one address, and global options that may change.
type configs struct{ addr string }

func newConfigs(t *testing.T) configs {
	t.Helper()
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return configs{fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))}
}

func (c configs) with(options string, lines ...string) string {
	return "{\nseckill {\nredis 127.0.0.1:6379\nkafka 127.0.0.1:9092\n" + options + "\n}\n}\n" +
		"http://" + c.addr + " {\n" + strings.Join(lines, "\n") + "\n}\n"
}

// fakes makes a fresh fake edge for every configuration of the clients.
func fakes(t *testing.T) func() []*fake {
	t.Helper()
	var mu sync.Mutex
	var made []*fake
	was := newBackend
	newBackend = func(settings, *zap.Logger) (backend, error) {
		mu.Lock()
		defer mu.Unlock()
		f := newFake()
		made = append(made, f)
		return f, nil
	}
	t.Cleanup(func() { newBackend = was })
	return func() []*fake {
		mu.Lock()
		defer mu.Unlock()
		return append([]*fake(nil), made...)
	}
}

func TestReloadKeepsClientsThatDidNotChange(t *testing.T) {
	made := fakes(t)
	c := newConfigs(t)
	const site = "seckill {\n user {header.X-User}\n}"
	load(t, c.with("", site))
	load(t, c.with("", site, "respond shop 299"))
	load(t, c.with("prefix /flash", site)) // not what clients are made from
	if n := len(made()); n != 1 {
		t.Fatalf("clients were made %d times", n)
	}
	load(t, c.with("max_batch 3", site))
	all := made()
	if len(all) != 2 || !all[0].closed || all[1].closed {
		t.Fatalf("%d clients", len(all))
	}
	// A configuration that fails leaves the running one's clients alone.
	if err := tryLoad(t, c.with("max_batch 3", site, "seckill_gate {\n activity {http.request.typo}\n}")); err == nil {
		t.Fatal("a wrong configuration was accepted")
	}
	if err := tryLoad(t, c.with("max_batch 4", site, "seckill_gate {\n activity {http.request.typo}\n}")); err == nil {
		t.Fatal("a wrong configuration was accepted")
	}
	if all[1].closed {
		t.Error("a failed reload closed the running configuration's clients")
	}
	if res := request(t, "POST", "http://"+c.addr+"/seckill/1/orders", "", "X-User", "bob"); res.status != 202 {
		t.Errorf("got %d %s", res.status, res.body)
	}
	if n := len(made()); n != 2 {
		t.Errorf("a configuration that never ran made clients")
	}
}

// E33, E72: a reload waits for requests between reservation and publication before it closes their clients.
func TestE72ReloadDrains(t *testing.T) {
	made := fakes(t)
	c := newConfigs(t)
	const site = "seckill {\n user {header.X-User}\n}"
	load(t, c.with("", site))
	old := made()[0]
	reserved, publish := make(chan struct{}), make(chan struct{})
	old.outcome = func(r edge.Request) edge.Outcome {
		close(reserved)
		<-publish
		old.mu.Lock()
		defer old.mu.Unlock()
		if old.closed {
			t.Error("the clients were closed under a request")
		}
		return edge.Outcome{OrderID: anOrder, Status: order.Queued}
	}
	got := make(chan response, 1)
	go func() { got <- request(t, "POST", "http://"+c.addr+"/seckill/1/orders", "", "X-User", "bob") }()
	<-reserved
	loaded := make(chan error, 1)
	go func() { loaded <- tryLoad(t, c.with("max_batch 3", site)) }()
	testenv.Eventually(t, 10*time.Second, "the new configuration's clients", func() bool { return len(made()) == 2 })
	// The new configuration serves while the old one drains.
	testenv.Eventually(t, 10*time.Second, "an answer by the new configuration", func() bool {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.addr+"/seckill/1/orders", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-User", "eve")
		_, _ = tryDo(r) // a connection that the old listener had not accepted yet is reset
		orders, _ := made()[1].calls()
		return len(orders) > 0
	})
	select {
	case <-loaded:
		t.Error("the reload did not wait for the order in work")
	default:
	}
	close(publish)
	if res := <-got; res.status != 202 {
		t.Errorf("got %d %s", res.status, res.body)
	}
	if err := <-loaded; err != nil {
		t.Fatal(err)
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	if !old.closed {
		t.Error("the old clients were not closed")
	}
}

// The drain has a bound: an order that never ends does not keep a reload for ever.
func TestDrainIsBounded(t *testing.T) {
	made := fakes(t)
	c := newConfigs(t)
	const site = "seckill {\n user {header.X-User}\n}"
	load(t, c.with("drain_timeout 200ms", site))
	old := made()[0]
	reserved, forever := make(chan struct{}), make(chan struct{})
	old.outcome = func(edge.Request) edge.Outcome {
		close(reserved)
		<-forever
		return edge.Outcome{Reason: edge.Unavailable}
	}
	got := make(chan response, 1)
	go func() { got <- request(t, "POST", "http://"+c.addr+"/seckill/1/orders", "", "X-User", "bob") }()
	<-reserved
	began := time.Now()
	load(t, c.with("drain_timeout 300ms", site))
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the reload took %v", took)
	}
	if !old.closed {
		t.Error("the old clients were not closed")
	}
	close(forever)
	<-got
}

// A limiter keeps its state over a reload, and no two limiters share one by accident.
func TestLimiterStateSurvivesReload(t *testing.T) {
	fakes(t)
	c := newConfigs(t)
	limit := func(path string) string { return "seckill_rate_limit " + path + " token_bucket 2/h" }
	at := "http://" + c.addr
	status := func(path string) int { return request(t, "GET", at+path, "").status }
	load(t, c.with("", limit("/a"), limit("/b"), "respond shop 299"))
	if a, b := status("/a"), status("/a"); a != 299 || b != 299 {
		t.Fatalf("got %d, %d", a, b)
	}
	if status("/a") != 429 {
		t.Fatal("the limit does not limit")
	}
	if status("/b") != 299 {
		t.Fatal("/b shares the bucket of /a")
	}
	for range 5 {
		load(t, c.with("", limit("/a"), limit("/b"), "header X a", "respond shop 299"))
		load(t, c.with("max_batch 3", limit("/a"), limit("/b"), "respond shop 299"))
	}
	if status("/a") != 429 {
		t.Error("a reload reset the bucket")
	}
	if status("/b") != 299 || status("/b") != 429 {
		t.Error("a reload mixed the buckets up")
	}
	load(t, c.with("", "respond shop 299"))
	load(t, c.with("", limit("/a"), "respond shop 299"))
	if status("/a") != 299 {
		t.Error("a limiter that was taken out kept its state")
	}
}

// Two sites with the same lines have two limiters, and each finds its own again whatever the order of their servers.
func TestSitesDoNotShareLimiters(t *testing.T) {
	fakes(t)
	newConfigs(t)
	a, b := testenv.FreePort(t), testenv.FreePort(t)
	var both strings.Builder
	for _, port := range []int{a, b} {
		fmt.Fprintf(&both, "http://127.0.0.1:%d, http://localhost:%d {\nseckill_rate_limit token_bucket 1/h\nrespond shop 299\n}\n", port, port)
		fmt.Fprintf(&both, "http://*.localhost:%d {\nseckill_rate_limit token_bucket 1/h\nrespond shop 299\n}\n", port)
	}
	status := func(host string, port int) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		return do(t, r).status
	}
	load(t, both.String())
	if status("localhost", a) != 299 || status("localhost", a) != 429 {
		t.Fatal("the limit does not limit")
	}
	for range 10 { // servers are provisioned in random order
		load(t, "{\ngrace_period 1s\n}\n"+both.String())
		load(t, both.String())
		if status("localhost", a) != 429 {
			t.Fatal("a reload gave the site a fresh bucket, or another site's")
		}
	}
	for _, other := range []struct {
		host string
		port int
	}{{"x.localhost", a}, {"localhost", b}, {"x.localhost", b}} {
		if got := status(other.host, other.port); got != 299 {
			t.Errorf("%s:%d shares a bucket: got %d", other.host, other.port, got)
		}
	}
}

// A site keeps its limiters when another listener is added in front of it, or taken away, and the other does not get them. Neither has
// a host that would tell them apart.
func TestLimitersStayWithTheirListener(t *testing.T) {
	fakes(t)
	newConfigs(t)
	first, second := testenv.FreePort(t), testenv.FreePort(t)
	if first > second { // Caddy numbers servers by address
		first, second = second, first
	}
	site := func(port int) string {
		return fmt.Sprintf("http://:%d {\nbind 127.0.0.1\nseckill_rate_limit token_bucket 1/h\nrespond shop 299\n}\n", port)
	}
	status := func(port int) int { return request(t, "GET", fmt.Sprintf("http://127.0.0.1:%d/", port), "").status }
	load(t, site(second))
	if a, b := status(second), status(second); a != 299 || b != 429 {
		t.Fatalf("the limit does not limit: %d, %d", a, b)
	}
	load(t, site(first)+site(second))
	if got := status(second); got != 429 {
		t.Errorf("with a listener more the site has a fresh bucket: got %d", got)
	}
	if got := status(first); got != 299 {
		t.Errorf("the new listener shares the other's bucket: got %d", got)
	}
	load(t, site(second))
	if got := status(second); got != 429 {
		t.Errorf("with a listener less the site has a fresh bucket: got %d", got)
	}
}

// The log of what outlives a reload goes where the running configuration logs.
func TestClientsLogToTheRunningConfiguration(t *testing.T) {
	var log *zap.Logger
	was := newBackend
	newBackend = func(_ settings, l *zap.Logger) (backend, error) {
		log = l.Named("ignored").With(zap.Int("n", 1))
		return newFake(), nil
	}
	t.Cleanup(func() { newBackend = was })
	dir := t.TempDir()
	c := newConfigs(t)
	withLog := func(name string) string {
		config := c.with("", "seckill {\n user {header.X-User}\n}")
		return strings.Replace(config, "{\n", "{\nlog {\noutput file "+filepath.Join(dir, name)+" {\nroll_disabled\n}\n}\n", 1)
	}
	loadLogging(t, withLog("first"))
	log.Info("to the first")
	loadLogging(t, withLog("second"))
	log.Info("to the second")
	log.Debug("to nobody")
	for name, want := range map[string]string{"first": "to the first", "second": "to the second"} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(raw), `"msg":"to the `); n != 1 || !strings.Contains(string(raw), want) || !strings.Contains(string(raw), `"n":1`) {
			t.Errorf("%s log has\n%s", name, raw)
		}
	}
}
