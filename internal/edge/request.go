package edge

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seckillgate/seckillgate/internal/order"
)

// Request is one buyer's wish, as the caller read it: Order validates it.
type Request struct {
	Activity       int64
	User           string
	Quantity       int64 // from 1 to the activity's max_per_user
	Extra          json.RawMessage
	IdempotencyKey string            // at most 64 bytes; empty: none
	Window         time.Duration     // user window; 0: none
	Headers        map[string]string // Kafka headers, e.g. traceparent
}

// Outcome is the answer to a request. Reason is empty when the order was accepted.
type Outcome struct {
	HTTP         int
	Reason       Reason
	Detail       string // BadRequest: what is wrong
	Activity     int64
	OrderID      string       // accepted, and AlreadyOrdered
	Status       order.Status // accepted: Queued, Processing, or what became of an earlier order
	StatusReason string       // why an earlier order failed
	Item         int64
	Quantity     int64
	StartsAtMs   int64         // NotStarted
	RetryAfter   time.Duration // TooFrequent, Unavailable
	Cause        Cause
}

// Cause says more about an outcome than the buyer hears, for logs and metrics. It is one of the constants below.
type Cause string

// Causes.
const (
	CauseGate        Cause = "gate"         // refused from memory
	CauseInput       Cause = "input"        // the request is not valid
	CauseProducer    Cause = "producer"     // kafka is not healthy: refused before reserving
	CauseOverload    Cause = "overload"     // too many orders in work, or the gateway is closing
	CauseGone        Cause = "gone"         // the client had left before anything was done
	CauseTimings     Cause = "timings"      // the producer needs longer than the protocol's publish budget
	CauseNotReserved Cause = "not_reserved" // provably nothing ran in redis
	CauseScript      Cause = "script"       // the reserve script's decision
	CauseUnknown     Cause = "unknown"      // the reserve call got no answer: decided in the background
	CauseFence       Cause = "fence"        // refused, but a copy of the call may have reserved: not fenced yet
	CausePublished   Cause = "published"    // kafka has it
	CausePublishing  Cause = "publishing"   // not acknowledged within the request's budget
	CauseNotSent     Cause = "not_sent"     // provably never handed to kafka: released, or left to the sweep
	CauseUnconfirmed Cause = "unconfirmed"  // kafka may have it
	CauseRepeat      Cause = "repeat"       // an earlier request made the order
)

// orderID is a new one, or with an Idempotency-Key always the same one, as long as the attempts before were not refused.
func orderID(r *Request, attempt int) (string, error) {
	if r.IdempotencyKey != "" {
		return order.DerivedID(r.Activity, r.User, r.IdempotencyKey, attempt), nil
	}
	return order.NewID()
}

// What is wrong with a request that is refused as BadRequest, for whoever writes the client. No text repeats what the client
// sent, beyond numbers.
const (
	DetailUser     = "the user id is not 1 to 128 bytes of UTF-8 without control characters and without blanks at either end"
	DetailKey      = "the Idempotency-Key is not at most 64 printable characters"
	DetailQuantity = "the quantity is more than one order of this sale may have"
	DetailExtra    = "extra is not one JSON value of at most 1024 bytes"
)

// validate checks everything that a buyer sent, and puts extra into the compact form that the ledger takes. For a bad
// request it says what is wrong.
func validate(r *Request, maxPerUser int64) (reason Reason, detail string) {
	switch {
	case r.User == "":
		return NoUser, ""
	case order.ValidUser(r.User) != nil:
		return BadRequest, DetailUser
	case !validKey(r.IdempotencyKey):
		return BadRequest, DetailKey
	case r.Window < 0:
		return BadRequest, fmt.Sprintf("the user window is %v", r.Window)
	case r.Quantity < 1 || r.Quantity > order.MaxQuantity || r.Quantity > maxPerUser:
		return BadRequest, fmt.Sprintf("the quantity is %d, but one order of this sale may have 1 to %d", r.Quantity, maxPerUser)
	}
	extra, err := order.CompactExtra(r.Extra)
	if err != nil {
		return BadRequest, DetailExtra
	}
	r.Extra = extra
	return Accepted, ""
}

func validKey(key string) bool {
	if len(key) > order.MaxKeyBytes || !utf8.ValidString(key) {
		return false
	}
	for _, c := range key {
		if unicode.IsControl(c) {
			return false
		}
	}
	return true
}
