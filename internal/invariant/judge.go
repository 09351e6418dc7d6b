package invariant

import (
	"fmt"
	"maps"
	"slices"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// Judge checks the invariants on a state that is meant to be quiet: nobody buys any more, and all work is done.
func Judge(s *State, o Options) *Report {
	j := judge{s: s, o: o, rows: make(map[string]*ledger.Outcome, len(s.Orders))}
	r := &Report{Activity: s.Activity.ID}
	for i := range s.Orders {
		row := &s.Orders[i]
		j.rows[row.Order] = row
		if row.Dead {
			r.Totals.DeadOrders++
			continue
		}
		r.Totals.SoldOrders++
		r.Totals.SoldUnits += row.Quantity
	}
	t := &r.Totals
	t.Left, t.Redis, t.Pending = s.Stock, s.Redis.Stock, s.Redis.Pending
	t.Units, t.UnitsKnown = o.Units, o.Units > 0
	if !t.UnitsKnown {
		t.Units = t.SoldUnits + t.Left
	}
	t.Oversold = max(0, t.SoldUnits-t.Units)
	r.Findings = []Finding{j.oversell(t), j.leak(t), j.oneEach(t), j.lost(t)}
	r.Notes = j.notes
	return r
}

type judge struct {
	s     *State
	o     Options
	rows  map[string]*ledger.Outcome
	notes []string
}

func (j *judge) note(format string, args ...any) {
	j.notes = append(j.notes, fmt.Sprintf(format, args...))
}

// oversell: I1.
func (j *judge) oversell(t *Totals) Finding {
	f := Finding{ID: "I1", Title: "no oversell"}
	f.Figures = fmt.Sprintf("sold %d in %d orders, left %d", t.SoldUnits, t.SoldOrders, t.Left)
	if t.UnitsKnown {
		f.Figures += fmt.Sprintf(", of %d units", t.Units)
	} else {
		j.note("I1 is checked in part: without the number of units put on sale (--units) only the sign of the stock can be judged")
	}
	if !j.s.Inventory {
		f.breaks("mysql has no inventory row of item %d", j.s.Activity.Item)
	}
	if t.Left < 0 {
		f.breaks("mysql stock of item %d is %d, below zero", j.s.Activity.Item, t.Left)
	}
	if t.Oversold > 0 {
		f.breaks("%d units sold of %d: %d oversold", t.SoldUnits, t.Units, t.Oversold)
	} else if t.UnitsKnown && t.SoldUnits+t.Left != t.Units {
		f.breaks("%d sold and %d left make %d, but %d were put on sale: %+d in mysql", t.SoldUnits, t.Left, t.SoldUnits+t.Left,
			t.Units, t.SoldUnits+t.Left-t.Units)
	}
	return f
}

// leak: I2.
func (j *judge) leak(t *Totals) Finding {
	s := j.s
	f := Finding{ID: "I2", Title: "nothing leaks"}
	f.Figures = fmt.Sprintf("stock: redis %d, mysql %d; reserved and not settled: %d units in %d entries", t.Redis, t.Left,
		t.Pending, len(s.Ledger))
	if !s.Redis.Exists && s.Activity.State == ledger.Closed {
		f.Figures = "the activity is closed and redis has retired it"
		return f
	}
	if !s.Redis.Loaded {
		why := s.Redis.Problem
		if why == "" {
			why = "state " + string(s.Redis.State)
		}
		f.breaks("redis has not loaded the activity: %s", why)
		return f
	}
	if t.Redis != t.Left {
		f.breaks("redis stock is %d (version %d), mysql stock is %d (version %d): %+d in redis", t.Redis, s.Redis.Version, t.Left,
			s.Version, t.Redis-t.Left)
	}
	if t.Pending != 0 {
		f.breaks("%d units are still reserved in redis (pending), with nothing in flight", t.Pending)
	}
	if len(s.Ledger) > 0 {
		var some examples
		for _, e := range s.Ledger {
			some.add("%s (%d units)", e.Order, e.Quantity)
		}
		f.breaks("%d reservations are not settled: %s", len(s.Ledger), &some)
	}
	if s.Behind > 0 {
		f.breaks("the workers are %d orders behind in kafka", s.Behind)
	}
	return f
}

// oneEach: I3.
func (j *judge) oneEach(*Totals) Finding {
	s := j.s
	f := Finding{ID: "I3", Title: "one per buyer"}
	live := make(map[string]string, len(s.Orders))
	var twice, unknown, ghosts examples
	for i := range s.Orders {
		row := &s.Orders[i]
		if row.Dead {
			continue
		}
		if other, ok := live[row.User]; ok {
			twice.add("%q has %s and %s", row.User, other, row.Order)
		}
		live[row.User] = row.Order
	}
	f.Figures = fmt.Sprintf("%d buyers with a live order in mysql, %d in redis", len(live), len(s.Buyers))
	if twice.n > 0 {
		f.breaks("%d buyers have more than one live order: %s", twice.n, &twice)
	}
	if !s.Redis.Exists && s.Activity.State == ledger.Closed {
		return f // retired: redis has forgotten the buyers on purpose
	}
	for user, id := range live {
		if s.Buyers[user] != id {
			unknown.add("%q with %s (redis has %q)", user, id, s.Buyers[user])
		}
	}
	for user, id := range s.Buyers {
		if _, ok := live[user]; !ok {
			ghosts.add("%q with %s (%s)", user, id, j.fate(id))
		}
	}
	if unknown.n > 0 {
		f.breaks("%d buyers could order again, since redis does not hold their live order: %s", unknown.n, &unknown)
	}
	if ghosts.n > 0 {
		f.breaks("%d buyers are locked out, since redis holds an order that is not live in mysql: %s", ghosts.n, &ghosts)
	}
	return f
}

// fate words what mysql knows of an order.
func (j *judge) fate(id string) string {
	row, ok := j.rows[id]
	switch {
	case !ok:
		return "no row in mysql"
	case row.Reason != "":
		return row.Status.Word() + ", " + row.Reason
	default:
		return row.Status.Word()
	}
}

// lost: I4.
func (j *judge) lost(t *Totals) Finding {
	s := j.s
	f := Finding{ID: "I4", Title: "nothing lost"}
	var missing examples
	gone := map[string]bool{}
	copies := 0
	for id, n := range s.Published {
		copies += n - 1
		if j.rows[id] == nil {
			gone[id] = true
			missing.add("%s", id)
		}
	}
	f.Figures = fmt.Sprintf("kafka acknowledged %d orders, mysql has %d of them", len(s.Published), len(s.Published)-missing.n)
	if missing.n > 0 {
		f.breaks("%d orders that kafka acknowledged have no row in mysql: %s", missing.n, &missing)
	}
	if s.Expired > 0 {
		j.note("kafka's retention has removed %d records of the orders topic; I4 covers the others", s.Expired)
	}
	if s.Unreadable > 0 {
		j.note("%d records of the orders topic are not valid orders; look at the dead letters", s.Unreadable)
	}
	if copies > 0 {
		j.note("%d orders are in kafka more than once, and in mysql once", copies)
	}
	if j.o.ToldRecords || len(s.Told) > 0 {
		j.told(&f, gone)
	}
	t.Lost = len(gone)
	return f
}

// told compares what buyers heard with what mysql has. Buyers without any record are left out: others may have bought.
func (j *judge) told(f *Finding, gone map[string]bool) {
	type buyer struct {
		orders  map[string]bool // every order id that the buyer was told of
		unknown bool            // a request of the buyer got no answer of the gateway: it may have bought
	}
	buyers := map[string]*buyer{}
	var broken, undecided, contradicted, unasked examples
	accepted, refused, unanswered := 0, 0, 0
	strange := map[int]int{} // by http status: answers that are not the gateway's
	for i := range j.s.Told {
		r := &j.s.Told[i]
		b := buyers[r.User]
		if b == nil {
			b = &buyer{orders: map[string]bool{}}
			buyers[r.User] = b
		}
		if r.OrderID != "" && (r.Accepted() || !j.o.Complete) {
			b.orders[r.OrderID] = true
		}
		switch {
		case r.Accepted():
			accepted++
		case r.Refused():
			refused++
			continue
		default:
			if r.HTTP == 0 {
				unanswered++
			} else {
				strange[r.HTTP]++
			}
			b.unknown = true
			continue
		}
		row := j.rows[r.OrderID]
		promised := r.Answer != order.Processing.Word()
		if row == nil && promised && r.Final != order.Failed.Word() && r.Answer != order.Failed.Word() {
			gone[r.OrderID] = true
			broken.add("%s of %q (told %s)", r.OrderID, r.User, r.Answer)
		}
		if row != nil && row.User != r.User {
			contradicted.add("%s was told to %q and is %q's in mysql", r.OrderID, r.User, row.User)
		}
		switch {
		case r.Final == "" && row == nil && !promised:
			undecided.add("%s of %q", r.OrderID, r.User)
		case r.Final == order.Failed.Word() && row != nil && !row.Dead:
			contradicted.add("%s of %q was told failed and is %s", r.OrderID, r.User, j.fate(r.OrderID))
		case r.Final == order.Confirmed.Word() && (row == nil || row.Status == order.Failed):
			contradicted.add("%s of %q was told confirmed and is %s", r.OrderID, r.User, j.fate(r.OrderID))
		}
	}
	for i := range j.s.Orders {
		row := &j.s.Orders[i]
		if b := buyers[row.User]; b != nil && !b.unknown && !b.orders[row.Order] && (!row.Dead || j.o.Complete) {
			unasked.add("%s of %q (%s)", row.Order, row.User, j.fate(row.Order))
		}
	}
	f.Figures += fmt.Sprintf("; buyers were told: %d accepted, %d refused, %d without an answer", accepted, refused, unanswered)
	for _, status := range slices.Sorted(maps.Keys(strange)) {
		f.Figures += fmt.Sprintf(", %d an http %d that is not the gateway's", strange[status], status)
	}
	if broken.n > 0 {
		f.breaks("%d orders whose buyers were told that they are accepted have no row in mysql: %s", broken.n, &broken)
	}
	if contradicted.n > 0 {
		f.breaks("%d orders ended otherwise than their buyers were told: %s", contradicted.n, &contradicted)
	}
	if unasked.n > 0 {
		f.breaks("%d orders belong to buyers who were told that they got nothing: %s", unasked.n, &unasked)
	}
	if undecided.n > 0 {
		j.note("%d orders told as processing came to nothing and bought nothing, which is allowed: %s", undecided.n, &undecided)
	}
}
