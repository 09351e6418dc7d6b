package compare

import (
	"testing"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// TestForgetsWhatHasLanded: a syncer that runs for months does not remember each order that it has ever published again.
func TestForgetsWhatHasLanded(t *testing.T) {
	t.Parallel()
	c := &Comparer{Timings: ledger.Timings{PublishBudgetMs: 100, HorizonMs: 200}}
	for order, at := range map[string]int64{"landed": 1000, "just landed": 1899, "perhaps not": 1900, "on its way": 2500} {
		c.republishedAt()[order] = at
	}
	c.forget(2000)
	for order, want := range map[string]bool{"landed": false, "just landed": false, "perhaps not": true, "on its way": true} {
		if _, got := c.republished[order]; got != want {
			t.Errorf("%s: remembered %v, want %v", order, got, want)
		}
		w := &work{Comparer: c, proof: &proof{2000}, now: 3000}
		if again := w.unpublished(ledger.Entry{Order: order, ReservedAtMs: 1}); again == want {
			t.Errorf("%s: to be published again %v", order, again)
		}
	}
}
