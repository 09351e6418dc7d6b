package gate

import (
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// A sale that Redis forgot is told of once, and once more when it is back; one that is over, or has not begun, is not.
func TestUnavailableSalesAreLogged(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	a, over, ahead := sale(1), sale(2), sale(3)
	over.State = ledger.Closed
	ahead.StartsAtMs = ahead.EndsAtMs - 1000
	src := newSource(a, over, ahead)
	g := New(src, Options{InspectPoll: time.Millisecond, CataloguePoll: time.Millisecond, Logger: zap.New(core)})
	g.Start()
	defer g.Stop()
	count := func(text string) int { return logs.FilterMessage(text).Len() }
	const gone, back = "a sale is unavailable until the syncer has loaded it", "the sale is available again"
	looked := func() {
		n := src.looks.Load()
		eventually(t, "three more looks", func() bool { return src.looks.Load() >= n+3 })
	}
	looked()
	if logs.Len() != 0 {
		t.Fatalf("%+v", logs.All())
	}
	for round := 1; round <= 2; round++ {
		src.set(func() { src.snaps = map[int64]ledger.Snapshot{} })
		eventually(t, "the warning", func() bool { return count(gone) == round })
		looked()
		src.set(func() { src.snaps[1] = snapshot(a, 10) })
		eventually(t, "the news that it is back", func() bool { return count(back) == round })
		looked()
		if logs.Len() != 2*round {
			t.Fatalf("%+v", logs.All())
		}
	}
	first := logs.All()[0]
	if first.Level != zap.WarnLevel || first.ContextMap()["activity"] != int64(1) || first.ContextMap()["because"] != "redis does not have it" {
		t.Errorf("%+v", first)
	}
}
