package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Setup is the deployment that a run plays on.
type Setup string

// The set-ups.
const (
	Base     Setup = "base"     // one Redis with a replica, one Kafka broker
	Cluster  Setup = "cluster"  // a Redis Cluster of three masters
	Sentinel Setup = "sentinel" // a Redis primary with two replicas, and three sentinels
	Brokers  Setup = "brokers"  // base, with three Kafka brokers and min.insync.replicas 2
)

// Fault is one thing that goes wrong, and for how long.
type Fault struct {
	Kind   string
	Target string
	For    time.Duration // from its begin to its end; what has no length has 0
	Draw   uint64        // decides what is left to chance within the kind, so that a seed decides that too
}

func (f Fault) String() string {
	s := f.Kind
	if f.Target != "" {
		s += " " + f.Target
	}
	if f.For > 0 {
		s += " for " + f.For.Round(100*time.Millisecond).String()
	}
	return s
}

// Step is one fault, or two at once.
type Step struct {
	At     time.Duration // when it begins, from the start of the sale, if the steps before it have ended
	Faults []Fault
}

func (s Step) String() string {
	words := make([]string, len(s.Faults))
	for i, f := range s.Faults {
		words[i] = f.String()
	}
	return strings.Join(words, " + ")
}

// Plan is a run's whole schedule.
type Plan struct {
	Seed     uint64
	Setup    Setup
	Length   time.Duration // of the sale
	MaxPause time.Duration
	Steps    []Step
}

// Faults is how many faults the plan holds.
func (p *Plan) Faults() int {
	n := 0
	for _, s := range p.Steps {
		n += len(s.Faults)
	}
	return n
}

// kind is a sort of fault: what it can strike and how long it takes.
type kind struct {
	name    string
	targets []string
	weight  int
	// least and most bound its length; most 0 means that it has none. pause takes the plan's own bound.
	least, most time.Duration
	pause       bool
	// takes is what its begin and end need by themselves, for the schedule: a virtual machine has to start.
	takes time.Duration
	// strikes names what two faults at once must not share.
	strikes func(target string) string
}

func whole(target string) string { return target }

func the(what string) func(string) string { return func(string) string { return what } }

// between gives the process of a link such as worker1-redis, which a fault of that process would make meaningless.
func between(link string) string {
	process, _, _ := strings.Cut(link, "-")
	return process
}

// Programs are the product's processes in a run.
var Programs = []string{"gateway1", "gateway2", "worker1", "worker2", "syncer1", "syncer2"}

// Links are the connections that a fault proxy stands on, each as process-server. A Redis Cluster and sentinels tell their
// clients where to go, past any proxy.
func Links(setup Setup) []string {
	var out []string
	for _, p := range Programs {
		out = append(out, p+"-kafka")
		if setup == Base || setup == Brokers {
			out = append(out, p+"-redis")
		}
		if !strings.HasPrefix(p, "gateway") {
			out = append(out, p+"-mysql")
		}
	}
	return out
}

// kinds are the faults of a set-up.
func kinds(setup Setup) []kind {
	s := time.Second
	redis, broker, links := []string{"redis"}, []string{"kafka1"}, Links(setup)
	switch setup {
	case Cluster:
		redis = []string{"redis1", "redis2", "redis3"}
	case Brokers:
		broker = []string{"kafka1", "kafka2", "kafka3"}
	case Base, Sentinel:
	}
	out := []kind{
		{name: "kill", targets: Programs, weight: 10, least: s / 2, most: 6 * s, strikes: whole},
		{name: "pause", targets: Programs, weight: 8, pause: true, strikes: whole},
		{name: "stop", targets: Programs, weight: 3, least: s / 2, most: 3 * s, takes: 2 * s, strikes: whole},

		{name: "kill redis", targets: redis, weight: 3, least: s / 2, most: 5 * s, strikes: the("redis")},
		{name: "kill redis, data lost", targets: redis, weight: 3, least: s / 2, most: 5 * s, strikes: the("redis")},
		{name: "pause redis", targets: redis, weight: 2, pause: true, strikes: the("redis")},
		{name: "flush redis", targets: redis, weight: 2, strikes: the("redis")},
		{name: "flush scripts", targets: redis, weight: 1, strikes: the("redis")},

		{name: "kill kafka", targets: broker, weight: 3, least: s, most: 5 * s, takes: 8 * s, strikes: the("kafka")},
		{name: "pause kafka", targets: broker, weight: 2, pause: true, strikes: the("kafka")},
		{name: "kill mysql", targets: []string{"mysql"}, weight: 3, least: s / 2, most: 5 * s, takes: 3 * s, strikes: the("mysql")},
		{name: "pause mysql", targets: []string{"mysql"}, weight: 2, pause: true, strikes: the("mysql")},

		{name: "cut link", targets: links, weight: 4, least: s, most: 8 * s, strikes: between},
		{name: "partition link", targets: links, weight: 4, least: 2 * s, most: 10 * s, strikes: between},
		{name: "delay requests", targets: links, weight: 3, least: 3 * s, most: 10 * s, strikes: between},
		{name: "delay replies", targets: links, weight: 3, least: 3 * s, most: 10 * s, strikes: between},
		{name: "lose replies", targets: links, weight: 5, least: 3 * s, most: 8 * s, strikes: between},
		{name: "reset link", targets: links, weight: 3, least: 2 * s, most: 6 * s, strikes: between},

		{name: "reload caddy", targets: []string{"gateway1", "gateway2"}, weight: 3, least: s, most: 4 * s, strikes: whole},
		{name: "rebalance", weight: 3, least: 3 * s, most: 8 * s, strikes: the("worker3")},
		{name: "restock", weight: 2, strikes: the("stock")},
		{name: "correct stock", weight: 2, strikes: the("stock")},
		{name: "replace stock row", weight: 2, strikes: the("stock")},
		{name: "admin pause", weight: 1, least: 2 * s, most: 4 * s, strikes: the("activity")},
		{name: "compare", weight: 2, takes: s, strikes: the("command")},
		{name: "load", weight: 2, takes: 4 * s, strikes: the("command")},
		{name: "force", weight: 2, takes: 4 * s, strikes: the("command")},
	}
	if setup == Base || setup == Brokers {
		out = append(out,
			kind{name: "fail over redis", weight: 3, least: s, most: 4 * s, strikes: the("redis")},
			kind{name: "fail over redis, writes lost", weight: 3, least: s, most: 4 * s, strikes: the("redis")})
	}
	if setup == Sentinel { // whatever takes the primary away for long makes the sentinels promote a replica
		out = append(out, kind{name: "sentinel fail-over", weight: 6, least: 2 * s, most: 8 * s, takes: 5 * s, strikes: the("redis")})
	}
	return out
}

