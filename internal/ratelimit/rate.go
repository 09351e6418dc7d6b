package ratelimit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Rate is Limit per Per.
type Rate struct {
	Limit int64
	Per   time.Duration
}

// MaxPer is the longest period of a rate.
const MaxPer = 24 * time.Hour

// ParseRate reads "10000/s", "5/m", "100/h" or "20/10s".
func ParseRate(s string) (Rate, error) {
	limit, per, found := strings.Cut(s, "/")
	if !found {
		return Rate{}, fmt.Errorf("rate %q: want a number per time, such as 10000/s, 5/m or 20/10s", s)
	}
	n, err := strconv.ParseInt(limit, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return Rate{}, fmt.Errorf("rate %q: want 1 to %d", s, maxBurst)
	}
	if err != nil || limit[0] == '+' {
		return Rate{}, fmt.Errorf("rate %q: %q is not a whole number", s, limit)
	}
	if per != "" && (per[0] < '0' || per[0] > '9') {
		per = "1" + per // a bare unit
	}
	d, err := time.ParseDuration(per)
	if err != nil {
		return Rate{}, fmt.Errorf("rate %q: want a time after the slash, such as s, m, h or 10s", s)
	}
	r := Rate{Limit: n, Per: d}
	if err := r.Validate(); err != nil {
		return Rate{}, fmt.Errorf("rate %q: %w", s, err)
	}
	return r, nil
}

// Validate says what is wrong with the rate.
func (r Rate) Validate() error {
	switch {
	case r.Limit < 1 || r.Limit > maxBurst:
		return fmt.Errorf("rate limit: %d per %v: want 1 to %d", r.Limit, r.Per, maxBurst)
	case r.Per < time.Millisecond || r.Per > MaxPer:
		return fmt.Errorf("rate limit: per %v: want %v to %v", r.Per, time.Millisecond, MaxPer)
	case int64(r.Per)/r.Limit < 1:
		return fmt.Errorf("rate limit: %d per %v is more than one per nanosecond", r.Limit, r.Per)
	}
	return nil
}

// String is the form that ParseRate reads.
func (r Rate) String() string {
	for _, u := range []struct {
		d    time.Duration
		name string
	}{{time.Second, "s"}, {time.Minute, "m"}, {time.Hour, "h"}} {
		if r.Per == u.d {
			return strconv.FormatInt(r.Limit, 10) + "/" + u.name
		}
	}
	return strconv.FormatInt(r.Limit, 10) + "/" + r.Per.String()
}
