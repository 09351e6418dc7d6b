package edge

import "github.com/seckillgate/seckillgate/internal/gate"

// Reason is a refusal's word in the HTTP contract; empty means accepted.
type Reason = gate.Reason

// The words of the contract.
const (
	Accepted              = gate.Pass
	BadRequest     Reason = "bad_request"
	NoUser         Reason = "no_user"
	NotStarted            = gate.NotStarted
	NotFound              = gate.NotFound
	SoldOut               = gate.SoldOut
	AlreadyOrdered Reason = "already_ordered"
	Ended                 = gate.Ended
	TooLarge       Reason = "too_large"
	TooEarly       Reason = "too_early"
	RateLimited    Reason = "rate_limited"
	TooFrequent    Reason = "too_frequent"
	Unavailable           = gate.Unavailable
)

// Lang is a language of the message catalogue.
type Lang uint8

// Chinese is the default.
const (
	Chinese Lang = iota
	English
)

// HTTPStatus gives the status code of a reason; 202 for Accepted.
func HTTPStatus(r Reason) int { panic("stub") }

// Message gives a reason's text for people.
func Message(r Reason, l Lang) string { panic("stub") }

// Negotiate picks the language of an Accept-Language header.
func Negotiate(acceptLanguage string) Lang { panic("stub") }
