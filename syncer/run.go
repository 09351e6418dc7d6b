package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/config"
	"github.com/seckillgate/seckillgate/internal/startup"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
)

func newRun(load loader) *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Follow MySQL until told to stop",
		Long: `Run takes part in the election of a leader. The leader follows the binlog, keeps the catalogue of
activities equal to MySQL's activity table, loads activities that Redis does not have or whose keys
cannot be trusted, compares both sides every compare_interval, and sweeps old reservations. It ends
on SIGTERM or SIGINT, having kept its position and given up the lease; another one takes over at
once, or within lease_ttl (5 s) of a kill.

At the start it checks Redis, MySQL, the binlog and Kafka and logs one line per finding. What may
lose or oversell orders refuses the start (exit code 78) unless its name is listed under accept. A
system that does not answer is waited for.

On http.listen (127.0.0.1:9302):
  /livez     200 while the process runs
  /readyz    200 while it stands by, or leads and all is well; 503 with the reasons
  /metrics   Prometheus figures`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := load(needRedis, needKafka, needMySQL)
			if err != nil {
				return err
			}
			return run(cmd.Context(), s)
		},
	}
}

func run(ctx context.Context, s *settings) (err error) {
	log, err := s.logger()
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }()
	for _, name := range config.UnknownEnv(&s.Config) {
		log.Warn("environment variable is not a key of the syncer and was ignored", zap.String("name", name))
	}
	p, err := s.open(ctx, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()

	service, err := startup.Serve(ctx, "syncer", s.HTTP, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, service.Close(ctx)) }()
	health, registry := service.Health, service.Registry
	metrics := runner.NewMetrics(registry)

	if err := startup.Await(ctx, checks(p), s.Accept, "the work", health, log); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	syncer := runner.New(p, health, metrics)
	syncer.Start()
	log.Info("running for the lease", zap.String("version", version()), zap.String("name", s.Name), zap.String("http", service.Addr()))
	<-ctx.Done()
	log.Info("stopping")
	service.Stopping()
	syncer.Stop()
	return nil
}
