package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/startup"
)

func newConfig(load loader) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Look at the configuration"}
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
			Process: "the syncer", Settings: &s.Config, Accept: s.Accept,
			Explain: func(out io.Writer) error { s.explain(out); return nil },
			Open: func(ctx context.Context) ([]startup.Check, func() error, error) {
				log, err := s.quiet()
				if err != nil {
					return nil, nil, err
				}
				p, err := s.open(ctx, log)
				if err != nil {
					return nil, nil, err
				}
				return checks(p), p.Close, nil
			},
		}, nil
	})
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
