package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

const webhookSecret = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

// hook is a shop's endpoint: it verifies each request, and remembers of each order what it heard for the first time.
type hook struct {
	*httptest.Server
	answer http.HandlerFunc // nil: 204

	mu    sync.Mutex
	heard map[string][]order.Status
	ids   map[string]int
}

// webhook gives the deployment a shop that listens.
func (d *deployment) webhook(answer http.HandlerFunc) *hook {
	d.t.Helper()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(webhookSecret, "whsec_"))
	if err != nil {
		d.t.Fatal(err)
	}
	h := &hook{answer: answer, heard: map[string][]order.Status{}, ids: map[string]int{}}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the worker was killed
		}
		m := hmac.New(sha256.New, key)
		m.Write([]byte(r.Header.Get("webhook-id") + "." + r.Header.Get("webhook-timestamp") + "."))
		m.Write(body)
		if got, want := r.Header.Get("webhook-signature"), "v1,"+base64.StdEncoding.EncodeToString(m.Sum(nil)); got != want {
			d.t.Errorf("signature %s, want %s", got, want)
		}
		if h.answer != nil {
			h.answer(w, r)
			return
		}
		var msg struct {
			Data order.Result `json:"data"`
		}
		if err := json.Unmarshal(body, &msg); err != nil {
			d.t.Errorf("body %s: %v", body, err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		id := r.Header.Get("webhook-id")
		if h.ids[id]++; h.ids[id] == 1 {
			h.heard[msg.Data.ID] = append(h.heard[msg.Data.ID], msg.Data.Status)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	d.t.Cleanup(h.Close)
	d.configure("webhook: {url: '" + h.URL + "/hook', secrets: ['" + webhookSecret + "'], retry_min: 20ms, retry_max: 200ms}")
	return h
}

// heardAll waits until nothing is left to tell anybody.
func (d *deployment) heardAll(within time.Duration) {
	d.t.Helper()
	testenv.Eventually(d.t, within, "all is told", func() bool {
		var n int
		if err := d.store.DB().QueryRow("SELECT COUNT(*) FROM seckill_outbox").Scan(&n); err != nil {
			d.t.Fatal(err)
		}
		return n == 0
	})
}

// TestToldWhateverIsKilled: kill -9 before and after each step of landing and telling; the shop and the results topic hear of every order, in
// its order, and of what the shop itself changed.
func TestToldWhateverIsKilled(t *testing.T) {
	for _, step := range []string{"after_insert", "after_commit:2", "after_settle", "after_deliver:20", "after_told:2"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			d := deploy(t, 2).sale(10_000)
			h := d.webhook(nil)
			if err := d.store.Subscribe(t.Context(), store.Webhook); err != nil { // as an earlier worker has
				t.Fatal(err)
			}
			accepted := d.accept(300)
			d.start(step, "run").killed(60 * time.Second)
			workers := []*child{d.start("", "run"), d.start("", "run")}
			d.done(90 * time.Second)
			for _, o := range accepted[:100] {
				if _, err := d.store.DB().Exec("UPDATE orders SET status = 'PAID' WHERE order_id = ? AND status = 'CONFIRMED'", o.ID); err != nil {
					t.Fatal(err)
				}
			}
			d.heardAll(60 * time.Second)
			for _, w := range workers {
				w.stop()
			}
			results := d.results()
			for i, o := range accepted {
				want := []order.Status{order.Confirmed}
				if i < 100 {
					want = append(want, order.Paid)
				}
				if got := h.heard[o.ID]; !slices.Equal(got, want) {
					t.Errorf("the shop heard %v of order %d, want %v", got, i, want)
				}
				if got := slices.Compact(results[o.ID]); !slices.Equal(got, want) {
					t.Errorf("the results topic says %v of order %d, want %v", got, i, want)
				}
			}
		})
	}
}

