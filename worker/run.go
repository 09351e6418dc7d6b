package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/config"
	"github.com/seckillgate/seckillgate/internal/crashpoint"
	"github.com/seckillgate/seckillgate/internal/landing"
	"github.com/seckillgate/seckillgate/internal/startup"
	"github.com/seckillgate/seckillgate/internal/tracing"
	"github.com/seckillgate/seckillgate/internal/unpaid"
)

func newRun(load loader) *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Land orders until told to stop",
		Long: `Run takes orders from Kafka as a member of the consumer group and lands them until SIGTERM or
SIGINT. Then it stops fetching, finishes the batches that are running (landing.shutdown_grace,
10 s) and leaves; what is not done is delivered again later.

At the start it checks Redis, MySQL and Kafka and logs one line per finding. What may lose or
oversell orders refuses the start (exit code 78) unless its name is listed under accept. A
system that does not answer is waited for.

With unpaid.window set it also lets orders expire that were not paid in time.

Several workers share the partitions of the orders topic. On http.listen (127.0.0.1:9301):
  /livez     200 while the process runs
  /readyz    200 while it lands orders; 503 with the reasons while a step is being retried
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
	for _, name := range config.UnknownEnv(s) {
		if name == crashpoint.Env {
			continue
		}
		log.Warn("environment variable is not a key of the worker and was ignored", zap.String("name", name))
	}
	endTracing, err := tracing.Start(ctx, "seckill-worker", version())
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		if err := endTracing(ctx); err != nil {
			log.Warn("the last spans could not be sent", zap.Error(err))
		}
	}()
	p, err := s.open(ctx, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()

	service, err := startup.Serve(ctx, "worker", s.HTTP, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, service.Close(ctx)) }()
	health, registry := service.Health, service.Registry

	if err := startup.Await(ctx, p.checks(s), s.Accept, "landing", health, log); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	metrics := landing.NewMetrics(registry)
	results, err := p.outbox(s, health, registry, log)
	if err != nil {
		return err
	}
	if err := results.Subscribe(ctx); err != nil {
		return nil // told to stop while MySQL did not answer
	}
	results.Start() //nolint:contextcheck // a lifecycle of its own, ended by Stop, not by the signal
	defer results.Stop()
	dead := landing.NewTopicDeadLetters(p.producer, s.Kafka)
	lander := landing.NewLander(s.Landing, p.store, p.ledger, dead, results, health, metrics, log)
	consumer, err := landing.NewConsumer(s.Landing, s.Kafka, lander, p.ledger, health, metrics, log)
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	p.producer.Start()                       //nolint:contextcheck // a lifecycle of its own, ended by Stop and Close, not by the signal
	if err := consumer.Start(); err != nil { //nolint:contextcheck // ended by Stop, which lets batches finish
		return err
	}
	expirer := unpaid.New(s.Unpaid, p.store, health, registry, log)
	expirer.Start() //nolint:contextcheck // a lifecycle of its own, ended by Stop, not by the signal
	defer expirer.Stop()
	log.Info("landing orders", zap.String("version", version()), zap.String("topic", s.Kafka.Topics.Orders), zap.String("http", service.Addr()))
	<-ctx.Done()
	log.Info("stopping: running batches are finished first")
	service.Stopping()
	consumer.Stop()
	return nil
}
