package runner

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/syncer/compare"
)

// settleDown gathers requests to compare, and lets a transaction that was in doubt become visible.
const settleDown = 200 * time.Millisecond

// compare runs each interval, and soon for what somebody asked for.
func (t *term) compare(ctx context.Context) {
	tick := time.NewTicker(t.parts.Config.CompareInterval)
	defer tick.Stop()
	for {
		var wanted []ledger.Activity
		var opt compare.Options
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			wanted = t.dir.Tended(time.Now(), true)
		case <-t.dir.soon:
			if !pause(ctx, settleDown) {
				return
			}
			all, young, ids := t.dir.ToCompare()
			opt.Young = young
			if wanted = t.dir.Tended(time.Now(), true); !all {
				wanted = only(wanted, ids)
			}
		}
		t.compareOnce(ctx, wanted, opt)
	}
}

func only(all []ledger.Activity, ids map[int64]bool) []ledger.Activity {
	var out []ledger.Activity
	for _, a := range all {
		if ids[a.ID] {
			out = append(out, a)
		}
	}
	return out
}

func (t *term) compareOnce(ctx context.Context, activities []ledger.Activity, opt compare.Options) {
	report, err := t.parts.Comparer.Run(ctx, activities, opt)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		err = report.Err()
	}
	t.health.Set(healthCompare, err)
	t.metrics.compared(report)
	t.status.compared(report)
	for _, a := range report.Alarms {
		t.log.Error("compare: " + a)
	}
	for i := range report.Activities {
		a := &report.Activities[i]
		log := t.log.With(zap.Int64("activity", a.ID))
		for _, alarm := range a.Alarms {
			log.Error("compare: " + alarm)
		}
		if a.Error != "" {
			log.Warn("an activity could not be compared", zap.String("error", a.Error))
		}
		for j, r := range a.Repairs {
			if j == 100 {
				log.Warn("and more repairs", zap.Int("more", len(a.Repairs)-j+a.Unlisted))
				break
			}
			write := log.Warn
			if r.Kind == compare.Behind || r.Kind == compare.Settled {
				write = log.Info // a delay, not a difference
			}
			write("repaired", zap.Any("repair", r))
		}
	}
}
