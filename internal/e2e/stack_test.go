package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/invariant"
	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/loadgen"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/testenv"
	"github.com/seckillgate/seckillgate/internal/told"
)

var bin string // folder of the built programs

func TestMain(m *testing.M) {
	if os.Getenv(actAsKafkaACLs) != "" {
		os.Exit(kafkaACLs(os.Args[1:]))
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "seckillgate-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		bin = dir
		for _, p := range []string{"caddy ./cmd/caddy", "worker ./worker", "syncer ./syncer"} {
			name, pkg, _ := strings.Cut(p, " ")
			cmd := exec.Command("go", append(append([]string{"build"}, raceFlags...), "-o", filepath.Join(dir, name), pkg)...)
			cmd.Dir = filepath.Join("..", "..")
			if out, err := cmd.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "build %s: %v\n%s", pkg, err, out)
				return 1
			}
		}
		code := m.Run()
		if err := goleak.Find(testenv.KnownLeaks()...); code == 0 && err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}())
}

// stack is one deployment: a Redis of its own, a database and topics of its own on the shared servers, and the product's
// programs.
type stack struct {
	*testing.T
	dir      string
	redis    *testenv.Redis
	dsn      string
	kafka    kafka.Config
	admin    login             // of the test itself
	logins   map[string]login  // of the programs; none: as the test itself
	more     map[string]string // further configuration of a program
	site     string            // base URL of the gateway
	caddyAPI string

	gateway, worker, syncer *testenv.Program

	ledger  *ledger.Ledger
	store   *store.Store
	sources invariant.Sources
}

// login is how somebody signs in to the servers. The zero value is nobody in particular, at servers that ask nobody; dsn is the
// whole of MySQL's.
type login struct{ user, password, dsn string }

// Short bounds, so that tests need not wait long for what is meant to take its time.
const timings = `
reserve_deadline: 1s
publish_budget: 2s
horizon: 5s
compare_interval: 2s
lease_ttl: 2s
`

func newStack(t *testing.T) *stack {
	t.Helper()
	s := &stack{
		T: t, dir: t.TempDir(), redis: testenv.StartRedis(t), dsn: testenv.MySQL(t),
		kafka: kafka.Config{Brokers: testenv.Brokers(t), Group: fmt.Sprint("workers-", testenv.ID())},
	}
	s.kafka.Topics = kafka.Topics{
		Orders: testenv.Topic(t, "orders", 3), DeadLetters: testenv.Topic(t, "dlq", 1), Results: testenv.Topic(t, "results", 1),
	}
	s.kafka.SetDefaults()
	s.admin.dsn = s.dsn
	s.configure()
	s.open()
	s.command("worker", "migrate")
	s.startWorker()
	s.startSyncer()
	return s
}

func (s *stack) login(program string) login {
	if l, ok := s.logins[program]; ok {
		return l
	}
	return s.admin
}

// common is what the configurations of worker and syncer have in common.
func (s *stack) common(program string) string {
	l, sasl := s.login(program), ""
	if l.user != "" {
		sasl = fmt.Sprintf("\n  sasl: {mechanism: PLAIN, user: %q, password: %q}", l.user, l.password)
	}
	return fmt.Sprintf(`
redis: {addrs: [%q], username: %q, password: %q}
kafka:
  brokers: [%q]
  group: %s
  topics: {orders: %s, dead_letters: %s, results: %s}%s
mysql: {dsn: %q}
log: {format: console, level: debug}
http: {listen: "127.0.0.1:%d"}
`, s.redis.Addr, l.user, l.password, strings.Join(s.kafka.Brokers, `", "`), s.kafka.Group, s.kafka.Topics.Orders, s.kafka.Topics.DeadLetters,
		s.kafka.Topics.Results, sasl, l.dsn, testenv.FreePort(s)) + s.more[program]
}

