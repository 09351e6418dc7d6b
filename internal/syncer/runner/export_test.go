package runner

import "context"

// PublishAfterStaleRead does what a leader does whose read of the activity table was overtaken by a write: it shows no row.
func PublishAfterStaleRead(ctx context.Context, p *Parts, h Health) error {
	t := newTerm(New(p, h, NewMetrics(nil)), func(error) {})
	t.loads.init()
	t.dir.Read(nil)
	return t.publish(ctx)
}
