// Package order defines what an order is on its way from the buyer to MySQL: its id, its Kafka message, its status words
// and the limits that every part of the product checks in the same way. It depends on nothing but the standard library
// and a UUID package.
package order

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// SchemaVersion is the version of the messages on seckill.orders and seckill.results that this build reads and writes.
const SchemaVersion = 1

// Names of the Kafka topics and of the worker's consumer group, as fixed by the product's contract.
const (
	TopicOrders      = "seckill.orders"
	TopicDeadLetters = "seckill.orders.dlq"
	TopicResults     = "seckill.results"
	GroupWorker      = "seckill-worker"
)

// Limits of what a buyer may send, in bytes.
const (
	MaxUserBytes  = 128
	MaxExtraBytes = 1024
	MaxKeyBytes   = 64 // Idempotency-Key
)

// MaxQuantity bounds one order whatever an activity allows, so that sums over a batch can never overflow.
const MaxQuantity = 1_000_000

// Order is one accepted purchase: the value of a record on seckill.orders. Its JSON form is part of the contract.
type Order struct {
	V           int             `json:"v"`
	ID          string          `json:"order_id"`
	Activity    int64           `json:"activity_id"`
	User        string          `json:"user_id"`
	Item        int64           `json:"item_id"`
	Quantity    int64           `json:"quantity"`
	CreatedAtMs int64           `json:"created_at_ms"`
	Extra       json.RawMessage `json:"extra,omitempty"`
	// Attempt is how often MySQL was short of stock for the order already; it is in messages that the sweep published again.
	Attempt int64 `json:"attempt,omitempty"`

	// Patient lets MySQL leave the order undecided where it is short of stock. It is between the worker and its store.
	Patient bool `json:"-"`
}

// ErrInvalid is the kind of every error that says "this can never become an order": retrying does not help.
var ErrInvalid = errors.New("invalid order")

// Validate checks every field against the contract. Its errors are ErrInvalid and name the field and its value.
func (o *Order) Validate() error {
	switch {
	case o.V != SchemaVersion:
		return invalid("v", o.V, fmt.Sprintf("this build reads version %d", SchemaVersion))
	case !ValidID(o.ID):
		return invalid("order_id", clip(o.ID), "want a lower-case UUID")
	case o.Activity <= 0:
		return invalid("activity_id", o.Activity, "want a positive integer")
	case o.Item <= 0:
		return invalid("item_id", o.Item, "want a positive integer")
	case o.Quantity <= 0 || o.Quantity > MaxQuantity:
		return invalid("quantity", o.Quantity, fmt.Sprintf("want 1 to %d", MaxQuantity))
	case o.CreatedAtMs <= 0:
		return invalid("created_at_ms", o.CreatedAtMs, "want epoch milliseconds")
	}
	if err := ValidUser(o.User); err != nil {
		return err
	}
	return ValidExtra(o.Extra)
}

// Encode gives the record value. It does not validate: the gateway has validated each part before it reserved.
func (o *Order) Encode() ([]byte, error) {
	o.V = SchemaVersion
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // escaping `<` would make extra longer than the limit that it was accepted under
	if err := e.Encode(o); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Decode reads a record value and validates it. Fields that it does not know are ignored, so that a newer gateway may add
// some; a newer version number is refused. When the value is JSON but not a valid order, the order is returned beside the
// error as far as it could be read, so that a dead letter's reservation can be settled by its id.
func Decode(value []byte) (*Order, error) {
	var o Order
	if err := json.Unmarshal(value, &o); err != nil {
		return &o, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return &o, o.Validate()
}

// Result is the value of a record on seckill.results: what became of an order.
type Result struct {
	V        int    `json:"v"`
	ID       string `json:"order_id"`
	Activity int64  `json:"activity_id"`
	User     string `json:"user_id"`
	Item     int64  `json:"item_id"`
	Quantity int64  `json:"quantity"`
	Status   Status `json:"status"`
	Reason   string `json:"reason"`
	AtMs     int64  `json:"at_ms"`
}

// ValidUser accepts 1 to 128 bytes of UTF-8 without control characters and without blanks at either end. MySQL compares
// VARCHAR with PAD SPACE, so a trailing blank would make two buyers one.
func ValidUser(user string) error {
	switch {
	case user == "":
		return invalid("user_id", `""`, "want 1 to 128 bytes")
	case len(user) > MaxUserBytes:
		return invalid("user_id", clip(user), fmt.Sprintf("%d bytes, want at most %d", len(user), MaxUserBytes))
	case !utf8.ValidString(user):
		return invalid("user_id", clip(user), "not UTF-8")
	case strings.TrimSpace(user) != user:
		return invalid("user_id", clip(user), "blank at an end")
	case strings.ContainsFunc(user, unicode.IsControl):
		return invalid("user_id", clip(user), "control character")
	}
	return nil
}

// ValidExtra accepts nothing, or one JSON value of at most 1 KiB.
func ValidExtra(extra json.RawMessage) error {
	if len(extra) == 0 {
		return nil
	}
	if len(extra) > MaxExtraBytes {
		return invalid("extra", fmt.Sprintf("%d bytes", len(extra)), fmt.Sprintf("want at most %d", MaxExtraBytes))
	}
	if !json.Valid(extra) || !utf8.Valid(extra) {
		return invalid("extra", clip(string(extra)), "not JSON")
	}
	return nil
}

// CompactExtra validates extra and strips insignificant white space, so that it holds no control characters.
func CompactExtra(extra json.RawMessage) (json.RawMessage, error) {
	if err := ValidExtra(extra); err != nil || len(extra) == 0 {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Compact(&b, extra); err != nil {
		return nil, invalid("extra", clip(string(extra)), err.Error())
	}
	return b.Bytes(), nil
}

func invalid(field string, value any, why string) error {
	return fmt.Errorf("%w: %s %v: %s", ErrInvalid, field, value, why)
}

// clip quotes outside input for an error message and bounds it.
func clip(s string) string {
	const most = 64
	if len(s) > most {
		return fmt.Sprintf("%q…", s[:most])
	}
	return fmt.Sprintf("%q", s)
}
