package gate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// Every change of a sale's state is told once, the first look is no change, and the counts follow.
func TestChangesAndStates(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var told []string
	a, quiet := sale(1), sale(2)
	a.Title = "a phone"
	src := newSource(a, quiet)
	g := New(src, Options{
		InspectPoll: time.Millisecond, CataloguePoll: time.Millisecond, StaleAfter: 5 * time.Second,
		OnChange: func(c Change) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf("%d %s %s>%s", c.Activity.ID, c.Activity.Title, c.From, c.To))
		},
	})
	if n := g.States(time.Now()); n["open"] != 0 || len(n) != len(states) {
		t.Errorf("before the start: %v", n)
	}
	g.Start()
	defer g.Stop()
	looked := func() {
		n := src.looks.Load()
		eventually(t, "three more looks", func() bool { return src.looks.Load() >= n+3 })
	}
	is := func(state string, want int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d to be %s", want, state), func() bool { return g.States(time.Now())[state] == want })
	}
	is("open", 2)
	looked()
	show := func(change func(*ledger.Snapshot)) {
		src.set(func() {
			s := src.snaps[1]
			change(&s)
			src.snaps[1] = s
		})
		looked()
	}
	show(func(s *ledger.Snapshot) { s.Available = 0 })
	is("sold_out", 1)
	is("open", 1)
	show(func(s *ledger.Snapshot) { s.Available = 5 })
	show(func(s *ledger.Snapshot) { s.State = ledger.Paused })
	is("paused", 1)
	show(func(s *ledger.Snapshot) { s.State = ledger.Open })
	src.set(func() { src.err = errors.New("redis is down") })
	is("unavailable", 2)
	src.set(func() { src.err = nil })
	is("open", 2)
	looked()
	mu.Lock()
	defer mu.Unlock()
	// States and the looks notice an outage each in its own time, so it need not have been told of both.
	told = slices.DeleteFunc(told, func(s string) bool { return strings.Contains(s, "unavailable") })
	want := []string{"1 a phone open>sold_out", "1 a phone sold_out>open", "1 a phone open>paused", "1 a phone paused>open"}
	if !slices.Equal(told, want) {
		t.Errorf("got %q, want %q", told, want)
	}
}
