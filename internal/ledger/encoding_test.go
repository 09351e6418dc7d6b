package ledger

import (
	"reflect"
	"slices"
	"testing"

	"github.com/seckillgate/seckillgate/internal/order"
)

func FuzzDecode(f *testing.F) {
	f.Add(encodeEntry(Entry{User: "u", Item: 1, Quantity: 2, ReservedAtMs: 3, Extra: []byte(`{"a":1}`)}))
	f.Add(encodeResult(Result{Status: order.Paid, User: "u", Item: 1, Quantity: 2, Partition: -1, Offset: -1, AtMs: 5}))
	f.Add("7\x1f100\x1f0\x1f\x1fo1\x1fPAID")
	f.Add("0\x1f100\x1f0\x1fcatalogue")
	f.Fuzz(func(t *testing.T, s string) {
		if e, err := decodeEntry("o", s); err == nil {
			back, err := decodeEntry("o", encodeEntry(e))
			if err != nil || !reflect.DeepEqual(back, e) {
				t.Fatalf("%+v, %+v, %v", e, back, err)
			}
		}
		if r, err := decodeResult(s); err == nil {
			back, err := decodeResult(encodeResult(*r))
			if err != nil || *back != *r {
				t.Fatalf("%+v, %+v, %v", r, back, err)
			}
		}
		_, _ = decodeEvent(s)
	})
}

// The shop's own words in orders.reason must not break the encoding.
func TestReasonsAreCleaned(t *testing.T) {
	got := outcomeResult(Outcome{Status: order.Failed, Reason: "no\x1fstock\nleft", User: "u"}, 1)
	r, err := decodeResult(got)
	if err != nil || r.Reason != "no stock left" {
		t.Fatalf("%+v, %v", r, err)
	}
}

// The keys of a reserve call's members are those that everything else uses.
func TestKeysOfMembers(t *testing.T) {
	k := KeysOf(42)
	members := []Reservation{{Order: "o1", User: "u1"}, {Order: "order-2", User: "买家"}, {}}
	var want []string
	for _, m := range members {
		want = append(want, k.Result(m.Order), k.UserWindow(m.User))
	}
	if got := k.members(k.base(0), members)[7:]; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
