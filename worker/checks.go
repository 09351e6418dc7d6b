package main

import (
	"context"
	"fmt"
	"slices"
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
				if f.Name == "privilege_binlog" || f.Name == "privilege_sync" { // the syncer's; the worker's user need not have them
					continue
				}
				out = append(out, startup.Finding{Level: f.Level, System: "mysql", Name: f.Name, Text: f.Text})
			}
			if err == nil && !slices.ContainsFunc(found, func(f store.Finding) bool { return f.Name == "schema" }) {
				var unheard []startup.Finding
				unheard, err = p.unheard(ctx, s)
				out = append(out, unheard...)
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

// unheard finds listeners that the outbox is written for and that this worker does not tell.
func (p *parts) unheard(ctx context.Context, s *settings) (out []startup.Finding, err error) {
	sinks, err := p.store.Subscribed(ctx)
	for _, k := range sinks {
		if k == store.Results && s.Outbox.Results || k == store.Webhook && s.Webhook.Enabled() {
			continue
		}
		out = append(out, startup.Finding{Level: store.Warning, System: "mysql", Name: "outbox_unheard", Text: fmt.Sprintf(
			"outcomes are kept for listener %s, which this worker is not configured to tell: configure it, or end that with seckill-worker outbox forget %s", k, k)})
	}
	return out, err
}

func ofKafka(found []kafka.Finding) (out []startup.Finding) {
	for _, f := range found {
		out = append(out, startup.Finding{Level: store.Level(f.Level), System: "kafka", Name: f.Name, Text: f.Text})
	}
	return out
}
