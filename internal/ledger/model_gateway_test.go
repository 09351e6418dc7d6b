package ledger

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// What gateways do: see package edge.

func (w *world) reserve(r Reservation, expired bool) (Decision, error) {
	r.NotAfterMs = w.now() + 60_000
	if expired {
		r.NotAfterMs = w.now() - 1000
	}
	d, err := w.l.Reserve(w.ctx, w.id, []Reservation{r})
	if err != nil {
		return Decision{}, err
	}
	return d[0], nil
}

func (w *world) buy() error {
	w.n++
	r := Reservation{
		Order: orderID(w.n), Nonce: fmt.Sprint(w.n), User: fmt.Sprint("u", w.rnd.IntN(5)), Quantity: 1 + int64(w.rnd.IntN(3)/2),
	}
	repeated := w.chance(0.2) // the client repeats the call, and the first copy is still on its way
	unheard := w.chance(0.05)
	d, err := w.reserve(r, false)
	if err != nil {
		return err
	}
	if repeated {
		w.late = append(w.late, r)
	}
	if unheard {
		w.unknown = append(w.unknown, r)
		return nil
	}
	switch d.Code {
	case Reserved:
		w.publish = append(w.publish, publication{r, true})
	case Again, Decided: // not of a new order
		return fmt.Errorf("a new order is answered by code %d", d.Code)
	default:
		if repeated && !w.off[ruleRefusalFenced] {
			return w.giveBack(r) // fenced before it is told
		}
		w.refused[r.Order] = true
	}
	return nil
}

// buyAgain is another request with the Idempotency-Key of one whose gateway is still at it.
func (w *world) buyAgain() error {
	if len(w.publish) == 0 {
		return nil
	}
	r := w.publish[w.rnd.IntN(len(w.publish))].r
	r.Nonce += "b"
	d, err := w.reserve(r, false)
	if err != nil {
		return err
	}
	if d.Code == Again && d.Result == nil && !w.old(r.Order) {
		w.publish = append(w.publish, publication{r, false})
	}
	return nil
}

func (w *world) lateCopy() error {
	r, ok := take(w, &w.late)
	if !ok {
		return nil
	}
	_, err := w.reserve(r, r.Order <= orderID(w.expired))
	return err
}

// published: Kafka has it with acks=all, and the buyer hears so.
func (w *world) published() {
	if p, ok := take(w, &w.publish); ok && !w.old(p.r.Order) {
		w.log = append(w.log, p.r)
		w.queued[p.r.Order] = true
	}
}

// perhaps published: nobody heard.
func (w *world) perhaps(p publication) {
	if !w.old(p.r.Order) && w.chance(0.5) {
		w.log = append(w.log, p.r)
	}
}

func (w *world) giveBack(r Reservation) error {
	budget := time.Hour
	if w.old(r.Order) {
		budget = -time.Hour
	}
	got, err := w.l.Release(w.ctx, w.id, r, budget)
	if redis.HasErrorPrefix(err, "NOTLOADED") { // not answered: the buyer hears processing
		if w.off[ruleReleaseUnknown] {
			w.refused[r.Order] = true
		}
		return nil
	}
	if err == nil && got == ReleasedNow {
		w.refused[r.Order] = true
	}
	return err
}
