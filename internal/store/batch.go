package store

import (
	"fmt"
	"math"
	"slices"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// batch is what Land was asked for, each order id once.
type batch struct {
	item   int64
	orders []*order.Order
	index  []int // where each order stood in the caller's slice
	sum    int64
}

// newBatch checks every order before the first statement, since the database would compare some of what it refuses
// in its own way ("u" and "u " are one user to it).
func newBatch(item int64, orders []*order.Order) (*batch, error) {
	b := &batch{item: item, orders: make([]*order.Order, 0, len(orders)), index: make([]int, 0, len(orders))}
	seen := make(map[string]bool, len(orders))
	for i, o := range orders {
		if o.Item != item {
			return nil, fmt.Errorf("%w: order %s is for item %d in a batch of item %d", ErrInvalid, o.ID, o.Item, item)
		}
		if err := o.Validate(); err != nil {
			return nil, &ErrRowRefused{Index: i, Err: err}
		}
		if seen[o.ID] {
			continue
		}
		seen[o.ID] = true
		b.orders = append(b.orders, o)
		b.index = append(b.index, i)
		b.sum += o.Quantity
	}
	return b, nil
}

func (b *batch) ids() []string {
	ids := make([]string, len(b.orders))
	for i, o := range b.orders {
		ids[i] = o.ID
	}
	return ids
}

// buyer is who may hold one live order.
type buyer struct {
	activity int64
	user     string
}

// enough is a stock that everything fits into: what it really is, the conditional UPDATE finds out.
const enough = math.MaxInt64

// plan is what a batch comes to.
type plan struct {
	outcomes []ledger.Outcome
	fresh    []int // of the orders that have no row yet and get one
	left     []int // of the orders that have none and are left without one
	sum      int64 // units that the fresh ones take
}

// decided are the outcomes of all orders but those that are left undecided.
func (p plan) decided() []ledger.Outcome {
	if len(p.left) == 0 {
		return p.outcomes
	}
	var all []ledger.Outcome
	for i, o := range p.outcomes {
		if !slices.Contains(p.left, i) {
			all = append(all, o)
		}
	}
	return all
}

// ids are those of the orders that have no row yet.
func (p plan) ids(b *batch) []string {
	ids := make([]string, len(p.fresh))
	for i, n := range p.fresh {
		ids[i] = b.orders[n].ID
	}
	return ids
}

// soldOut are the ids of the orders that the stock does not suffice for and that are not left.
func (p plan) soldOut(b *batch) (ids []string) {
	for _, n := range p.fresh {
		if p.outcomes[n].Reason == order.ReasonSoldOut {
			ids = append(ids, b.orders[n].ID)
		}
	}
	return ids
}

// plan decides every order that has no row, one after the other as if each were alone: a buyer with a live order is refused, then
// what does not fit, and smaller orders behind it still get their chance. Rows that exist are the truth, whatever the message says.
func (b *batch) plan(rows map[string]ledger.Outcome, live map[buyer]bool, stock int64, success order.Status) plan {
	p := plan{outcomes: make([]ledger.Outcome, len(b.orders)), fresh: make([]int, 0, len(b.orders))}
	taken := make(map[buyer]bool, len(b.orders))
	for i, o := range b.orders {
		if row, ok := rows[o.ID]; ok {
			p.outcomes[i] = row
			continue
		}
		who := buyer{o.Activity, o.User}
		out := ledger.Outcome{Order: o.ID, User: o.User, Item: o.Item, Quantity: o.Quantity, Status: success}
		switch {
		case live[who] || taken[who]:
			out.Status, out.Dead, out.Reason = order.Failed, true, order.ReasonDuplicate
		case o.Quantity > stock-p.sum && o.Patient:
			p.left = append(p.left, i)
			continue
		case o.Quantity > stock-p.sum:
			out.Status, out.Dead, out.Reason = order.Failed, true, order.ReasonSoldOut
		default:
			taken[who] = true
			p.sum += o.Quantity
		}
		p.outcomes[i] = out
		p.fresh = append(p.fresh, i)
	}
	return p
}
