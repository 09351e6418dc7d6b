package caddymodule

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/edge"
)

func TestAdminAPI(t *testing.T) {
	f := newFake()
	run(t, f, "seckill {\n user {header.X-User}\n}")
	api := new(adminAPI)
	if err := api.Provision(caddy.ActiveContext()); err != nil {
		t.Fatal(err)
	}
	ask := func(method, path string) (int, string) {
		w := httptest.NewRecorder()
		err := api.serve(w, httptest.NewRequest(method, path, nil))
		if api := new(caddy.APIError); errors.As(err, api) {
			return api.HTTPStatus, api.Err.Error()
		}
		if err != nil {
			t.Fatal(err)
		}
		return w.Code, w.Body.String()
	}
	for path, want := range map[string]string{
		"/seckill/": `"orders"`, "/seckill/activities": `[{"activity_id":1`, "/seckill/producer": `"healthy"`,
	} {
		status, body := ask(http.MethodGet, path)
		if status != 200 || !strings.Contains(body, want) || !json.Valid([]byte(body)) {
			t.Errorf("%s: got %d %s", path, status, body)
		}
	}
	if status, _ := ask(http.MethodPost, "/seckill/"); status != 405 {
		t.Errorf("POST: got %d", status)
	}
	if status, _ := ask(http.MethodGet, "/seckill/nothing"); status != 404 {
		t.Errorf("nothing: got %d", status)
	}
	load(t, ":0 {\nbind 127.0.0.1\nrespond x\n}\n")
	if err := api.Provision(caddy.ActiveContext()); err != nil {
		t.Fatal(err)
	}
	if status, text := ask(http.MethodGet, "/seckill/"); status != 404 || !strings.Contains(text, "no seckill app") {
		t.Errorf("without the app: got %d %s", status, text)
	}
}

// Each configuration has a registry of its own, and the figures live on in it. No outsider can make labels.
func TestMetricsSurviveReloads(t *testing.T) {
	fakes(t)
	c := newConfigs(t)
	at := "http://" + c.addr + "/seckill/"
	soldOut := func() float64 {
		t.Helper()
		ctx := caddy.ActiveContext()
		families, err := ctx.GetMetricsRegistry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		var n float64
		for _, family := range families {
			if !strings.HasPrefix(family.GetName(), "seckill_") {
				continue // Caddy's own
			}
			for _, m := range family.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
					if strings.Contains(l.GetValue(), "77") {
						t.Errorf("%s: an outsider made the label %v", family.GetName(), l)
					}
				}
				if family.GetName() == "seckill_requests_total" && labels["activity"] == "2" && labels["outcome"] == string(edge.SoldOut) {
					n = m.GetCounter().GetValue()
				}
			}
		}
		return n
	}
	const site = "seckill {\n user {header.X-User}\n}"
	load(t, c.with("", site))
	before := soldOut()
	for i := range 3 {
		load(t, c.with("max_batch "+string(rune('1'+i)), site))
		request(t, "POST", at+"2/orders", "")
		for _, path := range []string{"77123/orders", "77123", "77123/orders/mine", "77123/orders/" + anOrder, "1/77", "77", "1/orders/77"} {
			for _, method := range []string{"GET", "POST", "M77"} { // there is no such activity, order, call or method
				request(t, method, at+path+"?wait=77ms", `{"quantity":77,"extra":77}`, "X-User", "u77", "Idempotency-Key", "k77",
					"Accept-Language", "77", "X-Seckill-Activity", "77", "Content-Type", "text/77", "User-Agent", "77")
			}
		}
	}
	if got := soldOut() - before; got < 3 { // a request that a reload cut off may have been counted, too
		t.Errorf("counted %v refusals, want 3", got)
	}
}

// gathered reads the running configuration's metrics: name and labels, and the value.
func gathered(t *testing.T) map[string]float64 {
	t.Helper()
	ctx := caddy.ActiveContext()
	families, err := ctx.GetMetricsRegistry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			switch {
			case m.GetCounter() != nil:
				out[name] = m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				out[name] = m.GetGauge().GetValue()
			case m.GetHistogram() != nil:
				out[name] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return out
}

// What the clients count by themselves goes on counting when a reload closes them and makes others.
func TestFiguresSurviveReloads(t *testing.T) {
	made := fakes(t)
	c := newConfigs(t)
	const site = "seckill {\n user {header.X-User}\n}"
	const acked = "seckill_kafka_messages_total acked"
	load(t, c.with("", site))
	before := gathered(t)[acked]
	for i := range 3 {
		load(t, c.with("max_batch "+string(rune('1'+i)), site))
		request(t, "POST", "http://"+c.addr+"/seckill/1/orders", "", "X-User", "bob")
		// A request that a reload cut off is tried again, so that it may count twice.
		var asked float64
		for _, f := range made() {
			f.mu.Lock()
			asked += float64(f.asked)
			f.mu.Unlock()
		}
		now := gathered(t)
		if got := now[acked] - before; got != asked || asked < float64(i+1) {
			t.Errorf("after %d reloads %v are counted, want %v", i+1, got, asked)
		}
		if n := now["seckill_activities open"]; n != 1 {
			t.Errorf("%v activities are open", n)
		}
	}
	load(t, c.with("", "respond x"))
	if n := gathered(t)["seckill_activities open"]; n != 1 {
		t.Errorf("%v activities are open", n)
	}
}

// `caddy validate` makes no clients, so it dials nothing and leaves nothing running.
func TestValidateMakesNoClients(t *testing.T) {
	was := newBackend
	newBackend = func(settings, *zap.Logger) (backend, error) {
		t.Error("clients were made")
		return newFake(), nil
	}
	t.Cleanup(func() { newBackend = was })
	config, err := adapt(site1("seckill {\n rate_limit token_bucket 1/s\n user {header.X-User}\n}"))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(t, config); err != nil {
		t.Fatal(err)
	}
	for _, pool := range []*caddy.UsagePool{sharedPool, limiters} {
		pool.Range(func(key, _ any) bool {
			t.Errorf("%v was left in a pool", key)
			return true
		})
	}
	if len(places.loads) > 0 {
		t.Errorf("%d configurations are remembered", len(places.loads))
	}
}