func (s *stack) configure() {
	s.Helper()
	site, admin := testenv.FreePort(s), testenv.FreePort(s)
	s.site, s.caddyAPI = fmt.Sprintf("http://127.0.0.1:%d", site), fmt.Sprintf("127.0.0.1:%d", admin)
	l, signIn, sasl := s.login("caddy"), "", ""
	if l.user != "" {
		signIn = fmt.Sprintf(" {\n\t\t\tusername %s\n\t\t\tpassword %s\n\t\t}", l.user, l.password)
		sasl = fmt.Sprintf("\n\t\t\tsasl PLAIN %s %s", l.user, l.password)
	}
	// The header stands in for a real authentication; nothing else on this machine talks to the gateway.
	caddyfile := fmt.Sprintf(`{
	admin %s
	log {
		level WARN
	}
	seckill {
		redis %s%s
		kafka %s {
			topic %s%s
		}
		publish_timeout 1500ms
	}
}
%s {
	seckill {
		user {http.request.header.X-User}%s
	}
	reverse_proxy %s
}
`, s.caddyAPI, s.redis.Addr, signIn, strings.Join(s.kafka.Brokers, " "), s.kafka.Topics.Orders, sasl, s.site, s.more["caddy"], shop(s))
	for name, text := range map[string]string{
		"worker.yaml": s.common("worker"),
		"syncer.yaml": s.common("syncer") + timings,
		"Caddyfile":   caddyfile,
	} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			s.Fatal(err)
		}
	}
}

// shop is the shop behind the gateway.
func shop(t testing.TB) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "the shop, %s", r.URL.Path)
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func (s *stack) open() {
	s.Helper()
	rdb, err := redisconn.New(redisconn.Config{Addrs: []string{s.redis.Addr}, Username: s.admin.user, Password: s.admin.password})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = rdb.Close() })
	if s.store, err = store.Open(s.Context(), store.Config{DSN: s.dsn}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = s.store.Close() })
	admin, err := kafka.NewAdmin(s.kafka, zap.NewNop())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = admin.Close() })
	s.ledger = ledger.New(rdb, ledger.Options{})
	s.sources = invariant.Sources{Ledger: s.ledger, Store: s.store, Kafka: admin, Topic: s.kafka.Topics.Orders, Group: s.kafka.Group}
}

// file is the configuration of a program.
func (s *stack) file(program string) string {
	if program == "caddy" {
		return filepath.Join(s.dir, "Caddyfile")
	}
	return filepath.Join(s.dir, program+".yaml")
}

func (s *stack) cmd(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(bin, program), append(args, "--config", s.file(program))...)
	cmd.Env = append(os.Environ(), "HOME="+s.dir, "XDG_CONFIG_HOME="+s.dir, "XDG_DATA_HOME="+s.dir)
	for i, v := range cmd.Env { // what make test exports is for the tests, not for these programs
		if strings.HasPrefix(v, "SECKILL_") {
			cmd.Env[i] = "IGNORED=" + v
		}
	}
	return cmd
}

// command runs a one-shot command to its end.
func (s *stack) command(program string, args ...string) string {
	s.Helper()
	out, err := s.cmd(program, args...).CombinedOutput()
	if err != nil {
		s.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (s *stack) startWorker() {
	s.Helper()
	s.worker = testenv.StartProgram(s, "worker", func() *exec.Cmd { return s.cmd("worker", "run") }, func() error { return nil })
}

func (s *stack) startSyncer() {
	s.Helper()
	s.syncer = testenv.StartProgram(s, "syncer", func() *exec.Cmd { return s.cmd("syncer", "run") }, func() error { return nil })
}

func (s *stack) startGateway() {
	s.Helper()
	s.gateway = testenv.StartProgram(s, "caddy", func() *exec.Cmd { return s.cmd("caddy", "run") }, func() error {
		_, err := s.get("/", "")
		return err
	})
}

type reply struct {
	HTTP    int    `json:"-"`
	Code    int    `json:"code"`
	OrderID string `json:"order_id"`
	Status  string `json:"status"`
	URL     string `json:"status_url"`
	Reason  string `json:"reason"`
	State   string `json:"state"`
	SoldOut bool   `json:"sold_out"`
	Text    string `json:"-"`
}

func (s *stack) get(path, user string) (reply, error) {
	return s.do(s.Context(), http.MethodGet, path, user, "")
}

func (s *stack) buy(activity int64, user string, quantity int) (reply, error) {
	return s.do(s.Context(), http.MethodPost, fmt.Sprintf("/seckill/%d/orders", activity), user, fmt.Sprintf(`{"quantity":%d}`, quantity))
}

func (s *stack) do(ctx context.Context, method, path, user, body string) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.site+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if user != "" {
		req.Header.Set("X-User", user)
	}
	resp, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{}, err
	}
	r := reply{Text: string(b)}
	_ = json.Unmarshal(b, &r) // the shop's pages are not JSON
	r.HTTP = resp.StatusCode
	return r, nil
}

