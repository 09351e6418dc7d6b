package main

import (
	"strings"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/syncer/binlog"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// A leader stops in its tracks in the middle of a load, far longer than its lease lasts, as a virtual machine does that is
// moved. Another one takes over, loads the sale, and it goes on. Then the first one wakes up and goes on where it was: its
// load is fenced, its position is not kept, nothing that it still writes undoes what has happened, and it stands back.
func TestPausedLeaderWakesUp(t *testing.T) {
	bin := build(t)
	b := synctest.New(t, synctest.Quiet)
	a := b.Activity(100)
	none := func() string { return "" }
	url, command := daemon(b, bin, none, "SECKILL_NAME=first")
	first := testenv.StartProgram(t, "seckill-syncer", command, func() error { return ready(url()) })
	url2, command := daemon(b, bin, none, "SECKILL_NAME=second")
	second := testenv.StartProgram(t, "seckill-syncer", command, func() error { return ready(url2()) })
	defer func() {
		if t.Failed() {
			t.Logf("first:\n%s\nsecond:\n%s", first.Log(), second.Log())
		}
	}()
	leads := func(who string) bool {
		got, err := b.Ledger.LeaseHolder(t.Context())
		return err == nil && strings.HasPrefix(got, who+" ")
	}
	testenv.Eventually(t, 10*time.Second, "the first to lead", func() bool { return leads("first") })
	epoch := b.Loaded(a, "").Epoch
	b.Buy(a, "before", 5)
	b.Land(false)
	b.Equal(a)

	b.Client().Del(t.Context(), ledger.KeysOf(a.ID).Stock)
	testenv.Eventually(t, 10*time.Second, "the first to load again", func() bool {
		s := b.Look(a)
		return s.State == ledger.Recovering && s.Epoch != epoch
	})
	stuck := b.Look(a).Epoch
	first.Pause()
	testenv.Eventually(t, 10*time.Second, "the second to lead", func() bool { return leads("second") })
	epoch = b.Loaded(a, stuck).Epoch
	for i, user := range []string{"a", "b", "c"} {
		o := b.Buy(a, user, 10)
		b.Land(i == 0)
		if i == 1 {
			b.Exec("UPDATE orders SET status = 'CANCELLED' WHERE order_id = ?", o.ID)
		}
	}
	b.Equal(a)
	b.Buy(a, "queued", 7)
	before := position(b)

	first.Resume()
	testenv.Eventually(t, 10*time.Second, "the first to stand back", func() bool {
		return strings.Contains(first.Log(), "no longer leading") && ready(url()) == nil
	})
	if !leads("second") {
		t.Error("the second lost its lease to one that had slept")
	}
	if s := b.Look(a); s.Epoch != epoch || s.Stock != 75 || s.Pending != 7 || s.BuyersLen != 4 {
		t.Errorf("%+v; want epoch %s, stock 75, 7 pending, four buyers", s, epoch)
	}
	// The one that slept must not put its own, older position in place of the second's. Other tests commit on the same server,
	// so the second's may have moved on.
	at := position(b)
	if reached, ok := at.Reached(before); !ok || !reached {
		t.Errorf("the position went back from %s to %s", before, at)
	}
	b.Land(false)
	b.Equal(a)
}

func position(b *synctest.Bench) binlog.Position {
	b.Helper()
	st, err := b.All.Status(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return st.Binlog.Kept
}
