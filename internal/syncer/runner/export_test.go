package runner

import (
	"context"
	"sync"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/syncer/binlog"
)

// ReadAgain is how long after a change the activity table is read once more.
const ReadAgain = readAgain

// PublishAfterStaleRead does what a leader does whose read of the activity table was overtaken by a write: it shows no row.
func PublishAfterStaleRead(ctx context.Context, p *Parts, h Health) error {
	t := newTerm(New(p, h, NewMetrics(nil)), func(error) {})
	t.begin(binlog.Position{})
	t.dir.Read(nil)
	return t.publish(ctx)
}

// Term is what a new leader has at hand: bring reads the activity table and publishes it, apply does what the stream does with a transaction.
func Term(p *Parts, h Health) (bring func(context.Context) error, apply func(context.Context, *binlog.Transaction) error) {
	t := newTerm(New(p, h, NewMetrics(nil)), func(error) {})
	t.begin(binlog.Position{})
	return t.bring, t.applier.Apply
}

// Table keeps the catalogue equal to the activity table until ctx ends, as a leader does. changed notes a row as the binlog's reader does.
func Table(ctx context.Context, p *Parts, h Health) (changed func(ledger.Activity), wait func()) {
	t := newTerm(New(p, h, NewMetrics(nil)), func(error) {})
	t.begin(binlog.Position{})
	var wg sync.WaitGroup
	wg.Go(func() { t.table(ctx) })
	return t.dir.Changed, wg.Wait
}
