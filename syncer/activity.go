package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
)

func newActivity(load loader) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "activity",
		Short: "Create, list, pause, resume and close flash sales",
		Long: `Activities are rows of MySQL's activity table; these commands change the rows, and a running
syncer brings the change to Redis and the gateways within a second. Plain SQL on the table does the
same. They open and close by themselves at their times.

Each command tells what MySQL has, waits for Redis to have it too, and fails when it does not in
time: buyers then still see what was before. The change in MySQL stays, and reaches the edge as
soon as a syncer leads. With --wait 0 a command only changes MySQL.`,
	}
	cmd.AddCommand(newActivityList(load), newActivityCreate(load),
		newActivityState(load, ledger.Paused, "paused", &cobra.Command{
			Use: "pause", Short: "Let nobody buy for now; buyers hear 503",
			Long: "Pause stops a sale that is open, or has not begun, until it is resumed; buyers hear 503.",
		}),
		newActivityState(load, ledger.Open, "open", &cobra.Command{
			Use: "resume", Short: "Go on with a paused sale",
			Long: `Resume goes on with a paused sale. A sale that was closed stays so unless --reopen is given: its
buyers were told that it is over.`,
		}),
		newActivityState(load, ledger.Closed, "closed", &cobra.Command{
			Use: "close", Short: "End a sale before its time; buyers hear 410",
			Long: "Close ends a sale for good; buyers hear 410. Orders that are accepted already are landed.",
		}))
	return cmd
}

