package main

import (
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/cli"
	"github.com/seckillgate/seckillgate/internal/store"
)

func newOutbox(load loader) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "outbox",
		Short: "See who is told what becomes of orders, and who waits",
		Long: `What becomes of each order is written to MySQL with the order, once for each listener: results
(the topic seckill.results) and webhook (the shop's endpoint). A running worker tells it and takes
it away. A listener stays registered, also when the configuration no longer names it, so that
nothing is lost by a mistake; "forget" ends that. Take it out of the configuration of all workers
first.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(newOutboxList(load), newOutboxForget(load))
	return cmd
}

// withStore runs a command that needs MySQL alone.
func withStore(cmd *cobra.Command, load loader, do func(st *store.Store) error) (err error) {
	s, err := load(needMySQL)
	if err != nil {
		return err
	}
	st, err := store.Open(cmd.Context(), s.MySQL)
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	return do(st)
}

func newOutboxList(load loader) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the listeners and what waits for them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withStore(cmd, load, func(st *store.Store) error {
				sinks, err := st.Subscribed(cmd.Context())
				if err != nil {
					return err
				}
				if len(sinks) == 0 {
					fmt.Fprintln(cmd.OutOrStdout(), "nobody listens")
					return nil
				}
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				fmt.Fprintln(w, "LISTENER\tWAITING\tOLDEST")
				for _, k := range sinks {
					n, oldest, err := st.Backlog(cmd.Context(), k)
					if err != nil {
						return err
					}
					fmt.Fprintf(w, "%s\t%d\t%s\n", k, n, time.Duration(oldest)*time.Millisecond)
				}
				return w.Flush()
			})
		},
	}
}

func newOutboxForget(load loader) *cobra.Command {
	return &cobra.Command{
		Use:     "forget LISTENER",
		Short:   "End writing for a listener and drop what waits for it",
		Example: "  seckill-worker outbox forget webhook",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := store.ParseSink(args[0])
			if err != nil {
				return err
			}
			return withStore(cmd, load, func(st *store.Store) error {
				n, err := st.Unsubscribe(cmd.Context(), k)
				if err == nil {
					fmt.Fprintf(cmd.OutOrStdout(), "%s is no longer told; dropped what waited for it: %s\n", k, cli.Count(n, "outcome"))
					fmt.Fprintln(cmd.OutOrStdout(), "a worker that is configured to tell it registers it again when it starts")
				}
				return err
			})
		},
	}
}
