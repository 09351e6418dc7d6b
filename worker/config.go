package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/startup"
	"github.com/seckillgate/seckillgate/internal/tracing"
)

func newConfig(load loader) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Look at the configuration",
		Long: `Configuration comes from --config FILE and the environment, which wins; a key that does not exist
is refused. seckill-worker.yaml, beside the unit file, has every key with its meaning.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(newConfigCheck(load))
	return cmd
}

func newConfigCheck(load loader) *cobra.Command {
	return startup.NewConfigCheck(func() (*startup.Subject, error) {
		s, err := load(needRedis, needKafka, needMySQL)
		if err != nil {
			return nil, err
		}
		return &startup.Subject{
			Process: "the worker", Settings: s, Accept: s.Accept,
			Explain: func(out io.Writer) error {
				s.explain(out)
				if err := tracing.Check(); err != nil {
					return fmt.Errorf("%w: %w", errRefused, err)
				}
				return nil
			},
			Open: func(ctx context.Context) ([]startup.Check, func() error, error) {
				log, err := s.logger()
				if err != nil {
					return nil, nil, err
				}
				p, err := s.open(ctx, log)
				if err != nil {
					return nil, nil, err
				}
				return p.checks(s), p.close, nil
			},
		}, nil
	})
}

// explain says in words what run would do.
func (s *settings) explain(out io.Writer) {
	k, l, t := s.Kafka, s.Landing, s.MySQL.Tables
	unpaid := "leave unpaid orders as they are (unpaid.window is 0)"
	if u := s.Unpaid; u.Enabled() {
		unpaid = fmt.Sprintf("let orders that are still %s %s after their landing become %s and give their stock back, every %s,\n    at most %d a transaction",
			s.MySQL.SuccessStatus, u.Window, order.Expired, u.Every, u.Batch)
	}
	told := "write what becomes of each order to topic " + k.Topics.Results
	if !s.Outbox.Results {
		told = "write nothing to the results topic (outbox.results is false)"
	}
	if w := s.Webhook; w.Enabled() {
		told += fmt.Sprintf("\n  - post what becomes of each order to %s, signed (webhook.secrets: %d), at most %d at once,\n    again after %s to %s until the shop answers 2xx",
			w.Place(), len(w.Secrets), w.Parallel, w.RetryMin, w.RetryMax)
	}
	fmt.Fprintf(out, `run would:
  - read topic %s as group %s from %v
  - land batches of at most %d orders or %d bytes, gathered for at most %s, into tables %s and %s,
    with status %s; batches of an item shrink while it meets deadlocks or lock timeouts
  - settle each batch in Redis at %v
  - %s
  - give up telling what is older than %s, with health red from %s on
  - %s
  - set records aside in topic %s when they can never become orders
  - on SIGTERM finish running batches within %s
  - serve health and metrics on %s
`, k.Topics.Orders, k.Group, k.Brokers, l.MaxOrders, l.MaxBytes, l.MaxWait, t.Orders, t.Inventory, s.MySQL.SuccessStatus,
		s.Redis.Addrs, told, s.Outbox.Keep, s.Outbox.AlarmAfter, unpaid, k.Topics.DeadLetters, l.ShutdownGrace, s.HTTP.Listen)
	if tracing.Enabled() {
		fmt.Fprintln(out, "  - send spans of landing and settling as the OTEL_ variables say")
	}
	if l.StockTries > 1 {
		fmt.Fprintf(out, "  - try orders that were reserved and that MySQL is short of stock for up to %d times, as often as the syncer publishes them again\n", l.StockTries)
	}
	if l.AcceptLostOffsets {
		fmt.Fprintln(out, "  - skip to the oldest record when its committed offset is gone (landing.accept_lost_offsets)")
	}
	if len(s.Accept) > 0 {
		fmt.Fprintf(out, "  - start in spite of these findings: %v\n", s.Accept)
	}
}
