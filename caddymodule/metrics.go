package caddymodule

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seckillgate/seckillgate/internal/edge"
)

// The collectors live as long as the process, so that their figures survive reloads; each configuration registers them
// with its own registry. No label holds anything that an outsider can choose.
var (
	requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "seckill", Name: "requests_total",
		Help: "Requests answered, by activity (empty where it is not known to exist) and outcome.",
	}, []string{"activity", "outcome"})

	reserveSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "seckill", Name: "reserve_duration_seconds",
		Help:    "Time of one reserve call to Redis, which carries a batch.",
		Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2},
	}, []string{"result"})

	batchSize = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: "seckill", Name: "reserve_batch_size",
		Help:    "Reservations in one reserve call.",
		Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128},
	})

	publishSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "seckill", Name: "publish_duration_seconds",
		Help:    "Time from handing an order to Kafka to its acknowledgement by all in-sync replicas.",
		Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5},
	}, []string{"result"})

	rateFallbacks = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "seckill", Name: "rate_limit_fallbacks_total",
		Help: "Requests that a rate limit of scope cluster judged by this gateway's own share, since Redis did not answer.",
	})
)

func registerMetrics(ctx caddy.Context) error {
	reg := ctx.GetMetricsRegistry()
	if reg == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{requests, reserveSeconds, batchSize, publishSeconds, rateFallbacks, &allFigures} {
		if err := reg.Register(c); err != nil && !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
			return err
		}
	}
	return nil
}

// byResult are a histogram's two labelled halves, at hand, since looking one up by its label costs as much as to count.
type byResult struct{ ok, failed prometheus.Observer }

func newByResult(h *prometheus.HistogramVec) byResult {
	return byResult{h.WithLabelValues("ok"), h.WithLabelValues("error")}
}

func (b byResult) observe(took time.Duration, err error) {
	if err != nil {
		b.failed.Observe(took.Seconds())
		return
	}
	b.ok.Observe(took.Seconds())
}

var reserved, published = newByResult(reserveSeconds), newByResult(publishSeconds)

func observeReserve(_ int64, batch int, took time.Duration, err error) {
	reserved.observe(took, err)
	batchSize.Observe(float64(batch))
}

func observePublish(_ int64, took time.Duration, err error) { published.observe(took, err) }

// maxActivityLabels bounds the label where a shop has very many sales; the rest is counted as "other".
const maxActivityLabels = 500

// requestCounters keeps the counters at hand: looking one up by its labels costs more than the refusal that it counts.
type requestCounters struct {
	mu         sync.RWMutex
	byKey      map[requestKey]requestCounter
	activities map[int64]bool
}

type requestCounter struct {
	prometheus.Counter
	activity any // the id as a placeholder's value, boxed once; nil where there is none
}

type requestKey struct {
	activity int64
	outcome  edge.Reason
}

var counters = requestCounters{byKey: make(map[requestKey]requestCounter), activities: make(map[int64]bool)}

// count counts a request. The activity is 0 unless it is known to exist; it comes back as a placeholder's value.
func (c *requestCounters) count(activity int64, outcome edge.Reason) any {
	key := requestKey{activity, outcome}
	c.mu.RLock()
	counter, ok := c.byKey[key]
	c.mu.RUnlock()
	if !ok {
		counter = c.add(key)
	}
	counter.Inc()
	return counter.activity
}

func (c *requestCounters) add(key requestKey) requestCounter {
	c.mu.Lock()
	defer c.mu.Unlock()
	if counter, ok := c.byKey[key]; ok {
		return counter
	}
	var activity any
	label := ""
	if key.activity != 0 {
		label = strconv.FormatInt(key.activity, 10)
		activity = label
		if !c.activities[key.activity] && len(c.activities) >= maxActivityLabels {
			label = "other"
		} else {
			c.activities[key.activity] = true
		}
	}
	outcome := string(key.outcome)
	if key.outcome == edge.Accepted {
		outcome = "accepted"
	}
	counter := requestCounter{requests.WithLabelValues(label, outcome), activity}
	if label != "other" {
		c.byKey[key] = counter
	}
	return counter
}

// note counts an outcome and sets the placeholders {seckill.outcome} and, where the activity is known to exist,
// {seckill.activity}.
func note(r *http.Request, activity int64, reason edge.Reason, outcome any) {
	repl := replacer(r)
	if known := counters.count(activity, reason); known != nil {
		repl.Set("seckill.activity", known)
	}
	repl.Set("seckill.outcome", outcome)
	repl.Map(unset)
}

// unset makes those of our placeholders that an outcome leaves unset empty. Asked after all others, it is for `header` and
// the like, which leave a placeholder that nobody knows as it is written.
func unset(name string) (any, bool) {
	switch name {
	case "seckill.order_id", "seckill.activity", "seckill.message", "seckill.detail", "seckill.starts_at", "seckill.status_url":
		return "", true
	}
	return nil, false
}
