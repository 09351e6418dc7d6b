package main

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/config"
	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/landing"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/outbox"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/startup"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/telemetry"
	"github.com/seckillgate/seckillgate/internal/unpaid"
	"github.com/seckillgate/seckillgate/internal/webhook"
)

// settings is the whole configuration of the worker. seckill-worker.yaml beside this file has every key with its meaning.
type settings struct {
	Redis   redisconn.Config `yaml:"redis"`
	Kafka   kafka.Config     `yaml:"kafka"`
	MySQL   store.Config     `yaml:"mysql"`
	Landing landing.Config   `yaml:"landing"`
	Unpaid  unpaid.Config    `yaml:"unpaid"`
	Outbox  outbox.Config    `yaml:"outbox"`
	Webhook webhook.Config   `yaml:"webhook"`
	HTTP    telemetry.HTTP   `yaml:"http"`
	Log     telemetry.Log    `yaml:"log"`

	// Accept lists findings of the start-up checks, by name, that would otherwise refuse the start. Default: none.
	Accept []string `yaml:"accept"`
}

// Validate refuses what only two sections together make wrong.
func (s *settings) Validate() error {
	switch {
	case !s.Unpaid.Enabled():
	case s.MySQL.SuccessStatus == order.Paid:
		return fmt.Errorf("unpaid.window: %s: orders land as %s (mysql.success_status) and would expire although they are paid; set it to 0",
			s.Unpaid.Window, s.MySQL.SuccessStatus)
	case !order.Expired.In(s.MySQL.Dead):
		return fmt.Errorf("unpaid.window: %s: orders become %s, which is not one of mysql.dead_statuses %v, so their stock would not come back",
			s.Unpaid.Window, order.Expired, s.MySQL.Dead)
	}
	// Whoever tells a listener keeps a connection for its lead; landing needs one, and another one to end a session that hangs.
	listeners := 0
	for _, on := range []bool{s.Outbox.Results, s.Webhook.Enabled()} {
		if on {
			listeners++
		}
	}
	if most := s.MySQL.MaxConns; most < 2+listeners {
		return fmt.Errorf("mysql.max_conns: %d: want at least %d, for telling outcomes (outbox.results, webhook.url) takes %d of them for good",
			most, 2+listeners, listeners)
	}
	return nil
}

// system is something that a command may need the address of.
type system = startup.System

const (
	needRedis = startup.Redis
	needKafka = startup.Kafka
	needMySQL = startup.MySQL
)

// loadSettings reads the file, if there is one, and the environment. Addresses of systems that the command does not need
// may be missing.
func loadSettings(path string, need ...system) (*settings, error) {
	s := &settings{HTTP: telemetry.HTTP{Listen: "127.0.0.1:9301"}, Outbox: outbox.Config{Results: true}}
	startup.Unneeded(need, &s.Redis, &s.Kafka, &s.MySQL)
	if err := config.Load(path, s); err != nil {
		return nil, fmt.Errorf("%w: configuration: %w", errRefused, err)
	}
	return s, nil
}

// logger builds the log.
func (s *settings) logger() (*zap.Logger, error) {
	log, err := s.Log.Logger()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	return log, nil
}
