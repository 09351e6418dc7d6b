package main

import (
	"context"

	"github.com/seckillgate/seckillgate/internal/startup"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
)

// checks looks at everything that the syncer depends on. None of them changes anything.
func checks(p *runner.Parts) []startup.Check {
	return []startup.Check{
		startup.CheckRedis(p.Ledger, p.Config.Redis),
		startup.CheckMySQL(p.Store, []string{"privilege_land"}, nil),
		{System: "binlog", Where: p.Store.Addr(), Ask: func(ctx context.Context) ([]startup.Finding, error) {
			at, err := p.Stream.Note(ctx)
			if err != nil {
				return nil, err
			}
			return []startup.Finding{{Level: store.Info, System: "binlog", Name: "position", Text: at.Flavor + " is at " + at.String()}}, nil
		}},
		startup.CheckKafka(p.Admin, p.Config.Kafka),
	}
}
