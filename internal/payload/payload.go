// Package payload reads what a buyer sent in a request body: the contract's own small JSON document, or single fields, by
// path, of whatever JSON or form a shop's purchase page sends. It decides nothing about an order beyond its form.
package payload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/seckillgate/seckillgate/internal/order"
)

// ErrMalformed is the kind of every error of this package: the buyer sent something that can never become an order.
var ErrMalformed = errors.New("malformed body")

// Error is every error of this package.
type Error struct {
	// Text says what is wrong, for whoever writes the client.
	Text string
}

func malformed(format string, a ...any) error { return &Error{fmt.Sprintf(format, a...)} }

// Error implements error.
func (e *Error) Error() string { return ErrMalformed.Error() + ": " + e.Text }

// Is makes it an ErrMalformed.
func (e *Error) Is(target error) bool { return target == ErrMalformed }

// notJSON says where a document breaks off, or which field has the wrong type.
func notJSON(err error) error {
	if ours := new(Error); errors.As(err, &ours) {
		return ours
	}
	if typed := new(json.UnmarshalTypeError); errors.As(err, &typed) && typed.Field != "" {
		return malformed("field %s is not an integer", typed.Field)
	}
	return malformed("the body is not JSON: %v", err)
}

func badExtra() error {
	return malformed("extra is not one JSON value of at most %d bytes", order.MaxExtraBytes)
}

// twice: which of two fields of one name counts is read differently by everybody, and the shop may read the same body.
func twice() error { return malformed("a field stands twice in the body") }

func badQuantity() error {
	return malformed("the quantity is not an integer from 1 to %d", order.MaxQuantity)
}

// blank is what JSON allows around a value.
const blank = " \t\r\n"

// Order is the body of the contract's own purchase call. Both fields are optional.
type Order struct {
	Quantity int64           // default 1
	Extra    json.RawMessage // compact JSON of at most 1 KiB, or nil
}

// ParseOrder reads {"quantity":1,"extra":{…}}. An empty body stands for the defaults; a form with the same two fields is
// taken too, since that is what an HTML form and plain curl send. Unknown fields are ignored, so that a shop may send more
// than this version reads.
func ParseOrder(contentType string, raw []byte) (Order, error) {
	o := Order{Quantity: 1}
	raw = bytes.Trim(raw, blank)
	if len(raw) == 0 {
		return o, nil
	}
	if raw[0] != '{' && isForm(contentType) {
		return parseOrderForm(raw)
	}
	var doc struct {
		Quantity once[*int64]          `json:"quantity"`
		Extra    once[json.RawMessage] `json:"extra"`
	}
	if raw[0] != '{' {
		return o, malformed("the body is no JSON object")
	}
	if !utf8.Valid(raw) {
		return o, notUTF8()
	}
	// Into *int64, encoding/json takes integers only: neither 1.0 nor "1" nor 1e0.
	if err := json.Unmarshal(raw, &doc); err != nil {
		return o, notJSON(err)
	}
	if n := doc.Quantity.value; n != nil {
		o.Quantity = *n
	}
	if extra := doc.Extra.value; len(extra) > 0 && !bytes.Equal(extra, []byte("null")) {
		o.Extra = extra
	}
	return checked(o)
}

// once is a field that may stand once only, in whatever case: encoding/json takes both cases, and the last of two.
type once[T any] struct {
	value T
	seen  bool
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *once[T]) UnmarshalJSON(raw []byte) error {
	if f.seen {
		return twice()
	}
	f.seen = true
	return json.Unmarshal(raw, &f.value)
}

func parseOrderForm(raw []byte) (Order, error) {
	o := Order{Quantity: 1}
	form, err := url.ParseQuery(string(raw))
	if err != nil {
		return o, notForm()
	}
	if len(form["quantity"]) > 1 || len(form["extra"]) > 1 {
		return o, twice()
	}
	if form.Has("quantity") {
		if o.Quantity, err = Quantity(form.Get("quantity")); err != nil {
			return o, err
		}
	}
	if extra := form.Get("extra"); extra != "" {
		o.Extra = json.RawMessage(extra)
	}
	return checked(o)
}

func notForm() error {
	return malformed("the body is not a form: an escape in it is broken, or a semicolon is not escaped")
}

func notUTF8() error { return malformed("the body is not UTF-8") }

func checked(o Order) (Order, error) {
	if o.Quantity < 1 || o.Quantity > order.MaxQuantity {
		return o, badQuantity()
	}
	extra, err := order.CompactExtra(o.Extra)
	if err != nil {
		return o, badExtra()
	}
	o.Extra = extra
	return o, nil
}

