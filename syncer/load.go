package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/syncer/compare"
	"github.com/seckillgate/seckillgate/internal/syncer/load"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
)

func newLoad(loadSettings loader) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "load ACTIVITY...",
		Short: "Load activities from MySQL to Redis",
		Long: `Load builds an activity anew in Redis: stock, version, buyers and results from MySQL, open
reservations from the ledger and from Kafka records that have not landed. Meanwhile its buyers hear
503, for at least publish_budget and reserve_deadline (7 s). A running syncer does this by itself
whenever it is needed; nothing has to be loaded by hand beside it.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			s, err := loadSettings(needRedis, needKafka, needMySQL)
			if err != nil {
				return err
			}
			return s.oneShot(cmd, func(p *runner.Parts) error {
				var failed []error
				for _, id := range ids {
					r, err := p.Loader.Load(cmd.Context(), id)
					if err == nil {
						err = afterLoad(cmd.Context(), p, id)
					}
					if err != nil {
						failed = append(failed, err)
						continue
					}
					printLoad(cmd.OutOrStdout(), r, asJSON)
				}
				return errors.Join(failed...)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per activity")
	return cmd
}

// afterLoad lists the activity and compares it. A daemon's binlog stream goes back for what it passed over during a load that was not
// its own; where no daemon ran, or did not see the load, comparing finds the orders that died meanwhile.
func afterLoad(ctx context.Context, p *runner.Parts, id int64) error {
	a, err := p.Store.Activity(ctx, id)
	if err != nil {
		return err
	}
	if err := p.List(ctx, a); err != nil {
		return err
	}
	wanted, err := p.Wanted(ctx, id)
	if err != nil {
		return err
	}
	r, err := p.Comparer.Run(ctx, wanted, compare.Options{Young: true})
	if err != nil {
		return err
	}
	return r.Err()
}

func printLoad(out io.Writer, r load.Report, asJSON bool) {
	if asJSON {
		_ = json.NewEncoder(out).Encode(r)
		return
	}
	fmt.Fprintf(out, "activity %d is loaded and %s: stock %d, pending %d (%d reservations kept, %d restored from kafka), %d buyers, %d orders; closed for %d ms\n",
		r.Activity, r.State, r.Stock, r.Pending, r.Kept, r.Restored, r.Buyers, r.Orders, r.ClosedMs)
}
