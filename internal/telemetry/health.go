package telemetry

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Health is a set of named conditions. It is ready when there is at least one and all are nil. The zero value is not ready.
type Health struct {
	mu         sync.Mutex
	conditions map[string]condition
}

type condition struct {
	err   error
	since time.Time // of the last change between well and not
}

// errNothingKnown is the state before the first Set: a process that has not looked yet is not ready.
var errNothingKnown = errors.New("starting: nothing is known yet")

// Set notes the state of a condition: nil is well. It may be called from anywhere.
func (h *Health) Set(name string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conditions == nil {
		h.conditions = map[string]condition{}
	}
	before, known := h.conditions[name]
	since := before.since
	if !known || (before.err == nil) != (err == nil) {
		since = time.Now()
	}
	h.conditions[name] = condition{err, since}
}

// Forget removes a condition, as of a partition that is now another process's.
func (h *Health) Forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conditions, name)
}

// Err is nil when ready, else it joins what is wrong, each with its name.
func (h *Health) Err() error {
	all := h.snapshot()
	if len(all) == 0 {
		return errNothingKnown
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := all[name].err; err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (h *Health) snapshot() map[string]condition {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.conditions)
}

// report is the body of /readyz.
type report struct {
	Status     string                     `json:"status"` // ok or not_ready
	Conditions map[string]conditionReport `json:"conditions"`
}

type conditionReport struct {
	OK    bool      `json:"ok"`
	Error string    `json:"error,omitempty"`
	Since time.Time `json:"since"`
}

func (h *Health) report() (report, bool) {
	all := h.snapshot()
	out := report{Status: "ok", Conditions: map[string]conditionReport{}}
	for name, c := range all {
		r := conditionReport{OK: c.err == nil, Since: c.since.UTC()}
		if c.err != nil {
			r.Error = c.err.Error()
			out.Status = "not_ready"
		}
		out.Conditions[name] = r
	}
	if len(all) == 0 {
		out.Status = "not_ready"
	}
	return out, out.Status == "ok"
}
