package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/outbox"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.KnownLeaks()...) }

const (
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	newer  = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
)

// TestSignatureOfTheSpecification: the example that the specification's own libraries are tested with.
func TestSignatureOfTheSpecification(t *testing.T) {
	c := Config{Secrets: []string{secret}}
	keys, err := c.keys()
	if err != nil {
		t.Fatal(err)
	}
	got := sign(keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("signature %s, want %s", got, want)
	}
}

func event() store.Event {
	return store.Event{Seq: 42, Extra: json.RawMessage(`{"address":"<5>"}`), Result: order.Result{
		V: 1, ID: "0198a1b2-0000-7000-8000-000000000001", Activity: 70, User: "u1", Item: 7, Quantity: 2, Status: order.Confirmed, AtMs: 1_700_000_000_123,
	}}
}

// endpoint is a shop and a client of it.
func endpoint(t *testing.T, cfg Config, answer http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	cfg.URL = s.URL + "/hooks/orders?token=hidden"
	if cfg.Secrets == nil {
		cfg.Secrets = []string{secret, newer}
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestRequest: what the shop gets, and that it can verify it with either secret, by the steps of docs/webhook.md.
func TestRequest(t *testing.T) {
	var bodies []string
	c := endpoint(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		bodies = append(bodies, string(b))
		id, at := r.Header.Get(HeaderID), r.Header.Get(HeaderTimestamp)
		if r.Method != http.MethodPost || r.URL.Path != "/hooks/orders" || r.Header.Get("Content-Type") != "application/json" ||
			id != "0198a1b2-0000-7000-8000-000000000001.42" || at != "1700000600" {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
		signatures := strings.Fields(r.Header.Get(HeaderSignature))
		for i, s := range []string{secret, newer} {
			key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s, "whsec_"))
			if err != nil {
				t.Error(err)
			}
			m := hmac.New(sha256.New, key)
			m.Write([]byte(id + "." + at + "." + string(b)))
			if want := "v1," + base64.StdEncoding.EncodeToString(m.Sum(nil)); len(signatures) != 2 || signatures[i] != want {
				t.Errorf("signatures %v, want number %d to be %s", signatures, i+1, want)
			}
		}
		w.WriteHeader(http.StatusAccepted)
	})
	c.now = func() time.Time { return time.Unix(1_700_000_600, 0) }
	for range 2 {
		if err := c.Deliver(t.Context(), event()); err != nil {
			t.Fatal(err)
		}
	}
	const want = `{"type":"order.confirmed","timestamp":"2023-11-14T22:13:20.123Z","data":{"v":1,"order_id":"0198a1b2-0000-7000-8000-000000000001",` +
		`"activity_id":70,"user_id":"u1","item_id":7,"quantity":2,"status":"CONFIRMED","reason":"","at_ms":1700000000123,"sequence":42,"extra":{"address":"<5>"}}}`
	if len(bodies) != 2 || bodies[0] != want || bodies[1] != want {
		t.Errorf("bodies\n%s\nwant twice\n%s", strings.Join(bodies, "\n"), want)
	}
}

// TestAnswers: only 2xx is an answer; a redirect is not followed, since what is signed is not for somebody else; Retry-After is heeded;
// and no error shows a secret or a token.
func TestAnswers(t *testing.T) {
	for name, a := range map[string]struct {
		answer http.HandlerFunc
		ok     bool
		after  time.Duration
	}{
		"200":             {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 100_000)) }, true, 0},
		"204":             {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, true, 0},
		"redirect":        {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", 307) }, false, 0},
		"400":             {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) }, false, 0},
		"503 and a pause": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Retry-After", "17"); w.WriteHeader(503) }, false, 17 * time.Second},
		"500":             {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, false, 0},
		"closed":          {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false, 0},
		"too slow":        {func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body); <-r.Context().Done() }, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeout := 5 * time.Second
			if name == "too slow" {
				timeout = 200 * time.Millisecond
			}
			c := endpoint(t, Config{Timeout: timeout}, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/hooks/orders" {
					t.Errorf("followed a redirect to %s", r.URL)
				}
				a.answer(w, r)
			})
			err := c.Deliver(t.Context(), event())
			if (err == nil) != a.ok {
				t.Errorf("error %v", err)
			}
			var later *outbox.Later
			if errors.As(err, &later) != (a.after > 0) || later != nil && later.After != a.after {
				t.Errorf("try again after %+v, want %s", later, a.after)
			}
			if err != nil && (strings.Contains(err.Error(), "hidden") || strings.Contains(err.Error(), "MfKQ") || !strings.Contains(err.Error(), "/hooks/orders")) {
				t.Errorf("error %q: want the place and no secret", err)
			}
		})
	}
}

// TestTLS: the shop's certificate is checked, against ca_file where there is one.
func TestTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }))
	defer s.Close()
	s.Config.ErrorLog = nil
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, ok := range map[string]bool{ca: true, "": false} {
		c, err := New(Config{URL: s.URL, Secrets: []string{secret}, CAFile: file})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Deliver(t.Context(), event()); (err == nil) != ok {
			t.Errorf("ca_file %q: %v", file, err)
		}
		c.Close()
	}
}

// TestConfig: what cannot work is refused with its key and its remedy, and without repeating a secret.
func TestConfig(t *testing.T) {
	good := func() Config {
		c := Config{URL: "https://shop.example/hooks", Secrets: []string{secret}}
		c.SetDefaults()
		return c
	}
	c := good()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	off := Config{}
	off.SetDefaults()
	if err := off.Validate(); err != nil || off.Enabled() {
		t.Errorf("switched off: %v", err)
	}
	for want, change := range map[string]func(*Config){
		"url: https://shop.example/hooks: it holds": func(c *Config) { c.URL = "https://me:sesame@shop.example/hooks" },
		"url: ftp://shop.example":                   func(c *Config) { c.URL = "ftp://shop.example" },
		"url: it is not a URL":                      func(c *Config) { c.URL = "https://me:sesame@[::1/" },
		"url: http:///x":                            func(c *Config) { c.URL = "http:///x" },
		"secrets: none":                             func(c *Config) { c.Secrets = nil },
		"secrets: number 2 is not":                  func(c *Config) { c.Secrets = []string{secret, "sesame"} },
		"secrets: number 1 is not":                  func(c *Config) { c.Secrets = []string{"whsec_c2VzYW1l"} },
		"ca_file: ":                                 func(c *Config) { c.CAFile = "/nowhere/sesame.pem"; c.Timeout = time.Second },
		"timeout: 1ms":                              func(c *Config) { c.Timeout = time.Millisecond },
		"parallel: -1":                              func(c *Config) { c.Parallel = -1 },
		"retry_min: 10m0s":                          func(c *Config) { c.RetryMin = 10 * time.Minute },
	} {
		c := good()
		change(&c)
		err := c.Validate()
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "c2VzYW1l") ||
			strings.Contains(err.Error(), "sesame") && !strings.HasPrefix(want, "ca_file") {
			t.Errorf("%v: want %s… and no secret", err, want)
		}
	}
}
