package ledger

import (
	"fmt"

	"github.com/seckillgate/seckillgate/internal/order"
)

// check is what holds at every moment.
func (w *world) check() error {
	var sold int64
	holder := map[string]string{}
	for id, o := range w.mysql.orders {
		if o.dead() {
			continue
		}
		sold += o.r.Quantity
		if other := holder[o.r.User]; other != "" {
			return fmt.Errorf("I3: %s has %s and %s", o.r.User, other, id)
		}
		holder[o.r.User] = id
	}
	if w.mysql.stock < 0 || sold+w.mysql.stock != w.mysql.units {
		return fmt.Errorf("I1: sold %d, left %d, of %d", sold, w.mysql.stock, w.mysql.units)
	}
	v, err := w.look()
	if err != nil || !v.loaded {
		return err
	}
	var sum int64
	for _, e := range v.entries {
		sum += e.Quantity
		// After a fail-over an order that was cancelled may be live again, beside a newer one of its buyer; MySQL takes one.
		if v.buyers[e.User] == "" && !w.failover {
			return fmt.Errorf("I3: %s has the open reservation %s and could make another", e.User, e.Order)
		}
	}
	if sum != v.pending {
		return fmt.Errorf("I5: pending %d, the ledger sums up to %d", v.pending, sum)
	}
	if !w.stocks[[2]int64{v.version, v.stock}] {
		return fmt.Errorf("I2: redis has stock %d of version %d, which mysql never had", v.stock, v.version)
	}
	if !v.same || w.toReplay {
		return nil // nothing is sold; or an accepted limit: MySQL has lost what Redis knows, and gets it again from Kafka
	}
	truth, counted := w.mysql.stock, map[string]bool{}
	may := func(r Reservation) {
		if _, landed := w.mysql.orders[r.Order]; !landed && !counted[r.Order] {
			counted[r.Order] = true
			truth -= r.Quantity
		}
	}
	for _, p := range w.publish {
		may(p.r)
	}
	for _, r := range w.log {
		may(r)
	}
	if v.available() > max(truth, 0) {
		return fmt.Errorf("I5: available %d above the truth %d", v.available(), truth)
	}
	return nil
}

// quiet lets everything end and checks what holds then.
func (w *world) quiet() error {
	s := &w.syncers[0]
	for i := range w.syncers {
		w.syncers[i].die()
	}
	if err := s.loadNow(w); err != nil {
		return err
	}
	for len(w.publish) > 0 {
		w.published()
	}
	for len(w.unknown) > 0 {
		r, _ := take(w, &w.unknown)
		if err := w.giveBack(r); err != nil {
			return err
		}
	}
	w.growOld(w.n)
	for len(w.late) > 0 {
		if err := w.lateCopy(); err != nil {
			return err
		}
	}
	for _, m := range w.settles {
		if err := w.settle(m.s); err != nil {
			return err
		}
	}
	if w.failover && !w.off[ruleLandedAgain] {
		w.committed = 0
	}
	for range 4 {
		if err := w.settle(w.land(w.log[w.committed:])); err != nil {
			return err
		}
		w.committed, w.toReplay = len(w.log), false
		for w.behind || w.position < len(w.binlog) {
			if err := w.follow(); err != nil {
				return err
			}
		}
		if err := s.loadNow(w); err != nil {
			return err
		}
		w.budgets++
		if err := s.compareNow(w); err != nil {
			return err
		}
	}
	return w.atRest()
}

func (w *world) atRest() error {
	v, err := w.look()
	if err != nil {
		return err
	}
	if !v.loaded || !v.same || v.stock != w.mysql.stock || v.pending != 0 || len(v.entries) != 0 {
		return fmt.Errorf("I2: redis is loaded: %v, has stock %d, pending %d, %d entries; mysql %d", v.loaded && v.same, v.stock,
			v.pending, len(v.entries), w.mysql.stock)
	}
	for id := range w.queued {
		switch o, ok := w.mysql.orders[id]; {
		case !ok:
			return fmt.Errorf("I4: %s was told queued and has no row", id)
		case o.status == order.Failed && !w.failover:
			return fmt.Errorf("I4: %s was told queued and failed", id)
		}
	}
	for id := range w.refused {
		if o, ok := w.mysql.orders[id]; ok {
			return fmt.Errorf("I4: %s was refused and is %s", id, o.status)
		}
	}
	for user, id := range v.buyers {
		if w.mysql.live[user] != id {
			return fmt.Errorf("I6: %s is locked out by %s", user, id)
		}
	}
	if len(v.buyers) != len(w.mysql.live) {
		return fmt.Errorf("I3: redis knows %d buyers of %d", len(v.buyers), len(w.mysql.live))
	}
	results, err := w.results()
	if err != nil {
		return err
	}
	for id, r := range results {
		// A status that MySQL has lost is told until it changes again, or the next load.
		if o, ok := w.mysql.orders[id]; ok && r.Status != o.status && !w.failover {
			return fmt.Errorf("I4: %s is %s and its buyer is told %s", id, o.status, r.Status)
		}
	}
	return w.check()
}
