package startup

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/telemetry"
)

// Service is what a daemon has around its work: health and figures, the server that shows them, and systemd's watchdog.
type Service struct {
	Health   *telemetry.Health
	Registry *prometheus.Registry

	server   *telemetry.Server
	endWatch context.CancelFunc
	watched  chan struct{}
}

// Serve begins to serve, not ready yet. component names the process in its figures. End it with Close.
func Serve(ctx context.Context, component string, cfg telemetry.HTTP, log *zap.Logger) (*Service, error) {
	s := &Service{Health: new(telemetry.Health), Registry: telemetry.NewRegistry(component), watched: make(chan struct{})}
	s.Health.Set("checks", errNotDone)
	s.server = telemetry.NewServer(cfg, s.Health, s.Registry, log)
	if err := s.server.Start(); err != nil {
		return nil, err
	}
	// The end of ctx begins the end of the work, which the watchdog still watches.
	ctx, s.endWatch = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(s.watched)
		telemetry.Watchdog(ctx, func() error { return nil })
	}()
	_ = telemetry.Notify("READY=1") // waiting for a server is not a failed start
	return s, nil
}

// Addr is where it serves.
func (s *Service) Addr() string { return s.server.Addr() }

// Stopping tells systemd that the end has begun.
func (s *Service) Stopping() { _ = telemetry.Notify("STOPPING=1") }

// Close ends serving.
func (s *Service) Close(ctx context.Context) error {
	s.endWatch()
	<-s.watched
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	return s.server.Stop(ctx)
}

var errNotDone = errors.New("start-up checks are not done yet")
