package order

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func valid() Order {
	id, err := NewID()
	if err != nil {
		panic(err)
	}
	return Order{V: 1, ID: id, Activity: 1, User: "u1", Item: 2, Quantity: 1, CreatedAtMs: 1, Extra: []byte(`{"a":1}`)}
}

func TestDecodeGivesBackWhatEncodeWrote(t *testing.T) {
	o := valid()
	b, err := o.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{`"v":1`, `"order_id":"`, `"activity_id":1`, `"user_id":"u1"`, `"item_id":2`, `"quantity":1`, `"created_at_ms":1`, `"extra":{"a":1}`} {
		if !strings.Contains(string(b), field) {
			t.Errorf("%s lacks %s", b, field)
		}
	}
	got, err := Decode(b)
	if err != nil || got.ID != o.ID || got.User != o.User || string(got.Extra) != string(o.Extra) {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, change := range map[string]func(*Order){
		"a later version":    func(o *Order) { o.V = 2 },
		"no version":         func(o *Order) { o.V = 0 },
		"an id in capitals":  func(o *Order) { o.ID = strings.ToUpper(o.ID) },
		"no id":              func(o *Order) { o.ID = "" },
		"no activity":        func(o *Order) { o.Activity = 0 },
		"a negative item":    func(o *Order) { o.Item = -1 },
		"quantity 0":         func(o *Order) { o.Quantity = 0 },
		"quantity -3":        func(o *Order) { o.Quantity = -3 },
		"a huge quantity":    func(o *Order) { o.Quantity = MaxQuantity + 1 },
		"no time":            func(o *Order) { o.CreatedAtMs = 0 },
		"no user":            func(o *Order) { o.User = "" },
		"a blank at the end": func(o *Order) { o.User = "u1 " },
		"a wide blank":       func(o *Order) { o.User = "\u3000u1" },
		"a control":          func(o *Order) { o.User = "u\x1f1" },
		"a long user":        func(o *Order) { o.User = strings.Repeat("u", 129) },
		"a large extra":      func(o *Order) { o.Extra = []byte(`"` + strings.Repeat("x", 1024) + `"`) },
	} {
		t.Run(name, func(t *testing.T) {
			o := valid()
			change(&o)
			if err := o.Validate(); !errors.Is(err, ErrInvalid) {
				t.Fatalf("%+v: %v", o, err)
			}
		})
	}
	for _, s := range []string{"", "null", "[]", `{"v":1`, `{"v":"1"}`, `{"v":1,"quantity":1.5}`, `{"v":1,"order_id":7}`} {
		if _, err := Decode([]byte(s)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// The id of a message that is otherwise no order is still read, so that its reservation can be settled.
func TestDecodeReadsTheIDOfAnInvalidOrder(t *testing.T) {
	o := valid()
	o.Quantity = -3
	b, _ := o.Encode()
	got, err := Decode(b)
	if !errors.Is(err, ErrInvalid) || got == nil || got.ID != o.ID || got.Activity != o.Activity {
		t.Fatalf("%+v, %v", got, err)
	}
}

// What the edge accepted the worker must accept: encoding must not make extra longer.
func TestEncodeKeepsTheLengthOfExtra(t *testing.T) {
	o := valid()
	o.Extra = []byte(`"` + strings.Repeat("<", MaxExtraBytes-5) + "\u2028" + `"`)
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	b, err := o.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Decode(b); err != nil || string(got.Extra) != string(o.Extra) {
		t.Fatal(err)
	}
}

func TestIDs(t *testing.T) {
	id, err := NewID()
	if err != nil || !ValidID(id) || time.Since(IDTime(id)).Abs() > time.Minute {
		t.Fatal(id, IDTime(id), err)
	}
	if IsDerived(id) || IsDerived("x") {
		t.Fatal("a fresh id looks derived", id)
	}
	a := DerivedID(1, "u1", "key", 0)
	if !ValidID(a) || !IsDerived(a) || a[14] != '7' {
		t.Fatal(a)
	}
	if a != DerivedID(1, "u1", "key", 0) {
		t.Fatal("the same request gives another id")
	}
	for _, other := range []string{
		DerivedID(2, "u1", "key", 0), DerivedID(1, "u2", "key", 0), DerivedID(1, "u1", "key2", 0), DerivedID(1, "u1", "key", 1),
		DerivedID(1, "u1k", "ey", 0), DerivedID(1, "u", "1key", 0), // the parts must not run together
	} {
		if other == a {
			t.Fatal("another request gives the same id")
		}
	}
	for _, bad := range []string{"", "x", strings.ToUpper(id), id + "a", strings.Replace(id, "-", "a", 1), strings.Repeat("g", 36)} {
		if ValidID(bad) {
			t.Errorf("%q is valid", bad)
		}
	}
}

func FuzzDecode(f *testing.F) {
	o := valid()
	b, _ := o.Encode()
	f.Add(b)
	f.Add([]byte(`{"v":1,"order_id":"x","quantity":-3}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := Decode(b)
		if o == nil {
			t.Fatal("no order beside the error")
		}
		if err != nil {
			return
		}
		again, err := o.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(again); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
	})
}
