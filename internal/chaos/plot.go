package chaos

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
	"time"
)

// Measures of the plot, in pixels.
const (
	panelWide, panelHigh = 420, 150
	marginLeft           = 44 // of a panel: the scale
	marginTop            = 26 // its title
	marginBottom         = 18 // the minutes
	gap                  = 16
	columns              = 2
	plotted              = 60 // points of a line
)

// style suits a light page and a dark one.
const style = `text{font:11px system-ui,sans-serif;fill:#57606a}.t{font-weight:600}path{fill:none;stroke-width:1.5}
.g{stroke:#8c959f;stroke-width:.5;opacity:.5}.s0{stroke:#0969da}.s1{stroke:#bc4c00}.s2{stroke:#1a7f37}.s3{stroke:#8250df}
.k0{fill:#0969da}.k1{fill:#bc4c00}.k2{fill:#1a7f37}.k3{fill:#8250df}.d{stroke-dasharray:4 3}
@media(prefers-color-scheme:dark){text{fill:#8b949e}.s0{stroke:#58a6ff}.s1{stroke:#f0883e}.s2{stroke:#3fb950}.s3{stroke:#bc8cff}
.k0{fill:#58a6ff}.k1{fill:#f0883e}.k2{fill:#3fb950}.k3{fill:#bc8cff}}
`

// Plot draws the series as SVG, a panel for each figure. The second of two equal processes is dashed.
func Plot(all []*Series) string {
	var panels [][]*Series
	for _, s := range all {
		i := slices.IndexFunc(panels, func(p []*Series) bool { return p[0].Figure == s.Figure })
		if i < 0 {
			panels = append(panels, nil)
			i = len(panels) - 1
		}
		panels[i] = append(panels[i], s)
	}
	rows := (len(panels) + columns - 1) / columns
	wide, high := columns*(panelWide+gap), rows*(panelHigh+gap)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="Figures of the soak run over its time">`,
		wide, high, wide, high)
	b.WriteString("\n<style>" + style + "</style>\n")
	for i, p := range panels {
		fmt.Fprintf(&b, `<g transform="translate(%d %d)">`, i%columns*(panelWide+gap), i/columns*(panelHigh+gap))
		b.WriteByte('\n')
		panel(&b, p)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// panel draws one figure of all processes that have it.
func panel(b *strings.Builder, lines []*Series) {
	top, long := 0.0, time.Duration(1)
	for _, s := range lines {
		for _, p := range thin(s.Points, plotted) {
			top, long = max(top, p.Value), max(long, p.At)
		}
	}
	top = nice(top)
	right, foot := float64(panelWide-8), float64(panelHigh-marginBottom)
	x := func(at time.Duration) float64 {
		return marginLeft + (right-marginLeft)*float64(at)/float64(long)
	}
	y := func(v float64) float64 { return foot - (foot-marginTop)*v/top }
	title := lines[0].Figure
	if lines[0].Unit != "" {
		title += ", " + lines[0].Unit
	}
	fmt.Fprintf(b, `<text class="t" x="%d" y="14">%s</text>`, marginLeft, html.EscapeString(title))
	b.WriteByte('\n')
	for _, v := range []float64{0, top / 2, top} {
		fmt.Fprintf(b, `<path class="g" d="M%d %.1fH%.0f"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`, marginLeft, y(v), right, marginLeft-4, y(v)+4, number(v))
		b.WriteByte('\n')
	}
	fmt.Fprintf(b, `<text x="%d" y="%d">0</text><text x="%.0f" y="%d" text-anchor="end">%s min</text>`, marginLeft, panelHigh-4, right, panelHigh-4, number(long.Minutes()))
	b.WriteByte('\n')
	var names []string // gateway1 and gateway2 share a colour
	legend := right
	for _, s := range slices.Backward(lines) {
		if name := kindOf(s.Process); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Reverse(names)
	for i, name := range slices.Backward(names) {
		fmt.Fprintf(b, `<text class="k%d" x="%.0f" y="14" text-anchor="end">%s</text>`, i%4, legend, html.EscapeString(name))
		legend -= 12 + 6*float64(len(name))
	}
	b.WriteByte('\n')
	for _, s := range lines {
		class := fmt.Sprintf("s%d", slices.Index(names, kindOf(s.Process))%4)
		if strings.HasSuffix(s.Process, "2") {
			class += " d"
		}
		fmt.Fprintf(b, `<path class="%s" d="`, class)
		for i, p := range thin(s.Points, plotted) {
			fmt.Fprintf(b, "%c%.0f %.1f", "ML"[min(i, 1)], x(p.At), y(p.Value))
		}
		b.WriteString("\"/>\n")
	}
}

// kindOf is what lines of one colour have in common: gateway1 and gateway2 share it, p50 and p99 do not.
func kindOf(process string) string {
	if name := strings.TrimRight(process, "0123456789"); slices.Contains(Programs, name+"1") {
		return name
	}
	return process
}

// nice is the next round number above v.
func nice(v float64) float64 {
	if v <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 4, 5, 8} {
		if v <= n*unit {
			return n * unit
		}
	}
	return 10 * unit
}
