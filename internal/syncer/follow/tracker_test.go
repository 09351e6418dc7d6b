package follow

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/syncer/binlog"
)

func at(offset uint32) binlog.Position {
	return binlog.Position{Flavor: "mariadb", File: "bin.000001", Offset: offset}
}

func kept(t *testing.T, tr *Tracker, want uint32) {
	t.Helper()
	p, step, _ := tr.Keep()
	if p.Offset != want {
		t.Fatalf("the position to keep is %d, want %d", p.Offset, want)
	}
	tr.Kept(step)
}

func TestPinHoldsThePosition(t *testing.T) {
	tr := NewTracker(at(1))
	tr.Synced(at(2))
	kept(t, tr, 2)
	pin := tr.Pin()
	tr.Synced(at(3))
	kept(t, tr, 2)
	pin.Done(false)
	kept(t, tr, 3)
	if _, _, fresh := tr.Keep(); fresh {
		t.Fatal("a position that was kept is offered again")
	}
}

func TestLoadRewinds(t *testing.T) {
	tr := NewTracker(at(1))
	pin := tr.Pin()
	tr.Synced(at(5))
	pin.Done(true)
	select {
	case <-tr.Restart():
	default:
		t.Fatal("the stream was not told to restart")
	}
	tr.Synced(at(6)) // it had not heard yet
	kept(t, tr, 1)
	if p := tr.Start(); p.Offset != 1 {
		t.Fatalf("restart at %d, want 1", p.Offset)
	}
	tr.Synced(at(2))
	kept(t, tr, 2)
}

func TestLoadWithoutTrafficDoesNotRewind(t *testing.T) {
	tr := NewTracker(at(1))
	tr.Pin().Done(true)
	select {
	case <-tr.Restart():
		t.Fatal("restart although nothing moved")
	default:
	}
}

// loading is a Redis in which a load ends just after it has ignored a settlement.
type loading struct {
	Ledger
	end func()
}

func (l loading) Settle(context.Context, ledger.Settlement) (ledger.Settled, error) {
	l.end()
	return ledger.Settled{}, nil
}

type selling struct{ Directory }

func (selling) OfItem(int64) []int64 { return []int64{1} }

type uncounted struct{ Metrics }

func (uncounted) Applied(int, time.Duration) {}

// A transaction that met the load, and whose position is noted only after the load's end, is lost on the load like those before.
func TestLoadRewindsWhatIsBeingApplied(t *testing.T) {
	for _, when := range []string{"pinned before", "pinned meanwhile"} {
		t.Run(when, func(t *testing.T) {
			tr := NewTracker(at(1))
			pin := tr.Pin()
			a := &Applier{
				Ledger: loading{end: func() {
					if when == "pinned meanwhile" {
						pin.Done(false)
						pin = tr.Pin()
					}
					pin.Done(true)
				}},
				Directory: selling{}, Metrics: uncounted{}, Tracker: tr, Log: zap.NewNop(), Blocked: func(error) {},
			}
			if err := a.Apply(t.Context(), &binlog.Transaction{Items: map[int64]binlog.Stock{1: {Version: 2, Stock: 3}}}); err != nil {
				t.Fatal(err)
			}
			a.Synced(at(2))
			select {
			case <-tr.Restart():
			default:
				t.Fatal("the stream was not told to restart")
			}
			kept(t, tr, 1)
			if p := tr.Start(); p.Offset != 1 {
				t.Fatalf("restart at %d, want 1", p.Offset)
			}
			tr.Pin().Done(true)
			select {
			case <-tr.Restart():
				t.Fatal("restart although nothing is being applied any more")
			default:
			}
		})
	}
}

// The second load began later than the first one, whose end takes the stream back to before either.
func TestOverlappingLoads(t *testing.T) {
	tr := NewTracker(at(1))
	first := tr.Pin()
	tr.Synced(at(5))
	second := tr.Pin()
	tr.Synced(at(9))
	first.Done(true)
	if p := tr.Start(); p.Offset != 1 {
		t.Fatalf("restart at %d, want 1", p.Offset)
	}
	tr.Synced(at(3))
	second.Done(true)
	if p := tr.Start(); p.Offset > 3 {
		t.Fatalf("restart at %d: it passes over 3 to 5, which were not applied again yet", p.Offset)
	}
}

func TestOlderRewindWins(t *testing.T) {
	tr := NewTracker(at(1))
	first := tr.Pin()
	tr.Synced(at(5))
	second := tr.Pin()
	tr.Synced(at(9))
	second.Done(true)
	first.Done(true)
	if p := tr.Start(); p.Offset != 1 {
		t.Fatalf("restart at %d, want 1", p.Offset)
	}
}

func TestResetTakesPinsAlong(t *testing.T) {
	tr := NewTracker(at(1))
	pin := tr.Pin()
	tr.Synced(at(5))
	tr.Reset(at(100))
	tr.Synced(at(110))
	pin.Done(true)
	if p := tr.Start(); p.Offset != 100 {
		t.Fatalf("restart at %d, want 100: what was before the reset means nothing now", p.Offset)
	}
}
