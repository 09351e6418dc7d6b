package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
	"github.com/seckillgate/seckillgate/internal/told"
)

// TestCrashPointsOfTheWorker: kill -9 before and after every statement, COMMIT, settle and offset mark, each at its first time and
// some later, in a sale that has a bit of everything: orders that fit and that do not, copies, and a record that can never be an
// order. The next worker ends it as if nothing had happened.
func TestCrashPointsOfTheWorker(t *testing.T) {
	t.Parallel()
	points := []string{
		"before_insert", "after_insert", "after_insert:2", "after_update", "before_commit:2", "after_commit", "after_commit:2",
		"mid_settle", "mid_settle:2", "after_settle", "after_settle:2", "after_mark", "after_dead_letter", "after_record",
	}
	// A dead worker keeps its partitions for six seconds, so all of them die at the same time.
	sales := make([]*troubledSale, len(points))
	for i, point := range points {
		sales[i] = newTroubledSale(t)
		sales[i].worker = sales[i].start(point, "run")
	}
	for i, s := range sales {
		t.Logf("crash point %s", points[i])
		s.worker.killed(2 * time.Minute)
		s.worker = s.start("", "run")
	}
	for i, s := range sales {
		t.Logf("crash point %s", points[i])
		s.done(3 * time.Minute)
		s.worker.stop()
		s.judge()
	}
}

// troubledSale is a sale with everything in it that landing has to decide.
type troubledSale struct {
	*deployment
	worker *child
	units  int64
	told   []told.Record
}

func newTroubledSale(t *testing.T) *troubledSale {
	t.Helper()
	s := &troubledSale{deployment: deploy(t, 2).sale(1000)}
	s.configure("landing: {max_orders: 100}")
	accepted := s.accept(240)
	for _, o := range accepted[20:100] { // delivered again
		s.producerRaw(o.ID, mustEncode(t, o))
	}
	poison := s.reserve(1)[0]
	poison.Quantity = -3
	value, err := json.Marshal(poison)
	if err != nil {
		t.Fatal(err)
	}
	s.producerRaw(poison.ID, value)
	// A correction by the shop's own hand, which the edge did not know of: some of what was accepted does not fit.
	const taken = 600
	s.units = 1000 - taken
	if _, err := s.store.DB().ExecContext(t.Context(), "UPDATE inventory SET stock = stock - ? WHERE item_id = ?", taken, s.item); err != nil {
		t.Fatal(err)
	}
	for _, o := range append(accepted, poison) {
		s.told = append(s.told, toldQueued(o))
	}
	return s
}

func toldQueued(o *order.Order) told.Record {
	return told.Record{Activity: o.Activity, User: o.User, Quantity: o.Quantity, HTTP: http.StatusAccepted, Answer: "queued", OrderID: o.ID}
}

// judge checks I1 to I4, and that no unit was left lying that an order wanted.
func (s *troubledSale) judge() {
	s.t.Helper()
	r := s.check(s.units, s.told)
	if r.Totals.Left > 2 { // an order for up to three units failed for want of stock
		s.t.Errorf("%d units were not sold", r.Totals.Left)
	}
	if n := r.Totals.SoldOrders + r.Totals.DeadOrders; n != len(s.told) {
		s.t.Errorf("%d orders in mysql, want %d", n, len(s.told))
	}
	if r.Totals.DeadOrders < 2 {
		s.t.Errorf("%d orders failed: the sale had nothing to refuse", r.Totals.DeadOrders)
	}
}

// TestE34StoppedWorkerComesBack: a worker stands still for longer than its group waits for it, as on a machine that is moved, and then
// goes on with the batch that it had in hand. Meanwhile another has its partition: two hold it for a while.
func TestE34StoppedWorkerComesBack(t *testing.T) {
	t.Parallel()
	d := deploy(t, 1).sale(20_000)
	d.edit("level: warn", "level: debug")
	d.configure("landing: {max_orders: 10}")
	accepted := d.accept(2000)
	first := d.start("", "run")
	testenv.Eventually(t, 2*time.Minute, "the first worker is landing", func() bool { return strings.Contains(first.log.String(), "batch landed") })
	before := first.generation()
	first.signal(syscall.SIGSTOP)
	second := d.start("", "run")
	testenv.Eventually(t, 2*time.Minute, "the second worker has the partition", func() bool { return second.generation() > before })
	first.signal(syscall.SIGCONT)
	testenv.Eventually(t, 2*time.Minute, "the first worker is in the group again", func() bool { return first.generation() > before })
	accepted = append(accepted, d.accept(200)...)
	d.done(3 * time.Minute)
	first.stop()
	second.stop()
	records := make([]told.Record, len(accepted))
	for i, o := range accepted {
		records[i] = toldQueued(o)
	}
	d.check(20_000, records)
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}
