package runner

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/syncer/binlog"
	"github.com/seckillgate/seckillgate/internal/syncer/compare"
	"github.com/seckillgate/seckillgate/internal/syncer/load"
	"github.com/seckillgate/seckillgate/internal/syncer/lost"
)

// Parts are the clients and the work that the daemon and the one-shot commands share. Nothing of it dials before it is used.
type Parts struct {
	Config   Config
	Redis    redis.UniversalClient
	Ledger   *ledger.Ledger
	Store    *store.Store
	Admin    *kafka.Admin
	Producer *kafka.Producer
	Stream   *binlog.Stream
	Loader   *load.Loader
	Comparer *compare.Comparer
	Log      *zap.Logger
}

// loadLockTTL is how soon another load may begin after the process of one died.
const loadLockTTL = 6 * time.Second

// Open makes the parts; close them in any case. cfg has its defaults.
func Open(ctx context.Context, cfg Config, log *zap.Logger) (p *Parts, err error) {
	p = &Parts{Config: cfg, Log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.Redis, err = redisconn.New(cfg.Redis); err != nil {
		return p, err
	}
	p.Ledger = ledger.New(p.Redis, ledger.Options{Retention: cfg.Retention})
	if p.Store, err = store.Open(ctx, cfg.MySQL); err != nil {
		return p, err
	}
	if p.Admin, err = kafka.NewAdmin(cfg.Kafka, log); err != nil {
		return p, err
	}
	p.Producer, err = kafka.NewProducer(cfg.Kafka, kafka.ProducerOptions{Budget: cfg.PublishBudget}, log)
	if err != nil {
		return p, err
	}
	driver, err := p.Store.Driver()
	if err != nil {
		return p, err
	}
	mysql := p.Store.Config()
	tables := binlog.Tables{
		Orders: mysql.Tables.Orders, Activity: mysql.Tables.Activity, Inventory: mysql.Tables.Inventory,
		Item: mysql.Tables.Item, Stock: mysql.Tables.Stock, Version: mysql.Tables.Version,
	}
	if p.Stream, err = binlog.New(cfg.Binlog, driver, p.Store.DB(), tables, mysql.Dead, log); err != nil {
		return p, err
	}
	p.Loader = &load.Loader{
		Ledger: p.Ledger, Store: p.Store, Records: p.Admin, Topic: cfg.Kafka.Topics.Orders, Group: cfg.Kafka.Group,
		Timings: cfg.Timings(), Locks: load.NewLocks(p.Redis, cfg.Name, loadLockTTL), Lost: lost.NewAlarm(p.Redis),
		Back: cfg.LoadBack, Log: log,
	}
	p.Comparer = &compare.Comparer{
		Ledger: p.Ledger, Store: p.Store, Records: p.Admin, Publisher: p.Producer, Lost: lost.NewAlarm(p.Redis),
		Topic: cfg.Kafka.Topics.Orders, Group: cfg.Kafka.Group, Timings: cfg.Timings(), Cap: cfg.RepairCap,
		LoadBack: cfg.LoadBack, Log: log,
	}
	return p, nil
}

// Close ends what was made, the producer first since it waits for what it still has to send.
func (p *Parts) Close() error {
	var errs []error
	if p.Producer != nil {
		errs = append(errs, p.Producer.Close())
	}
	if p.Admin != nil {
		errs = append(errs, p.Admin.Close())
	}
	if p.Store != nil {
		errs = append(errs, p.Store.Close())
	}
	if p.Redis != nil {
		errs = append(errs, p.Redis.Close())
	}
	return errors.Join(errs...)
}
