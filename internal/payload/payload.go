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
	if typed := new(json.UnmarshalTypeError); errors.As(err, &typed) && typed.Field != "" {
		return malformed("field %s is not an integer", typed.Field)
	}
	return malformed("the body is not JSON: %v", err)
}

func badExtra() error {
	return malformed("extra is not one JSON value of at most %d bytes", order.MaxExtraBytes)
}

func badQuantity() error {
	return malformed("the quantity is not an integer from 1 to %d", order.MaxQuantity)
}

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
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return o, nil
	}
	if raw[0] != '{' && isForm(contentType) {
		return parseOrderForm(raw)
	}
	var doc struct {
		Quantity *int64          `json:"quantity"`
		Extra    json.RawMessage `json:"extra"`
	}
	if raw[0] != '{' {
		return o, malformed("the body is no JSON object")
	}
	// Into *int64, encoding/json takes integers only: neither 1.0 nor "1" nor 1e0.
	if err := json.Unmarshal(raw, &doc); err != nil {
		return o, notJSON(err)
	}
	if doc.Quantity != nil {
		o.Quantity = *doc.Quantity
	}
	if len(doc.Extra) > 0 && !bytes.Equal(doc.Extra, []byte("null")) {
		o.Extra = doc.Extra
	}
	return checked(o)
}

func parseOrderForm(raw []byte) (Order, error) {
	o := Order{Quantity: 1}
	form, err := url.ParseQuery(string(raw))
	if err != nil {
		return o, notForm()
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

func notForm() error { return malformed("the body is not a form: an escape in it is broken") }

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

// ParseFields reads a JSON object or array, or a form where the content type says so. An empty body has no fields.
func ParseFields(contentType string, raw []byte) (Fields, error) {
	raw = bytes.TrimSpace(raw)
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
	var doc any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber() // an id above 2^53 must not pass through a float
	if err := dec.Decode(&doc); err != nil {
		return Fields{}, notJSON(err)
	}
	if dec.More() {
		return Fields{}, malformed("the body is more than one JSON value")
	}
	return Fields{doc: doc}, nil
}

// Text gives the string or number at path, and "" where there is none. A path is a chain of object keys and array indexes
// joined by dots (`order.items.0.sku`); in a form it is the name of a field. A value of another type is an error.
func (f Fields) Text(path string) (string, error) {
	if f.form != nil {
		return f.form.Get(path), nil
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
		text := f.form.Get(path)
		if text == "" {
			return nil, nil
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
