package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/syncer/load"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
)

func newForce(loadSettings loader) *cobra.Command {
	var (
		yes, asJSON bool
		bound       time.Duration
	)
	cmd := &cobra.Command{
		Use:   "force ACTIVITY...",
		Short: "In an emergency: make Redis equal to MySQL under the row lock",
		Long: `Force closes an activity (buyers hear 503), loads it anew, takes the stock by a locking read, and
opens it again while the inventory row is still locked, so that nothing can come between. The lock
is held for at most --lock (200 ms): with Redis slower than that it is given up, the activity is
opened as by an ordinary load, and the command fails.

An admin's pause stays a pause. It shows both sides before and after and asks unless --yes. It ends
with 0 only if every activity was forced.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			if bound <= 0 || bound > load.DefaultLockBound {
				return fmt.Errorf("--lock %s: want more than 0 and at most %s, since orders cannot land meanwhile", bound, load.DefaultLockBound)
			}
			s, err := loadSettings(needRedis, needKafka, needMySQL)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				out = io.Discard
			}
			return s.oneShot(cmd, func(p *runner.Parts) error {
				if err := show(cmd, p, out, "before", ids); err != nil {
					return err
				}
				if !yes {
					if err := ask(cmd, len(ids), s.PublishBudget+s.ReserveDeadline); err != nil {
						return err
					}
				}
				var failed []error
				for _, id := range ids {
					r, err := p.Loader.Force(cmd.Context(), id, bound)
					err = errors.Join(err, afterLoad(cmd.Context(), p, id)) // also where it was opened without the lock
					if err != nil {
						failed = append(failed, fmt.Errorf("activity %d: %w", id, err))
						continue
					}
					if asJSON {
						_ = json.NewEncoder(cmd.OutOrStdout()).Encode(r)
						continue
					}
					printLoad(out, r, false)
					fmt.Fprintf(out, "  its inventory row was locked for %d ms\n", r.LockMs)
				}
				if err := show(cmd, p, out, "after", ids); err != nil {
					failed = append(failed, err)
				}
				return errors.Join(failed...)
			})
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per activity")
	cmd.Flags().DurationVar(&bound, "lock", load.DefaultLockBound, "longest time to lock the inventory row")
	return cmd
}

func show(cmd *cobra.Command, p *runner.Parts, out io.Writer, when string, ids []int64) error {
	s, err := p.Status(cmd.Context(), ids...)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, when+":")
	return printActivities(out, s)
}

func ask(cmd *cobra.Command, n int, closed time.Duration) error {
	fmt.Fprintf(cmd.ErrOrStderr(), "Close %d activities for at least %s each and load them by force? Type yes: ", n, closed)
	line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil && line == "" {
		return fmt.Errorf("no answer (use --yes where nobody can be asked): %w", err)
	}
	if strings.TrimSpace(line) != "yes" {
		return errors.New("not forced: the answer was not yes")
	}
	return nil
}
