package main

import (
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
	"github.com/seckillgate/seckillgate/internal/told"
)

// TestE34HundredThousandOrders lands 100,000 orders of one item, half of them delivered twice and out of order, while workers come
// and go, 20 rebalances and more, two of them by kill -9. It ends with I1 to I4 exact.
//
// Each copy of an order is in a partition of its own choice, so that different workers hold copies of one order and the same hot
// row at the same time: harder than the gateway makes it, which keys by activity.
func TestE34HundredThousandOrders(t *testing.T) {
	const (
		orders     = 100_000
		partitions = 6
		changes    = 22 // of the group's members; each is a rebalance
		taken      = 1500
	)
	d := deploy(t, partitions).sale(2 * orders)
	d.edit("level: warn", "level: debug")
	d.configure("landing: {max_orders: 40}") // many small transactions, so that every change finds some of them running
	all := d.reserve(orders)
	// A correction by the shop's own hand: what the last orders want is not there, and they fail.
	if _, err := d.store.DB().ExecContext(t.Context(), "UPDATE inventory SET stock = stock - ? WHERE item_id = ?", taken, d.item); err != nil {
		t.Fatal(err)
	}
	copies := append([]*order.Order(nil), all[:orders/2]...)
	rand.Shuffle(len(copies), func(i, j int) { copies[i], copies[j] = copies[j], copies[i] })
	flood := d.flooder(partitions)
	flood(all)

	binary(t) // made now, so that it is no part of the time that is told below
	began := time.Now()
	crew := &crew{d: d}
	for range 3 {
		crew.join()
	}
	killed := 0
	for n := range changes {
		flood(copies[n*len(copies)/changes : (n+1)*len(copies)/changes])
		switch {
		case n%2 == 0:
			crew.join()
		case n == 5 || n == 15:
			crew.leave((*child).kill)
			killed++
		default:
			crew.leave((*child).stop)
		}
	}
	d.done(4 * time.Minute)
	took := time.Since(began)
	crew.stop()

	records := make([]told.Record, len(all))
	for i, o := range all {
		records[i] = toldQueued(o)
	}
	r := d.check(2*orders-taken, records)
	if r.Totals.Left > 2 || r.Totals.SoldOrders+r.Totals.DeadOrders != orders {
		t.Errorf("%d units left, %d orders sold, %d failed: want everything sold and %d orders", r.Totals.Left, r.Totals.SoldOrders, r.Totals.DeadOrders, orders)
	}
	letters, err := d.admin.HighWater(t.Context(), d.kafka.Topics.DeadLetters)
	if err != nil || letters[0] != 0 {
		t.Errorf("%d dead letters, %v: want none", letters[0], err)
	}
	rebalances := crew.generation() - 1
	if rebalances < 20 || killed != 2 {
		t.Errorf("%d rebalances and %d kills: want at least 20 and 2", rebalances, killed)
	}
	t.Logf("%d orders in %.1f s: %d rebalances, %d kills, %d records in kafka, %d landed, so %d by redelivery",
		orders, took.Seconds(), rebalances, killed, len(all)+len(copies), crew.landed(), crew.landed()-len(all)-len(copies))
}

// flooder gives a function that sends orders in large batches, each to a partition at random.
func (d *deployment) flooder(partitions int32) func([]*order.Order) {
	d.t.Helper()
	cfg, err := d.kafka.Sarama()
	if err != nil {
		d.t.Fatal(err)
	}
	cfg.Producer.Partitioner = sarama.NewManualPartitioner
	p, err := sarama.NewSyncProducer(d.kafka.Brokers, cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = p.Close() })
	return func(orders []*order.Order) {
		d.t.Helper()
		messages := make([]*sarama.ProducerMessage, len(orders))
		for i, o := range orders {
			messages[i] = &sarama.ProducerMessage{
				Topic: d.kafka.Topics.Orders, Partition: rand.Int32N(partitions),
				Key: sarama.StringEncoder(strconv.FormatInt(o.Activity, 10)), Value: sarama.ByteEncoder(mustEncode(d.t, o)),
			}
		}
		if err := p.SendMessages(messages); err != nil {
			d.t.Fatal(err)
		}
	}
}

// crew is the workers of a group, the longest-serving first.
type crew struct {
	d      *deployment
	active []*child
	gone   []*child
}

// join starts a worker and waits until the group has taken it in.
func (c *crew) join() {
	c.d.t.Helper()
	w := c.d.start("", "run")
	c.active = append(c.active, w)
	testenv.Eventually(c.d.t, 2*time.Minute, "the new worker has joined the group", func() bool { return w.generation() > 0 })
}

// leave ends the longest-serving worker by the given means and waits until the others have gone on without it.
func (c *crew) leave(end func(*child)) {
	c.d.t.Helper()
	before := c.generation()
	end(c.active[0])
	c.gone, c.active = append(c.gone, c.active[0]), c.active[1:]
	testenv.Eventually(c.d.t, 2*time.Minute, "the others have shared its partitions", func() bool { return c.generation() > before })
}

func (c *crew) stop() {
	c.d.t.Helper()
	for _, w := range c.active {
		w.stop()
	}
}

// generation is the latest that any worker has seen of the group; each rebalance makes a new one.
func (c *crew) generation() int {
	latest := 0
	for _, w := range append(c.gone, c.active...) {
		latest = max(latest, w.generation())
	}
	return latest
}

// landed is how many records were landed, each as often as it was delivered.
func (c *crew) landed() int {
	n := 0
	for _, w := range append(c.gone, c.active...) {
		for _, m := range landedRange.FindAllStringSubmatch(w.log.String(), -1) {
			from, _ := strconv.Atoi(m[1])
			to, _ := strconv.Atoi(m[2])
			n += to - from + 1
		}
	}
	return n
}

var (
	joinedAs    = regexp.MustCompile(`joined the consumer group.*"generation": (\d+)`)
	landedRange = regexp.MustCompile(`batch landed.*"from": (\d+), "to": (\d+)`)
)

// generation is the latest session of this worker, 0 before the first.
func (c *child) generation() int {
	text := c.log.String()
	m := joinedAs.FindStringSubmatch(text[max(0, strings.LastIndex(text, "joined the consumer group")):])
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n
}