var client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// sell makes an activity of an item with that stock by the syncer's command and waits until buyers see it open.
func (s *stack) sell(stock int) int64 {
	s.Helper()
	id := testenv.ID()
	s.command("syncer", "activity", "create", "--id", fmt.Sprint(id), "--item", fmt.Sprint(id+1), "--title", "e2e",
		"--starts", "+0s", "--ends", "+1h", "--max-per-user", "3", "--stock", fmt.Sprint(stock))
	s.open4Sale(id)
	return id
}

func (s *stack) open4Sale(id int64) {
	s.Helper()
	testenv.Eventually(s, time.Minute, "the activity is open at the gateway", func() bool {
		r, err := s.get(fmt.Sprintf("/seckill/%d", id), "")
		return err == nil && r.State == "open"
	})
}

// rush lets buyers ask, quantities 1 to 3, and follows their orders. It returns what they were told.
func (s *stack) rush(id int64, buyers int, stats *loadgen.Stats) []told.Record {
	s.Helper()
	var file strings.Builder
	w := told.NewWriter(&file)
	err := loadgen.Run(s.Context(), loadgen.Config{
		Target: s.site, Activity: id, Requests: buyers, Concurrency: 64, Follow: 30 * time.Second, Told: w,
		Identify: func(n int) (loadgen.Buyer, error) {
			user := fmt.Sprint("buyer-", n)
			return loadgen.Buyer{User: user, Header: http.Header{"X-User": {user}}}, nil
		},
		Quantity: func(n int) int64 { return 1 + int64(n%3) },
	}, stats)
	if err != nil {
		s.Fatal(err)
	}
	if err := w.Close(); err != nil {
		s.Fatal(err)
	}
	var records []told.Record
	if err := told.Read(strings.NewReader(file.String()), id, func(r *told.Record) error {
		records = append(records, *r)
		return nil
	}); err != nil {
		s.Fatal(err)
	}
	return records
}

// check waits for quiet and judges.
func (s *stack) check(id int64, units int64, records []told.Record) *invariant.Report {
	s.Helper()
	report, err := invariant.Check(s.Context(), s.sources, id, records, invariant.Options{Units: units, ToldRecords: records != nil}, 90*time.Second)
	if err != nil {
		s.Fatal(err)
	}
	var text strings.Builder
	_ = report.Write(&text)
	s.Log("\n" + text.String())
	if err := report.Err(); err != nil {
		s.Errorf("%v", err)
		s.Logf("gateway:\n%s\nworker:\n%s\nsyncer:\n%s", last(s.gateway), last(s.worker), last(s.syncer))
	}
	return report
}

func last(p *testenv.Program) string {
	if p == nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(p.Log()), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// once runs f in the background as soon as so many orders were accepted, and waits for it at the end of the test.
func (s *stack) once(stats *loadgen.Stats, accepted int64, f func()) (wait func()) {
	var done sync.WaitGroup
	done.Go(func() {
		testenv.Eventually(s, time.Minute, "enough orders are accepted", func() bool {
			n := int64(0)
			for answer, c := range stats.Figures().Answers {
				if answer == "queued" || answer == "processing" {
					n += c
				}
			}
			return n >= accepted
		})
		f()
	})
	return done.Wait
}

func (s *stack) delete(key string) error {
	rdb := redis.NewClient(&redis.Options{Addr: s.redis.Addr})
	defer rdb.Close()
	return rdb.Del(s.Context(), key).Err()
}