// results reads the results topic.
func (d *deployment) results() map[string][]order.Status {
	d.t.Helper()
	high, err := d.admin.HighWater(d.t.Context(), d.kafka.Topics.Results)
	if err != nil {
		d.t.Fatal(err)
	}
	got := map[string][]order.Status{}
	err = d.admin.Read(d.t.Context(), d.kafka.Topics.Results, nil, high, func(_ int32, _ int64, _ time.Time, _, value []byte) error {
		var r order.Result
		err := json.Unmarshal(value, &r)
		got[r.ID] = append(got[r.ID], r.Status)
		return err
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return got
}

// TestDeadShopHoldsUpNothing: a shop that takes requests and never answers; orders land, the results topic hears of them, the worker stops in
// time, and says what waits.
func TestDeadShopHoldsUpNothing(t *testing.T) {
	t.Parallel()
	d := deploy(t, 1).sale(10_000)
	release := make(chan struct{})
	d.webhook(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	w := d.start("", "run")
	accepted := d.accept(500)
	d.done(60 * time.Second)
	d.exact(10_000, accepted)
	testenv.Eventually(t, 30*time.Second, "the results topic hears of all", func() bool { return len(d.results()) == 500 })
	w.stop()
	out := mustCommand(t, "outbox", "list", "--config", d.config)
	if !strings.Contains(out, "webhook") || !strings.Contains(out, " 500 ") {
		t.Errorf("outbox list:\n%s", out)
	}
	out = mustCommand(t, "config", "check", "--config", d.config)
	if strings.Contains(out, "AAECAw") || strings.Contains(out, "outbox_unheard") || !strings.Contains(out, "/hook, signed (webhook.secrets: 1)") {
		t.Errorf("config check shows a secret, or not the shop:\n%s", out)
	}
	d.edit("webhook: {url:", "webhook: {url: '', ca_file: '', secrets: []} #")
	if out := mustCommand(t, "config", "check", "--config", d.config); !strings.Contains(out, "outbox_unheard") || !strings.Contains(out, "outbox forget webhook") {
		t.Errorf("config check does not say that nobody tells the shop any more:\n%s", out)
	}
	if out := mustCommand(t, "outbox", "forget", "webhook", "--config", d.config); !strings.Contains(out, "500") {
		t.Errorf("outbox forget:\n%s", out)
	}
	if _, err := command(t, "outbox", "forget", "sesame", "--config", d.config); err == nil {
		t.Error("forgot somebody that nobody knows")
	}
	if out := mustCommand(t, "outbox", "list", "--config", d.config); strings.Contains(out, "webhook") || !strings.Contains(out, "results") {
		t.Errorf("outbox list:\n%s", out)
	}
}

// TestMySQLGoesAwayAfterTheChecks: between the start-up checks and the first order the worker registers who is told of it. MySQL fails
// just then: the worker waits for it, not ready, and neither ends nor lands an order that nobody would be told of.
func TestMySQLGoesAwayAfterTheChecks(t *testing.T) {
	t.Parallel()
	d := deploy(t, 1).sale(100)
	dsn, err := mysql.ParseDSN(d.dsn)
	if err != nil {
		t.Fatal(err)
	}
	p := faultproxy.New(t, dsn.Addr)
	listen := "127.0.0.1:" + itoa(testenv.FreePort(t))
	d.edit("127.0.0.1:0", listen)
	d.edit(dsn.Addr, p.Addr())
	away := p.CloseBefore(func(request []byte) bool {
		return bytes.Contains(request, []byte("FROM (SELECT 1) AS one WHERE NOT EXISTS"))
	}, 1<<30)
	accepted := d.accept(5)
	w := d.start("", "run")
	testenv.Eventually(t, time.Minute, "it has tried more than once", func() bool { return away.Fired() > 1 })
	if n := status("http://" + listen + "/readyz"); n != http.StatusServiceUnavailable {
		t.Errorf("readyz answers %d while MySQL is away, want 503\n%s", n, w.log)
	}
	away.Release()
	d.done(time.Minute)
	d.exact(100, accepted)
	testenv.Eventually(t, time.Minute, "ready", func() bool { return status("http://"+listen+"/readyz") == http.StatusOK })
	w.stop()
}
