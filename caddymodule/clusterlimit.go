package caddymodule

import (
	"context"
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ratelimit"
	"github.com/seckillgate/seckillgate/internal/ratelimit/rediswindow"
)

// clusterStore asks the Redis of the app `seckill` on behalf of one limiter. The limiter itself outlives the configuration;
// this does not, so that it has the running configuration's clients and log.
type clusterStore struct {
	name   string
	shared *shared
	log    *zap.Logger
}

func newClusterStore(ctx caddy.Context, name string) (*clusterStore, error) {
	app, err := appOf(ctx)
	if err != nil {
		return nil, err
	}
	return &clusterStore{name: name, shared: app.shared, log: ctx.Logger()}, nil
}

// Take implements ratelimit.Store.
func (s *clusterStore) Take(ctx context.Context, key string, rate ratelimit.Rate) (ratelimit.Result, error) {
	back, err := s.shared.enter(&s.shared.buying)
	if err != nil { // a late request of a configuration that has been replaced
		return ratelimit.Result{}, fmt.Errorf("%w: %w", ratelimit.ErrNotAsked, err)
	}
	defer s.shared.buying.leave()
	return back.takeRate(ctx, rediswindow.Key(s.name, key), rate)
}

// Switched implements ratelimit.Store.
func (s *clusterStore) Switched(err error) {
	if err != nil {
		s.log.Error("redis does not answer: the rate limit falls back to this gateway's own share",
			zap.String("limiter", s.name), zap.Error(err))
		return
	}
	s.log.Info("redis answers again: the rate limit is one for all gateways", zap.String("limiter", s.name))
}

var _ ratelimit.Store = (*clusterStore)(nil)
