package order

import (
	"fmt"
	"slices"
	"strings"
)

// Status is an order's status as MySQL stores it, in upper case; buyers see it in lower case.
type Status string

// Statuses that the product itself writes or shows. A shop may add its own, at most 16 bytes each.
const (
	Confirmed Status = "CONFIRMED"
	Paid      Status = "PAID"
	Failed    Status = "FAILED"
	Cancelled Status = "CANCELLED"
	Expired   Status = "EXPIRED"
	Refunded  Status = "REFUNDED"
	Closed    Status = "CLOSED"

	// Queued and Processing exist only before an order lands: Kafka has it; or it is reserved, or perhaps reserved.
	Queued     Status = "QUEUED"
	Processing Status = "PROCESSING"
)

// MaxStatusBytes is the width of orders.status.
const MaxStatusBytes = 16

// DefaultDead lists the statuses of an order that no longer holds stock or its buyer's place.
var DefaultDead = []Status{Failed, Cancelled, Expired, Refunded, Closed}

// Scan implements sql.Scanner. MySQL takes no heed of blanks behind a word when it compares it, so they are no part of it.
func (s *Status) Scan(column any) error {
	text, err := Column(column)
	*s = Status(text)
	return err
}

// Column gives a word as a column of MySQL holds it.
func Column(column any) (string, error) {
	switch text := column.(type) {
	case []byte:
		return strings.TrimRight(string(text), " "), nil
	case string:
		return strings.TrimRight(text, " "), nil
	}
	return "", fmt.Errorf("a word is %v: want text", column)
}

// Word is the status as buyers see it.
func (s Status) Word() string { return strings.ToLower(string(s)) }

// In says whether s is one of set. It is the test for "dead", with the configured set.
func (s Status) In(set []Status) bool { return slices.Contains(set, s) }

// Reasons that the product writes to orders.reason and shows to the buyer.
const (
	ReasonSoldOut   = "sold_out"        // MySQL had too little stock left
	ReasonDuplicate = "already_ordered" // the buyer has another live order in this activity
	ReasonInvalid   = "invalid"         // the message was not a valid order
	ReasonReleased  = "released"        // reserved, but never published; its buyer had been given the order's id
	ReasonRefused   = "refused"         // the same, but its buyer heard a refusal and never knew of the order
	ReasonUnpaid    = "unpaid"          // the payment window passed
)
