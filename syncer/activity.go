package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
)

func newActivity(load loader) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "activity",
		Short: "Create, list, pause, resume and close flash sales",
		Long: `Activities are rows of MySQL's activity table; these commands change the rows, and a running
syncer brings the change to Redis and the gateways within a second. Plain SQL on the table does the
same. They open and close by themselves at their times.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(newActivityList(load), newActivityCreate(load),
		newActivityState(load, "pause", "Let nobody buy for now; buyers hear 503", ledger.Paused),
		newActivityState(load, "resume", "Go on with a paused sale", ledger.Open),
		newActivityState(load, "close", "End a sale before its time; buyers hear 410", ledger.Closed))
	return cmd
}

func newActivityList(load loader) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List all activities of MySQL",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := load(needMySQL)
			if err != nil {
				return err
			}
			return s.oneShot(cmd.Context(), func(p *runner.Parts) error {
				rows, err := p.Store.Activities(cmd.Context())
				if err != nil {
					return err
				}
				if asJSON {
					return json.NewEncoder(cmd.OutOrStdout()).Encode(rows)
				}
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				fmt.Fprintln(w, "ACTIVITY\tITEM\tSTATE\tSTARTS\tENDS\tMAX\tTITLE")
				for _, a := range rows {
					fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%d\t%s\n", a.ID, a.Item, a.State, clock(a.StartsAtMs), clock(a.EndsAtMs), a.MaxPerUser, a.Title)
				}
				return w.Flush()
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newActivityCreate(load loader) *cobra.Command {
	var (
		a            ledger.Activity
		starts, ends string
		stock        int64
		paused       bool
		wait         time.Duration
	)
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Add a flash sale",
		Long: `Create adds an activity, and with --stock the inventory row of an item that has none; a stock that
is there is the shop's and is never changed. An item can be in one activity at a time: overlapping
ones are refused.

Times are RFC 3339 (2030-11-11T20:00:00+08:00), epoch milliseconds, "now", or +DURATION: from now
for --starts, from the start for --ends.`,
		Example: `  seckill-syncer activity create --item 42 --stock 500 --title "Moon cakes" --starts +10m --ends +1h
  seckill-syncer activity create --id 7 --item 42 --starts 2030-11-11T20:00:00+08:00 --ends +30m --max-per-user 2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			need := []system{needMySQL}
			if wait > 0 {
				need = append(need, needRedis)
			}
			s, err := load(need...)
			if err != nil {
				return err
			}
			now := time.Now()
			if a.StartsAtMs, err = parseTime("--starts", starts, now); err != nil {
				return err
			}
			if a.EndsAtMs, err = parseTime("--ends", ends, time.UnixMilli(a.StartsAtMs)); err != nil {
				return err
			}
			a.State = ledger.Open
			if paused {
				a.State = ledger.Paused
			}
			var initial *int64
			if cmd.Flags().Changed("stock") {
				initial = &stock
			}
			return s.oneShot(cmd.Context(), func(p *runner.Parts) error {
				if a.ID == 0 {
					if a.ID, err = freeID(cmd.Context(), p); err != nil {
						return err
					}
				}
				if err := p.Store.CreateActivity(cmd.Context(), a, initial); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "activity %d sells item %d from %s to %s\n", a.ID, a.Item, clock(a.StartsAtMs), clock(a.EndsAtMs))
				return await(cmd.Context(), p, a.ID, wait, func(s ledger.Snapshot) bool { return s.Loaded })
			})
		},
	}
	f := cmd.Flags()
	f.Int64Var(&a.ID, "id", 0, "`ID` of the activity, as in its URL (default: one more than the highest)")
	f.Int64Var(&a.Item, "item", 0, "`ID` of the item that it sells")
	f.StringVar(&a.Title, "title", "", "title, for people")
	f.StringVar(&starts, "starts", "now", "`TIME` at which it opens")
	f.StringVar(&ends, "ends", "", "`TIME` at which it closes")
	f.Int64Var(&a.MaxPerUser, "max-per-user", 1, "most `UNITS` in one order")
	f.Int64Var(&stock, "stock", 0, "`UNITS` of an item that has no inventory row yet")
	f.BoolVar(&paused, "paused", false, "create it paused")
	f.DurationVar(&wait, "wait", 0, "wait at most this long until Redis has it, by a running syncer")
	_ = cmd.MarkFlagRequired("item")
	_ = cmd.MarkFlagRequired("ends")
	return cmd
}

func newActivityState(load loader, verb, short string, state ledger.State) *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   verb + " ACTIVITY...",
		Short: short,
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			need := []system{needMySQL}
			if wait > 0 {
				need = append(need, needRedis)
			}
			s, err := load(need...)
			if err != nil {
				return err
			}
			return s.oneShot(cmd.Context(), func(p *runner.Parts) error {
				for _, id := range ids {
					if err := p.Store.SetActivityState(cmd.Context(), id, state); err != nil {
						return err
					}
					fmt.Fprintf(cmd.OutOrStdout(), "activity %d is %s\n", id, state)
				}
				for _, id := range ids {
					if err := await(cmd.Context(), p, id, wait, func(s ledger.Snapshot) bool { return s.State == state }); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait at most this long until Redis has it, by a running syncer")
	return cmd
}

// await polls Redis until a running syncer has brought a change there.
func await(ctx context.Context, p *runner.Parts, id int64, d time.Duration, done func(ledger.Snapshot) bool) error {
	if d <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := p.Ledger.Inspect(ctx, id)
		if err == nil && done(s[0]) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("mysql has the change of activity %d, but redis did not within %s: does a syncer run? (seckill-syncer status)", id, d)
		case <-tick.C:
		}
	}
}

func freeID(ctx context.Context, p *runner.Parts) (int64, error) {
	rows, err := p.Store.Activities(ctx)
	if err != nil {
		return 0, err
	}
	id := int64(1)
	for _, a := range rows {
		id = max(id, a.ID+1)
	}
	return id, nil
}

// parseTime reads a time as epoch milliseconds; "+5s" counts from the given time.
func parseTime(flag, text string, from time.Time) (int64, error) {
	if text == "now" {
		return time.Now().UnixMilli(), nil
	}
	if len(text) > 1 && text[0] == '+' {
		d, err := time.ParseDuration(text[1:])
		if err != nil || d < 0 {
			return 0, fmt.Errorf("%s %q: want a duration behind the plus, such as +90m", flag, text)
		}
		return from.Add(d).UnixMilli(), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t.UnixMilli(), nil
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%s %q: want RFC 3339 with a time zone (2030-11-11T20:00:00+08:00), epoch milliseconds, now or +DURATION", flag, text)
	case ms < 1_000_000_000_000:
		return 0, fmt.Errorf("%s %q: that is before 2001 in milliseconds; were seconds meant?", flag, text)
	}
	return ms, nil
}

func parseIDs(args []string) ([]int64, error) {
	var ids []int64
	for _, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id <= 0 {
			return nil, fmt.Errorf("activity %q: want its id, a positive integer", arg)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func clock(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05Z") }
