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
		return o, fmt.Errorf("%w: want a JSON object", ErrMalformed)
	}
	// Into *int64, encoding/json takes integers only: neither 1.0 nor "1" nor 1e0.
	if err := json.Unmarshal(raw, &doc); err != nil {
		return o, fmt.Errorf("%w: %w", ErrMalformed, err)
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
		return o, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if form.Has("quantity") {
		if o.Quantity, err = Integer(form.Get("quantity")); err != nil {
			return o, err
		}
	}
	if extra := form.Get("extra"); extra != "" {
		o.Extra = json.RawMessage(extra)
	}
	return checked(o)
}

func checked(o Order) (Order, error) {
	if o.Quantity < 1 || o.Quantity > order.MaxQuantity {
		return o, fmt.Errorf("%w: quantity %d, want 1 to %d", ErrMalformed, o.Quantity, order.MaxQuantity)
	}
	extra, err := order.CompactExtra(o.Extra)
	if err != nil {
		return o, fmt.Errorf("%w: %w", ErrMalformed, err)
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
			return Fields{}, fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		return Fields{form: form}, nil
	}
	var doc any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber() // an id above 2^53 must not pass through a float
	if err := dec.Decode(&doc); err != nil {
		return Fields{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if dec.More() {
		return Fields{}, fmt.Errorf("%w: more than one JSON value", ErrMalformed)
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
		return "", fmt.Errorf("%w: field %s is neither a string nor a number", ErrMalformed, path)
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
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	raw, err := order.CompactExtra(bytes.TrimSpace(b.Bytes()))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
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

// Integer reads a plain decimal integer, in the one form that has no second spelling: no sign, no leading zero, no blank.
func Integer(s string) (int64, error) {
	if s == "" || len(s) > 19 || (s[0] == '0' && len(s) > 1) {
		return 0, fmt.Errorf("%w: want a decimal integer", ErrMalformed)
	}
	var n int64
	for i := range len(s) {
		c := s[i]
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%w: want a decimal integer", ErrMalformed)
		}
		n = n*10 + int64(c-'0')
		if n < 0 {
			return 0, fmt.Errorf("%w: integer is too large", ErrMalformed)
		}
	}
	return n, nil
}

// Activity reads an activity id: a positive decimal integer.
func Activity(s string) (int64, error) {
	n, err := Integer(s)
	if err == nil && n == 0 {
		err = fmt.Errorf("%w: activity 0, want a positive integer", ErrMalformed)
	}
	return n, err
}

func isForm(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kind == "application/x-www-form-urlencoded"
}
