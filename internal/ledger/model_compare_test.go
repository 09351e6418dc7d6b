package ledger

import (
	"maps"
	"slices"
)

// modelMark is a proof of the sweep to be: see package compare.
type modelMark struct {
	grown, budgets, end int
}

func (s *syncer) compareOn(w *world) error {
	if s.comparing == nil {
		s.comparing = begin(func(pause func()) error { return s.compare(w, pause) })
	}
	return s.comparing.step(w, &s.comparing)
}

func (s *syncer) compareNow(w *world) error {
	for {
		if err := s.compareOn(w); err != nil || s.comparing == nil {
			return err
		}
	}
}

func (s *syncer) compare(w *world, pause func()) error {
	proof := s.proof(w, pause)
	v, err := w.look()
	if err != nil || !v.loaded || !v.same {
		return err
	}
	if w.off[ruleNothingResetsPending] {
		w.srv.rdb.Set(w.ctx, w.k.Pending, 0, 0)
		w.srv.rdb.Del(w.ctx, w.k.Ledger)
		return nil
	}
	pause()
	if err := w.compareStock(v, pause); err != nil {
		return err
	}
	pause()
	if !w.off[ruleLockedOutAreFreed] {
		if err := w.freeBuyers(pause); err != nil {
			return err
		}
		pause()
	}
	if !w.off[ruleBuyersAreKnown] {
		if err := w.knowBuyers(pause); err != nil {
			return err
		}
		pause()
	}
	return s.sweep(w, v.epoch, proof, pause)
}

func (w *world) compareStock(v *view, pause func()) error {
	stock, version := w.mysql.stock, w.mysql.version
	pause()
	switch {
	case v.version < version:
		return w.settle(Settlement{Version: version, Stock: stock, Source: FromBinlog})
	case v.version == version && v.stock != stock:
		_, err := w.l.RepairStock(w.ctx, w.id, version, v.stock, stock)
		return err
	case v.version > version && v.version > w.mysql.version && !w.off[ruleAheadIsTouched]:
		w.touchPast(v.version)
		stock, version = w.mysql.stock, w.mysql.version
		pause()
		return w.settle(Settlement{Version: version, Stock: stock, Source: FromBinlog})
	}
	return nil
}

// settleRows settles with a stock that is read after the rows, so that it includes them. A live order may have died since.
func (w *world) settleRows(rows []Outcome, pause func()) error {
	if len(rows) == 0 {
		return nil
	}
	pause()
	stock, version := w.mysql.stock, w.mysql.version
	for _, o := range rows {
		pause()
		s := Settlement{Version: version, Stock: stock, Source: FromWorker, Orders: []Outcome{o}}
		if o.Dead || w.off[ruleLiveMayHaveDied] {
			s.Source = FromBinlog
		}
		if err := w.settle(s); err != nil {
			return err
		}
	}
	return nil
}

// freeBuyers frees whoever is held by an order that is dead, or that neither MySQL nor the ledger has.
func (w *world) freeBuyers(pause func()) error {
	v, err := w.look()
	if err != nil {
		return err
	}
	pause()
	var dead []Outcome
	var nowhere []Buyer
	for _, user := range slices.Sorted(maps.Keys(v.buyers)) {
		id := v.buyers[user]
		o, there := w.mysql.orders[id]
		switch {
		case v.holds(id):
		case !there:
			nowhere = append(nowhere, Buyer{User: user, Order: id})
		case o.dead():
			dead = append(dead, outcome(o))
		}
	}
	if err := w.settleRows(dead, pause); err != nil || len(nowhere) == 0 {
		return err
	}
	pause()
	_, err = w.l.FreeBuyers(w.ctx, w.id, nowhere)
	return err
}

// knowBuyers adds the buyers of live orders that Redis does not know.
func (w *world) knowBuyers(pause func()) error {
	live := maps.Clone(w.mysql.live)
	pause()
	v, err := w.look()
	if err != nil {
		return err
	}
	pause()
	var missing []Buyer
	for _, user := range slices.Sorted(maps.Keys(live)) {
		if v.buyers[user] == "" && !w.mysql.orders[live[user]].dead() {
			missing = append(missing, Buyer{User: user, Order: live[user]})
		}
	}
	if len(missing) == 0 {
		return nil
	}
	pause()
	if _, err := w.l.AddBuyers(w.ctx, w.id, missing); err != nil {
		return err
	}
	pause()
	var dead []Outcome // between the look and the write
	for _, b := range missing {
		if o, there := w.mysql.orders[b.Order]; there && o.dead() {
			dead = append(dead, outcome(o))
		}
	}
	return w.settleRows(dead, pause)
}

// proof is the newest mark below which everything has landed, nil if there is none.
func (s *syncer) proof(w *world, pause func()) *modelMark {
	m := modelMark{grown: w.grown, budgets: w.budgets}
	pause()
	m.end = len(w.log)
	s.marks = append(s.marks, m)
	for i, m := range slices.Backward(s.marks) {
		if m.end <= w.committed {
			s.marks = s.marks[i:]
			return &m
		}
	}
	return nil
}

// sweep is the outbox: what has a row is settled; what is old, has none and can be in no record that has not landed is
// published again.
func (s *syncer) sweep(w *world, epoch string, proof *modelMark, pause func()) error {
	v, err := w.look()
	if err != nil {
		return err
	}
	pause()
	var landed []Outcome
	var rest []Entry
	for _, e := range v.entries {
		if o, there := w.mysql.orders[e.Order]; there {
			landed = append(landed, outcome(o))
		} else if w.off[ruleSweepWaits] || s.unpublished(e.Order, proof) {
			rest = append(rest, e)
		}
	}
	if err := w.settleRows(landed, pause); err != nil || len(rest) == 0 {
		return err
	}
	pause()
	if v, err = w.look(); err != nil || !v.same || v.epoch != epoch {
		return err
	}
	for _, e := range rest {
		w.log = append(w.log, Reservation{Order: e.Order, User: e.User, Quantity: e.Quantity})
		if s.republished == nil {
			s.republished = map[string]int{}
		}
		s.republished[e.Order] = w.budgets
	}
	return nil
}

func (s *syncer) unpublished(id string, proof *modelMark) bool {
	again, done := s.republished[id]
	return proof != nil && id <= orderID(proof.grown) && (!done || again < proof.budgets)
}
