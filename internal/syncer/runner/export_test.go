package runner

import (
	"context"
	"sync"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// ReadAgain is how long after a change the activity table is read once more.
const ReadAgain = readAgain

// PublishAfterStaleRead does what a leader does whose read of the activity table was overtaken by a write: it shows no row.
func PublishAfterStaleRead(ctx context.Context, p *Parts, h Health) error {
	t := newTerm(New(p, h, NewMetrics(nil)), func(error) {})
	t.loads.init()
	t.dir.Read(nil)
	return t.publish(ctx)
}

// Table keeps the catalogue equal to the activity table until ctx ends, as a leader does. changed notes a row as the binlog's reader does.
func Table(ctx context.Context, p *Parts, h Health) (changed func(ledger.Activity), wait func()) {
	t := newTerm(New(p, h, NewMetrics(nil)), func(error) {})
	t.loads.init()
	var wg sync.WaitGroup
	wg.Go(func() { t.table(ctx) })
	return t.dir.Changed, wg.Wait
}
