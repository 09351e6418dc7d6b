//go:build chaos

package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// soak is a run without faults: one sale after the other at a steady rate, while the figures of every process are watched.
type soak struct {
	*testing.T
	stack *stack
	logs  string
	rate  float64 // orders a second
	sale  time.Duration

	mu     sync.Mutex
	start  time.Time
	books  []*Book // of the sale that goes on, and the one before
	read   map[*Book]int
	series []*Series
	empty  float64 // Redis' memory before the first sale
}

// brief bounds what stays in Redis of a sale that is over, so that as much leaves it as comes in.
const brief = `
end_grace: 5s
retention: 30s
`

// Bounds of the soak's load.
const (
	soakEvery   = 5 * time.Second
	perOrder    = 1.3              // units, on average: see Crowd
	comers      = 1.25             // buyers for each order that there is stock for: the others hear sold_out
	lead        = 12 * time.Second // a sale is made that long before it begins
	retries     = 0.01             // requests in so many that may be refused for the moment, or stay without an answer
	shortSale   = 40 * time.Second // the shortest
	salesPerRun = 15               // if they are not shorter than that
)

func TestSoak(t *testing.T) {
	c := settings(t)
	length := time.Duration(positive(t, "SOAK_MINUTES", 30) * float64(time.Minute))
	s := &soak{T: t, rate: positive(t, "SOAK_RATE", 100), logs: filepath.Join(c.logs, "soak"), read: map[*Book]int{}}
	s.sale = max(length/salesPerRun, shortSale).Round(time.Second)
	s.stack = newStack(t, Base, c.bin, brief)
	s.stack.ends = 2*s.sale + lead
	t.Cleanup(func() {
		if t.Failed() {
			s.stack.keep(s.logs)
			fmt.Printf("\nFAILED. Logs: %s\n", s.logs)
		}
	})
	for _, p := range Programs {
		s.stack.start(p)
	}
	s.empty = s.redis()["used_memory"]
	sales := max(1, int(length/s.sale))
	fmt.Printf("%d sales of %s, one after the other, %g orders a second\n", sales, s.sale, s.rate)
	watched, enough := context.WithCancel(t.Context())
	defer enough()
	var watch sync.WaitGroup
	all := s.play(sales, func() {
		watch.Go(func() { s.watch(watched) })
	})
	enough()
	watch.Wait()

	for _, finding := range Growing(s.series, s.sale) {
		t.Error(finding)
	}
	if share := median(all.shares); share > retries {
		t.Errorf("%.1f%% of the requests of an ordinary sale were refused for the moment or stayed without an answer, although nothing was wrong", 100*share)
	}
	verdict := "green"
	if t.Failed() {
		verdict = "RED"
	}
	text := fmt.Sprintf("**%s**: %s, %d sales of %s one after the other, %d requests to buy, %d orders, %d answers to buyers who asked after theirs; %d requests were refused for the moment or unanswered. %s "+
		"Level and growth in the last %s, and the growth that is allowed:\n\n%s", verdict, length, sales, s.sale, all.requests, all.orders, all.asked, all.again, Origin(c.bin),
		(length - length/warm).Round(time.Second), Trends(s.series, s.sale))
	fmt.Printf("\n%s\n", text)
	s.publish(text)
}

// heard is what the buyers of all sales heard.
type heard struct {
	requests, orders, asked int
	again                   int       // refused for the moment, or without an answer
	shares                  []float64 // of those in each sale
}

