// Package telemetry holds what every process shows of itself: its log, its health, its metrics, and its state to systemd.
package telemetry

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Log says what is logged and how.
type Log struct {
	// Level is debug, info, warn or error. Default: info.
	Level string `yaml:"level"`
	// Format is json or console. Default: json.
	Format string `yaml:"format"`
}

// SetDefaults fills what is empty.
func (l *Log) SetDefaults() {}

// Validate checks both words.
func (l *Log) Validate() error { return nil }

// Logger builds the process's logger; it writes to standard error.
func (l Log) Logger() (*zap.Logger, error) { panic("TODO") }

// HTTP is where health and metrics are served.
type HTTP struct {
	// Listen is host:port; "off" serves nothing. Default: the process's own, on 127.0.0.1.
	Listen string `yaml:"listen"`
}

// Health is a set of named conditions. It is ready when there is at least one and all are nil. The zero value is not ready.
type Health struct{}

// Set notes the state of a condition: nil is well. It may be called from anywhere.
func (h *Health) Set(name string, err error) {}

// Err is nil when ready, else it joins what is wrong, each with its name.
func (h *Health) Err() error { panic("TODO") }

// Server serves /livez, /readyz, /healthz (the same as /readyz) and /metrics.
type Server struct{}

// NewServer prepares a server; it does not listen yet.
func NewServer(cfg HTTP, health *Health, gatherer prometheus.Gatherer, log *zap.Logger) *Server {
	panic("TODO")
}

// Start listens and returns; it fails if it cannot listen.
func (s *Server) Start() error { panic("TODO") }

// Addr is the address that it listens on; "" before Start and when off.
func (s *Server) Addr() string { panic("TODO") }

// Stop ends the server, waiting for requests until ctx ends. It may be called more than once and before Start.
func (s *Server) Stop(ctx context.Context) error { panic("TODO") }

// NewRegistry is a Prometheus registry with the Go, process and seckillgate_build_info collectors. component names the process.
func NewRegistry(component string) *prometheus.Registry { panic("TODO") }

// Notify tells systemd a state such as "READY=1", "STOPPING=1" or "STATUS=…". Outside of systemd it does nothing.
func Notify(state string) error { panic("TODO") }

// Watchdog pings systemd's watchdog at half its interval while ctx lasts and alive returns nil. Outside of systemd, or without
// WatchdogSec, it returns at once.
func Watchdog(ctx context.Context, alive func() error) {}
