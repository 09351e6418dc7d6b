package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/startup"
	"github.com/seckillgate/seckillgate/internal/store"
)

func newMigrate(load loader) *cobra.Command {
	var opt store.MigrateOptions
	var topics kafka.TopicOptions
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create or upgrade the MySQL schema, and the Kafka topics on request",
		Long: `Migrate creates what is missing in MySQL and upgrades what an older release made. It never
touches data. Run it once before the first start and after each upgrade.

It makes the tables orders, activity and inventory, or adapts to the shop's own inventory table
(mysql.tables): that gets a version column, nothing else. Triggers keep versions moving and
return stock when an order dies; they need the SUPER privilege or, on the server,
log_bin_trust_function_creators=1. Where neither can be had, --no-triggers leaves them out and
the shop uses the documented SQL; set mysql.no_triggers as well then.

With --create-topics it also creates the Kafka topics that are missing. Existing ones are never
changed, only compared with what they should be.`,
		Example: `  seckill-worker migrate --dry-run
  seckill-worker migrate --create-topics --partitions 24 --replication 3`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			for flag, n := range map[string]int32{"partitions": topics.Partitions, "replication": int32(topics.Replication)} {
				if n < 1 && cmd.Flags().Changed(flag) {
					return fmt.Errorf("--%s %d: want at least 1, or leave the flag out for its default", flag, n)
				}
			}
			need := []system{needMySQL}
			if topics.Create {
				need = append(need, needKafka)
			}
			s, err := load(need...)
			if err != nil {
				return err
			}
			log, err := s.logger()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			st, err := store.Open(ctx, s.MySQL)
			if err != nil {
				return fmt.Errorf("%w: %w", errRefused, err)
			}
			defer func() { err = errors.Join(err, st.Close()) }()
			opt.Out = cmd.OutOrStdout()
			opt.NoTriggers = opt.NoTriggers || s.MySQL.NoTriggers
			if err := st.Migrate(ctx, opt); err != nil {
				return fmt.Errorf("migrate: %w", err)
			}
			if !topics.Create {
				return nil
			}
			admin, err := kafka.NewAdmin(s.Kafka, log)
			if err != nil {
				return fmt.Errorf("%w: %w", errRefused, err)
			}
			defer func() { err = errors.Join(err, admin.Close()) }()
			startup.TellWait(admin, cmd.ErrOrStderr())
			topics.Create = !opt.DryRun // a dry run only names what is missing
			found, err := admin.EnsureTopics(ctx, topics)
			for _, f := range startup.OfKafka(found) {
				fmt.Fprintln(cmd.OutOrStdout(), f)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&opt.DryRun, "dry-run", false, "print what would be done and change nothing")
	f.BoolVar(&opt.NoTriggers, "no-triggers", false, "leave the triggers out; the shop then uses the documented SQL")
	f.BoolVar(&topics.Create, "create-topics", false, "also create the Kafka topics that are missing")
	f.Int32Var(&topics.Partitions, "partitions", 0, "partitions of a new orders topic (default 12)")
	f.Int16Var(&topics.Replication, "replication", 0, "replicas of new topics (default 3, or as many as there are brokers)")
	return cmd
}
