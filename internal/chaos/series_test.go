package chaos

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

const sale = 2 * time.Minute

// soaked is half an hour of a figure that is value at each moment, with noise.
func soaked(value func(at time.Duration, noise float64) float64) *Series {
	r := rand.New(rand.NewPCG(1, 2))
	s := &Series{Process: "gateway1", Figure: "heap after GC", Unit: "MiB", Bound: Bound{0.1, 2}}
	for at := time.Duration(0); at < 30*time.Minute; at += 5 * time.Second {
		s.Points = append(s.Points, Point{at, value(at, r.NormFloat64())})
	}
	return s
}

func TestALeakIsToldFromNoise(t *testing.T) {
	minutes := time.Duration.Minutes
	for name, c := range map[string]struct {
		leaks bool
		value func(at time.Duration, noise float64) float64
	}{
		"still":                    {false, func(time.Duration, float64) float64 { return 30 }},
		"noise":                    {false, func(_ time.Duration, noise float64) float64 { return 30 + 8*noise }},
		"up and down in each sale": {false, func(at time.Duration, _ float64) float64 { return 20 + 30*minutes(at%sale) }},
		"warms up and stays":       {false, func(at time.Duration, _ float64) float64 { return 10 + 3*min(minutes(at), 9) }},
		"warms up ever slower":     {false, func(at time.Duration, _ float64) float64 { return 40 - 30*math.Exp(-minutes(at)/4) }},
		"two bad minutes": {false, func(at time.Duration, _ float64) float64 {
			if at > 20*time.Minute && at < 22*time.Minute {
				return 300
			}
			return 30
		}},
		"falls":                   {false, func(at time.Duration, _ float64) float64 { return 60 - minutes(at) }},
		"leaks":                   {true, func(at time.Duration, _ float64) float64 { return 30 + minutes(at) }},
		"leaks and is noisy":      {true, func(at time.Duration, noise float64) float64 { return 30 + minutes(at) + 8*noise }},
		"leaks within each sale":  {true, func(at time.Duration, _ float64) float64 { return 20 + 30*minutes(at%sale) + minutes(at) }},
		"leaks once in each sale": {true, func(at time.Duration, _ float64) float64 { return 30 + float64(at/sale) }},
		"leaks ever faster":       {true, func(at time.Duration, _ float64) float64 { return 30 + minutes(at)*minutes(at)/30 }},
	} {
		got := Growing([]*Series{soaked(c.value)}, sale)
		if leaks := len(got) > 0; leaks != c.leaks {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestALeakIsNamed(t *testing.T) {
	s := soaked(func(at time.Duration, _ float64) float64 { return 30 + at.Minutes() })
	still := soaked(func(time.Duration, float64) float64 { return 5 })
	still.Process = "worker1"
	got := strings.Join(Growing([]*Series{still, s}, sale), "\n")
	want := "gateway1: heap after GC grows by 60 MiB an hour: by 20 MiB in the last 19m57s, from a level of 50 MiB, where 7.0 MiB are allowed"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
	third, alone := *still, *still
	third.Process, alone.Process, alone.Figure = "worker2", "redis", "keys"
	table := Trends([]*Series{still, &alone, s, &third}, sale)
	for _, want := range []string{
		"| | heap after GC |\n|---|---|\n", "| gateway1 | **50 MiB, +20 (≤ 7.0)** |\n", "| worker1 | 5.0 MiB, +0 (≤ 2.5) |\n",
		"|---|---|---|\n| redis | keys | 5.0 MiB, +0 (≤ 2.5) |\n",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
}

// A run that was too short to have several sales is judged all the same, and one without samples shows nothing.
func TestFewSamples(t *testing.T) {
	s := &Series{Process: "p", Figure: "f", Points: []Point{{0, 1}}}
	if got := Growing([]*Series{s, {}}, sale); got != nil {
		t.Errorf("%q", got)
	}
	for i := range 10 {
		s.Points = append(s.Points, Point{time.Duration(i) * time.Second, float64(i)})
	}
	if got := Growing([]*Series{s}, 2*time.Second); len(got) != 1 {
		t.Errorf("a figure that grows all the time: %q", got)
	}
}

func TestThePlotIsWellFormedAndSmall(t *testing.T) {
	var all []*Series
	for _, figure := range []string{"heap <after> GC", "goroutines", "lag"} {
		for _, p := range Programs {
			s := soaked(func(_ time.Duration, noise float64) float64 { return 30 + noise })
			s.Process, s.Figure = p, figure
			all = append(all, s)
		}
	}
	svg := Plot(append(all, &Series{Process: "redis", Figure: "nothing yet"}))
	if len(svg) > 40_000 {
		t.Errorf("%d bytes", len(svg))
	}
	lines := 0
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, is := token.(xml.StartElement); is && e.Name.Local == "path" && strings.HasPrefix(e.Attr[0].Value, "s") {
			lines++
		}
	}
	if want := len(all) + 1; lines != want {
		t.Errorf("%d lines, want %d", lines, want)
	}
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
		t.Error("there are points nowhere")
	}
	if want := fmt.Sprintf(`<text class="t" x="%d" y="14">heap &lt;after&gt; GC, MiB</text>`, marginLeft); !strings.Contains(svg, want) {
		t.Errorf("no %s", want)
	}
}

func TestWhatBuyersHearOfTheirOrders(t *testing.T) {
	b := NewBook()
	queued, processing := promised("a", "queued"), promised("b", "processing")
	b.Write(queued)
	b.Write(processing)
	b.Hear(processing, 404, "")      // it may never have been made
	b.Hear(queued, 503, "")          // for the moment
	b.Hear(queued, 200, "queued")    //
	b.Hear(queued, 200, "confirmed") //
	b.Hear(queued, 200, "paid")      // goes on
	if got := b.Strange(); got != nil {
		t.Errorf("%q", got)
	}
	if got := b.Records()[0].Final; got != "paid" || b.Heard() != 5 {
		t.Errorf("%q of %d", got, b.Heard())
	}
	b.Hear(queued, 404, "")
	b.Hear(queued, 500, "")
	b.Hear(processing, 200, "failed")
	b.Hear(processing, 200, "confirmed")
	if got := b.Strange(); len(got) != 3 {
		t.Errorf("%q, want the 404 of a queued order, the 500, and an order that had failed", got)
	}
}
