package invariant

import (
	"strings"
	"testing"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/told"
)

// healthy is a sale of 10 units: a and b bought 3 each, c's order was cancelled, d was refused.
func healthy() *State {
	row := func(id, user string, quantity int64, s order.Status) ledger.Outcome {
		return ledger.Outcome{Order: id, User: user, Item: 1, Quantity: quantity, Status: s, Dead: s.In(order.DefaultDead)}
	}
	return &State{
		Activity: ledger.Activity{ID: 7, Item: 1, State: ledger.Open}, Inventory: true, Stock: 4, Version: 100,
		Orders: []ledger.Outcome{
			row("oa", "a", 3, order.Confirmed), row("ob", "b", 3, order.Paid), row("oc", "c", 2, order.Cancelled),
		},
		Redis:     ledger.Snapshot{Exists: true, Loaded: true, Stock: 4, Version: 100, State: ledger.Open},
		Buyers:    map[string]string{"a": "oa", "b": "ob"},
		Published: map[string]int{"oa": 1, "ob": 2, "oc": 1},
		Told: []told.Record{
			{User: "a", HTTP: 202, Answer: "queued", OrderID: "oa", Final: "confirmed"},
			{User: "b", HTTP: 202, Answer: "processing", OrderID: "ob", Final: "confirmed"},
			{User: "b", HTTP: 409, Answer: "already_ordered", OrderID: "ob"},
			{User: "c", HTTP: 202, Answer: "queued", OrderID: "oc", Final: "confirmed"},
			{User: "d", HTTP: 409, Answer: "sold_out"},
			{User: "e", Answer: told.Unknown},
			{User: "f", HTTP: 202, Answer: "processing", OrderID: "of"},
		},
	}
}

func TestAHealthySaleHolds(t *testing.T) {
	r := Judge(healthy(), Options{Units: 10})
	if err := r.Err(); err != nil || !r.OK() {
		t.Fatal(err)
	}
	want := Totals{Units: 10, UnitsKnown: true, SoldOrders: 2, SoldUnits: 6, DeadOrders: 1, Left: 4, Redis: 4}
	if r.Totals != want {
		t.Errorf("totals %+v, want %+v", r.Totals, want)
	}
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ok      I1", "ok      I4", "sold 6 in 2 orders, left 4, of 10 units", "more than once"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("report lacks %q:\n%s", want, b.String())
		}
	}
}

func TestWithoutUnitsOnlyTheSignIsJudged(t *testing.T) {
	s := healthy()
	if r := Judge(s, Options{}); !r.OK() || len(r.Notes) == 0 || r.Totals.Units != 10 {
		t.Fatalf("report %+v", r)
	}
	s.Stock, s.Redis.Stock = -1, -1
	if err := Judge(s, Options{}).Err(); err == nil || !strings.Contains(err.Error(), "below zero") {
		t.Fatal(err)
	}
}

func TestARetiredActivityHolds(t *testing.T) {
	s := healthy()
	s.Activity.State, s.Redis, s.Buyers = ledger.Closed, ledger.Snapshot{}, nil
	if err := Judge(s, Options{Units: 10}).Err(); err != nil {
		t.Fatal(err)
	}
}

