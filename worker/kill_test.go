package main

import (
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/order"
)

// TestKilledAtEachStep: kill -9 before and after every step of landing; the next worker ends with every order landed once,
// settled once and marked.
func TestKilledAtEachStep(t *testing.T) {
	for _, step := range []string{"after_insert", "after_update", "after_commit:2", "after_settle:2", "after_mark"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			d := deploy(t, 2).sale(1000)
			accepted := d.accept(200)
			d.start(step, "run").killed(60 * time.Second)
			w := d.start("", "run")
			d.done(90 * time.Second)
			w.stop()
			d.exact(1000, accepted)
		})
	}
}

// TestE34WorkersComeAndGo: three workers share the partitions while orders come in; one after the other is killed or stopped and
// another one started.
func TestE34WorkersComeAndGo(t *testing.T) {
	t.Parallel()
	d := deploy(t, 6).sale(20_000)
	workers := []*child{d.start("", "run"), d.start("", "run"), d.start("", "run")}
	var accepted []*order.Order
	for round := range 6 {
		accepted = append(accepted, d.accept(1000)...)
		victim := workers[round%3]
		if round%2 == 0 {
			victim.kill()
		} else {
			victim.stop()
		}
		workers[round%3] = d.start("", "run")
	}
	d.done(120 * time.Second)
	for _, w := range workers {
		w.stop()
	}
	d.exact(20_000, accepted)
}
