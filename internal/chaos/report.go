package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seckillgate/seckillgate/internal/origin"
)

// Origin is the line of a report that says which programs ran, and when.
func Origin(bin string) string {
	return origin.Line(origin.Built(filepath.Join(bin, "seckill-worker")), time.Now())
}

// Done is a fault that has been.
type Done struct {
	Fault
	Began, Ended time.Time
	Impact
	Lost, Oversold, Leaked int
}

// Table is what a run found, by kind of fault, in Markdown.
func Table(done []Done) string {
	type row struct {
		n, unrecovered, refused, unanswered, lost, oversold, leaked int
		after                                                       []time.Duration
	}
	rows := map[string]*row{}
	var names []string
	total := &row{}
	for i := range done {
		d := &done[i]
		r := rows[d.Kind]
		if r == nil {
			r = &row{}
			rows[d.Kind] = r
			names = append(names, d.Kind)
		}
		for _, r := range []*row{r, total} {
			r.n++
			r.refused += d.Refused
			r.unanswered += d.Unanswered
			r.lost += d.Lost
			r.oversold += d.Oversold
			r.leaked += d.Leaked
			if d.Recovered {
				r.after = append(r.after, d.After)
			} else {
				r.unrecovered++
			}
		}
	}
	slices.Sort(names)
	var b strings.Builder
	b.WriteString("| fault | times | time to recover: median | longest | refused (503) | unanswered | lost | oversold | leaked |\n")
	b.WriteString("|---|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	line := func(name string, r *row) {
		median, longest := "–", "–"
		if len(r.after) > 0 {
			slices.Sort(r.after)
			median, longest = seconds(r.after[len(r.after)/2]), seconds(r.after[len(r.after)-1])
		}
		if r.unrecovered > 0 {
			longest = fmt.Sprintf("never (%d)", r.unrecovered)
		}
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %d | %d | %d | %d | %d |\n", name, r.n, median, longest, r.refused, r.unanswered,
			r.lost, r.oversold, r.leaked)
	}
	for _, name := range names {
		line(name, rows[name])
	}
	line("**all**", total)
	return b.String()
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// Blame finds the fault to which something belongs that happened at a time: the last that had begun by then; nil before all.
func Blame(done []Done, at time.Time) *Done {
	var last *Done
	for i := range done {
		if d := &done[i]; !d.Began.After(at) && (last == nil || !d.Began.Before(last.Began)) {
			last = d
		}
	}
	return last
}

// Markers of the part of a document that Insert replaces.
func markers(name string) (begin, end string) {
	return "<!-- begin " + name + " -->", "<!-- end " + name + " -->"
}

// Insert puts text between the markers of that name in a document.
func Insert(path, name, text string) error {
	b, err := os.ReadFile(path) //nolint:gosec // the path is the operator's own
	if err != nil {
		return fmt.Errorf("read the report's document: %w", err)
	}
	begin, end := markers(name)
	doc := string(b)
	from, to := strings.Index(doc, begin), strings.Index(doc, end)
	if from < 0 || to < from {
		return fmt.Errorf("%s has no lines %q and %q to write between", path, begin, end)
	}
	doc = doc[:from+len(begin)] + "\n" + strings.TrimSpace(text) + "\n" + doc[to:]
	if err := os.WriteFile(path, []byte(doc), 0o600); err != nil { //nolint:gosec // the path is the operator's own
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
