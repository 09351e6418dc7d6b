package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/config"
	"github.com/seckillgate/seckillgate/internal/invariant"
	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/startup"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/told"
)

// settings say where the three systems are, with the same keys as for the worker and the syncer.
type settings struct {
	Redis redisconn.Config `yaml:"redis"`
	Kafka kafka.Config     `yaml:"kafka"`
	MySQL store.Config     `yaml:"mysql"`
}

// checkFlags are the flags of `check`.
type checkFlags struct {
	config   string
	activity int64
	units    int64
	told     string
	wait     time.Duration
	json     bool
}

func newCheck() *cobra.Command {
	f := &checkFlags{}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Judge from Redis, MySQL and Kafka whether a sale kept its promises",
		Long: `check reads the end state of a sale and judges the invariants I1 to I4. It waits until all work
is done, at most for --wait, and only reads. A system that does not answer is named
after --wait, but after 3 s at least and 15 s at most. One that goes away later is asked again
for up to 30 s; of Kafka, which is asked all the time, check says at once that it waits.

It ends with 0 when every invariant holds, with 1 when one is broken, naming what broke, and with
2 when it cannot tell.

Where the three systems are comes from --config FILE (YAML, with the worker's keys redis, kafka
and mysql) or from the environment, which wins: SECKILL_REDIS_ADDRS, SECKILL_KAFKA_BROKERS and
SECKILL_MYSQL_DSN are enough.`,
		Example: `  seckill-drill check --activity 1001 --units 500 --told told.jsonl`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.Int64Var(&f.activity, "activity", 0, "id of the activity")
	fl.Int64Var(&f.units, "units", 0, "units put on sale: the initial stock and all restocks (0: not known, I1 is checked in part)")
	fl.StringVar(&f.told, "told", "", "`FILE` of what the buyers were told, from run --told")
	fl.DurationVar(&f.wait, "wait", 90*time.Second, "how long to wait until all work is done; the sweep looks after a lost order after 30s")
	fl.BoolVar(&f.json, "json", false, "print the report as JSON")
	fl.StringVarP(&f.config, "config", "c", "", "YAML `FILE` that says where the systems are; the environment overrides it")
	if err := cmd.MarkFlagRequired("activity"); err != nil {
		panic(err) // the name is wrong
	}
	return cmd
}

func (f *checkFlags) run(ctx context.Context, out, progress io.Writer) (err error) {
	if f.activity <= 0 {
		return fmt.Errorf("--activity %d: want its id, a positive integer", f.activity)
	}
	if f.units < 0 {
		return fmt.Errorf("--units %d: want the number of units put on sale", f.units)
	}
	var s settings
	if err := config.Load(f.config, &s); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	records, err := readTold(f.told, f.activity)
	if err != nil {
		return err
	}
	src, end, err := s.open(ctx, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	if err := reach(ctx, src, f.activity, max(f.wait, leastWait)); err != nil {
		return err
	}
	opt := invariant.Options{Units: f.units, ToldRecords: f.told != ""}
	report, err := invariant.Check(ctx, *src, f.activity, records, opt, f.wait)
	if err != nil {
		return err
	}
	if f.json {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		err = enc.Encode(report)
	} else {
		err = report.Write(out)
	}
	if err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	if broken := report.Err(); broken != nil {
		return fmt.Errorf("%w: %w", errBroken, broken)
	}
	return nil
}

// leastWait is how long the systems have for a first answer, also where --wait is less.
const leastWait = 3 * time.Second

// reach asks all three systems for a sign of life, and names those that give none.
func reach(ctx context.Context, src *invariant.Sources, activity int64, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, unreached := startup.Run(ctx, []startup.Check{
		{System: "redis", Ask: func(ctx context.Context) ([]startup.Finding, error) {
			_, err := src.Ledger.Inspect(ctx, activity)
			return nil, err
		}},
		{System: "mysql", Ask: func(ctx context.Context) ([]startup.Finding, error) { return nil, src.Store.Ping(ctx) }},
		{System: "kafka", Ask: func(ctx context.Context) ([]startup.Finding, error) {
			_, err := src.Kafka.HighWater(ctx, src.Topic)
			return nil, err
		}},
	})
	return errors.Join(unreached...)
}

func readTold(path string, activity int64) ([]told.Record, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--told: %w", err)
	}
	defer file.Close()
	var records []told.Record
	err = told.Read(file, activity, func(r *told.Record) error {
		records = append(records, *r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("--told %s: %w: want what run --told has written", path, err)
	}
	return records, nil
}

// open makes the clients. None of them dials before it is used.
func (s *settings) open(ctx context.Context, progress io.Writer) (src *invariant.Sources, end func() error, err error) {
	var closers []func() error
	end = func() error {
		var errs []error
		for _, c := range closers {
			errs = append(errs, c())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, end())
		}
	}()
	rdb, err := redisconn.New(s.Redis)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, rdb.Close)
	db, err := store.Open(ctx, s.MySQL)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, db.Close)
	admin, err := kafka.NewAdmin(s.Kafka, zap.NewNop())
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, admin.Close)
	startup.TellWait(admin, progress)
	return &invariant.Sources{
		Ledger: ledger.New(rdb, ledger.Options{}), Store: db, Kafka: admin, Topic: s.Kafka.Topics.Orders, Group: s.Kafka.Group,
	}, end, nil
}
