package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/seckillgate/seckillgate/internal/startup"
	"github.com/seckillgate/seckillgate/internal/store"
)

// checks looks at everything that the worker depends on. None of them changes anything.
func (p *parts) checks(s *settings) []startup.Check {
	return []startup.Check{
		startup.CheckRedis(p.ledger, s.Redis),
		startup.CheckMySQL(p.store, []string{"privilege_binlog", "privilege_sync"}, func(ctx context.Context, found []store.Finding) ([]store.Finding, error) {
			return p.more(ctx, s, found)
		}),
		startup.CheckKafka(p.admin, s.Kafka),
	}
}

// more is what the worker needs of MySQL beside landing.
func (p *parts) more(ctx context.Context, s *settings, found []store.Finding) ([]store.Finding, error) {
	if !slices.ContainsFunc(found, func(f store.Finding) bool { return f.Name == "schema" }) {
		unheard, err := p.unheard(ctx, s)
		if found = append(found, unheard...); err != nil {
			return found, err
		}
	}
	if !s.Unpaid.Enabled() {
		return found, nil
	}
	unpaid, err := p.store.CheckUnpaid(ctx)
	return append(found, unpaid...), err
}

// unheard finds listeners that the outbox is written for and that this worker does not tell.
func (p *parts) unheard(ctx context.Context, s *settings) (out []store.Finding, err error) {
	sinks, err := p.store.Subscribed(ctx)
	for _, k := range sinks {
		if k == store.Results && s.Outbox.Results || k == store.Webhook && s.Webhook.Enabled() {
			continue
		}
		out = append(out, store.Finding{Level: store.Warning, Name: "outbox_unheard", Text: fmt.Sprintf(
			"outcomes are kept for listener %s, which this worker is not configured to tell: configure it, or end that with seckill-worker outbox forget %s", k, k)})
	}
	return out, err
}
