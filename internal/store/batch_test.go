package store

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

func fake(id, user string, quantity int64) *order.Order {
	return &order.Order{ID: id, Activity: 1, User: user, Item: 7, Quantity: quantity}
}

func TestPlanIsAsIfOneByOne(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		stock := rnd.Int64N(6)
		b := &batch{item: 7}
		for i := range 1 + rnd.IntN(8) {
			b.orders = append(b.orders, fake(string(rune('a'+i)), string(rune('u'+rnd.IntN(4))), 1+rnd.Int64N(3)))
		}
		rows := map[string]ledger.Outcome{}
		if rnd.IntN(3) == 0 {
			rows["a"] = ledger.Outcome{Order: "a", Status: order.Paid}
		}
		all := b.plan(rows, nil, stock, order.Confirmed)

		left, live := stock, map[buyer]bool{}
		for i, o := range b.orders {
			one := &batch{item: 7, orders: []*order.Order{o}}
			p := one.plan(rows, live, left, order.Confirmed)
			if p.outcomes[0] != all.outcomes[i] {
				t.Fatalf("order %d: %+v in a batch and %+v alone", i, all.outcomes[i], p.outcomes[0])
			}
			left -= p.sum
			if len(p.fresh) > 0 && !p.outcomes[0].Dead {
				live[buyer{o.Activity, o.User}] = true
			}
		}
		if stock-all.sum != left || left < 0 {
			t.Fatalf("the batch takes %d of %d, one by one %d are left", all.sum, stock, left)
		}
	}
}

func TestBatchRefusesWhatCanNeverBeAnOrder(t *testing.T) {
	t.Parallel()
	good := func() *order.Order {
		id, _ := order.NewID()
		return &order.Order{V: 1, ID: id, Activity: 1, User: "u", Item: 7, Quantity: 1, CreatedAtMs: 1}
	}
	for name, spoil := range map[string]func(*order.Order){
		"quantity":       func(o *order.Order) { o.Quantity = -3 },
		"trailing blank": func(o *order.Order) { o.User = "u " },
		"id":             func(o *order.Order) { o.ID = "X" },
	} {
		bad := good()
		spoil(bad)
		_, err := newBatch(7, []*order.Order{good(), bad})
		var row *ErrRowRefused
		if !errors.As(err, &row) || row.Index != 1 || IsTransient(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := good()
	other.Item = 8
	if _, err := newBatch(7, []*order.Order{other}); !errors.Is(err, ErrInvalid) {
		t.Errorf("another item: %v", err)
	}
	same := good()
	b, err := newBatch(7, []*order.Order{good(), same, same})
	if err != nil || len(b.orders) != 2 || b.sum != 2 {
		t.Errorf("%+v, %v", b, err)
	}
}
