// Package bench compares what the product does with a yardstick, in one run and on one machine. Its results are ratios: the
// contestants take turns in short rounds, so that whatever else the machine does meets them alike, and each round's figure
// is divided by the yardstick's figure of the same round. Absolute figures of another machine, or of the same one an hour
// later, say little; the ratios stay.
//
// `make bench` runs every benchmark that uses this package, and prints the tables. docs/benchmarks.md has the results.
package bench

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/origin"
)

// Contestant is something that has a speed.
type Contestant struct {
	Name string
	// Aim is the ratio to reach, for the table. 0: none.
	Aim float64
	// Run works for about so long and gives how much was done per second.
	Run func(d time.Duration) (perSecond float64, err error)
}

// Process is one whose processor time is told, per piece of work.
type Process struct {
	Name string
	PID  int
}

// Contest lets the contestants take turns and reports each one's ratio to the first, which is the yardstick.
type Contest struct {
	Title     string
	Rounds    int           // default 21
	Turn      time.Duration // of one contestant in a round; default 1 s
	Processes []Process
}

// Environment variables that shorten or lengthen a run, and have profiles written.
const (
	roundsVariable = "BENCH_ROUNDS"
	turnVariable   = "BENCH_TURN"
)

// figures are one contestant's, round by round.
type figures struct {
	perSecond, ratio []float64
	cpu              []time.Duration // by process
	done             float64
}

// Run runs the contest. Its table is printed by Print.
func (c Contest) Run(b *testing.B, all ...Contestant) {
	b.Helper()
	c.Rounds, c.Turn = cmp.Or(c.Rounds, 21), cmp.Or(c.Turn, time.Second)
	if n, err := strconv.Atoi(os.Getenv(roundsVariable)); err == nil && n > 0 {
		c.Rounds = n
	}
	if d, err := time.ParseDuration(os.Getenv(turnVariable)); err == nil && d > 0 {
		c.Turn = d
	}
	of := make([]figures, len(all))
	for round := range c.Rounds {
		for turn := range all {
			i := (round + turn) % len(all) // nobody always follows the same one
			if err := c.turn(&of[i], all[i]); err != nil {
				b.Fatalf("%s: %s, round %d: %v", c.Title, all[i].Name, round+1, err)
			}
		}
		for i := range of {
			of[i].ratio = append(of[i].ratio, of[i].perSecond[round]/of[0].perSecond[round])
		}
	}
	t := table{title: fmt.Sprintf("%s (%d rounds of %s each)", c.Title, c.Rounds, c.Turn)}
	for _, p := range c.Processes {
		t.processes = append(t.processes, p.Name)
	}
	for i, f := range of {
		r := row{name: all[i].Name, aim: all[i].Aim, perSecond: quantile(f.perSecond, 0.5), yardstick: i == 0}
		r.low, r.ratio, r.high = quantile(f.ratio, 0.25), quantile(f.ratio, 0.5), quantile(f.ratio, 0.75)
		for _, d := range f.cpu {
			r.cpu = append(r.cpu, time.Duration(float64(d)/f.done))
		}
		t.rows = append(t.rows, r)
	}
	tables = append(tables, t)
	b.ReportMetric(0, "ns/op") // what an iteration took means nothing here
	for _, r := range t.rows[1:] {
		b.ReportMetric(r.ratio, metricName(r.name))
	}
}

// turn has a contestant work once.
func (c *Contest) turn(f *figures, who Contestant) error {
	before := c.cpu()
	began := time.Now()
	perSecond, err := who.Run(c.Turn)
	if err != nil {
		return err
	}
	took, after := time.Since(began), c.cpu()
	if f.cpu == nil {
		f.cpu = make([]time.Duration, len(c.Processes))
	}
	for i := range f.cpu {
		f.cpu[i] += after[i] - before[i]
	}
	f.done += perSecond * took.Seconds()
	f.perSecond = append(f.perSecond, perSecond)
	return nil
}

func (c *Contest) cpu() []time.Duration {
	used := make([]time.Duration, len(c.Processes))
	for i, p := range c.Processes {
		used[i] = CPUOf(p.PID)
	}
	return used
}

// quantile of a sample, by the nearest rank.
func quantile(sample []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(sample))
	return s[int(q*float64(len(s)-1)+0.5)]
}

type table struct {
	title     string
	processes []string
	rows      []row
}

type row struct {
	name             string
	yardstick        bool
	perSecond        float64
	cpu              []time.Duration // by process, per piece of work
	low, ratio, high float64
	aim              float64
}

// tables of the contests that were run, for Print.
var tables []table

// Print writes the tables of all contests so far, and what they are of.
func Print(w io.Writer) {
	if len(tables) > 0 {
		fmt.Fprintf(w, "\n%s\n", origin.Line(origin.Checkout("."), time.Now()))
	}
	for _, t := range tables {
		fmt.Fprintf(w, "\n%s\n\n  %-42s %10s %6s   %-13s %5s ", t.title, "", "per second", "ratio", "middle half", "aim")
		for _, p := range t.processes {
			fmt.Fprintf(w, " %8s", p)
		}
		fmt.Fprintln(w)
		for _, r := range t.rows {
			fmt.Fprintf(w, "  %-42s %10.0f", r.name, r.perSecond)
			if r.yardstick {
				fmt.Fprintf(w, " %6s   %13s %5s ", "1", "", "")
			} else {
				fmt.Fprintf(w, " %6.2f   %5.2f – %-5.2f %5s ", r.ratio, r.low, r.high, aimText(r.aim))
			}
			for _, d := range r.cpu {
				fmt.Fprintf(w, " %8s", cpuText(d))
			}
			fmt.Fprintln(w)
		}
	}
}

func cpuText(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f µs", float64(d)/float64(time.Microsecond))
}

func aimText(aim float64) string {
	if aim == 0 {
		return ""
	}
	return strconv.FormatFloat(aim, 'f', -1, 64)
}

// metricName makes a contestant's name one word, as units of a benchmark have to be.
func metricName(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c == ' ' || c == ',' {
			b[i] = '_'
		}
	}
	return string(b)
}