// play has the sales follow each other without a break: each is made while the one before goes on, and judged while the next does.
func (s *soak) play(sales int, begin func()) (all heard) {
	next := s.open(0)
	begin()
	s.mu.Lock()
	s.start = time.Now()
	start := s.start
	s.mu.Unlock()
	var trade sync.WaitGroup
	var before *run
	judge := func() {
		if before == nil {
			return
		}
		before.judge()
		count, requests := before.book.Count(), len(before.book.Records())
		again := count["unavailable"] + count["unknown"]
		all.requests += requests
		all.orders += len(before.book.Accepted())
		all.asked += before.book.Heard()
		all.again += again
		all.shares = append(all.shares, float64(again)/float64(max(requests, 1)))
	}
	for n := range sales {
		now := next
		s.mu.Lock()
		s.books = append(s.books, now.book)[max(0, len(s.books)-1):]
		s.mu.Unlock()
		trade.Go(func() { now.play(now.first(), now.units()) })
		judge()
		end := start.Add(time.Duration(n+1) * s.sale)
		if n+1 < sales {
			pause(s.Context(), time.Until(end.Add(-lead)))
			next = s.open(n + 1)
		}
		pause(s.Context(), time.Until(end))
		trade.Wait()
		before = now
	}
	judge()
	return all
}

// units is what a sale has in all, and first what it opens with.
func (r *run) units() int64 { return int64(float64(r.crowd.Buyers) / comers * perOrder) }
func (r *run) first() int64 { return max(r.units()/50, 20) }

// open makes the n-th sale, of an item of its own.
func (s *soak) open(n int) *run {
	stack := *s.stack
	stack.activity, stack.item = s.stack.activity+int64(n), s.stack.item+int64(n)
	r := &run{T: s.T, stack: &stack, plan: &Plan{Setup: Base, Length: s.sale}, book: NewBook(), logs: s.logs}
	r.crowd = &Crowd{
		Gateways: stack.sites, Activity: stack.activity, Buyers: int(s.rate * comers * s.sale.Seconds()), Length: s.sale, Seed: uint64(n), Book: r.book,
	}
	r.shop = &Shop{DB: stack.db, Activity: stack.activity, Item: stack.item}
	r.watch = &Watch{Shop: r.shop, Ledger: stack.ledger, Book: r.book}
	stack.sell(r.first())
	if err := r.shop.Open(s.Context(), r.first()); err != nil {
		s.Fatal(err)
	}
	return r
}

// watch takes a sample of every figure now and again.
func (s *soak) watch(ctx context.Context) {
	for pause(ctx, soakEvery) {
		s.mu.Lock()
		at := time.Since(s.start)
		s.mu.Unlock()
		for _, name := range Programs {
			m, err := s.metrics(name)
			if err != nil {
				s.Errorf("%s shows no metrics: %v", name, err)
				continue
			}
			const mib = 1 << 20
			// A gateway remembers its last 131072 requests, some MiB that it takes longer than the run to fill.
			heap := Bound{0.1, 2}
			if strings.HasPrefix(name, "gateway") {
				heap.Slack = 4
			}
			// What the last collection left over is half of the heap at which the next one begins.
			s.add(at, name, "heap after GC", "MiB", heap, m["go_memstats_next_gc_bytes"]/2/mib)
			s.add(at, name, "resident memory", "MiB", Bound{0.1, 8}, m["process_resident_memory_bytes"]/mib)
			s.add(at, name, "goroutines", "", Bound{0.1, 20}, m["go_goroutines"])
			s.add(at, name, "open descriptors", "", Bound{0.1, 10}, m["process_open_fds"])
		}
		r := s.redis()
		s.add(at, "redis", "Redis memory", "MiB", Bound{0.1, 1}, r["used_memory"]/(1<<20))
		s.add(at, "redis", "Redis keys", "", Bound{0.1, 100}, r["keys"])
		if r["keys"] > 0 {
			s.add(at, "redis", "bytes an order kept", "", Bound{0.1, 20}, (r["used_memory"]-s.empty)/r["keys"])
		}
		s.add(at, "redis", "connections", "", Bound{0.1, 5}, r["connected_clients"])
		if n, err := s.threads(ctx); err == nil {
			s.add(at, "mysql", "connections", "", Bound{0.1, 5}, n)
		}
		if n, err := s.lag(ctx); err == nil {
			s.add(at, "workers", "records behind", "", Bound{0.5, s.rate}, n)
		}
		if took := s.took(); len(took) > 0 {
			slices.Sort(took)
			ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
			s.add(at, "p50", "time to answer", "ms", Bound{1, 20}, ms(took[len(took)/2]))
			s.add(at, "p99", "time to answer", "ms", Bound{1, 200}, ms(took[len(took)*99/100]))
		}
	}
}

