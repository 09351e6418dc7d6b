package chaos

import (
	"slices"
	"testing"
	"time"
)

func TestPlanIsDecidedByItsSeed(t *testing.T) {
	plan := func(seed uint64) string {
		p, err := NewPlan(Base, seed, 20*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return p.Describe()
	}
	first := plan(7)
	if again := plan(7); again != first {
		t.Error("one seed gives two plans")
	}
	if plan(8) == first {
		t.Error("two seeds give one plan")
	}
}

func TestPlanHasFaultsEnough(t *testing.T) {
	for _, setup := range []Setup{Base, Cluster, Sentinel, Brokers} {
		for seed := range uint64(50) {
			for minutes, least := range map[int]int{5: 10, 20: 40} {
				p, err := NewPlan(setup, seed, time.Duration(minutes)*time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				if n := p.Faults(); n < least {
					t.Errorf("%s, seed %d: %d faults in %d minutes, want %d", setup, seed, n, minutes, least)
				}
				pairs := 0
				for i, s := range p.Steps {
					if len(s.Faults) == 2 {
						pairs++
					}
					if s.At >= p.Length || i > 0 && s.At <= p.Steps[i-1].At {
						t.Errorf("%s, seed %d: step %d begins at %s", setup, seed, i+1, s.At)
					}
					for _, f := range s.Faults {
						if f.For > p.MaxPause {
							t.Errorf("%s, seed %d: %s is longer than %s", setup, seed, f, p.MaxPause)
						}
					}
				}
				if minutes == 20 && pairs == 0 {
					t.Errorf("%s, seed %d: no faults in pairs", setup, seed)
				}
			}
		}
	}
}

// Over some runs everything is struck: each kind, and each target of a kind.
func TestPlansLeaveNothingOut(t *testing.T) {
	for _, setup := range []Setup{Base, Cluster, Sentinel, Brokers} {
		seen := map[string]bool{}
		for seed := range uint64(60) {
			p, err := NewPlan(setup, seed, 20*time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range p.Steps {
				for _, f := range s.Faults {
					seen[f.Kind+" "+f.Target] = true
				}
			}
		}
		for _, k := range kinds(setup) {
			targets := k.targets
			if targets == nil {
				targets = []string{""}
			}
			for _, target := range targets {
				if !seen[k.name+" "+target] {
					t.Errorf("%s: 60 runs never %s %s", setup, k.name, target)
				}
			}
		}
	}
}

func TestPlanOfSomeKinds(t *testing.T) {
	p, err := NewPlan(Base, 1, 5*time.Minute, "kill@worker2", "force")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range p.Steps {
		for _, f := range s.Faults {
			if !slices.Contains([]string{"kill worker2", "force "}, f.Kind+" "+f.Target) {
				t.Errorf("%s was not asked for", f)
			}
		}
	}
	if p, err = NewPlan(Base, 1, 5*time.Minute, Pairs, "kill", "pause redis"); err != nil {
		t.Fatal(err)
	}
	if p.Faults() < len(p.Steps)*5/4 {
		t.Errorf("%d faults in %d steps, want most in pairs", p.Faults(), len(p.Steps))
	}
	for _, word := range []string{"earthquake", "kill@redis"} {
		if _, err := NewPlan(Base, 1, 5*time.Minute, "kill", word); err == nil {
			t.Errorf("%q, which does not exist, is taken", word)
		}
	}
}
