package landing

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the worker's figures. No label is under the control of a buyer.
type Metrics struct {
	batchOrders prometheus.Histogram
	batchLimit  prometheus.Gauge
	transaction prometheus.Histogram
	settle      prometheus.Histogram
	orders      *prometheus.CounterVec // outcome
	settles     *prometheus.CounterVec // answer
	retries     *prometheus.CounterVec // step
	deadLetters *prometheus.CounterVec // cause
	sessions    prometheus.Counter
	lagMessages *prometheus.GaugeVec // partition
	lagSeconds  *prometheus.GaugeVec // partition
}

// NewMetrics makes the figures and registers them; r may be nil.
func NewMetrics(r prometheus.Registerer) *Metrics {
	const ns, sub = "seckill", "worker"
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help, Buckets: buckets})
	}
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}, []string{label})
	}
	gauge := func(name, help, label string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}, []string{label})
	}
	m := &Metrics{
		batchOrders: histogram("batch_orders", "Orders per transaction.", prometheus.ExponentialBuckets(1, 2, 13)),
		batchLimit: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: "batch_limit",
			Help: "Most orders of one transaction at the moment, of the item that is worst off: below landing.max_orders after repeated deadlocks or lock timeouts.",
		}),
		transaction: histogram("transaction_seconds", "Time of one landing transaction, failed ones included.", prometheus.ExponentialBuckets(0.001, 2, 15)),
		settle:      histogram("settle_seconds", "Time of one settlement in Redis.", prometheus.ExponentialBuckets(0.0002, 2, 15)),
		orders:      counter("orders_total", "Orders decided by MySQL, repeated deliveries included.", "outcome"),
		settles:     counter("settles_total", "Settlements by Redis's answer: done, not_loaded, broken.", "answer"),
		retries:     counter("retries_total", "Steps that failed and were tried again in place.", "step"),
		deadLetters: counter("dead_letters_total", "Records that could never become orders.", "cause"),
		sessions:    prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "sessions_total", Help: "Consumer group sessions begun; each further one is a rebalance."}),
		lagMessages: gauge("lag_messages", "Records in Kafka that are not landed yet.", "partition"),
		lagSeconds:  gauge("lag_seconds", "Age of the oldest record that is not landed yet; 0 when there is none.", "partition"),
	}
	if r != nil {
		r.MustRegister(m.batchOrders, m.batchLimit, m.transaction, m.settle, m.orders, m.settles, m.retries, m.deadLetters,
			m.sessions, m.lagMessages, m.lagSeconds)
	}
	return m
}
