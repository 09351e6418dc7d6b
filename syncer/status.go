package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/syncer/runner"
)

func newStatus(load loader) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [ACTIVITY...]",
		Short: "Show both sides of every activity, the binlog and the leader",
		Long: `Status asks Redis and MySQL, and shows what the leader told of itself. Of each activity:

  STATE        not started, open, paused, closed or ended; "not loaded" where Redis does not have it,
               and both sides' states where they differ
  STARTS ENDS  local time, with its offset from UTC
  STOCK        units left by MySQL's count, as Redis has it / as MySQL has it
  VERSION      of that stock: "equal", else Redis' / MySQL's, and Redis is following
  PENDING      units reserved in Redis whose orders have not landed in MySQL yet; what can be
               bought is STOCK less PENDING
  LEDGER       the number of those reservations
  OLDEST       the age of the oldest of them
  BUYERS       buyers who have an order or a reservation
  DRIFT        YES: a difference that no delay explains: equal versions with another stock, or
               Redis ahead of MySQL
  LAST REPAIR  what comparing both sides mended last

It ends with 1 when there is no leader, or the leader says that something is wrong.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			s, err := load(needRedis, needMySQL)
			if err != nil {
				return err
			}
			return s.oneShot(cmd, func(p *runner.Parts) error {
				st, err := p.Status(cmd.Context(), ids...)
				if err != nil {
					return err
				}
				if asJSON {
					return json.NewEncoder(cmd.OutOrStdout()).Encode(st)
				}
				if err := printStatus(cmd.OutOrStdout(), st); err != nil {
					return err
				}
				switch {
				case st.Leader == "":
					return errors.New("no syncer leads: start `seckill-syncer run`")
				case st.Problem != "":
					return fmt.Errorf("the leader says: %s", st.Problem)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, and end with 0 whatever it says")
	return cmd
}

func printStatus(out io.Writer, s *runner.Status) error {
	if err := printActivities(out, s); err != nil {
		return err
	}
	leader := s.Leader
	if leader == "" {
		leader = "none"
	}
	fmt.Fprintf(out, "\nleader   %s\n", leader)
	lag := "not known"
	switch {
	case s.Binlog.Kept.IsZero(): // behind what?
	case s.Binlog.CaughtUp:
		lag = "caught up"
	case s.Binlog.LagMs >= 0:
		lag = fmt.Sprintf("%.1f s behind", float64(s.Binlog.LagMs)/1000)
	}
	fmt.Fprintf(out, "binlog   %s, %s\n", s.Binlog.Kept, lag)
	if !s.Binlog.CaughtUp {
		fmt.Fprintf(out, "         mysql is at %s\n", s.Binlog.Server)
	}
	if s.ComparedMs > 0 {
		fmt.Fprintf(out, "compared %s ago\n", ago(s.AtMs-s.ComparedMs))
	}
	if !s.Catalogue {
		fmt.Fprintln(out, "redis has no catalogue: every activity answers 503")
	}
	return nil
}

func printActivities(out io.Writer, s *runner.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ACTIVITY\tITEM\tSTATE\tSTARTS\tENDS\tSTOCK\tVERSION\tPENDING\tLEDGER\tOLDEST\tBUYERS\tDRIFT\tLAST REPAIR")
	for _, a := range s.Activities {
		version := "equal"
		if a.Redis.Version != a.MySQL.Version {
			version = fmt.Sprintf("%d / %d", a.Redis.Version, a.MySQL.Version)
		}
		oldest, drift, repair := "-", "no", "-"
		if a.Ledger > 0 {
			oldest = ago(a.OldestMs)
		}
		if a.Drift {
			drift = "YES"
		}
		if a.LastRepair != nil {
			repair = fmt.Sprintf("%s %s ago", a.LastRepair.Kind, ago(s.AtMs-a.LastRepair.AtMs))
		}
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%d / %d\t%s\t%d\t%d\t%s\t%d\t%s\t%s\n", a.ID, a.Item, state(a, s.AtMs),
			clock(a.StartsAtMs), clock(a.EndsAtMs), a.Redis.Stock, a.MySQL.Stock, version, a.Pending, a.Ledger, oldest, a.Buyers, drift, repair)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, a := range s.Activities {
		if a.Problem != "" {
			fmt.Fprintf(out, "activity %d: %s\n", a.ID, a.Problem)
		}
	}
	return nil
}

// state says in words for people how an activity stands on both sides.
func state(a runner.ActivityStatus, now int64) string {
	word := stateWord(a.StateMySQL, a.StartsAtMs, a.EndsAtMs, now)
	switch {
	case a.StateRedis == "":
		return word + " (not loaded)"
	case a.StateRedis != a.StateMySQL:
		return a.StateRedis + " (mysql: " + word + ")"
	}
	return word
}

// stateWord is a state of MySQL's row in the light of its times.
func stateWord(state string, startsAtMs, endsAtMs, now int64) string {
	switch {
	case state == "open" && now < startsAtMs:
		return "not started"
	case state == "open" && now >= endsAtMs:
		return "ended"
	}
	return state
}

func ago(ms int64) string {
	return (time.Duration(ms) * time.Millisecond).Truncate(100 * time.Millisecond).String()
}
