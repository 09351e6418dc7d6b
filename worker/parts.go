package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/landing"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/outbox"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/telemetry"
	"github.com/seckillgate/seckillgate/internal/webhook"
)

// parts are the clients that commands use. None of them dials before it is used.
type parts struct {
	redis    redis.UniversalClient
	ledger   *ledger.Ledger
	store    *store.Store
	admin    *kafka.Admin
	producer *kafka.Producer
}

// open makes the clients; close them in any case.
func (s *settings) open(ctx context.Context, log *zap.Logger) (p *parts, err error) {
	p = &parts{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w: %w", errRefused, err), p.close())
		}
	}()
	if p.redis, err = redisconn.New(s.Redis); err != nil {
		return p, err
	}
	p.ledger = ledger.New(p.redis, ledger.Options{})
	if p.store, err = store.Open(ctx, s.MySQL); err != nil {
		return p, err
	}
	if p.admin, err = kafka.NewAdmin(s.Kafka, log); err != nil {
		return p, err
	}
	p.producer, err = kafka.NewProducer(s.Kafka, kafka.ProducerOptions{
		Topics: []string{s.Kafka.Topics.DeadLetters, s.Kafka.Topics.Results},
	}, log)
	return p, err
}

// close ends what was made, the producer first since it waits for what it still has to send.
func (p *parts) close() error {
	var errs []error
	if p.producer != nil {
		errs = append(errs, p.producer.Close())
	}
	if p.admin != nil {
		errs = append(errs, p.admin.Close())
	}
	if p.store != nil {
		errs = append(errs, p.store.Close())
	}
	if p.redis != nil {
		errs = append(errs, p.redis.Close())
	}
	return errors.Join(errs...)
}

// lander wires the landing code for a command that lands by itself (replay, dlq replay) and ends by itself.
func (p *parts) lander(s *settings, log *zap.Logger) *landing.Lander {
	dead := landing.NewTopicDeadLetters(p.producer, s.Kafka)
	return landing.NewLander(s.Landing, p.store, p.ledger, dead, silent{}, new(telemetry.Health), landing.NewMetrics(nil), log)
}

// silent tells nobody of what a command has landed: it is in the outbox, and a running worker tells it.
type silent struct{}

func (silent) Put(order.Result) {}

// outbox wires those who listen.
func (p *parts) outbox(s *settings, h outbox.Health, r prometheus.Registerer, log *zap.Logger) (*outbox.Outbox, error) {
	out := outbox.New(s.Outbox, p.store, h, r, log)
	if s.Outbox.Results {
		out.Add(store.Results, outbox.ResultsTopic{Sender: p.producer, Topic: s.Kafka.Topics.Results}, outbox.ResultsPace)
	}
	if s.Webhook.Enabled() {
		shop, err := webhook.New(s.Webhook)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errRefused, err)
		}
		out.Add(store.Webhook, shop, shop.Pace())
	}
	return out, nil
}