// Bounds of the schedule.
const (
	warmUp  = 8 * time.Second  // of undisturbed selling before the first fault
	coolOff = 12 * time.Second // after the last
)

// pairs is how often two faults come at once: one step in so many. The word Pairs among the kinds makes it every step that can.
const pairs = 4

// Pairs stands among the kinds of NewPlan for "two at once".
const Pairs = "pairs"

// NewPlan draws a run. only, if any, are the kinds to draw from, each by its name or as kind@target.
func NewPlan(setup Setup, seed uint64, length time.Duration, only ...string) (*Plan, error) {
	p := &Plan{Seed: seed, Setup: setup, Length: length, MaxPause: 30 * time.Second}
	if length <= 10*time.Minute {
		p.MaxPause = 10 * time.Second // a short run would otherwise be one long pause
	}
	every := pairs
	if i := slices.Index(only, Pairs); i >= 0 {
		every, only = 1, slices.Delete(slices.Clone(only), i, i+1)
	}
	from, err := choose(kinds(setup), only)
	if err != nil {
		return nil, fmt.Errorf("set-up %s: %w", setup, err)
	}
	r := rand.New(rand.NewPCG(seed, 0x5ec0))
	unseen := slices.Clone(from) // each kind comes once before any comes again by weight
	r.Shuffle(len(unseen), func(i, j int) { unseen[i], unseen[j] = unseen[j], unseen[i] })
	draw := func() kind {
		if len(unseen) > 0 && r.IntN(2) == 0 {
			k := unseen[0]
			unseen = unseen[1:]
			return k
		}
		return weighted(r, from)
	}
	for at := warmUp; at < length-coolOff; {
		step := Step{At: at}
		first := draw()
		f := first.fault(r, p.MaxPause)
		step.Faults = []Fault{f}
		takes := f.For + first.takes
		if r.IntN(every) == 0 {
			second := draw()
			g := second.fault(r, p.MaxPause)
			if first.strikes(f.Target) != second.strikes(g.Target) && first.name+second.name != "rebalancerebalance" {
				step.Faults = append(step.Faults, g)
				takes = max(takes, g.For+second.takes)
			}
		}
		p.Steps = append(p.Steps, step)
		at += takes + 4*time.Second + time.Duration(r.Int64N(int64(5*time.Second)))
	}
	return p, nil
}

// choose gives the kinds of which only names some, each as a kind or as kind@target.
func choose(all []kind, only []string) ([]kind, error) {
	if len(only) == 0 {
		return all, nil
	}
	var out []kind
	for _, word := range only {
		name, target, one := strings.Cut(word, "@")
		i := slices.IndexFunc(all, func(k kind) bool { return k.name == name })
		if i < 0 {
			names := make([]string, len(all))
			for i := range all {
				names[i] = all[i].name
			}
			return nil, fmt.Errorf("kind %q: there is no such fault; there are %q", name, names)
		}
		k := all[i]
		if one {
			if !slices.Contains(k.targets, target) {
				return nil, fmt.Errorf("kind %q: there is no %q; there are %q", name, target, k.targets)
			}
			k.targets = []string{target}
		}
		k.weight = 1
		out = append(out, k)
	}
	return out, nil
}

func weighted(r *rand.Rand, from []kind) kind {
	sum := 0
	for _, k := range from {
		sum += k.weight
	}
	n := r.IntN(sum)
	for _, k := range from {
		if n -= k.weight; n < 0 {
			return k
		}
	}
	return from[len(from)-1]
}

func (k *kind) fault(r *rand.Rand, maxPause time.Duration) Fault {
	f := Fault{Kind: k.name}
	if len(k.targets) > 0 {
		f.Target = k.targets[r.IntN(len(k.targets))]
	}
	least, most := k.least, k.most
	if k.pause {
		least, most = 5*time.Second, maxPause
	}
	if most > 0 {
		f.For = least + time.Duration(r.Int64N(int64(most-least)+1)).Round(100*time.Millisecond)
	}
	f.Draw = r.Uint64()
	return f
}

// Describe is the plan for people.
func (p *Plan) Describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, set-up %s, %s of sale, %d faults in %d steps:\n", p.Seed, p.Setup, p.Length, p.Faults(), len(p.Steps))
	for i, s := range p.Steps {
		fmt.Fprintf(&b, "  %3d  %6s  %s\n", i+1, s.At.Round(time.Second), s)
	}
	return b.String()
}
