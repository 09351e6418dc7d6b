package loadgen

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Line is a short account of a run under way, for a terminal.
func (f *Figures) Line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%5.1fs  %s requests (%s/s), %d open", f.Elapsed.Seconds(), Thousands(f.Answered), Thousands(int64(f.Rate())), f.InFlight)
	fmt.Fprintf(&b, "  p50 %s p99 %s ", f.All.short(f.All.P50), f.All.short(f.All.P99))
	for _, a := range byCount(f.Answers) {
		fmt.Fprintf(&b, "  %s %s", a, Thousands(f.Answers[a]))
	}
	return b.String()
}

// Write prints the account of a run that has ended.
func (f *Figures) Write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s requests in %.1f s, %s a second\n\n", Thousands(f.Answered), f.Elapsed.Seconds(), Thousands(int64(f.Rate())))
	for _, a := range byCount(f.Answers) {
		fmt.Fprintf(&b, "  %-16s %12s  %5.1f %%\n", a, Thousands(f.Answers[a]), 100*float64(f.Answers[a])/float64(max(1, f.Answered)))
	}
	if len(f.Unknown) > 0 {
		fmt.Fprintf(&b, "\n  unknown: %s\n", f.Causes())
	}
	if len(f.Final) > 0 {
		b.WriteString("\n  of those accepted became\n")
		for _, s := range byCount(f.Final) {
			fmt.Fprintf(&b, "  %-16s %12s\n", s, Thousands(f.Final[s]))
		}
	}
	fmt.Fprintf(&b, "\n  %-10s %9s %9s %9s %9s %9s %9s\n", "latency", "count", "p50", "p90", "p99", "p99.9", "max")
	for _, row := range []struct {
		name string
		l    Latency
	}{{"all", f.All}, {"accepted", f.Accepted}, {"refused", f.Refused}} {
		fmt.Fprintf(&b, "  %-10s %9s %9s %9s %9s %9s %9s\n", row.name, Thousands(row.l.Count), row.l.short(row.l.P50),
			row.l.short(row.l.P90), row.l.short(row.l.P99), row.l.short(row.l.P999), row.l.short(row.l.Max))
	}
	if f.Late > 0 {
		fmt.Fprintf(&b, "\n  %s requests left later than they were due; their latency counts from when they were due\n", Thousands(f.Late))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Causes lists why requests are unknown, the most frequent first, with what to look at where the cause suggests it:
// "connection refused (20), http 401 (15): is --header right?".
func (f *Figures) Causes() string {
	var parts []string
	for _, c := range byCount(f.Unknown) {
		s := fmt.Sprintf("%s (%s)", c, Thousands(f.Unknown[c]))
		switch c {
		case "http 301", "http 302", "http 303", "http 307", "http 401", "http 403":
			s += ": is --header right?"
		case "http 200", "http 404", "http 405":
			s += ": are --target and --prefix those of the gateway?"
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, ", ")
}

// short words a figure of the distribution; there is none where nothing was counted.
func (l *Latency) short(d time.Duration) string {
	if l.Count == 0 {
		return "-"
	}
	return Short(d)
}

// byCount gives the keys, the most frequent first.
func byCount(m map[string]int64) []string {
	return slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b))
	})
}

// Short rounds a duration to what a person compares: three digits.
func Short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1e3)
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1e3)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	default:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
}

// Thousands writes a number with commas between groups of three digits.
func Thousands(n int64) string {
	s := fmt.Sprint(n)
	start := 0
	if n < 0 {
		start = 1
	}
	for i := len(s) - 3; i > start; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
