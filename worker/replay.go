package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/cli"
	"github.com/seckillgate/seckillgate/internal/landing"
	"github.com/seckillgate/seckillgate/internal/startup"
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
time. An order that cannot be decided now, for want of its item's stock, say, is left as it is, and
the command fails and tells what to mend before it is run again.

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
			startup.TellWait(p.admin, cmd.ErrOrStderr())
			lander := p.lander(s, log)
			done, err := lander.Replay(ctx, p.admin, s.Kafka.Topics.Orders, from, dryRun)
			out := cmd.OutOrStdout()
			if len(done.Cut) > 0 {
				fmt.Fprintf(out, "warning: kafka may no longer have all records since %s in partitions %v\n", from.Format(time.RFC3339), done.Cut)
			}
			undecided := errors.Is(err, landing.ErrUndecided)
			fmt.Fprint(out, figures(done, dryRun, err == nil || undecided))
			if err != nil && !undecided {
				return fmt.Errorf("replay stopped before its end, run it again: %w", err)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "`TIME` or age to begin at (required)")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "count and change nothing")
	_ = cmd.MarkFlagRequired("since")
	return cmd
}

// figures is the line of counts. Of a replay that stopped it says so, since what is missing there has not been looked for, and
// nothing at all if it read no record.
func figures(done landing.Replayed, dryRun, whole bool) string {
	head := fmt.Sprintf("records %d", done.Records)
	switch {
	case !whole && done.Records == 0:
		return ""
	case !whole:
		head = "stopped after " + cli.Count(done.Records, "record")
	}
	if dryRun {
		return fmt.Sprintf("%s: in mysql %d, missing there %d, repeated %d, not orders %d (dry run: nothing changed)\n",
			head, done.Present, done.Missing, done.Redone, done.Invalid)
	}
	line := fmt.Sprintf("%s: live in mysql %d, dead %d, repeated %d, not orders %d", head, done.Landed, done.Failed, done.Redone, done.Refused)
	if done.Undecided > 0 {
		line += fmt.Sprintf(", undecided %d", done.Undecided)
	}
	return line + "\n"
}

// parseSince reads a moment or an age.
func parseSince(v string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(v); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, v)
	if err != nil {
		t, err = time.ParseInLocation(time.DateTime, v, time.Local)
	}
	switch {
	case err != nil:
		return t, fmt.Errorf("--since %q: want a time such as 2026-11-11T20:00:00+08:00 or an age such as 90m", v)
	case t.After(now):
		return t, fmt.Errorf("--since %q: that is in the future, for it is %s now: want a time before that (mind the time zone) or an age such as 90m",
			v, now.Format(time.RFC3339))
	}
	return t, nil
}
