package follow

import (
	"testing"

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
