package runner

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seckillgate/seckillgate/internal/syncer/compare"
	"github.com/seckillgate/seckillgate/internal/syncer/load"
)

// Metrics are the syncer's figures. It implements follow.Metrics.
type Metrics struct {
	leader, activities, closed, lag, silence prometheus.Gauge
	lost                                     prometheus.Gauge
	transactions, rows, loadAgain            prometheus.Counter
	loadsDone, loadsFailed, runs             prometheus.Counter
	doubts, repairs                          *prometheus.CounterVec
	apply, closedFor, compareTook            prometheus.Histogram
}

// NewMetrics makes the figures and registers them, where there is a registry.
func NewMetrics(r prometheus.Registerer) *Metrics {
	const ns, sub = "seckill", "syncer"
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help, Buckets: buckets})
	}
	m := &Metrics{
		leader:       gauge("leader", "1 while this syncer leads."),
		activities:   gauge("activities", "Activities that Redis should have."),
		closed:       gauge("activities_not_loaded", "Activities that are closed until they are loaded."),
		lag:          gauge("binlog_lag_seconds", "Age of the last transaction that Redis has, while there are newer ones; else 0."),
		silence:      gauge("binlog_silence_seconds", "Time since MySQL last said anything, heartbeats included."),
		lost:         gauge("lost_orders", "Orders that had landed and that MySQL no longer has."),
		transactions: counter("binlog_transactions_total", "Transactions of the watched tables that were applied to Redis."),
		rows:         counter("binlog_rows_total", "Rows of those transactions."),
		loadAgain:    counter("binlog_load_again_total", "Times the binlog could not be trusted and everything was loaded again."),
		loadsDone:    counter("loads_total", "Activities loaded."),
		loadsFailed:  counter("loads_failed_total", "Loads that failed and were tried again."),
		runs:         counter("compare_runs_total", "Comparisons."),
		apply:        histogram("binlog_apply_seconds", "Time to apply one transaction to Redis.", prometheus.ExponentialBuckets(0.0002, 2, 14)),
		closedFor:    histogram("load_closed_seconds", "How long a load kept its activity closed.", prometheus.ExponentialBuckets(0.05, 2, 14)),
		compareTook:  histogram("compare_seconds", "How long a comparison took.", prometheus.ExponentialBuckets(0.002, 2, 16)),
	}
	m.doubts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: ns, Subsystem: sub, Name: "binlog_doubts_total",
		Help: "Rows or statements of the binlog that were not certain and were read from MySQL, or led to a load.",
	}, []string{"table"})
	m.repairs = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: ns, Subsystem: sub, Name: "repairs_total", Help: "Differences between MySQL and Redis that were mended.",
	}, []string{"kind"})
	if r != nil {
		r.MustRegister(m.leader, m.activities, m.closed, m.lag, m.silence, m.lost, m.transactions, m.rows, m.loadAgain, m.loadsDone,
			m.loadsFailed, m.runs, m.apply, m.closedFor, m.compareTook, m.doubts, m.repairs)
	}
	return m
}

// Applied implements follow.Metrics.
func (m *Metrics) Applied(rows int, took time.Duration) {
	m.transactions.Inc()
	m.rows.Add(float64(rows))
	m.apply.Observe(took.Seconds())
}

// Doubt implements follow.Metrics.
func (m *Metrics) Doubt(table string) {
	if table == "" {
		table = "unknown"
	}
	m.doubts.WithLabelValues(table).Inc()
}

func (m *Metrics) loaded(r load.Report) {
	m.loadsDone.Inc()
	m.closedFor.Observe(float64(r.ClosedMs) / 1000)
}

func (m *Metrics) compared(r *compare.Report) {
	m.runs.Inc()
	m.lost.Set(float64(r.LostOrders))
	m.compareTook.Observe(float64(r.TookMs) / 1000)
	for i := range r.Activities {
		for _, repair := range r.Activities[i].Repairs {
			m.repairs.WithLabelValues(string(repair.Kind)).Inc()
		}
	}
}
