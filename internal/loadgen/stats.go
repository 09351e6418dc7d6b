package loadgen

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/seckillgate/seckillgate/internal/told"
)

// Bounds of what is measured, in microseconds, and the precision kept.
const (
	lowestMicros  = 1
	highestMicros = int64(10 * time.Minute / time.Microsecond)
	digits        = 3
)

// Stats collects what the buyers saw, over one run or several.
type Stats struct {
	mu       sync.Mutex
	counts   map[string]int64
	causes   map[string]int64
	all      *hdrhistogram.Histogram
	accepted *hdrhistogram.Histogram
	refused  *hdrhistogram.Histogram
	final    map[string]int64
	inFlight int64
	late     int64
	began    time.Time
	ended    time.Time
}

// NewStats makes empty ones.
func NewStats() *Stats {
	h := func() *hdrhistogram.Histogram { return hdrhistogram.New(lowestMicros, highestMicros, digits) }
	return &Stats{counts: map[string]int64{}, causes: map[string]int64{}, final: map[string]int64{}, all: h(), accepted: h(), refused: h()}
}

func (s *Stats) start(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began.IsZero() {
		s.began = now
	}
	s.ended = time.Time{}
}

func (s *Stats) end(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = now
}

func (s *Stats) sent(late bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight++
	if late {
		s.late++
	}
}

// maxCauses bounds how many causes of unknown requests are told apart; the rest count as "other".
const maxCauses = 20

// answered counts a request that has ended under its answer, with its latency.
func (s *Stats) answered(rec *told.Record, took time.Duration) {
	micros := min(max(took.Microseconds(), lowestMicros), highestMicros)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
	s.counts[rec.Answer]++
	_ = s.all.RecordValue(micros) // within bounds by the line above
	switch {
	case rec.Accepted():
		_ = s.accepted.RecordValue(micros)
	case rec.Refused():
		_ = s.refused.RecordValue(micros)
	default:
		c := rec.Cause
		if _, known := s.causes[c]; !known && len(s.causes) >= maxCauses {
			c = "other"
		}
		s.causes[c]++
	}
}

func (s *Stats) finally(status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.final[status]++
}

// Latency holds a distribution's usual figures.
type Latency struct {
	Count int64         `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	P90   time.Duration `json:"p90_ns"`
	P99   time.Duration `json:"p99_ns"`
	P999  time.Duration `json:"p999_ns"`
	Max   time.Duration `json:"max_ns"`
}

func latency(h *hdrhistogram.Histogram) Latency {
	at := func(q float64) time.Duration { return time.Duration(h.ValueAtQuantile(q)) * time.Microsecond }
	return Latency{
		Count: h.TotalCount(), P50: at(50), P90: at(90), P99: at(99), P999: at(99.9),
		Max: time.Duration(h.Max()) * time.Microsecond,
	}
}

// Figures are a copy of the Stats at one moment.
type Figures struct {
	Elapsed  time.Duration    `json:"elapsed_ns"`
	Answers  map[string]int64 `json:"answers"`           // by status (accepted), reason (refused) or "unknown"
	Unknown  map[string]int64 `json:"unknown,omitempty"` // the unknown ones by cause
	Answered int64            `json:"answered"`          // requests that have ended, the unknown ones among them
	InFlight int64            `json:"in_flight"`
	// Late is how many requests of an open loop left after they were due, because too many were open already or the
	// generator itself was too slow. Their latency counts from when they were due all the same.
	Late     int64            `json:"late"`
	Final    map[string]int64 `json:"final,omitempty"` // accepted orders by the status they came to
	All      Latency          `json:"all"`
	Accepted Latency          `json:"accepted"`
	Refused  Latency          `json:"refused"`
}

// Nobody says whether requests were sent and the gateway answered none of them.
func (f *Figures) Nobody() bool { return f.Answered > 0 && f.Answers[told.Unknown] == f.Answered }

// Rate is the number of requests per second.
func (f *Figures) Rate() float64 {
	if f.Elapsed <= 0 {
		return 0
	}
	return float64(f.Answered) / f.Elapsed.Seconds()
}

// Figures gives the current ones.
func (s *Stats) Figures() Figures {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := Figures{
		Answers: map[string]int64{}, Unknown: map[string]int64{}, Final: map[string]int64{}, Answered: s.all.TotalCount(), InFlight: s.inFlight,
		Late: s.late, All: latency(s.all), Accepted: latency(s.accepted), Refused: latency(s.refused),
	}
	for k, v := range s.counts {
		f.Answers[k] = v
	}
	for k, v := range s.causes {
		f.Unknown[k] = v
	}
	for k, v := range s.final {
		f.Final[k] = v
	}
	switch {
	case s.began.IsZero():
	case s.ended.IsZero():
		f.Elapsed = time.Since(s.began)
	default:
		f.Elapsed = s.ended.Sub(s.began)
	}
	return f
}
