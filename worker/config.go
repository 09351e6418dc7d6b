package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/config"
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
	var offline bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Explain what run would do, and whether it would start",
		Long: `Check prints every key with the value in force (secrets hidden), says in words what run would do
with them, and runs the start-up checks of run, which change nothing. It ends with 0 if run would
start now.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			s, err := load(needRedis, needKafka, needMySQL)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if err := config.Explain(s, out); err != nil {
				return err
			}
			fmt.Fprintln(out)
			for _, name := range config.UnknownEnv(s) {
				fmt.Fprintf(out, "warning environment variable %s is not a key of the worker and is ignored\n", name)
			}
			s.explain(out)
			if err := tracing.Check(); err != nil {
				return fmt.Errorf("%w: %w", errRefused, err)
			}
			if offline {
				return nil
			}
			log, err := s.logger()
			if err != nil {
				return err
			}
			p, err := s.open(cmd.Context(), log)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, p.close()) }()
			found, unreached := startup.Run(cmd.Context(), p.checks(s))
			fmt.Fprintln(out, "\nChecks:")
			startup.Print(out, found, unreached, s.Accept)
			if err := errors.Join(append(unreached, startup.Refusal(found, s.Accept))...); err != nil {
				return err
			}
			_, err = fmt.Fprintln(out, "run would start.")
			return err
		},
	}
	cmd.Flags().BoolVar(&offline, "offline", false, "do not ask Redis, MySQL and Kafka")
	return cmd
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
