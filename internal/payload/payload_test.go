package payload

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/seckillgate/seckillgate/internal/order"
)

const form = "application/x-www-form-urlencoded; charset=utf-8"

func TestParseOrder(t *testing.T) {
	for name, c := range map[string]struct {
		contentType, body string
		quantity          int64
		extra             string
		bad               bool
	}{
		"no body":              {body: "", quantity: 1},
		"blank":                {body: " \r\n", quantity: 1},
		"empty object":         {body: "{}", quantity: 1},
		"quantity":             {body: `{"quantity":3}`, quantity: 3},
		"null means not given": {body: `{"quantity":null,"extra":null}`, quantity: 1},
		"unknown fields":       {body: `{"quantity":2,"coupon":"x"}`, quantity: 2},
		"extra is compacted":   {body: "{\"extra\": {\n \"address\": 7 } }", quantity: 1, extra: `{"address":7}`},
		"JSON whatever type":   {contentType: form, body: `{"quantity":2}`, quantity: 2},
		"form":                 {contentType: form, body: "quantity=2&extra=%7B%22a%22%3A1%7D", quantity: 2, extra: `{"a":1}`},
		"form, other fields":   {contentType: form, body: "x=1", quantity: 1},

		"array":                 {body: `[1]`, bad: true},
		"null":                  {body: `null`, bad: true},
		"string":                {body: `"1"`, bad: true},
		"cut off":               {body: `{"quantity":`, bad: true},
		"two values":            {body: `{} {}`, bad: true},
		"quantity 0":            {body: `{"quantity":0}`, bad: true},
		"negative":              {body: `{"quantity":-1}`, bad: true},
		"fraction":              {body: `{"quantity":1.5}`, bad: true},
		"fraction of zero":      {body: `{"quantity":1.0}`, bad: true},
		"exponent":              {body: `{"quantity":1e2}`, bad: true},
		"quantity as string":    {body: `{"quantity":"1"}`, bad: true},
		"quantity as bool":      {body: `{"quantity":true}`, bad: true},
		"overflow":              {body: `{"quantity":9223372036854775808}`, bad: true},
		"above the bound":       {body: `{"quantity":1000001}`, bad: true},
		"extra too large":       {body: `{"extra":"` + strings.Repeat("x", 1100) + `"}`, bad: true},
		"extra is not UTF-8":    {body: "{\"extra\":\"\xff\"}", bad: true},
		"named twice":           {body: `{"quantity":1,"quantity":1}`, bad: true},
		"in two cases":          {body: `{"quantity":1,"Quantity":2}`, bad: true},
		"twice, once null":      {body: `{"quantity":null,"quantity":2}`, bad: true},
		"extra twice":           {body: `{"extra":1,"extra":{"a":1}}`, bad: true},
		"not UTF-8 anywhere":    {body: "{\"\xff\":1}", bad: true},
		"a form feed":           {body: "\f{}", bad: true},
		"a byte order mark":     {body: "\ufeff{}", bad: true},
		"minus zero":            {body: `{"quantity":-0}`, bad: true},
		"not exact as a float":  {body: `{"quantity":9007199254740993}`, bad: true},
		"nested too deep":       {body: `{"x":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`, bad: true},
		"form, twice":           {contentType: form, body: "quantity=1&quantity=1", bad: true},
		"form, extra twice":     {contentType: form, body: "extra=1&extra=2", bad: true},
		"form, semicolon":       {contentType: form, body: "quantity=1;quantity=2", bad: true},
		"form without type":     {body: "quantity=2", bad: true},
		"form, bad number":      {contentType: form, body: "quantity=two", bad: true},
		"form, empty number":    {contentType: form, body: "quantity=", bad: true},
		"form, extra not JSON":  {contentType: form, body: "extra=%7B", bad: true},
		"form, broken escape":   {contentType: form, body: "quantity=%zz", bad: true},
		"form, signed quantity": {contentType: form, body: "quantity=%2B1", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := ParseOrder(c.contentType, []byte(c.body))
			if c.bad {
				if !errors.Is(err, ErrMalformed) {
					t.Fatalf("got %+v, %v, want ErrMalformed", o, err)
				}
				return
			}
			if err != nil || o.Quantity != c.quantity || string(o.Extra) != c.extra {
				t.Fatalf("got %d %s, %v, want %d %s", o.Quantity, o.Extra, err, c.quantity, c.extra)
			}
		})
	}
}

