package landing

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

func TestE40ProgressIsReportedAndWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		led := &fakeLedger{}
		p := newProgress(led, NewMetrics(nil), time.Second, zap.NewNop())
		p.claimed(1, 40, func() int64 { return 50 })
		p.report(t.Context())
		if led.landed[1].Offset != 40 {
			t.Errorf("landed %+v: want an idle partition reported at the offset that it begins at", led.landed)
		}
		at := time.UnixMilli(1_700_000_000_000)
		p.batch(1, Record{Offset: 40, Time: at})
		if err := p.measure(time.Minute); err != nil {
			t.Errorf("stalled too early: %v", err)
		}
		<-time.After(2 * time.Minute)
		if err := p.measure(time.Minute); err == nil {
			t.Error("a batch that runs for two minutes is not noticed")
		}
		p.landed(1, Record{Offset: 44, Time: at})
		if err := p.measure(time.Minute); err != nil {
			t.Errorf("still stalled after the batch has landed: %v", err)
		}
		p.report(t.Context())
		if got := led.landed[1]; got.Offset != 45 || got.TimeMs != at.UnixMilli() {
			t.Errorf("landed %+v: want the next offset and the record's time", got)
		}
		p.claimed(2, 7, func() int64 { return 7 })
		p.seen(2, 9) // the fetch says nothing of these two
		if err := p.measure(time.Minute); err != nil {
			t.Error(err)
		}
		<-time.After(2 * time.Minute)
		if err := p.measure(time.Minute); err == nil || !strings.Contains(err.Error(), "partition") {
			t.Errorf("a fetch that is stuck is not noticed: %v", err)
		}
		p.released(1)
		p.released(2)
		if err := p.measure(time.Minute); err != nil {
			t.Error(err)
		}
	})
}
