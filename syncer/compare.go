package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/cli"
	"github.com/seckillgate/seckillgate/internal/syncer/compare"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
)

func newCompare(load loader) *cobra.Command {
	var asJSON, dryRun bool
	cmd := &cobra.Command{
		Use:   "compare [ACTIVITY...]",
		Short: "Compare Redis with MySQL and mend what differs",
		Long: `Compare holds Redis against MySQL, for the given activities or for all, mends what differs, and
looks after old reservations. It is safe in the middle of a sale; a running syncer does it every
compare_interval.

It ends with 0 when both sides are equal or were made so, and with 1 when something needs a person:
orders that MySQL lost, a difference above repair_cap, a side that could not be read.`,
		Example: `  seckill-syncer compare --dry-run
  seckill-syncer compare 7 --json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			s, err := load(needRedis, needKafka, needMySQL)
			if err != nil {
				return err
			}
			return s.oneShot(cmd, func(p *runner.Parts) error {
				activities, err := p.Wanted(cmd.Context(), ids...)
				if err != nil {
					return err
				}
				r, err := p.Comparer.Run(cmd.Context(), activities, compare.Options{DryRun: dryRun})
				if err != nil {
					return err
				}
				if asJSON {
					if err := json.NewEncoder(cmd.OutOrStdout()).Encode(r); err != nil {
						return err
					}
				} else {
					printCompare(cmd.OutOrStdout(), r)
				}
				return r.Err()
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as one JSON object")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "report what differs and change nothing")
	return cmd
}

func printCompare(out io.Writer, r *compare.Report) {
	did := "mended"
	if r.DryRun {
		did = "would mend"
	}
	for i := range r.Activities {
		a := &r.Activities[i]
		switch {
		case a.Error != "":
			fmt.Fprintf(out, "activity %d: could not be compared: %s\n", a.ID, a.Error)
		case a.Skipped != "":
			fmt.Fprintf(out, "activity %d: not compared: %s\n", a.ID, a.Skipped)
		case len(a.Repairs) == 0:
			fmt.Fprintf(out, "activity %d: equal: stock %d at version %d; %s open (%s), oldest %d ms, %d waiting for the worker\n",
				a.ID, a.Redis.Stock, a.Redis.Version, cli.Count(a.Ledger, "reservation"), cli.Count(a.Pending, "unit"), a.OldestMs, a.Waiting)
		default:
			fmt.Fprintf(out, "activity %d: redis has stock %d at version %d, mysql %d at %d\n", a.ID, a.Redis.Stock, a.Redis.Version, a.MySQL.Stock, a.MySQL.Version)
		}
		for _, x := range a.Repairs {
			fmt.Fprintf(out, "  %s: %s", did, x.Kind)
			if x.From != nil && x.To != nil {
				fmt.Fprintf(out, " %d → %d", *x.From, *x.To)
			}
			if x.Order != "" {
				fmt.Fprintf(out, " order %s of %s", x.Order, x.User)
			}
			fmt.Fprintf(out, ": %s\n", x.Why)
		}
		if a.Unlisted > 0 {
			fmt.Fprintf(out, "  and %d more\n", a.Unlisted)
		}
		for _, alarm := range a.Alarms {
			fmt.Fprintf(out, "  ALARM: %s\n", alarm)
		}
	}
	for _, alarm := range r.Alarms {
		fmt.Fprintf(out, "ALARM: %s\n", alarm)
	}
	fmt.Fprintf(out, "%s compared in %d ms, %s\n", cli.Count(len(r.Activities), "activity"), r.TookMs, cli.Count(r.Repaired(), "difference"))
}
