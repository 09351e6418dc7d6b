package ledger

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Reserve runs one reserve call for members of one activity and answers each of them, in order. Most callers use a
// Batcher. Its error concerns all members alike: ErrNotExecuted or ErrUnknown.
func (l *Ledger) Reserve(ctx context.Context, activity int64, members []Reservation) ([]Decision, error) {
	if len(members) == 0 {
		return nil, nil
	}
	k := KeysOf(activity)
	keys := k.members(k.base(2*len(members)), members)
	args := make([]any, 0, 3+7*len(members))
	args = append(args, len(members), EventsChannel, activity)
	windows := make([]int64, len(members))
	for i := range members {
		m := &members[i]
		windows[i] = m.Window.Milliseconds()
		// Pointers, since every value in an `any` would be a copy of its own.
		args = append(args, &m.Order, &m.Nonce, &m.User, &m.Quantity, &windows[i], &m.NotAfterMs, text(m.Extra))
	}

	ctx, attempts := countAttempts(ctx)
	began := time.Now()
	r, err := l.reply(ctx, reserveScript, keys, args...)
	took := time.Since(began)
	if err != nil {
		// With several attempts the last one's refusal says nothing of the others.
		if attempts.Load() <= 1 && notExecuted(err) {
			return nil, fmt.Errorf("%w: activity %d: %w", ErrNotExecuted, activity, err)
		}
		return nil, fmt.Errorf("%w: activity %d: %w", ErrUnknown, activity, err)
	}
	if len(r) != 2+4*len(members) {
		return nil, fmt.Errorf("%w: activity %d: reply has %d fields for %d members", ErrUnknown, activity, len(r), len(members))
	}
	now := r.num(0)
	l.clock.observe(now, began.Add(took))
	repeated := attempts.Load() > 1 || (l.readTimeout > 0 && took >= l.readTimeout)
	out := make([]Decision, len(members))
	for i := range members {
		d := Decision{
			Order: r.str(2 + 4*i + 1), Code: Code(r.num(2 + 4*i)), NowMs: now, Available: r.num(2 + 4*i + 2), Item: r.num(1),
			Repeated: repeated,
		}
		// The echo makes an answer that reached the wrong member impossible to mistake for one's own.
		if d.Order != members[i].Order {
			return nil, fmt.Errorf("%w: activity %d: order %s was answered for order %s", ErrUnknown, activity, d.Order, members[i].Order)
		}
		if err := d.detail(r.str(2 + 4*i + 3)); err != nil {
			return nil, fmt.Errorf("%w: activity %d: order %s: %w", ErrUnknown, activity, d.Order, err)
		}
		out[i] = d
	}
	return out, nil
}

// text is b as an argument; most orders carry nothing, and that needs no copy.
func text(b []byte) any {
	if len(b) == 0 {
		return ""
	}
	return b
}

// detail reads the field whose meaning depends on the code.
func (d *Decision) detail(s string) error {
	var err error
	switch d.Code {
	case Reserved:
		d.ReservedAtMs = d.NowMs
	case Again:
		ms, result, _ := strings.Cut(s, us)
		if d.ReservedAtMs, err = strconv.ParseInt(ms, 10, 64); err != nil {
			return err
		}
		if result != "" {
			d.Result, err = decodeResult(result)
		}
	case Decided:
		d.Result, err = decodeResult(s)
	case AlreadyHas:
		d.LiveOrder = s
	case NotStarted:
		d.StartsAtMs, err = strconv.ParseInt(s, 10, 64)
	case TooFrequent:
		var ms int64
		ms, err = strconv.ParseInt(s, 10, 64)
		d.RetryAfter = time.Duration(ms) * time.Millisecond
	case BadKey, NotLoaded:
		d.Err = s
	case WrongServer, TooLate, IsRecovering, IsEnded, IsPaused, TooMany, SoldOut: // they say it all
	}
	return err
}
