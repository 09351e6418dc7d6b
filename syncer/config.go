package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/config"
	"github.com/seckillgate/seckillgate/internal/startup"
)

func newConfig(load loader) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Look at the configuration"}
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
			if err := config.Explain(&s.Config, out); err != nil {
				return err
			}
			fmt.Fprintln(out)
			for _, name := range config.UnknownEnv(&s.Config) {
				fmt.Fprintf(out, "warning environment variable %s is not a key of the syncer and is ignored\n", name)
			}
			s.explain(out)
			if offline {
				return nil
			}
			log, err := s.quiet()
			if err != nil {
				return err
			}
			p, err := s.open(cmd.Context(), log)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, p.Close()) }()
			found, unreached := startup.Run(cmd.Context(), checks(p))
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
	t := s.MySQL.Tables
	fmt.Fprintf(out, `run would:
  - follow the binlog for tables %s, %s and %s, and keep its position in Redis at %v
  - let gateways publish within %s of a reservation, and look after reservations older than %s
  - close a sale that Redis lost for at least %s while it is loaded again
  - compare both sides every %s, mending at most %d buyers or units of one activity
  - remove an activity from Redis %s after its end, and its results %s after it
  - take over from another syncer %s after its last sign of life
  - serve health and metrics on %s
`, t.Inventory, t.Orders, t.Activity, s.Redis.Addrs, s.PublishBudget, s.Horizon, s.PublishBudget+s.ReserveDeadline,
		s.CompareInterval, s.RepairCap, s.EndGrace, s.Retention, s.LeaseTTL, s.HTTP.Listen)
	if s.LoadBack > 0 {
		fmt.Fprintf(out, "  - read Kafka from %s before the workers' offsets when it loads a sale (load_back)\n", s.LoadBack)
	}
	if len(s.Accept) > 0 {
		fmt.Fprintf(out, "  - start in spite of these findings: %v\n", s.Accept)
	}
}
