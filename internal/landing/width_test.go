package landing

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
)

// sizes are the orders of each transaction that landed, from the nth on.
func (b *bench) sizes(from int) []int {
	b.Helper()
	var all []int
	for _, batch := range b.store.batches[from:] {
		all = append(all, len(batch))
	}
	return all
}

// batchOf makes records of n fresh orders.
func (b *bench) batchOf(n int) []Record {
	b.Helper()
	records := make([]Record, n)
	for i := range records {
		records[i] = b.record(newOrder(b.activity, b.item, fmt.Sprint("buyer", i)))
	}
	return records
}

// value reads a gauge or a counter.
func value(t *testing.T, g prometheus.Collector) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(g)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	m := families[0].GetMetric()[0]
	return m.GetGauge().GetValue() + m.GetCounter().GetValue()
}

// TestE66BatchShrinksAndGrowsBack: transactions that MySQL gives back for deadlocks or lock timeouts are halved until they pass, stay
// narrow for a while and grow back to the full width; every order lands once, in its order, and no other item pays for it.
func TestE66BatchShrinksAndGrowsBack(t *testing.T) {
	for name, number := range map[string]uint16{"deadlock": 1213, "lock timeout": 1205} {
		t.Run(name, func(t *testing.T) {
			b := onFakes(t)
			const most = 20 // wider transactions of this item lose
			b.store.land = func(_ int, orders []*order.Order) error {
				if orders[0].Item == b.item && len(orders) > most {
					return fmt.Errorf("given back after 5 tries: %w", &mysql.MySQLError{Number: number, Message: name})
				}
				return nil
			}
			records := b.batchOf(100)
			if got := b.mustLand(records...); got.Landed != 100 || got.Redone != 0 {
				t.Fatalf("tally %+v: want 100 landed", got)
			}
			// 100, 50 and 25 lose. Four of 12 pass, one of 24 loses, four of 12 pass, and what is left fits into the next one of 24.
			if got := b.sizes(0); !slices.Equal(got, []int{12, 12, 12, 12, 12, 12, 12, 12, 4}) {
				t.Fatalf("landed in transactions of %v", got)
			}
			var landed []string
			for _, batch := range b.store.batches {
				for _, o := range batch {
					landed = append(landed, o.ID)
				}
			}
			if distinct := len(b.store.rows); distinct != 100 || len(landed) != 100 || len(b.results.got) != 100 {
				t.Errorf("%d orders in %d rows and %d results, want 100 each, once", len(landed), distinct, len(b.results.got))
			}
			if b.health.red(stepMySQL) != nil || !b.health.ever[stepMySQL] {
				t.Error("health was not red while MySQL gave back, or still is")
			}

			before, other := len(b.store.batches), b.item+1
			b.store.activities[b.activity+1] = other
			var apart []Record
			for i := range 60 {
				apart = append(apart, b.record(newOrder(b.activity+1, other, fmt.Sprint("u", i))))
			}
			b.mustLand(apart...)
			if got := b.sizes(before); !slices.Equal(got, []int{60}) {
				t.Errorf("another item landed in transactions of %v, want one", got)
			}
			if got := value(t, b.metrics.batchLimit); got != 24 {
				t.Errorf("batch_limit is %v, want 24: of the item that is worst off", got)
			}

			b.store.land = nil // the rival has gone
			before = len(b.store.batches)
			for range 6 {
				b.mustLand(b.batchOf(500)...)
			}
			want := []int{
				24, 24, 24, 48, 48, 48, 48, 96, 96, 44, // a batch of 500; the last is what was left of it
				96, 192, 192, 20, 192, 308, 384, 116, 384, 116, 500,
			}
			if got := b.sizes(before); !slices.Equal(got, want) {
				t.Errorf("grew as %v, want %v", got, want)
			}
			if got := value(t, b.metrics.batchLimit); got != 500 {
				t.Errorf("batch_limit is %v, want 500 again", got)
			}
			if len(b.widths.at) != 0 {
				t.Errorf("%d items are still remembered", len(b.widths.at))
			}
		})
	}
}

// TestBatchShrinksOnRacesThatWereWon: a transaction that landed only after several lost tries is a warning already.
func TestBatchShrinksOnRacesThatWereWon(t *testing.T) {
	b := onFakes(t)
	for _, c := range []struct{ races, next int }{{0, 100}, {1, 100}, {2, 50}, {0, 50}, {0, 50}, {0, 50}, {1, 50}, {0, 50}, {0, 50}, {0, 50}, {0, 100}, {3, 50}, {2, 25}} {
		b.store.races = c.races
		b.mustLand(b.batchOf(b.widths.of(b.item, 100))...)
		if got := b.widths.of(b.item, 100); got != c.next {
			t.Fatalf("after %d lost tries the next transaction has %d orders, want %d", c.races, got, c.next)
		}
	}
}

// TestSingleOrderIsNotHalved: what one order alone loses says nothing of width.
func TestSingleOrderIsNotHalved(t *testing.T) {
	b := onFakes(t)
	b.store.land = func(n int, _ []*order.Order) error {
		if n < 3 {
			return &mysql.MySQLError{Number: 1205}
		}
		return nil
	}
	b.mustLand(b.batchOf(1)...)
	if got := b.widths.of(b.item, 500); got != 500 {
		t.Errorf("width %d, want it full", got)
	}
}

// TestRedeliveryAcrossNarrowTransactions: an order that stands in a batch twice is told and counted once, whichever
// transactions its copies fall into; a row that MySQL refuses goes alone.
func TestRedeliveryAcrossNarrowTransactions(t *testing.T) {
	b := onFakes(t)
	records := b.batchOf(9)
	records = append(records, records[0])
	bad := b.record(newOrder(b.activity, b.item, "bad"))
	records = append(records, bad)
	b.store.land = func(_ int, orders []*order.Order) error {
		if len(orders) > 3 {
			return &mysql.MySQLError{Number: 1213}
		}
		if i := slices.IndexFunc(orders, func(o *order.Order) bool { return o.User == "bad" }); i >= 0 {
			return &store.ErrRowRefused{Index: i, Err: errors.New("data too long")}
		}
		return nil
	}
	if got := b.mustLand(records...); got.Landed != 9 || got.Redone != 1 || got.Refused != 1 {
		t.Fatalf("tally %+v: want 9 landed, 1 redone, 1 refused", got)
	}
	if len(b.results.got) != 9+1 { // and the refused one
		t.Errorf("%d results, want 10", len(b.results.got))
	}
}
