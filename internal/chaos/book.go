package chaos

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/told"
)

// Attempt is one request to buy and what its buyer heard.
type Attempt struct {
	told.Record
	Began, Ended time.Time
}

// Book is what the buyers know: every request of theirs and its answer.
type Book struct {
	mu       sync.Mutex
	attempts []Attempt
	place    map[string]int   // of the first attempt that was promised the order
	heard    int              // times that somebody was told of an order afterwards
	open     map[string]int64 // acknowledged orders (queued) that have not been seen in MySQL yet: units
	strange  []string         // answers that no buyer may hear in this sale
}

// NewBook makes an empty one.
func NewBook() *Book { return &Book{open: map[string]int64{}, place: map[string]int{}} }

// fitting are the refusals that a sale which goes on all the time may give.
var fitting = []string{"sold_out", "already_ordered", "unavailable", "too_frequent", "rate_limited"}

// Write adds an attempt.
func (b *Book) Write(a *Attempt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attempts = append(b.attempts, *a)
	switch {
	case a.Accepted():
		if _, known := b.place[a.OrderID]; !known {
			b.place[a.OrderID] = len(b.attempts) - 1
		}
		if a.Answer == order.Queued.Word() {
			b.open[a.OrderID] = a.Quantity
		}
	case a.Refused() && !slices.Contains(fitting, a.Answer):
		b.strange = append(b.strange, a.Answer+" to "+a.User)
	case a.HTTP >= http.StatusInternalServerError && a.Answer == told.Unknown:
		b.strange = append(b.strange, a.Cause+" to "+a.User)
	}
}

// Hear notes what the buyer was told who asked after an accepted order: the last final word is compared with MySQL in the end.
// Where Kafka has the order nobody may say that there is none, and who was told that it failed must not hear otherwise later.
func (b *Book) Hear(a *Attempt, status int, word string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heard++
	rec := &b.attempts[b.place[a.OrderID]].Record
	switch {
	case status == http.StatusNotFound && a.Answer == order.Queued.Word():
		b.strange = append(b.strange, "I4: not_found for "+a.OrderID+", which was queued, to "+a.User)
	case status >= http.StatusInternalServerError && status != http.StatusServiceUnavailable:
		b.strange = append(b.strange, fmt.Sprintf("http %d for %s to %s", status, a.OrderID, a.User))
	case status != http.StatusOK, word == order.Queued.Word(), word == order.Processing.Word():
	case rec.Final == order.Failed.Word() && word != rec.Final:
		b.strange = append(b.strange, fmt.Sprintf("I4: %s for %s, which had failed, to %s", word, a.OrderID, a.User))
	default:
		rec.Final = word
	}
}

// Heard is how many answers came to those who asked after their orders.
func (b *Book) Heard() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.heard
}

// Took gives how long the attempts from the n-th on took that were answered, and the number of the next.
func (b *Book) Took(n int) (took []time.Duration, next int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.attempts[n:] {
		if a := &b.attempts[n+i]; a.Answer != told.Unknown {
			took = append(took, a.Ended.Sub(a.Began))
		}
	}
	return took, len(b.attempts)
}

// Strange gives the answers that nobody may hear, such as not_found in the middle of the sale.
func (b *Book) Strange() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.strange)
}

// Open gives the orders that Kafka has acknowledged and that have not been seen in MySQL yet, with their units.
func (b *Book) Open() map[string]int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[string]int64, len(b.open))
	for id, n := range b.open {
		out[id] = n
	}
	return out
}

// Fresh counts the orders that were asked for and acknowledged between two moments. Those of an Idempotency-Key are left out: they
// may be told again long after they were made.
func (b *Book) Fresh(from, to time.Time) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for i := range b.attempts {
		a := &b.attempts[i]
		if a.Accepted() && a.Answer == order.Queued.Word() && !order.IsDerived(a.OrderID) && a.Began.After(from) && a.Ended.Before(to) {
			n++
		}
	}
	return n
}

// Landed takes orders that were seen in MySQL off the open ones.
func (b *Book) Landed(ids []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range ids {
		delete(b.open, id)
	}
}

// Records are what the checker compares with MySQL.
func (b *Book) Records() []told.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]told.Record, len(b.attempts))
	for i := range b.attempts {
		out[i] = b.attempts[i].Record
	}
	return out
}

// Count gives the number of attempts by answer.
func (b *Book) Count() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]int{}
	for i := range b.attempts {
		out[b.attempts[i].Answer]++
	}
	return out
}

// Accepted gives the ids of all accepted orders and who was told of them.
func (b *Book) Accepted() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]string{}
	for i := range b.attempts {
		if a := &b.attempts[i]; a.Accepted() {
			out[a.OrderID] = a.User
		}
	}
	return out
}

// Users are all who have asked.
func (b *Book) Users() map[string]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]bool{}
	for i := range b.attempts {
		out[b.attempts[i].User] = true
	}
	return out
}

// Impact is what the buyers felt of a fault.
type Impact struct {
	Recovered  bool          // a reservation succeeded that was asked for after its end
	After      time.Duration // from its end until that one was answered
	Refused    int           // told unavailable from its begin until then
	Unanswered int           // heard nothing
}

// Impact measures what was felt of a fault that lasted from began to ended.
func (b *Book) Impact(began, ended time.Time) Impact {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out Impact
	until := time.Now()
	for i := range b.attempts {
		a := &b.attempts[i]
		if a.Accepted() && !a.Began.Before(ended) && (!out.Recovered || a.Ended.Before(until)) {
			out.Recovered, until = true, a.Ended
		}
	}
	if out.Recovered {
		out.After = until.Sub(ended)
	}
	for i := range b.attempts {
		a := &b.attempts[i]
		if a.Ended.Before(began) || a.Began.After(until) {
			continue
		}
		switch a.Answer {
		case told.Unknown:
			out.Unanswered++
		case "unavailable":
			out.Refused++
		}
	}
	return out
}