func newActivityList(load loader) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List all activities of MySQL",
		Long: `List shows the rows of MySQL; STATE is what status calls it where Redis has the same. Times are
local, with their offset from UTC.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := load(needMySQL)
			if err != nil {
				return err
			}
			return s.oneShot(cmd, func(p *runner.Parts) error {
				rows, err := p.Store.Activities(cmd.Context())
				if err != nil {
					return err
				}
				if asJSON {
					return json.NewEncoder(cmd.OutOrStdout()).Encode(rows)
				}
				now := time.Now().UnixMilli()
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				fmt.Fprintln(w, "ACTIVITY\tITEM\tSTATE\tSTARTS\tENDS\tMAX\tTITLE")
				for _, a := range rows {
					fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%d\t%s\n", a.ID, a.Item,
						stateWord(string(a.State), a.StartsAtMs, a.EndsAtMs, now), clock(a.StartsAtMs), clock(a.EndsAtMs), a.MaxPerUser, a.Title)
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
for --starts, from the start for --ends.

A sale that lies ahead is loaded into Redis within a second or two. One that has begun already, as
with --starts now, opens only after publish_budget and reserve_deadline (7 s): gateways could have
orders of it under way. Buyers hear 503 until then.`,
		Example: `  seckill-syncer activity create --item 42 --stock 500 --title "Moon cakes" --starts +10m --ends +1h
  seckill-syncer activity create --id 7 --item 42 --starts 2030-11-11T20:00:00+08:00 --ends +30m --max-per-user 2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if a.StartsAtMs, err = parseTime("--starts", starts, time.Now()); err != nil {
				return err
			}
			if a.EndsAtMs, err = parseTime("--ends", ends, time.UnixMilli(a.StartsAtMs)); err != nil {
				return err
			}
			switch {
			case cmd.Flags().Changed("id") && a.ID <= 0:
				return fmt.Errorf("--id %d: want a positive number, or leave it out for one more than the highest", a.ID)
			case a.Item <= 0:
				return fmt.Errorf("--item %d: want its id, a positive number", a.Item)
			case stock < 0 || stock > ledger.MaxNumber:
				return fmt.Errorf("--stock %d: want 0 to %d", stock, int64(ledger.MaxNumber))
			case a.MaxPerUser < 1 || a.MaxPerUser > order.MaxQuantity:
				return fmt.Errorf("--max-per-user %d: want 1 to %d", a.MaxPerUser, order.MaxQuantity)
			case a.EndsAtMs <= a.StartsAtMs:
				return fmt.Errorf("--ends %q: %s is not after the start, %s: want a later time, or +DURATION from the start", ends, clock(a.EndsAtMs), clock(a.StartsAtMs))
			}
			if err := validWait(wait); err != nil {
				return err
			}
			s, err := load(needFor(cmd, wait)...)
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("wait") {
				wait = s.loadTakes() + edgeWait
			}
			a.State = ledger.Open
			if paused {
				a.State = ledger.Paused
			}
			var initial *int64
			if cmd.Flags().Changed("stock") {
				initial = &stock
			}
			return s.oneShot(cmd, func(p *runner.Parts) error {
				if a.ID == 0 {
					if a.ID, err = freeID(cmd.Context(), p); err != nil {
						return err
					}
				}
				if err := p.Store.CreateActivity(cmd.Context(), a, initial); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "activity %d: created in mysql; it sells item %d from %s to %s\n",
					a.ID, a.Item, clock(a.StartsAtMs), clock(a.EndsAtMs))
				return awaitEdge(cmd.Context(), p, cmd.OutOrStdout(), wait, []change{{
					id: a.ID, did: "created",
					here: func(s ledger.Snapshot) bool { return s.Loaded && s.State != ledger.Recovering },
					late: func(look ledger.Snapshot) string {
						if look.NowMs < a.StartsAtMs {
							return ""
						}
						return fmt.Sprintf("it is being loaded: a sale that has already begun waits out the publish budget and the reserve deadline (%s)", s.loadTakes())
					},
				}})
			})
		},
	}
	f := cmd.Flags()
	f.Int64Var(&a.ID, "id", 0, "`ID` of the activity, as in its URL (default: one more than the highest)")
	f.Int64Var(&a.Item, "item", 0, "`ID` of the item that it sells")
	f.StringVar(&a.Title, "title", "", "title, for people")
	f.StringVar(&starts, "starts", "now", "`TIME` at which it opens; now opens only after about 7 s")
	f.StringVar(&ends, "ends", "", "`TIME` at which it closes")
	f.Int64Var(&a.MaxPerUser, "max-per-user", 1, "most `UNITS` in one order")
	f.Int64Var(&stock, "stock", 0, "`UNITS` of an item that has no inventory row yet")
	f.BoolVar(&paused, "paused", false, "create it paused")
	f.DurationVar(&wait, "wait", 0, "wait at most this long until Redis has it (default: as long as a load may take, 12s; 0: do not wait)")
	_ = cmd.MarkFlagRequired("item")
	_ = cmd.MarkFlagRequired("ends")
	return cmd
}

// edgeWait is how long a change takes to reach Redis at most, where a syncer leads and all is well.
const edgeWait = 5 * time.Second

// validWait checks --wait.
func validWait(wait time.Duration) error {
	if wait < 0 {
		return fmt.Errorf("--wait %s: want how long to wait at most, or 0 not to wait", wait)
	}
	return nil
}

// needFor gives what a command needs that changes MySQL and may wait for Redis.
func needFor(cmd *cobra.Command, wait time.Duration) []system {
	if cmd.Flags().Changed("wait") && wait <= 0 {
		return []system{needMySQL}
	}
	return []system{needMySQL, needRedis}
}

// newActivityState completes a command that brings activities to a state; did is that state in the words of its report.
func newActivityState(load loader, state ledger.State, did string, cmd *cobra.Command) *cobra.Command {
	var (
		wait   time.Duration
		reopen bool
	)
	cmd.Use += " ACTIVITY..."
	cmd.Args = cobra.MinimumNArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := parseIDs(args)
		if err != nil {
			return err
		}
		if err := validWait(wait); err != nil {
			return err
		}
		s, err := load(needFor(cmd, wait)...)
		if err != nil {
			return err
		}
		return s.oneShot(cmd, func(p *runner.Parts) error {
			var changes []change
			var failed []error
			for _, id := range ids {
				if err := setState(cmd.Context(), p, id, state, reopen); err != nil {
					failed = append(failed, err)
					continue
				}
				fmt.Fprintf(cmd.OutOrStdout(), "activity %d: %s in mysql\n", id, did)
				gone, err := s.retired(cmd.Context(), p, id)
				switch {
				case err != nil:
					failed = append(failed, err)
					continue
				case gone && wait > 0:
					fmt.Fprintf(cmd.OutOrStdout(), "activity %d: it has been over for longer than end_grace (%s) and is not at the edge any more\n", id, s.EndGrace)
					continue
				}
				changes = append(changes, change{id: id, did: did, here: func(s ledger.Snapshot) bool { return s.State == state }})
			}
			return errors.Join(append(failed, awaitEdge(cmd.Context(), p, cmd.OutOrStdout(), wait, changes))...)
		})
	}
	cmd.Flags().DurationVar(&wait, "wait", edgeWait, "wait at most this long until Redis has it, by a running syncer; 0: do not wait")
	if state == ledger.Open {
		cmd.Flags().BoolVar(&reopen, "reopen", false, "open it again although it was closed")
	}
	return cmd
}

// retired says whether a sale has been over for so long that its keys have left Redis, and no change brings them back.
func (s *settings) retired(ctx context.Context, p *runner.Parts, id int64) (bool, error) {
	a, err := p.Store.Activity(ctx, id)
	return time.Now().After(time.UnixMilli(a.EndsAtMs).Add(s.EndGrace)), err
}

func setState(ctx context.Context, p *runner.Parts, id int64, state ledger.State, reopen bool) error {
	set := p.Store.ChangeActivityState
	if reopen {
		set = p.Store.SetActivityState
	}
	err := set(ctx, id, state)
	switch {
	case errors.Is(err, store.ErrClosed) && state == ledger.Open:
		return fmt.Errorf("activity %d is closed, not paused: its buyers were told that it is over; give --reopen to sell again", id)
	case errors.Is(err, store.ErrClosed):
		return fmt.Errorf("activity %d is closed: there is nothing to pause", id)
	}
	return err
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

// clock is a time for people: local, with its offset from UTC.
func clock(ms int64) string { return time.UnixMilli(ms).Format("2006-01-02T15:04:05-07:00") }