// TestEachBreachIsNamed breaks one thing at a time, and wants that invariant broken, and no other, with words that say what.
func TestEachBreachIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*State)
		id    string
		words string
	}{
		"oversold": {func(s *State) {
			s.Orders[0].Quantity, s.Stock, s.Redis.Stock = 9, 0, 0
		}, "I1", "12 units sold of 10: 2 oversold"},
		"stock vanished": {func(s *State) { s.Stock, s.Redis.Stock = 3, 3 }, "I1", "-1 in mysql"},
		"order row removed, its buyer told nothing": {func(s *State) {
			s.Orders, s.Told = s.Orders[1:], nil
			s.Buyers = map[string]string{"b": "ob"}
			s.Stock, s.Redis.Stock, s.Published = 7, 7, map[string]int{"oa": 1, "ob": 1, "oc": 1}
		}, "I4", "have no row in mysql: oa"},
		"no inventory":     {func(s *State) { s.Inventory = false }, "I1", "no inventory row of item 1"},
		"redis lowered":    {func(s *State) { s.Redis.Stock = 3 }, "I2", "redis stock is 3 (version 100), mysql stock is 4"},
		"unit leaked":      {func(s *State) { s.Redis.Pending = 1 }, "I2", "1 units are still reserved"},
		"reservation left": {func(s *State) { s.Ledger = []ledger.Entry{{Order: "ox", Quantity: 1}} }, "I2", "ox (1 units)"},
		"not loaded": {func(s *State) {
			s.Redis.Loaded, s.Redis.Problem = false, "stock is missing"
		}, "I2", "stock is missing"},
		"workers behind": {func(s *State) { s.Behind = 5 }, "I2", "5 orders behind"},
		"two live orders": {func(s *State) {
			s.Orders[1].User, s.Told, s.Buyers = "a", nil, map[string]string{"a": "ob"}
		}, "I3", "more than one live order"},
		"redis forgot a buyer": {func(s *State) { delete(s.Buyers, "a") }, "I3", `"a" with oa`},
		"locked out":           {func(s *State) { s.Buyers["c"] = "oc" }, "I3", `"c" with oc (cancelled)`},
		"told queued and lost": {func(s *State) {
			s.Told = append(s.Told, told.Record{User: "g", HTTP: 202, Answer: "queued", OrderID: "og"})
		}, "I4", "og"},
		"refused and sold all the same": {func(s *State) {
			s.Told = append(s.Told[1:], told.Record{User: "a", HTTP: 409, Answer: "sold_out"})
		}, "I4", "were told that they got nothing: oa"},
		"told failed and sold": {func(s *State) { s.Told[0].Final = "failed" }, "I4", "told failed and is confirmed"},
		"told confirmed and failed": {func(s *State) {
			s.Orders[2].Status, s.Orders[2].Reason = order.Failed, "sold_out"
		}, "I4", "told confirmed and is failed, sold_out"},
		"another buyer's order": {func(s *State) {
			s.Told[0].User = "z"
		}, "I4", `oa was told to "z" and is "a"'s`},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthy()
			c.spoil(s)
			r := Judge(s, Options{Units: 10})
			for _, f := range r.Findings {
				if f.OK() != (f.ID != c.id) {
					t.Errorf("%s: broken %q", f.ID, f.Broken)
				}
			}
			err := r.Err()
			if err == nil || !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), c.id) {
				t.Errorf("error %v, want %s and %q", err, c.id, c.words)
			}
		})
	}
}

func TestAnUnansweredRequestMayHaveBought(t *testing.T) {
	s := healthy()
	s.Told = []told.Record{{User: "a", Answer: told.Unknown}, {User: "a", HTTP: 409, Answer: "sold_out"}}
	if err := Judge(s, Options{Units: 10}).Err(); err != nil {
		t.Fatal(err)
	}
	// Nor does a page that is not the gateway's prove that nothing was bought; but it is an answer.
	s.Told = append(s.Told, told.Record{User: "b", HTTP: 401, Answer: told.Unknown}, told.Record{User: "d", HTTP: 401, Answer: told.Unknown})
	var b strings.Builder
	if err := Judge(s, Options{Units: 10}).Write(&b); err != nil {
		t.Fatal(err)
	}
	if want := "1 refused, 1 without an answer, 2 an http 401 that is not the gateway's"; !strings.Contains(b.String(), want) || strings.Contains(b.String(), "BROKEN") {
		t.Errorf("report lacks %q:\n%s", want, b.String())
	}
}

func TestExamplesAreBounded(t *testing.T) {
	s := healthy()
	for _, id := range strings.Split("abcdefghijklmnop", "") {
		s.Ledger = append(s.Ledger, ledger.Entry{Order: id, Quantity: 1})
	}
	if err := Judge(s, Options{Units: 10}).Err(); err == nil || !strings.Contains(err.Error(), "and 11 more") {
		t.Fatal(err)
	}
}

// With a complete record of what buyers did, an order that stood in the way must be one that they knew of.
func TestCompleteRecordsAreJudgedMoreStrictly(t *testing.T) {
	refused := func(s *State) {
		s.Told = append(s.Told[1:], told.Record{User: "a", HTTP: 503, Answer: "unavailable"},
			told.Record{User: "a", HTTP: 409, Answer: "already_ordered", OrderID: "oa"})
	}
	dead := func(s *State) {
		s.Orders = append(s.Orders, ledger.Outcome{Order: "od", User: "d", Item: 1, Quantity: 1, Status: order.Failed, Dead: true})
	}
	for name, spoil := range map[string]func(*State){"refused and reserved all the same": refused, "refused and failed": dead} {
		s := healthy()
		spoil(s)
		if err := Judge(s, Options{Units: 10}).Err(); err != nil {
			t.Errorf("%s: %v although others may have bought for the same buyer", name, err)
		}
		err := Judge(s, Options{Units: 10, Complete: true}).Err()
		if err == nil || !strings.Contains(err.Error(), "were told that they got nothing") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Judge(healthy(), Options{Units: 10, Complete: true}).Err(); err != nil {
		t.Error(err)
	}
}
