package main

import (
	"context"
	"strings"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/startup"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
)

// checks looks at everything that the syncer depends on. None of them changes anything.
func checks(p *runner.Parts) []startup.Check {
	return []startup.Check{
		{System: "redis", Where: strings.Join(p.Config.Redis.Addrs, ", "), Ask: func(ctx context.Context) (out []startup.Finding, err error) {
			found, err := p.Ledger.Check(ctx)
			for _, f := range found {
				level := store.Warning
				if f.Fatal {
					level = store.Unsafe
				}
				out = append(out, startup.Finding{Level: level, System: "redis", Name: f.Name, Text: f.Text})
			}
			return out, err
		}},
		{System: "mysql", Where: p.Store.Addr(), Ask: func(ctx context.Context) (out []startup.Finding, err error) {
			found, err := p.Store.Check(ctx)
			for _, f := range found {
				if f.Name == "privilege_land" { // the worker's; the syncer's user need not have it
					continue
				}
				out = append(out, startup.Finding{Level: f.Level, System: "mysql", Name: f.Name, Text: f.Text})
			}
			return out, err
		}},
		{System: "binlog", Where: p.Store.Addr(), Ask: func(ctx context.Context) ([]startup.Finding, error) {
			at, err := p.Stream.Note(ctx)
			if err != nil {
				return nil, err
			}
			return []startup.Finding{{Level: store.Info, System: "binlog", Name: "position", Text: at.Flavor + " is at " + at.String()}}, nil
		}},
		{System: "kafka", Where: strings.Join(p.Config.Kafka.Brokers, ", "), Ask: func(ctx context.Context) (out []startup.Finding, err error) {
			found, err := p.Admin.EnsureTopics(ctx, kafka.TopicOptions{})
			for _, f := range found {
				out = append(out, startup.Finding{Level: store.Level(f.Level), System: "kafka", Name: f.Name, Text: f.Text})
			}
			return out, err
		}},
	}
}
