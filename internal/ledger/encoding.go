package ledger

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/seckillgate/seckillgate/internal/order"
)

// us separates fields. No field can hold it: users and reasons hold no control characters, extra is compact JSON.
const us = "\x1f"

// loadedNonce marks entries that a load put back. No request's nonce equals it, so none can release them.
const loadedNonce = "*"

func encodeEntry(e Entry) string {
	fields := []string{
		strconv.FormatInt(e.Quantity, 10), strconv.FormatInt(e.ReservedAtMs, 10), loadedNonce,
		strconv.FormatInt(e.Item, 10), e.User, string(e.Extra),
	}
	if e.Tries > 0 {
		fields = append(fields, strconv.FormatInt(e.Tries, 10))
	}
	return strings.Join(fields, us)
}

func decodeEntry(orderID, s string) (Entry, error) {
	f := strings.SplitN(s, us, 8)
	if len(f) != 6 && len(f) != 7 {
		return Entry{}, fmt.Errorf("ledger entry of order %s has %d fields, want 6 or 7", orderID, len(f))
	}
	e := Entry{Order: orderID, User: f[4]}
	if f[5] != "" {
		e.Extra = json.RawMessage(f[5])
	}
	err := parseInts([]string{f[0], f[1], f[3]}, &e.Quantity, &e.ReservedAtMs, &e.Item)
	if err == nil && len(f) == 7 {
		err = parseInts(f[6:], &e.Tries)
	}
	if err != nil {
		return Entry{}, fmt.Errorf("ledger entry of order %s: %w", orderID, err)
	}
	return e, nil
}

func encodeResult(r Result) string {
	var room [256]byte
	b := append(room[:0], r.Status...)
	for _, s := range [...]string{r.Reason, r.User} {
		b = append(append(b, us...), s...)
	}
	for _, n := range [...]int64{r.Item, r.Quantity, int64(r.Partition), r.Offset, r.AtMs} {
		b = strconv.AppendInt(append(b, us...), n, 10)
	}
	return string(b)
}

func decodeResult(s string) (*Result, error) {
	f := strings.Split(s, us)
	if len(f) != 8 {
		return nil, fmt.Errorf("result has %d fields, want 8", len(f))
	}
	r := &Result{Status: order.Status(f[0]), Reason: f[1], User: f[2]}
	var partition int64
	if err := parseInts(f[3:], &r.Item, &r.Quantity, &partition, &r.Offset, &r.AtMs); err != nil {
		return nil, fmt.Errorf("result: %w", err)
	}
	r.Partition = int32(partition)
	return r, nil
}

func outcomeResult(o Outcome, nowMs int64) string {
	return encodeResult(Result{
		Status: o.Status, User: o.User, Item: o.Item, Quantity: o.Quantity, Reason: cleanReason(o.Reason),
		Partition: -1, Offset: -1, AtMs: nowMs,
	})
}

// tombstone is the result of an order that was given back before anything published it.
func tombstone(reason, user string, item, quantity int64) string {
	return encodeResult(Result{
		Status: order.Failed, Reason: reason, User: user, Item: item, Quantity: quantity,
		Partition: -1, Offset: -1, AtMs: time.Now().UnixMilli(),
	})
}

// cleanReason keeps a shop's own text from breaking the encoding, and short.
func cleanReason(s string) string {
	const most = 256
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, s)
}

func decodeEvent(payload string) (Event, error) {
	f := strings.Split(payload, us)
	if len(f) < 4 || len(f)%2 != 0 {
		return Event{}, fmt.Errorf("event has %d fields", len(f))
	}
	var e Event
	if err := parseInts(f, &e.Activity, &e.NowMs, &e.Available); err != nil {
		return Event{}, fmt.Errorf("event: %w", err)
	}
	if f[3] == catalogueEvent {
		e.Catalogue = true
		return e, nil
	}
	e.State = State(f[3])
	for i := 4; i < len(f); i += 2 {
		e.Outcomes = append(e.Outcomes, EventOutcome{Order: f[i], Status: order.Status(f[i+1])})
	}
	return e, nil
}

// catalogueEvent stands in an event's state field when the catalogue changed.
const catalogueEvent = "catalogue"

func parseInts(from []string, to ...*int64) error {
	for i, p := range to {
		n, err := strconv.ParseInt(from[i], 10, 64)
		if err != nil {
			return err
		}
		*p = n
	}
	return nil
}
