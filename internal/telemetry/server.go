package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// HTTP is where health and metrics are served.
type HTTP struct {
	// Listen is host:port; "off" or "" serves nothing. Default: the process's own, on 127.0.0.1.
	Listen string `yaml:"listen"`
}

func (h HTTP) off() bool { return h.Listen == "" || h.Listen == "off" }

// Validate checks the address.
func (h *HTTP) Validate() error {
	if h.off() {
		return nil
	}
	if _, _, err := net.SplitHostPort(h.Listen); err != nil {
		return fmt.Errorf("listen: %q is not host:port, nor off: %w", h.Listen, err)
	}
	return nil
}

// Server serves /livez, /readyz, /healthz (the same as /readyz) and /metrics.
type Server struct {
	cfg  HTTP
	http *http.Server
	log  *zap.Logger

	mu      sync.Mutex
	addr    string
	stopped bool
	done    chan struct{} // closed when the started server has ended
}

// NewServer prepares a server; it does not listen yet.
func NewServer(cfg HTTP, health *Health, gatherer prometheus.Gatherer, log *zap.Logger) *Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	ready := func(w http.ResponseWriter, _ *http.Request) {
		body, ok := health.report()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(body)
	}
	mux.HandleFunc("GET /readyz", ready)
	mux.HandleFunc("GET /healthz", ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	return &Server{
		cfg: cfg,
		log: log,
		http: &http.Server{
			Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
			WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
			ErrorLog: zap.NewStdLog(log),
		},
	}
}

// Start listens and returns; it fails if it cannot listen.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cfg.off() || s.stopped || s.done != nil {
		return nil
	}
	l, err := net.Listen("tcp", s.cfg.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("http.listen %q: %w; set http.listen (SECKILL_HTTP_LISTEN) to another address, or off", s.cfg.Listen, err)
	}
	if err != nil {
		return fmt.Errorf("http.listen %q: %w", s.cfg.Listen, err)
	}
	s.addr = l.Addr().String()
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("health and metrics are no longer served", zap.String("listen", s.cfg.Listen), zap.Error(err))
		}
	}()
	return nil
}

// Addr is the address that it listens on; "" before Start and when off.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// Stop ends the server, waiting for requests until ctx ends. It may be called more than once and before Start.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopped = true
	done := s.done
	s.mu.Unlock()
	if done == nil {
		return nil
	}
	err := s.http.Shutdown(ctx)
	if err != nil { // the requests that are left are cut
		err = errors.Join(fmt.Errorf("stop serving on %q: %w", s.cfg.Listen, err), s.http.Close())
	}
	<-done
	return err
}
