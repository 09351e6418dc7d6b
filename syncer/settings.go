package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/config"
	"github.com/seckillgate/seckillgate/internal/startup"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
	"github.com/seckillgate/seckillgate/internal/telemetry"
)

// settings is the whole configuration. seckill-syncer.yaml beside this file has every key with its meaning.
type settings struct {
	runner.Config `yaml:",inline"`
}

// loader reads the configuration; the addresses of systems that are not named may be missing.
type loader func(need ...system) (*settings, error)

// system is something that a command may need the address of.
type system = startup.System

const (
	needRedis = startup.Redis
	needKafka = startup.Kafka
	needMySQL = startup.MySQL
)

// loadSettings reads the file, if there is one, and the environment.
func loadSettings(path string, need ...system) (*settings, error) {
	cfg := &runner.Config{HTTP: telemetry.HTTP{Listen: "127.0.0.1:9302"}}
	startup.Unneeded(need, &cfg.Redis, &cfg.Kafka, &cfg.MySQL)
	if err := config.Load(path, cfg); err != nil {
		return nil, fmt.Errorf("%w: configuration: %w", errRefused, err)
	}
	return &settings{*cfg}, nil
}

// loadTakes is how long a load keeps an activity closed that gateways may have orders of under way.
func (s *settings) loadTakes() time.Duration { return s.PublishBudget + s.ReserveDeadline }

// logger builds the log.
func (s *settings) logger() (*zap.Logger, error) {
	log, err := s.Log.Logger()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	return log, nil
}

// quiet is the log of a one-shot command, whose output says what happened: only warnings and worse.
func (s *settings) quiet() (*zap.Logger, error) {
	log, err := s.logger()
	if err != nil {
		return nil, err
	}
	return log.WithOptions(zap.IncreaseLevel(zap.WarnLevel)), nil
}

// open makes the parts of a command; the returned function closes them.
func (s *settings) open(ctx context.Context, log *zap.Logger) (*runner.Parts, error) {
	p, err := runner.Open(ctx, s.Config, log)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	return p, nil
}

// oneShot opens the parts, runs a command on them and closes them. It says on standard error when Kafka has to be waited for.
func (s *settings) oneShot(cmd *cobra.Command, run func(*runner.Parts) error) (err error) {
	log, err := s.quiet()
	if err != nil {
		return err
	}
	p, err := s.open(cmd.Context(), log)
	if err != nil {
		return err
	}
	startup.TellWait(p.Admin, cmd.ErrOrStderr())
	defer func() { err = errors.Join(err, p.Close()) }()
	return run(p)
}