// Fields gives single fields of a body by path.
type Fields struct {
	doc  any        // JSON
	form url.Values // form
}

// ParseFields reads a JSON object or array, or a form where the content type says so. An empty body has no fields. An object with two
// fields of one name is refused, also where the two differ in case.
func ParseFields(contentType string, raw []byte) (Fields, error) {
	raw = bytes.Trim(raw, blank)
	if len(raw) == 0 {
		return Fields{}, nil
	}
	if isForm(contentType) && raw[0] != '{' && raw[0] != '[' {
		form, err := url.ParseQuery(string(raw))
		if err != nil {
			return Fields{}, notForm()
		}
		return Fields{form: form}, nil
	}
	if !utf8.Valid(raw) {
		return Fields{}, notUTF8() // what is not would become U+FFFD, and two users one
	}
	if err := json.Unmarshal(raw, new(json.RawMessage)); err != nil { // it bounds the nesting too
		return Fields{}, notJSON(err)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber() // an id above 2^53 must not pass through a float
	doc, err := decode(dec)
	if err != nil {
		return Fields{}, notJSON(err)
	}
	return Fields{doc: doc}, nil
}

// decode reads one value of a document that is JSON, as Unmarshal does, but for names that stand twice.
func decode(dec *json.Decoder) (any, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		object, seen := map[string]any{}, map[string]bool{}
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return nil, err
			}
			key := fmt.Sprint(name)
			folded := strings.ToLower(strings.ToUpper(key)) // as shops in Go and .NET read it
			if seen[folded] {
				return nil, twice()
			}
			seen[folded] = true
			if object[key], err = decode(dec); err != nil {
				return nil, err
			}
		}
		_, err = dec.Token()
		return object, err
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			v, err := decode(dec)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = dec.Token()
		return list, err
	default:
		return token, nil
	}
}

// Text gives the string or number at path, and "" where there is none. A path is a chain of object keys and array indexes
// joined by dots (`order.items.0.sku`); in a form it is the name of a field. A value of another type is an error.
func (f Fields) Text(path string) (string, error) {
	if f.form != nil {
		return f.formField(path)
	}
	switch v := walk(f.doc, path).(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	default:
		return "", malformed("field %s is neither a string nor a number", path)
	}
}

// JSON gives the value at path as compact JSON, and nil where there is none. A form field holds JSON, or else becomes a string.
func (f Fields) JSON(path string) (json.RawMessage, error) {
	var v any
	if f.form != nil {
		text, err := f.formField(path)
		if err != nil || text == "" {
			return nil, err
		}
		v = text
		if json.Valid([]byte(text)) {
			v = json.RawMessage(text)
		}
	} else if v = walk(f.doc, path); v == nil {
		return nil, nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, badExtra()
	}
	raw, err := order.CompactExtra(bytes.TrimSpace(b.Bytes()))
	if err != nil {
		return nil, badExtra()
	}
	return raw, nil
}

func (f Fields) formField(name string) (string, error) {
	if len(f.form[name]) > 1 {
		return "", twice()
	}
	return f.form.Get(name), nil
}

func walk(v any, path string) any {
	for path != "" {
		var step string
		step, path, _ = strings.Cut(path, ".")
		switch at := v.(type) {
		case map[string]any:
			v = at[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(at) {
				return nil
			}
			v = at[i]
		default:
			return nil
		}
	}
	return v
}

// Quantity reads a quantity, as far as its bounds are known without the sale.
func Quantity(s string) (int64, error) {
	n, err := Integer(s)
	if err != nil || n < 1 || n > order.MaxQuantity {
		return n, badQuantity()
	}
	return n, nil
}

// Integer reads a plain decimal integer, in the one form that has no second spelling: no sign, no leading zero, no blank.
func Integer(s string) (int64, error) {
	if s == "" || len(s) > 19 || (s[0] == '0' && len(s) > 1) {
		return 0, malformed("want a decimal integer")
	}
	var n int64
	for i := range len(s) {
		c := s[i]
		if c < '0' || c > '9' {
			return 0, malformed("want a decimal integer")
		}
		n = n*10 + int64(c-'0')
		if n < 0 {
			return 0, malformed("the integer is too large")
		}
	}
	return n, nil
}

// Activity reads an activity id: a positive decimal integer.
func Activity(s string) (int64, error) {
	n, err := Integer(s)
	if err == nil && n == 0 {
		err = malformed("an activity is a positive integer, not 0")
	}
	return n, err
}

func isForm(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kind == "application/x-www-form-urlencoded"
}
