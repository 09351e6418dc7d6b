package main

import (
	"context"
	"strings"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/startup"
	"github.com/seckillgate/seckillgate/internal/store"
)

// checks looks at everything that the worker depends on. None of them changes anything.
func (p *parts) checks(s *settings) []startup.Check {
	return []startup.Check{
		{System: "redis", Where: strings.Join(s.Redis.Addrs, ", "), Ask: func(ctx context.Context) (out []startup.Finding, err error) {
			found, err := p.ledger.Check(ctx)
			for _, f := range found {
				level := store.Warning
				if f.Fatal {
					level = store.Unsafe
				}
				out = append(out, startup.Finding{Level: level, System: "redis", Name: f.Name, Text: f.Text})
			}
			return out, err
		}},
		{System: "mysql", Where: p.store.Addr(), Ask: func(ctx context.Context) (out []startup.Finding, err error) {
			found, err := p.store.Check(ctx)
			for _, f := range found {
				if f.Name == "privilege_binlog" { // the syncer's; the worker's user need not have it
					continue
				}
				out = append(out, startup.Finding{Level: f.Level, System: "mysql", Name: f.Name, Text: f.Text})
			}
			if err != nil || !s.Unpaid.Enabled() {
				return out, err
			}
			found, err = p.store.CheckUnpaid(ctx)
			for _, f := range found {
				out = append(out, startup.Finding{Level: f.Level, System: "mysql", Name: f.Name, Text: f.Text})
			}
			return out, err
		}},
		{System: "kafka", Where: strings.Join(s.Kafka.Brokers, ", "), Ask: func(ctx context.Context) ([]startup.Finding, error) {
			found, err := p.admin.EnsureTopics(ctx, kafka.TopicOptions{})
			return ofKafka(found), err
		}},
	}
}

func ofKafka(found []kafka.Finding) (out []startup.Finding) {
	for _, f := range found {
		out = append(out, startup.Finding{Level: store.Level(f.Level), System: "kafka", Name: f.Name, Text: f.Text})
	}
	return out
}
