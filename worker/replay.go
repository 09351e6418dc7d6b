package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func newReplay(load loader) *cobra.Command {
	var since string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "replay --since TIME",
		Short: "Land again from Kafka what MySQL lost in a fail-over",
		Long: `Replay reads the orders topic from TIME up to where it ends now and lands every order again. An
order that MySQL still has stays as it is; one that it lost is decided anew. It is idempotent and
may run while workers are landing. Choose TIME well before the fail-over: too early costs only
time.

TIME is a moment (2026-11-11T20:00:00+08:00, or "2026-11-11 20:00:00" in local time) or an age
(90m: ninety minutes ago).`,
		Example: `  seckill-worker replay --since 2h --dry-run    # counts what is missing
  seckill-worker replay --since 2h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			from, err := parseSince(since, time.Now())
			if err != nil {
				return err
			}
			s, err := load(needRedis, needKafka, needMySQL)
			if err != nil {
				return err
			}
			log, err := s.logger()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			p, err := s.open(ctx, log)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, p.close()) }()
			lander := p.lander(s, log)
			done, err := lander.Replay(ctx, p.admin, s.Kafka.Topics.Orders, from, dryRun)
			out := cmd.OutOrStdout()
			if len(done.Cut) > 0 {
				fmt.Fprintf(out, "warning: kafka may no longer have all records since %s in partitions %v\n", from.Format(time.RFC3339), done.Cut)
			}
			if dryRun {
				fmt.Fprintf(out, "records %d: in mysql %d, missing there %d, repeated %d, not orders %d (dry run: nothing changed)\n",
					done.Records, done.Present, done.Missing, done.Redone, done.Invalid)
			} else {
				fmt.Fprintf(out, "records %d: live in mysql %d, dead %d, repeated %d, not orders %d\n",
					done.Records, done.Landed, done.Failed, done.Redone, done.Refused)
			}
			if err != nil {
				return fmt.Errorf("replay stopped before its end, run it again: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "`TIME` or age to begin at (required)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "count and change nothing")
	_ = cmd.MarkFlagRequired("since")
	return cmd
}

// parseSince reads a moment or an age.
func parseSince(v string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(v); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339, v); err == nil {
		return t, nil
	}
	if t, err := time.ParseInLocation(time.DateTime, v, time.Local); err == nil {
		return t, nil
	}
	return time.Time{}, fmt.Errorf("--since %q: want a time such as 2026-11-11T20:00:00+08:00 or an age such as 90m", v)
}
