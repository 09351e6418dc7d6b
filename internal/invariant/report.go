package invariant

import (
	"fmt"
	"io"
	"strings"
)

// Finding is the verdict on one invariant.
type Finding struct {
	ID    string `json:"id"`    // I1 to I4
	Title string `json:"title"` // what it promises
	// Figures is one line with the numbers that were compared.
	Figures string `json:"figures"`
	// Broken names what is wrong, each with the ids and numbers that show it. Empty: the invariant holds.
	Broken []string `json:"broken,omitempty"`
}

// OK says whether the invariant holds.
func (f *Finding) OK() bool { return len(f.Broken) == 0 }

func (f *Finding) breaks(format string, args ...any) {
	f.Broken = append(f.Broken, fmt.Sprintf(format, args...))
}

// Totals are the sale's figures.
type Totals struct {
	Units      int64 `json:"units"`       // put on sale: given, or live + left where that is all there is to know
	UnitsKnown bool  `json:"units_known"` // Units was given
	SoldOrders int   `json:"sold_orders"` // live orders
	SoldUnits  int64 `json:"sold_units"`  // their quantities
	DeadOrders int   `json:"dead_orders"`
	Left       int64 `json:"left"`     // MySQL's stock
	Oversold   int64 `json:"oversold"` // units sold beyond Units
	Lost       int   `json:"lost"`     // accepted orders without a row
	Redis      int64 `json:"redis_stock"`
	Pending    int64 `json:"redis_pending"`
}

// Report is the outcome of a check.
type Report struct {
	Activity int64     `json:"activity_id"`
	Totals   Totals    `json:"totals"`
	Findings []Finding `json:"findings"`
	Notes    []string  `json:"notes,omitempty"` // worth knowing, but no invariant is broken by it
}

// OK says whether every invariant holds.
func (r *Report) OK() bool {
	for i := range r.Findings {
		if !r.Findings[i].OK() {
			return false
		}
	}
	return true
}

// Err is nil, or names what broke.
func (r *Report) Err() error {
	var ids []string
	for i := range r.Findings {
		if f := &r.Findings[i]; !f.OK() {
			ids = append(ids, fmt.Sprintf("%s (%s): %s", f.ID, f.Title, f.Broken[0]))
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return fmt.Errorf("activity %d: broken: %s", r.Activity, strings.Join(ids, "; "))
}

// Write prints the report for people.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	for i := range r.Findings {
		f := &r.Findings[i]
		word := "ok    "
		if !f.OK() {
			word = "BROKEN"
		}
		fmt.Fprintf(&b, "  %s  %s  %-14s %s\n", word, f.ID, f.Title, f.Figures)
		for _, line := range f.Broken {
			fmt.Fprintf(&b, "              ✗ %s\n", line)
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "  note: %s\n", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// examples collects the first few of many.
type examples struct {
	n    int
	some []string
}

const maxExamples = 5

func (e *examples) add(format string, args ...any) {
	if e.n++; e.n <= maxExamples {
		e.some = append(e.some, fmt.Sprintf(format, args...))
	}
}

func (e *examples) String() string {
	s := strings.Join(e.some, ", ")
	if more := e.n - len(e.some); more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}