func TestFields(t *testing.T) {
	f, err := ParseFields("application/json", []byte(
		`{"skuId":9007199254740993,"num":"2","order":{"items":[{"sku":7},{"sku":8}],"addr":{"b":1,"a":"<"}},"ok":true}`))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"skuId":             "9007199254740993", // exact above 2^53
		"num":               "2",
		"order.items.1.sku": "8",
		"order.items.2.sku": "",
		"order.items.x.sku": "",
		"nothing":           "",
		"skuId.deeper":      "",
	} {
		if got, err := f.Text(path); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
		}
	}
	for _, path := range []string{"ok", "order", "order.items"} {
		if got, err := f.Text(path); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %q, %v, want ErrMalformed", path, got, err)
		}
	}
	if extra, err := f.JSON("order.addr"); err != nil || string(extra) != `{"a":"<","b":1}` {
		t.Errorf("extra: got %s, %v", extra, err)
	}
	if extra, err := f.JSON("nothing"); err != nil || extra != nil {
		t.Errorf("no extra: got %s, %v", extra, err)
	}

	f, err = ParseFields(form, []byte("sku=5&note=hi+there&addr=%7B%22id%22%3A+1%7D"))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := f.Text("sku"); got != "5" {
		t.Errorf("form: got %q", got)
	}
	if got, _ := f.JSON("addr"); string(got) != `{"id":1}` {
		t.Errorf("form JSON: got %s", got)
	}
	if got, _ := f.JSON("note"); string(got) != `"hi there"` {
		t.Errorf("form text: got %s", got)
	}

	if f, err = ParseFields(form, []byte("list=1&list=2&num=1&num=100")); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Text("num"); !errors.Is(err, ErrMalformed) {
		t.Errorf("a form's field that stands twice: got %q, %v", got, err)
	}
	if got, err := f.JSON("num"); !errors.Is(err, ErrMalformed) {
		t.Errorf("a form's field that stands twice: got %q, %v", got, err)
	}

	if f, err = ParseFields("", nil); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Text("x"); got != "" || err != nil {
		t.Errorf("no body: got %q, %v", got, err)
	}
	for _, bad := range []string{
		"{", "{} []", "plain", "{}x", `{"num":100,"num":1}`, `{"num":1,"NUM":100}`, `{"skuId":1,"\u017fkuId":2}`, `{"a":[{"b":{"c":1,"c":1}}]}`, `{"a":1,"\u0061":1}`, "{\"user\":\"\xff\"}", "\ufeff{}",
		strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000),
	} {
		if _, err := ParseFields("application/json", []byte(bad)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %v, want ErrMalformed", bad, err)
		}
	}
}

func TestActivity(t *testing.T) {
	if n, err := Activity("9223372036854775807"); err != nil || n != 9223372036854775807 {
		t.Errorf("got %d, %v", n, err)
	}
	for _, bad := range []string{"", "0", "-1", "+1", "01", " 1", "1 ", "1.0", "1e3", "0x1", "９", "9223372036854775808", "99999999999999999999"} {
		if n, err := Activity(bad); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: got %d, %v, want ErrMalformed", bad, n, err)
		}
	}
}

// Whatever a body holds, what comes out is an order that every later part accepts, or an error.
func FuzzOrderBody(f *testing.F) {
	for _, seed := range []string{
		"", "{}", `{"quantity":1,"extra":{"address":7}}`, `{"quantity":1e9}`, `{"quantity":"1"}`, `[`, `{"extra":"\u0000"}`,
		"quantity=1&extra=%7B%7D", "quantity=%", `{"quantity":1,"quantity":2}`, "\xff", `{"extra":` + strings.Repeat("[", 500),
	} {
		f.Add("application/json", []byte(seed))
		f.Add(form, []byte(seed))
	}
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		o, err := ParseOrder(contentType, body)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("%v is not ErrMalformed", err)
			}
		} else {
			if o.Quantity < 1 || o.Quantity > order.MaxQuantity {
				t.Fatalf("quantity %d", o.Quantity)
			}
			if err := order.ValidExtra(o.Extra); err != nil {
				t.Fatal(err)
			}
			for _, c := range o.Extra {
				if c < ' ' {
					t.Fatalf("control character in %q", o.Extra)
				}
			}
		}
		fields, err := ParseFields(contentType, body)
		if err != nil {
			return
		}
		for _, path := range []string{"quantity", "a.b.0", "0", ""} {
			if text, err := fields.Text(path); err == nil && text != "" {
				_, _ = Activity(text)
			}
			if raw, err := fields.JSON(path); err == nil && len(raw) > 0 && !json.Valid(raw) {
				t.Fatalf("%q is not JSON", raw)
			}
		}
	})
}

// A path finds what stands there in the document, or nothing; it never makes up a value.
func FuzzFieldPath(f *testing.F) {
	f.Add("application/json", []byte(`{"order":{"items":[{"sku":"7","num":2}]}}`), "order.items.0.sku")
	f.Add("application/json", []byte(`[[1],{"":2}]`), "0.0")
	f.Add("application/json", []byte(`{"a":null,"b":{"c":9007199254740993}}`), "b.c")
	f.Add("application/json", []byte(`{"a":[1]}`), "a.-1")
	f.Add(form, []byte("skuId=7&num=2&skuId=8"), "skuId")
	f.Fuzz(func(t *testing.T, contentType string, body []byte, path string) {
		fields, err := ParseFields(contentType, body)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("%v is not ErrMalformed", err)
			}
			return
		}
		if fields.doc != nil { // what is read is what everybody else reads
			var doc any
			dec := json.NewDecoder(bytes.NewReader(body))
			dec.UseNumber()
			if err := dec.Decode(&doc); err != nil || !reflect.DeepEqual(doc, fields.doc) {
				t.Fatalf("read %#v, want %#v, %v", fields.doc, doc, err)
			}
		}
		text, err := fields.Text(path)
		if err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatalf("%v is not ErrMalformed", err)
		}
		raw, err := fields.JSON(path)
		if err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatalf("%v is not ErrMalformed", err)
		}
		if len(raw) > 0 && order.ValidExtra(raw) != nil {
			t.Fatalf("%q at %q is no extra", raw, path)
		}
		if n, err := Integer(text); err == nil && strconv.FormatInt(n, 10) != text {
			t.Fatalf("%q is read as %d", text, n)
		}
	})
}
