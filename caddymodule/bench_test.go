package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/bench"
	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// The gateway of the benchmarks is this test binary, started once more with one of these values in benchGateway. So it is
// Caddy with the modules as they are, in a process of its own, and yet its publisher can be replaced without a switch in
// them.
const (
	benchGateway = "BENCH_GATEWAY"
	withKafka    = "kafka"
	withEmbedded = "embedded kafka"
	withoutKafka = "no publish"
)

// benchAppendOnly is the Redis option that the benchmarks run with: "yes" by default, as we tell users to run it, or "no".
const benchAppendOnly = "BENCH_APPENDONLY"

// beGateway runs Caddy until it ends.
func beGateway(how string) {
	if how == withoutKafka {
		publishTo = func(*kafka.Producer) edge.Publisher { return nowhere{} }
	}
	caddycmd.Main()
}

// nowhere does not publish: it says at once that nobody knows, so the buyer hears `processing` and no offset is kept.
type nowhere struct{}

var errNowhere = errors.New("not published")

func (nowhere) Enqueue(_ *order.Order, _ map[string]string, _ time.Time, done func(edge.Ack, error)) {
	done(edge.Ack{}, errNowhere)
}

func (nowhere) HealthyFor(int64) error { return nil }

const benchConnections = 64

// arena is a gateway with sales in all states, and the yardstick beside them: Caddy's `respond`, in the same process, with
// answers of the same status and length.
type arena struct {
	*testing.B
	redis   *testenv.Redis
	led     *ledger.Ledger
	gateway *testenv.Program
	broker  *testenv.Program // the embedded one, if it is that
	site    string           // the chain
	limited string           // the chain behind a rate limit that is used up
	bare    string           // `respond`
	admin   string
	first   int64 // activity; the others follow it
}

// The sales of an arena, by their distance from the first.
const (
	onSale = iota
	soldOut
	notStarted
	ended
	paused
	absent
)

func newArena(b *testing.B, how string) *arena {
	b.Helper()
	a := &arena{B: b, redis: testenv.StartRedis(b, "--appendonly", cmp.Or(os.Getenv(benchAppendOnly), "yes")), first: testenv.ID()}
	rdb := redis.NewClient(&redis.Options{Addr: a.redis.Addr, MaxRetries: -1})
	b.Cleanup(func() { _ = rdb.Close() })
	a.led = ledger.New(rdb, ledger.Options{})
	now := time.Now().UnixMilli()
	const hour = 3_600_000
	catalogue := &ledger.Catalogue{Activities: map[int64]ledger.Activity{}}
	for i, s := range []struct {
		starts, ends, stock int64
		state               ledger.State
	}{
		onSale:     {now - hour, now + 24*hour, 1 << 40, ledger.Open},
		soldOut:    {now - hour, now + 24*hour, 0, ledger.Open},
		notStarted: {now + 23*hour, now + 24*hour, 1000, ledger.Open},
		ended:      {now - 2*hour, now - hour, 1000, ledger.Open},
		paused:     {now - hour, now + 24*hour, 1000, ledger.Paused},
	} {
		id := a.first + int64(i)
		act := ledger.Activity{ID: id, Item: id, StartsAtMs: s.starts, EndsAtMs: s.ends, MaxPerUser: 1, State: s.state}
		load, err := a.led.LoadBegin(b.Context(), act)
		if err == nil {
			_, err = a.led.LoadFinish(b.Context(), id, load.Epoch, 1, s.stock, s.state)
		}
		if err != nil {
			b.Fatal(err)
		}
		catalogue.Activities[id] = act
	}
	if err := a.led.PutCatalogue(b.Context(), catalogue); err != nil {
		b.Fatal(err)
	}
	a.start(how)
	return a
}

