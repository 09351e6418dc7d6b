package caddymodule

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// figures are what the clients count by themselves. It is read when somebody asks for the metrics, so that no request
// pays for it.
type figures struct {
	open, undecided, waiting, publishing int
	oldestUnacked                        time.Duration
	unhealthy                            int            // producers that take no orders
	activities                           map[string]int // by what the gate says of them
	idleConns, usedConns                 int
	totals
}

// totals only grow.
type totals struct {
	acked, notSent, unknown           uint64
	acksDropped, republished, fenced  int64
	poolHits, poolMisses, poolTimeout uint64
}

func (t *totals) add(o totals) {
	t.acked += o.acked
	t.notSent += o.notSent
	t.unknown += o.unknown
	t.acksDropped += o.acksDropped
	t.republished += o.republished
	t.fenced += o.fenced
	t.poolHits += o.poolHits
	t.poolMisses += o.poolMisses
	t.poolTimeout += o.poolTimeout
}

// figures reads them off.
func (c *core) figures(now time.Time) figures {
	e, p, r := c.Stats(), c.producer.Stats(), c.redis.PoolStats()
	f := figures{
		open: e.Open, undecided: e.Undecided, waiting: e.Waiters, publishing: int(p.InFlight),
		oldestUnacked: c.producer.OldestUnacked(), activities: c.gate.States(now),
		idleConns: int(r.IdleConns), usedConns: int(r.TotalConns) - int(r.IdleConns),
		totals: totals{
			acked: p.Acked, notSent: p.NotSent, unknown: p.Unknown,
			acksDropped: e.AcksDropped, republished: e.Republished, fenced: e.FencedRefusals,
			poolHits: uint64(r.Hits), poolMisses: uint64(r.Misses), poolTimeout: uint64(r.Timeouts),
		},
	}
	if c.producer.Healthy() != nil {
		f.unhealthy = 1
	}
	return f
}

// figureCollector shows the figures of the clients that live, usually one set of them, and the totals of those that have been
// closed: a reload does not make a counter fall.
type figureCollector struct {
	mu   sync.Mutex
	live map[backend]struct{}
	past totals
}

var allFigures = figureCollector{live: make(map[backend]struct{})}

// begin counts clients in.
func (c *figureCollector) begin(b backend) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live[b] = struct{}{}
}

// end keeps the totals of clients that are about to be closed.
func (c *figureCollector) end(b backend) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.live, b)
	c.past.add(b.figures(time.Now()).totals)
}

// read sums up.
func (c *figureCollector) read() figures {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := figures{activities: map[string]int{}, totals: c.past}
	for b := range c.live {
		f := b.figures(now)
		sum.open += f.open
		sum.undecided += f.undecided
		sum.waiting += f.waiting
		sum.publishing += f.publishing
		sum.oldestUnacked = max(sum.oldestUnacked, f.oldestUnacked)
		sum.unhealthy += f.unhealthy
		for state, n := range f.activities {
			sum.activities[state] = max(sum.activities[state], n) // during a reload two look at the same sales
		}
		sum.idleConns += f.idleConns
		sum.usedConns += f.usedConns
		sum.totals.add(f.totals)
	}
	return sum
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("seckill_"+name, help, labels, nil)
}

var (
	openDesc        = describe("orders_in_work", "Orders in work, from before the reservation until they are published, refused or decided.")
	undecidedDesc   = describe("orders_undecided", "Orders whose reservation is not known to have been made or not.")
	waitingDesc     = describe("waiting_buyers", "Buyers that wait for an outcome by long-poll or stream.")
	publishingDesc  = describe("kafka_in_flight", "Orders that are queued for Kafka or on their way to it.")
	oldestDesc      = describe("kafka_oldest_unacked_seconds", "Age of the oldest order that Kafka has not acknowledged.")
	unhealthyDesc   = describe("kafka_unhealthy", "1 while Kafka, or a part of it, takes no orders.")
	messagesDesc    = describe("kafka_messages_total", "Orders by what became of their publication.", "result")
	activitiesDesc  = describe("activities", "Activities by what this gateway answers for them from memory.", "state")
	connsDesc       = describe("redis_connections", "Connections to Redis.", "state")
	poolDesc        = describe("redis_pool_total", "Connections asked for: an idle one was there (hit), a new one was made (miss), none came in time (timeout).", "result")
	acksDroppedDesc = describe("queue_positions_dropped_total", "Offsets that were not kept, so that their buyers see no position.")
	republishedDesc = describe("orders_republished_total", "Orders published again by a repeat of their request.")
	fencedDesc      = describe("refusals_fenced_total", "Refusals that had to be fenced before they were told.")
)

// Describe implements prometheus.Collector.
func (c *figureCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		openDesc, undecidedDesc, waitingDesc, publishingDesc, oldestDesc, unhealthyDesc, messagesDesc, activitiesDesc, connsDesc,
		poolDesc, acksDroppedDesc, republishedDesc, fencedDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *figureCollector) Collect(ch chan<- prometheus.Metric) {
	f := c.read()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge(openDesc, float64(f.open))
	gauge(undecidedDesc, float64(f.undecided))
	gauge(waitingDesc, float64(f.waiting))
	gauge(publishingDesc, float64(f.publishing))
	gauge(oldestDesc, f.oldestUnacked.Seconds())
	gauge(unhealthyDesc, float64(min(f.unhealthy, 1)))
	count(messagesDesc, float64(f.acked), "acked")
	count(messagesDesc, float64(f.notSent), "not_sent")
	count(messagesDesc, float64(f.unknown), "unknown")
	for state, n := range f.activities {
		gauge(activitiesDesc, float64(n), state)
	}
	gauge(connsDesc, float64(f.idleConns), "idle")
	gauge(connsDesc, float64(f.usedConns), "used")
	count(poolDesc, float64(f.poolHits), "hit")
	count(poolDesc, float64(f.poolMisses), "miss")
	count(poolDesc, float64(f.poolTimeout), "timeout")
	count(acksDroppedDesc, float64(f.acksDropped))
	count(republishedDesc, float64(f.republished))
	count(fencedDesc, float64(f.fenced))
}

var _ prometheus.Collector = (*figureCollector)(nil)
