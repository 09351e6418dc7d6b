package ledger_test

import (
	"maps"
	"testing"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// TestPostpone: the number of tries only grows, travels with the entry and changes nothing else of it; it survives a second request with
// the order's id; what the ledger does not have is not kept, and nothing is while the activity is not loaded.
func TestPostpone(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(10, 100)
		with, plain := wish("u1", 2), wish("u2", 3)
		with.Extra = []byte(`{"a":"b"}`)
		t.mustReserve(with)
		t.mustReserve(plain)
		postpone := func(tries map[string]int64) map[string]bool {
			t.Helper()
			kept, err := t.Postpone(t.ctx, t.id, tries)
			if err != nil {
				t.Fatal(err)
			}
			return kept
		}
		for _, n := range []int64{1, 12, 2} {
			if got := postpone(map[string]int64{with.Order: n, "unknown": n}); !maps.Equal(got, map[string]bool{with.Order: true}) {
				t.Fatalf("kept %v", got)
			}
		}
		again := with
		again.Nonce = "another"
		if d := t.reserve(again); d.Code != ledger.Again {
			t.Fatalf("the order's own second request: %+v", d)
		}
		entries, _, err := t.ScanLedger(t.ctx, t.id, 0, 100)
		if err != nil || len(entries) != 2 {
			t.Fatalf("%+v, %v", entries, err)
		}
		for _, e := range entries {
			tries, extra := int64(0), ""
			if e.Order == with.Order {
				tries, extra = 12, `{"a":"b"}`
			}
			if e.Tries != tries || string(e.Extra) != extra || e.ReservedAtMs == 0 || e.Item != t.item {
				t.Errorf("entry %+v", e)
			}
		}
		t.want(10, 5)
		t.settle(ledger.Settlement{Orders: []ledger.Outcome{landed(with, t.item, order.Failed)}, Source: ledger.FromWorker})
		t.want(10, 3)
		if _, err := t.LoadBegin(t.ctx, t.activity()); err != nil {
			t.Fatal(err)
		}
		if got := postpone(map[string]int64{plain.Order: 1}); len(got) != 0 {
			t.Errorf("kept %v while the activity is loaded", got)
		}
	})
}

// TestPlaceInTheQueueMovesBack: an order that was published again waits behind its later place, whichever is told last.
func TestPlaceInTheQueueMovesBack(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(10, 100)
		r := wish("u1", 1)
		t.mustReserve(r)
		at := func(offset int64) ledger.Ack {
			return ledger.Ack{Order: r.Order, User: "u1", Item: t.item, Quantity: 1, Partition: 2, Offset: offset}
		}
		for _, offset := range []int64{5, 30, 7} {
			if err := t.MarkQueued(t.ctx, t.id, []ledger.Ack{at(offset)}); err != nil {
				t.Fatal(err)
			}
		}
		if v, err := t.Lookup(t.ctx, t.id, r.Order); err != nil || v.Offset != 30 || v.Status != order.Queued {
			t.Errorf("%+v, %v", v, err)
		}
	})
}
