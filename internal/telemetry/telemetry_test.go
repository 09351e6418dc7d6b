package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T) (*Health, *Server) {
	t.Helper()
	h := new(Health)
	s := NewServer(HTTP{Listen: "127.0.0.1:0"}, h, NewRegistry("test"), zap.NewNop())
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return h, s
}

func get(t *testing.T, s *Server, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + s.Addr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestReadiness(t *testing.T) {
	h, s := start(t)
	if code, _ := get(t, s, "/readyz"); code != 503 || h.Err() == nil {
		t.Errorf("ready before anything is known: %d", code)
	}
	h.Set("kafka", nil)
	h.Set("mysql", errors.New("connection refused"))
	for _, path := range []string{"/readyz", "/healthz"} {
		code, body := get(t, s, path)
		var r report
		if err := json.Unmarshal([]byte(body), &r); err != nil {
			t.Fatal(err)
		}
		if code != 503 || r.Status != "not_ready" || r.Conditions["mysql"].Error != "connection refused" || !r.Conditions["kafka"].OK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if err := h.Err(); err == nil || err.Error() != "mysql: connection refused" {
		t.Errorf("err: %v", err)
	}
	since := h.snapshot()["mysql"].since
	h.Set("mysql", errors.New("still refused"))
	if h.snapshot()["mysql"].since != since {
		t.Error("another error of a condition that is red already restarts its clock")
	}
	h.Forget("mysql")
	if code, body := get(t, s, "/readyz"); code != 200 || h.Err() != nil || !strings.Contains(body, `"status":"ok"`) {
		t.Errorf("all well: %d %s", code, body)
	}
	if code, body := get(t, s, "/livez"); code != 200 || body != "ok\n" {
		t.Errorf("livez: %d %s", code, body)
	}
	if code, body := get(t, s, "/metrics"); code != 200 || !strings.Contains(body, `seckillgate_build_info{component="test"`) ||
		!strings.Contains(body, "go_goroutines") {
		t.Errorf("metrics: %d %s", code, body)
	}
	if code, _ := get(t, s, "/other"); code != 404 {
		t.Errorf("other: %d", code)
	}
}

func TestServerLifecycle(t *testing.T) {
	for range 50 {
		s := NewServer(HTTP{Listen: "127.0.0.1:0"}, new(Health), NewRegistry("test"), zap.NewNop())
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { _ = s.Start() })
			wg.Go(func() { _ = s.Stop(context.Background()) })
		}
		wg.Wait()
		if err := s.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(); err != nil {
			t.Fatalf("start after stop: %v", err)
		}
	}
	_, busy := start(t)
	s := NewServer(HTTP{Listen: busy.Addr()}, new(Health), NewRegistry("test"), zap.NewNop())
	if err := s.Start(); err == nil || !strings.HasSuffix(err.Error(), "; set http.listen (SECKILL_HTTP_LISTEN) to another address, or off") {
		t.Errorf("start on a used port: %v", err)
	}
	for _, off := range []string{"", "off"} {
		s := NewServer(HTTP{Listen: off}, new(Health), NewRegistry("test"), zap.NewNop())
		if err := s.Start(); err != nil || s.Addr() != "" {
			t.Errorf("%q: listens on %q, %v", off, s.Addr(), err)
		}
	}
}

func TestLog(t *testing.T) {
	for _, l := range []Log{{}, {"debug", "console"}, {"error", "json"}} {
		if _, err := l.Logger(); err != nil {
			t.Errorf("%+v: %v", l, err)
		}
	}
	for _, l := range []Log{{Level: "loud"}, {Format: "xml"}, {Level: "fatal"}} {
		if _, err := l.Logger(); err == nil {
			t.Errorf("%+v is accepted", l)
		}
	}
}

func TestSystemd(t *testing.T) {
	if err := Notify("READY=1"); err != nil {
		t.Errorf("outside of systemd: %v", err)
	}
	path := filepath.Join(t.TempDir(), "n")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	read := func() string {
		_ = socket.SetReadDeadline(time.Now().Add(5 * time.Second))
		buf := make([]byte, 100)
		n, err := socket.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	t.Setenv("WATCHDOG_USEC", "20000")
	if err := Notify("READY=1"); err != nil || read() != "READY=1" {
		t.Errorf("notify: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watchdog(ctx, func() error { return nil })
	}()
	for range 3 {
		if got := read(); got != "WATCHDOG=1" {
			t.Errorf("watchdog sent %q", got)
		}
	}
	cancel()
	<-done
	t.Setenv("WATCHDOG_PID", "1")
	Watchdog(t.Context(), func() error { t.Error("another process's watchdog is served"); return nil })
	t.Setenv("NOTIFY_SOCKET", path+"-gone")
	if err := Notify("READY=1"); err == nil {
		t.Error("a socket that is gone is no error")
	}
}
