package chaos

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Series is one figure of one process over the time of a soak run.
type Series struct {
	Process string // or server, or the buyers
	Figure  string
	Unit    string // empty: a number of things
	Bound   Bound
	Points  []Point
}

// Point is one sample.
type Point struct {
	At    time.Duration // from the start of the run
	Value float64
}

// Bound is how much more of it there may be at the end of the judged time than at its begin: a part of its level, and that
// much besides.
type Bound struct{ Part, Slack float64 }

// Trend is how a figure moves once the run has warmed up.
type Trend struct {
	Level   float64       // the median
	Growth  float64       // from the begin of the judged time to its end, by the slope
	Allowed float64       // growth
	Over    time.Duration // the judged time
}

// warm is the part of a run that is not judged: caches fill, pools grow, and the first results have not expired yet.
const warm = 3

// Trend judges the last two thirds. A window is the time in which the load repeats itself (one sale): of each only the median
// counts, and the slope is the median of the slopes between all of them, so that neither the sale's own ups and downs nor a
// noisy stretch make one. A process that only grows for a while and falls again is flat; one that grows from window to window
// is not.
func (s *Series) Trend(window time.Duration) Trend {
	if len(s.Points) == 0 {
		return Trend{}
	}
	end := s.Points[len(s.Points)-1].At
	begin := end / warm
	var judged []Point
	for at := begin; at < end; at += window {
		var values []float64
		for _, p := range s.Points {
			if p.At >= at && p.At < at+window {
				values = append(values, p.Value)
			}
		}
		if len(values) > 0 {
			judged = append(judged, Point{at, median(values)})
		}
	}
	var slopes, levels []float64
	for i, p := range judged {
		levels = append(levels, p.Value)
		for _, q := range judged[i+1:] {
			slopes = append(slopes, (q.Value-p.Value)/(q.At-p.At).Seconds())
		}
	}
	t := Trend{Level: median(levels), Over: end - begin}
	t.Growth = median(slopes) * t.Over.Seconds()
	t.Allowed = s.Bound.Part*t.Level + s.Bound.Slack
	return t
}

// Flat says that the figure does not grow.
func (t Trend) Flat() bool { return t.Growth <= t.Allowed }

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2
}

// Growing names what is not flat: process, figure and slope.
func Growing(all []*Series, window time.Duration) []string {
	var out []string
	for _, s := range all {
		if t := s.Trend(window); !t.Flat() {
			out = append(out, fmt.Sprintf("%s: %s grows by %s an hour: by %s in the last %s, from a level of %s, where %s are allowed",
				s.Process, s.Figure, s.show(t.Growth/t.Over.Hours()), s.show(t.Growth), t.Over.Round(time.Second), s.show(t.Level), s.show(t.Allowed)))
		}
	}
	return out
}

func (s *Series) show(v float64) string { return strings.TrimSpace(number(v) + " " + s.Unit) }

// number is a value with three digits that count.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a < 0.05:
		return "0"
	case a < 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}

// Trends is the verdict as Markdown: what every process has as one table, a line for each process, and the rest as a list.
func Trends(all []*Series, window time.Duration) string {
	of := map[string][]*Series{}
	var figures, processes []string
	for _, s := range all {
		if of[s.Figure] == nil {
			figures = append(figures, s.Figure)
		}
		of[s.Figure] = append(of[s.Figure], s)
	}
	var table, list strings.Builder
	table.WriteString("| |")
	rule := "|---|"
	for _, f := range figures {
		if len(of[f]) <= 2 { // of servers and buyers
			for _, s := range of[f] {
				fmt.Fprintf(&list, "| %s | %s | %s |\n", s.Process, f, s.verdict(window))
			}
			continue
		}
		table.WriteString(" " + f + " |")
		rule += "---|"
		for _, s := range of[f] {
			if !slices.Contains(processes, s.Process) {
				processes = append(processes, s.Process)
			}
		}
	}
	table.WriteString("\n" + rule + "\n")
	for _, p := range processes {
		table.WriteString("| " + p + " |")
		for _, f := range figures {
			if i := slices.IndexFunc(of[f], func(s *Series) bool { return s.Process == p }); i >= 0 && len(of[f]) > 2 {
				table.WriteString(" " + of[f][i].verdict(window) + " |")
			}
		}
		table.WriteString("\n")
	}
	return table.String() + "\n| | | |\n|---|---|---|\n" + list.String()
}

// verdict is level, growth and what is allowed; in bold if it is more.
func (s *Series) verdict(window time.Duration) string {
	t := s.Trend(window)
	sign, mark := "+", ""
	if t.Growth < 0 {
		sign = "−"
	}
	if !t.Flat() {
		mark = "**"
	}
	return fmt.Sprintf("%s%s, %s%s (≤ %s)%s", mark, s.show(t.Level), sign, number(math.Abs(t.Growth)), number(t.Allowed), mark)
}

// thin gives at most n points, each the median of its stretch.
func thin(points []Point, n int) []Point {
	if len(points) == 0 {
		return nil
	}
	step := cmp.Or(points[len(points)-1].At/time.Duration(n), 1)
	var out []Point
	for from := 0; from < len(points); {
		to, slot := from, points[from].At/step
		var values []float64
		for ; to < len(points) && points[to].At/step == slot; to++ {
			values = append(values, points[to].Value)
		}
		out = append(out, Point{points[(from+to)/2].At, median(values)})
		from = to
	}
	return out
}
