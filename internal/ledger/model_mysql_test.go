package ledger

import (
	"errors"
	"maps"
	"slices"

	"github.com/seckillgate/seckillgate/internal/order"
)

// What workers do (package landing), and MySQL for them and for the shop (package store and its migrations).

// commit ends a transaction: the log has it, and so, in time, has a replica.
func (w *world) commit(orders ...Outcome) {
	w.binlog = append(w.binlog, Settlement{Version: w.mysql.version, Stock: w.mysql.stock, Orders: orders, Source: FromBinlog})
	w.mysql.events = len(w.binlog)
	w.note()
	w.commits = append(w.commits, w.mysql.clone())
	if len(w.commits) > 6 {
		w.commits = w.commits[1:]
	}
}

func (w *world) note() { w.stocks[[2]int64{w.mysql.version, w.mysql.stock}] = true }

// change is what the trigger on the inventory does.
func (w *world) change(by int64) {
	w.mysql.stock += by
	w.mysql.version++
	if !w.off[ruleHybridClock] {
		w.mysql.version = max(w.mysql.version, w.clock)
	}
	w.note()
}

// land is the worker's transaction.
func (w *world) land(records []Reservation) Settlement {
	s := Settlement{Source: FromWorker}
	var fresh []Outcome
	for _, r := range records {
		o, ok := w.mysql.orders[r.Order]
		if !ok {
			o = modelOrder{r: r, status: order.Confirmed}
			if w.mysql.live[r.User] != "" || w.mysql.stock < r.Quantity {
				o.status = order.Failed
			} else {
				w.change(-r.Quantity)
				w.mysql.live[r.User] = r.Order
			}
			w.mysql.orders[r.Order] = o
			fresh = append(fresh, outcome(o))
		}
		s.Orders = append(s.Orders, outcome(o))
	}
	s.Version, s.Stock = w.mysql.version, w.mysql.stock
	if len(fresh) > 0 {
		w.commit(fresh...)
	}
	return s
}

func outcome(o modelOrder) Outcome {
	return Outcome{Order: o.r.Order, User: o.r.User, Item: 1, Quantity: o.r.Quantity, Status: o.status, Dead: o.dead()}
}

func (w *world) landNext() {
	if w.committed == len(w.log) {
		return
	}
	to := min(len(w.log), w.committed+1+w.rnd.IntN(3))
	if w.off[ruleMarkedAfter] && w.chance(0.2) { // it marks the records, and dies
		w.committed = to
		return
	}
	s := w.land(w.log[w.committed:to])
	if w.chance(0.8) { // else the worker dies before it settles, and meets the records again
		w.settles = append(w.settles, modelSettle{s, w.committed, to})
	}
}

func (w *world) settleNext() error {
	m, ok := take(w, &w.settles)
	if !ok {
		return nil
	}
	if err := w.settle(m.s); err != nil {
		return err
	}
	if w.chance(0.7) && m.from <= w.committed { // else it dies before it marks them
		w.committed = max(w.committed, m.to)
	}
	return nil
}

func (w *world) settle(s Settlement) error {
	s.Activity = w.id
	got, err := w.l.Settle(w.ctx, s)
	if err == nil && got.Broken {
		err = errors.New("I5: settle found pending below its ledger")
	}
	return err
}

// restock is the shop's; without the trigger the version stays as it was.
func (w *world) restock(trigger bool) {
	if w.mysql.restocks == 3 {
		return
	}
	w.mysql.restocks++
	w.mysql.units++
	if !trigger {
		w.mysql.stock++
	} else {
		w.change(1)
	}
	w.commit()
}

func (w *world) rowAnew() {
	if !w.chance(0.5) {
		return
	}
	if w.off[ruleHybridClock] {
		w.mysql.version = 0
	}
	w.change(0)
	w.commit()
}

// cancelOne is the shop's: the trigger on the orders returns the stock in the same transaction.
func (w *world) cancelOne() {
	if len(w.mysql.live) == 0 || !w.chance(0.3) {
		return
	}
	users := slices.Sorted(maps.Keys(w.mysql.live))
	user := users[w.rnd.IntN(len(users))]
	o := w.mysql.orders[w.mysql.live[user]]
	o.status = order.Cancelled
	w.mysql.orders[o.r.Order] = o
	delete(w.mysql.live, user)
	w.change(o.r.Quantity)
	w.commit(outcome(o))
}

// mysqlFailsOver promotes a replica that misses the last commits. The syncer sees that the server is behind it and loads
// again; an operator is told to land the lost orders again.
func (w *world) mysqlFailsOver() {
	if len(w.commits) < 2 || !w.chance(0.5) {
		return
	}
	at := w.rnd.IntN(len(w.commits) - 1)
	w.mysql = w.commits[at].clone()
	w.commits = w.commits[:at+1]
	w.binlog = w.binlog[:w.mysql.events:w.mysql.events]
	w.failover, w.toReplay = true, true
	w.behind = w.behind || w.applied > len(w.binlog)
	w.applied, w.position = min(w.applied, len(w.binlog)), min(w.position, len(w.binlog))
}