func (s *soak) add(at time.Duration, process, figure, unit string, bound Bound, value float64) {
	i := slices.IndexFunc(s.series, func(o *Series) bool { return o.Process == process && o.Figure == figure })
	if i < 0 {
		i = len(s.series)
		s.series = append(s.series, &Series{Process: process, Figure: figure, Unit: unit, Bound: bound})
	}
	s.series[i].Points = append(s.series[i].Points, Point{at, value})
}

// metrics reads what a process tells of itself: the figures without labels.
func (s *soak) metrics(name string) (map[string]float64, error) {
	site := fmt.Sprintf("http://127.0.0.1:%d", s.stack.admins[name])
	if !strings.HasPrefix(name, "gateway") {
		site = s.stack.health(name)
	}
	url := site + "/metrics"
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	out := map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), " "); ok {
			if v, err := strconv.ParseFloat(value, 64); err == nil {
				out[name] = v
			}
		}
	}
	for _, must := range []string{"go_memstats_next_gc_bytes", "process_resident_memory_bytes", "go_goroutines", "process_open_fds"} {
		if _, has := out[must]; !has {
			return nil, fmt.Errorf("%s lacks %s", url, must)
		}
	}
	return out, lines.Err()
}

// redis reads the primary's own figures.
func (s *soak) redis() map[string]float64 {
	out := map[string]float64{}
	for line := range strings.Lines(s.stack.redisDo(s.stack.primary, "INFO", "everything")) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			if v, err := strconv.ParseFloat(value, 64); err == nil {
				out[name] = v
			}
		}
	}
	out["keys"], _ = strconv.ParseFloat(s.stack.redisDo(s.stack.primary, "DBSIZE"), 64)
	return out
}

func (s *soak) threads(ctx context.Context) (n float64, err error) {
	var name string
	err = s.stack.db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Threads_connected'").Scan(&name, &n)
	return n, err
}

// lag is how many orders the workers have still to land.
func (s *soak) lag(ctx context.Context) (float64, error) {
	src := &s.stack.sources
	written, err := src.Kafka.HighWater(ctx, src.Topic)
	if err != nil {
		return 0, err
	}
	landed, err := src.Kafka.Committed(ctx, src.Group, src.Topic)
	if err != nil {
		return 0, err
	}
	n := int64(0)
	for p, mark := range written {
		n += max(0, mark-max(0, landed[p]))
	}
	return float64(n), nil
}

// took is how long the requests since the last sample took.
func (s *soak) took() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []time.Duration
	for _, b := range s.books {
		part, next := b.Took(s.read[b])
		s.read[b] = next
		out = append(out, part...)
	}
	return out
}

// publish keeps the plot, and writes plot and table into the document that SOAK_REPORT names.
func (s *soak) publish(text string) {
	if err := os.MkdirAll(s.logs, 0o755); err != nil {
		s.Fatal(err)
	}
	plots := []string{filepath.Join(s.logs, "soak.svg")}
	if report := os.Getenv("SOAK_REPORT"); report != "" {
		plots = append(plots, filepath.Join(filepath.Dir(report), "soak.svg"))
		if err := Insert(report, "soak", text+"\n![Figures of the soak run over its time](soak.svg)\n\nDashed: gateway2, worker2 and syncer2.\n"); err != nil {
			s.Error(err)
		}
	}
	for _, path := range plots {
		if err := os.WriteFile(path, []byte(Plot(s.series)), 0o600); err != nil {
			s.Error(err)
		}
	}
	fmt.Printf("plot: %s\n", plots[0])
}
