package bench

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site counts requests and keeps every serial number.
type site struct {
	mu      sync.Mutex
	serials map[string]int
	status  int
	body    string
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.serials[r.Header.Get("X-User")]++
	s.mu.Unlock()
	w.WriteHeader(s.status)
	_, _ = w.Write([]byte(s.body))
}

func serve(t *testing.T, s *site, req Request) *Load {
	t.Helper()
	s.serials = map[string]int{}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	addr := strings.TrimPrefix(srv.URL, "http://")
	req.Text = "POST /buy HTTP/1.1\r\nHost: " + addr + "\r\nX-User: u" + Serial + "\r\nContent-Length: 0\r\n\r\n"
	l, err := Dial(addr, 4, req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// TestLoad: what is counted was asked and answered, each time by another buyer.
func TestLoad(t *testing.T) {
	s := &site{status: 202, body: strings.Repeat("queued ", 200)}
	l := serve(t, s, Request{Status: 202, Contains: "queued"})
	var counted float64
	for range 3 {
		began := time.Now()
		perSecond, err := l.Run(20 * time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if most := perSecond * time.Since(began).Seconds(); most > 0 {
			counted += most
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.serials) == 0 || counted < float64(len(s.serials)) {
		t.Errorf("%d buyers came, %.0f answers were counted at most", len(s.serials), counted)
	}
	for user, n := range s.serials {
		if n != 1 || len(user) != 1+len(Serial) || strings.Contains(user, "serial") {
			t.Errorf("buyer %q came %d times", user, n)
		}
	}
}

// TestLoadRefusesWrongAnswers: a gateway that fails fast must not look fast.
func TestLoadRefusesWrongAnswers(t *testing.T) {
	for name, s := range map[string]*site{
		"status": {status: 503, body: "queued"},
		"body":   {status: 202, body: "processing"},
	} {
		t.Run(name, func(t *testing.T) {
			l := serve(t, s, Request{Status: 202, Contains: "queued"})
			if n, err := l.Run(10 * time.Millisecond); err == nil {
				t.Errorf("got %.0f a second of %d %q", n, s.status, s.body)
			}
		})
	}
}

// TestLoadMakesNoGarbage: the load shares the machine with what it loads.
func TestLoadMakesNoGarbage(t *testing.T) {
	c := newConn(nil, Request{Text: "X-User: " + Serial})
	if n := testing.AllocsPerRun(100, c.number); n != 0 {
		t.Errorf("a serial number allocates %v times", n)
	}
	answer := []byte("HTTP/1.1 202 Accepted\r\n\r\n")
	if n := testing.AllocsPerRun(100, func() { status(answer) }); n != 0 {
		t.Errorf("reading a status allocates %v times", n)
	}
}

func TestContest(t *testing.T) {
	defer func(was []table) { tables = was }(tables)
	tables = nil
	round := 0
	result := testing.Benchmark(func(b *testing.B) {
		tables, round = nil, 0
		Contest{Title: "a race", Rounds: 3, Turn: time.Nanosecond}.Run(b,
			Contestant{Name: "yardstick", Run: func(time.Duration) (float64, error) { round++; return float64(100 * round), nil }},
			Contestant{Name: "half as fast", Aim: 0.6, Run: func(time.Duration) (float64, error) { return float64(50 * round), nil }},
		)
	})
	if len(tables) != 1 || len(tables[0].rows) != 2 {
		t.Fatalf("got %+v from %v", tables, result)
	}
	// Only in the first round does the yardstick go first; in the second the other is judged by the round's own figure.
	if r := tables[0].rows[1]; r.ratio != 0.5 || r.low > r.ratio || r.high < r.ratio || tables[0].rows[0].ratio != 1 {
		t.Errorf("got %+v", tables[0].rows)
	}
	var out bytes.Buffer
	Print(&out)
	for _, want := range []string{"Commit ", "a race", "yardstick", "half as fast", " 0.50 ", " 0.6"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
}

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		sample []float64
		q      float64
		want   float64
	}{
		{[]float64{3}, 0.5, 3},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{5, 1, 4, 2, 3}, 0.25, 2},
		{[]float64{5, 1, 4, 2, 3}, 0.75, 4},
	} {
		t.Run(fmt.Sprint(c.sample, c.q), func(t *testing.T) {
			if got := quantile(c.sample, c.q); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
