package outbox

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	events  *prometheus.CounterVec // listener, outcome
	seconds *prometheus.HistogramVec
	waiting *prometheus.GaugeVec
	oldest  *prometheus.GaugeVec
	leads   *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	const ns, sub = "seckill", "worker"
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}, []string{"listener"})
	}
	m := &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "outbox_events_total",
			Help: "Outcomes by what became of telling them: told, failed (tried again), gone (the order's row was deleted), given_up (older than outbox.keep).",
		}, []string{"listener", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "outbox_delivery_seconds", Help: "Time of one delivery, failed ones included.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"listener"}),
		waiting: gauge("outbox_waiting", "Outcomes in the outbox, of all workers together, counted up to 100000."),
		oldest:  gauge("outbox_oldest_seconds", "Age of the oldest outcome in the outbox; 0 when there is none."),
		leads:   gauge("outbox_leads", "1 in the worker that tells this listener, 0 in the others."),
	}
	if r != nil {
		r.MustRegister(m.events, m.seconds, m.waiting, m.oldest, m.leads)
	}
	return m
}
