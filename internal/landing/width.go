package landing

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Bounds of widths.
const (
	racesToShrink = 2 // tries that one transaction may lose to deadlocks and lock timeouts before the next one is narrower
	calmToGrow    = 4 // transactions without any such loss before the next one is wider
)

// widths bounds the orders of one transaction, for each item by itself. A wide transaction is the fastest when it has the hot row for
// itself, and the likeliest to meet others when it has not: after repeated deadlocks or lock timeouts it is halved, and doubled again
// as calm returns. Only items below the full width are kept.
type widths struct {
	full  int
	gauge prometheus.Gauge

	mu sync.Mutex
	at map[int64]*width
}

type width struct {
	orders int // most orders of one transaction
	calm   int // transactions at this width that lost no try, in a row
}

func newWidths(full int, gauge prometheus.Gauge) *widths {
	gauge.Set(float64(full))
	return &widths{full: full, gauge: gauge, at: make(map[int64]*width)}
}

// of is how many of n orders of an item go into its next transaction.
func (w *widths) of(item int64, n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.at[item]; x != nil {
		return min(n, x.orders)
	}
	return n
}

// note hears how a transaction of n orders went: how many tries it lost to others, and whether it was given back for that.
func (w *widths) note(item int64, n, races int, givenBack bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.at[item]
	switch {
	case n > 1 && (givenBack || races >= racesToShrink):
		if x == nil {
			x = &width{orders: w.full}
			w.at[item] = x
		}
		// Half of what was tried, which may be less than what was allowed, and more than what is by now.
		x.orders, x.calm = min(x.orders, n/2), 0
	case x == nil:
		return
	case givenBack || races > 0:
		x.calm = 0
	default:
		if x.calm++; x.calm >= calmToGrow {
			x.orders, x.calm = 2*x.orders, 0
		}
		if x.orders >= w.full {
			delete(w.at, item)
		}
	}
	least := w.full
	for _, x := range w.at {
		least = min(least, x.orders)
	}
	w.gauge.Set(float64(least))
}