// start starts the gateway.
func (a *arena) start(how string) {
	a.Helper()
	address := func() string { return fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(a)) }
	admin := address()
	a.site, a.limited, a.bare = address(), address(), address()
	brokers, topic := a.kafka(how)
	file := filepath.Join(a.TempDir(), "Caddyfile")
	text := fmt.Sprintf(`{
	admin %s
	log {
		output stderr
		level WARN
	}
	auto_https off
	seckill {
		redis %s
		kafka %s {
			topic %s
		}
	}
}
http://%s {
	seckill {
		rate_limit token_bucket 1000000/s
		user {header.X-User}
		user_window 5s
	}
}
http://%s {
	seckill {
		rate_limit token_bucket 1/h burst 1 key {client_ip}
		user {header.X-User}
	}
}
http://%s {
	respond /refused "%s" 409
	respond /accepted "%s" 202
	route /reserve {
		bench_reserve %s %d
	}
}
`, admin, a.redis.Addr, strings.Join(brokers, " "), topic, a.site, a.limited, a.bare,
		strings.Repeat("x", len(answers()[edge.SoldOut].body[edge.Chinese])),
		strings.Repeat("x", len(fmt.Sprintf(`{"code":202,"order_id":"%s","status":"queued","status_url":"/seckill/%d/orders/%[1]s"}`, anOrder, a.first))+1), a.redis.Addr, a.first)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		a.Fatal(err)
	}
	a.gateway = testenv.StartProgram(a, "gateway", func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], "run", "--config", file)
		dir := filepath.Dir(file)
		cmd.Env = append(os.Environ(), benchGateway+"="+how, "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir)
		return cmd
	}, func() error {
		c, err := net.Dial("tcp", a.bare)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	testenv.Eventually(a, time.Minute, "the gateway has seen the sales", func() bool {
		res, err := http.Get(fmt.Sprintf("http://%s/seckill/%d", a.site, a.first))
		if err != nil {
			return false
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		return strings.Contains(string(body), `"state":"open"`)
	})
	http.DefaultClient.CloseIdleConnections()
	a.admin = admin
}

// kafka gives the brokers and a topic on them: those of the demo's embedded one, or the shared ones.
func (a *arena) kafka(how string) (brokers []string, topic string) {
	a.Helper()
	if how != withEmbedded {
		return testenv.Brokers(a), testenv.Topic(a, "bench-orders", 1)
	}
	dir := a.TempDir()
	program := filepath.Join(dir, "broker")
	if out, err := exec.CommandContext(a.Context(), "go", "build", "-C", "../demo", "-o", program, "./broker").CombinedOutput(); err != nil {
		a.Fatalf("build the embedded broker: %v\n%s", err, out)
	}
	topic = "bench-orders"
	var address []byte
	a.broker = testenv.StartProgram(a, "broker", func() *exec.Cmd { return exec.Command(program, dir, topic) }, func() (err error) {
		if address, err = os.ReadFile(filepath.Join(dir, "address")); err == nil && len(address) == 0 {
			err = errors.New("no address yet")
		}
		return err
	})
	return []string{string(address)}, topic
}

// useUp takes the one request that the limited site allows.
func (a *arena) useUp() {
	a.Helper()
	req, err := http.NewRequestWithContext(a.Context(), http.MethodPost, "http://"+a.limited+a.buy(soldOut), nil)
	if err != nil {
		a.Fatal(err)
	}
	if _, err := tryDo(req); err != nil {
		a.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
}

// contestant asks for a path.
func (a *arena) contestant(name string, aim float64, addr, path string, status int, contains string) bench.Contestant {
	a.Helper()
	load, err := bench.Dial(addr, benchConnections, bench.Request{
		Text: "POST " + path + " HTTP/1.1\r\nHost: " + addr + "\r\nUser-Agent: bench\r\nAccept: */*\r\nX-User: u" + bench.Serial +
			"\r\nContent-Length: 0\r\n\r\n",
		Status: status, Contains: contains,
	})
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(load.Close)
	return bench.Contestant{Name: name, Aim: aim, Run: a.profiled(name, load.Run)}
}

// profiled has each turn write a processor profile of the gateway, if BENCH_PROFILE names a folder.
func (a *arena) profiled(name string, run func(time.Duration) (float64, error)) func(time.Duration) (float64, error) {
	dir := os.Getenv("BENCH_PROFILE")
	if dir == "" {
		return run
	}
	n := 0
	return func(d time.Duration) (float64, error) {
		n++
		var wg sync.WaitGroup
		for _, kind := range []string{"profile", "allocs"} {
			wg.Go(func() {
				file := filepath.Join(dir, fmt.Sprintf("%s-%02d.%s.pprof", strings.ReplaceAll(name, " ", "-"), n, kind))
				if err := a.profile(kind, max(1, int(d.Seconds())), file); err != nil {
					a.Error(err)
				}
			})
		}
		defer wg.Wait()
		return run(d)
	}
}

// profile writes what the gateway's profiler sees within that time.
func (a *arena) profile(kind string, seconds int, file string) error {
	res, err := http.Get(fmt.Sprintf("http://%s/debug/pprof/%s?seconds=%d", a.admin, kind, seconds))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, res.Body)
	return errors.Join(err, f.Close())
}

// processes are those that a request keeps busy.
func (a *arena) processes() []bench.Process {
	p := []bench.Process{{Name: "gateway", PID: a.gateway.Pid()}, {Name: "redis", PID: a.redis.Pid()}, {Name: "load", PID: os.Getpid()}}
	if a.broker != nil {
		p = append(p, bench.Process{Name: "kafka", PID: a.broker.Pid()})
	} else if pid, err := strconv.Atoi(os.Getenv("BENCH_KAFKA_PID")); err == nil {
		p = append(p, bench.Process{Name: "kafka", PID: pid})
	}
	return p
}

// perCall is how many reservations one call to Redis carried on average.
func (a *arena) perCall() float64 {
	a.Helper()
	res, err := http.Get("http://" + a.admin + "/metrics")
	if err != nil {
		a.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		a.Fatal(err)
	}
	figure := func(name string) float64 {
		_, after, _ := strings.Cut(string(text), "\n"+name+" ")
		value, _, _ := strings.Cut(after, "\n")
		f, err := strconv.ParseFloat(value, 64)
		if err != nil {
			a.Fatalf("metric %s: %v", name, err)
		}
		return f
	}
	return figure("seckill_reserve_batch_size_sum") / figure("seckill_reserve_batch_size_count")
}

func (a *arena) buy(i int64) string { return fmt.Sprintf("/seckill/%d/orders", a.first+i) }

func (a *arena) refused(name string, i int64, status int, reason edge.Reason) bench.Contestant {
	a.Helper()
	return a.contestant(name, 0.95, a.site, a.buy(i), status, `"reason":"`+string(reason)+`"`)
}

// BenchmarkRefusals is what most of a crowd hears.
func BenchmarkRefusals(b *testing.B) {
	a := newArena(b, withKafka)
	a.useUp()
	bench.Contest{Title: "refused from memory, against Caddy's respond", Processes: a.processes()}.Run(b,
		a.contestant("respond 409", 0, a.bare, "/refused", 409, "xxx"),
		a.refused("sold out", soldOut, 409, edge.SoldOut),
		a.refused("not started", notStarted, 403, edge.NotStarted),
		a.refused("no such sale", absent, 404, edge.NotFound),
		a.refused("paused", paused, 503, edge.Unavailable),
		a.contestant("rate limit per client", 0.95, a.limited, a.buy(onSale), 429, `"reason":"rate_limited"`),
	)
}

// BenchmarkReservations is what a buyer costs who gets a unit: alone, and with the order in Kafka, the demo's embedded broker and a real one.
func BenchmarkReservations(b *testing.B) {
	for _, c := range []struct {
		how, name string
		aim       float64
	}{
		{withoutKafka, "reserved in Redis", 0.6},
		{withEmbedded, "reserved, acknowledged by the embedded Kafka", 0.5},
		{withKafka, "reserved, acknowledged by Apache Kafka", 0},
	} {
		b.Run(strings.ReplaceAll(c.how, " ", "_"), func(b *testing.B) {
			a := newArena(b, c.how)
			contestants := []bench.Contestant{
				a.contestant("respond 202", 0, a.bare, "/accepted", 202, "xxx"),
				a.contestant(c.name, c.aim, a.site, a.buy(onSale), 202, `"order_id"`),
			}
			if c.how == withoutKafka {
				contestants = append(contestants, a.contestant("the reserve call behind a bare handler", 0, a.bare, "/reserve", 202, `"order_id"`))
			}
			bench.Contest{Title: c.name + ", against Caddy's respond", Processes: a.processes()}.Run(b, contestants...)
			b.ReportMetric(a.perCall(), "orders/call")
		})
	}
}
