//go:build chaos

package chaos

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/invariant"
	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// stack is one whole deployment that may be broken at will. Each process reaches each server through a fault proxy of its
// own; `tool` stands for the operator's commands, the watch and the checker, whose links are never struck.
type stack struct {
	*testing.T
	setup Setup
	dir   string
	bin   string

	redis     []*testenv.Redis
	primary   int // of two: which
	sentinels []*testenv.Redis
	brokers   []*testenv.Broker
	mysql     *testenv.MariaDB

	links    map[string][]*faultproxy.Proxy // by process-server
	programs map[string]*testenv.Program
	sites    []string       // base URLs of the gateways
	admins   map[string]int // ports of the gateways' admin API
	variant  int            // of the gateways' configuration, which a reload changes

	activity, item int64
	ends           time.Duration // of a sale, after it was made
	more           string        // of the syncers' configuration
	ledger         *ledger.Ledger
	store          *store.Store
	db             *sql.DB
	sources        invariant.Sources
}

// Shorter bounds than the defaults: more of what they bound happens in a minute.
const timings = `
reserve_deadline: 1s
publish_budget: 2s
horizon: 5s
compare_interval: 3s
lease_ttl: 3s
`

const tool = "tool"

func newStack(t *testing.T, setup Setup, bin, more string) *stack {
	t.Helper()
	s := &stack{
		T: t, setup: setup, dir: t.TempDir(), bin: bin, links: map[string][]*faultproxy.Proxy{},
		programs: map[string]*testenv.Program{}, admins: map[string]int{}, activity: 1001, item: 42,
		ends: 6 * time.Hour, more: more,
	}
	var up sync.WaitGroup
	up.Go(func() { s.mysql = testenv.StartMySQL(t) })
	n := 1
	if setup == Brokers {
		n = 3
	}
	s.brokers = testenv.StartKafka(t, n)
	s.startRedis()
	up.Wait()
	if t.Failed() {
		t.FailNow()
	}
	s.mysql.DSN("shop") // creates it
	for _, p := range append([]string{tool, "worker3"}, Programs...) {
		s.join(p)
	}
	s.configure()
	s.open()
	s.command("seckill-worker", "migrate", "--create-topics", "--partitions", "6")
	return s
}

// durable makes a Redis keep its data over a kill: what it has written is with the system, if not on the disk.
var durable = []string{"--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0", "--repl-diskless-sync-delay", "0"}

// master is the name by which the sentinels know the primary.
const master = "sale"

func (s *stack) startRedis() {
	s.Helper()
	switch s.setup {
	case Cluster:
		s.redis = testenv.StartRedisClusterNodes(s, 3, durable...)
	case Sentinel:
		for range 3 {
			s.redis = append(s.redis, testenv.StartRedis(s, durable...))
		}
		s.redis[1].ReplicaOf(s.redis[0].Addr)
		s.redis[2].ReplicaOf(s.redis[0].Addr)
		s.sentinels = testenv.StartSentinels(s, 3, master, s.redis[0], 2)
	default:
		s.redis = []*testenv.Redis{testenv.StartRedis(s, durable...), testenv.StartRedis(s, durable...)}
		s.replicate()
	}
}

// replicate makes the other server of the two a replica of the primary.
func (s *stack) replicate() {
	host, port, _ := strings.Cut(s.redis[s.primary].Addr, ":")
	s.redisDo(1-s.primary, "REPLICAOF", host, port)
}

// proxied says whether a process finds Redis through a proxy of its own.
func (s *stack) proxied() bool { return s.setup == Base || s.setup == Brokers }

// redisConfig is how a process finds Redis.
func (s *stack) redisConfig(process string) redisconn.Config {
	switch s.setup {
	case Cluster:
		return redisconn.Config{Addrs: addresses(s.redis)}
	case Sentinel:
		return redisconn.Config{Addrs: addresses(s.sentinels), Sentinel: master}
	default:
		return redisconn.Config{Addrs: s.through(process, "redis")}
	}
}

func addresses(servers []*testenv.Redis) []string {
	out := make([]string, len(servers))
	for i, r := range servers {
		out[i] = r.Addr
	}
	return out
}

// redisDo runs a command on a Redis server by itself, without any proxy.
func (s *stack) redisDo(n int, args ...any) string {
	s.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.redis[n].Addr, MaxRetries: -1})
	defer c.Close()
	var out string
	testenv.Eventually(s, 30*time.Second, fmt.Sprintf("redis %s to do %v", s.redis[n].Addr, args), func() bool {
		v, err := c.Do(s.Context(), args...).Result()
		out = fmt.Sprint(v)
		return err == nil
	})
	return out
}

// join lays the links of a process.
func (s *stack) join(process string) {
	s.Helper()
	if s.proxied() {
		s.links[process+"-redis"] = []*faultproxy.Proxy{faultproxy.New(s, s.redis[s.primary].Addr)}
	}
	s.links[process+"-mysql"] = []*faultproxy.Proxy{faultproxy.New(s, s.mysql.Addr)}
	addrs := make([]string, len(s.brokers))
	for i, b := range s.brokers {
		addrs[i] = b.Addr
	}
	proxies, err := faultproxy.StartKafka(addrs...)
	if err != nil {
		s.Fatal(err)
	}
	for _, p := range proxies {
		s.Cleanup(p.Close)
	}
	s.links[process+"-kafka"] = proxies
}

// through is where a process finds a server.
func (s *stack) through(process, server string) []string {
	var out []string
	for _, p := range s.links[process+"-"+server] {
		out = append(out, p.Addr())
	}
	return out
}

func (s *stack) dsn(process string) string {
	return strings.Replace(s.mysql.DSN("shop"), s.mysql.Addr, s.through(process, "mysql")[0], 1)
}

func (s *stack) configure() {
	s.Helper()
	for _, p := range []string{tool, "worker1", "worker2", "worker3", "syncer1", "syncer2"} {
		text := fmt.Sprintf(`
redis: {addrs: ["%s"], sentinel: %q}
kafka: {brokers: ["%s"]}
mysql: {dsn: %q}
log: {format: console, level: info}
http: {listen: "127.0.0.1:%d"}
accept: [replication, min_insync_replicas]
`, strings.Join(s.redisConfig(p).Addrs, `", "`), s.redisConfig(p).Sentinel, strings.Join(s.through(p, "kafka"), `", "`), s.dsn(p), testenv.FreePort(s))
		if !strings.HasPrefix(p, "worker") {
			text += timings + s.more
		}
		s.write(p+".yaml", text)
	}
	// Of the tool's file the worker's command must be able to read everything too.
	s.write("tool-worker.yaml", fmt.Sprintf("kafka: {brokers: [\"%s\"]}\nmysql: {dsn: %q}\n",
		strings.Join(s.through(tool, "kafka"), `", "`), s.dsn(tool)))
	for _, p := range []string{"gateway1", "gateway2"} {
		port := testenv.FreePort(s)
		s.admins[p] = testenv.FreePort(s)
		s.sites = append(s.sites, fmt.Sprintf("http://127.0.0.1:%d", port))
		s.caddyfile(p)
	}
}

// caddyfile writes a gateway's configuration. Each time it differs in a bound that the shared clients have, so that a reload
// makes new ones.
func (s *stack) caddyfile(gateway string) {
	s.Helper()
	s.variant++
	site := s.sites[slices.Index(Programs, gateway)]
	found := s.redisConfig(gateway)
	where := strings.Join(found.Addrs, " ")
	if found.Sentinel != "" {
		where = "sentinel " + found.Sentinel + " " + where
	}
	s.write(gateway+".caddyfile", fmt.Sprintf(`{
	admin 127.0.0.1:%d
	metrics
	log {
		level INFO
		format console
	}
	seckill {
		redis %s
		kafka %s
		publish_timeout 1500ms
		drain_timeout 5s
		max_batch %d
	}
}
%s {
	seckill {
		user {http.request.header.X-User}
	}
	respond /up "up"
}
`, s.admins[gateway], where, strings.Join(s.through(gateway, "kafka"), " "),
		64+s.variant%64, site))
}

func (s *stack) write(name, text string) {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
}

func (s *stack) open() {
	s.Helper()
	found := s.redisConfig(tool)
	found.ReadTimeout = 3 * time.Second
	rdb, err := redisconn.New(found)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = rdb.Close() })
	if s.store, err = store.Open(s.Context(), store.Config{DSN: s.dsn(tool)}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = s.store.Close() })
	cfg := kafka.Config{Brokers: s.through(tool, "kafka")}
	cfg.SetDefaults()
	admin, err := kafka.NewAdmin(cfg, zap.NewNop())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = admin.Close() })
	_ = mysql.SetLogger(&mysql.NopLogger{}) // connections that break are what this is about
	if s.db, err = sql.Open("mysql", s.dsn(tool)); err != nil {
		s.Fatal(err)
	}
	s.db.SetMaxOpenConns(4)
	s.db.SetConnMaxLifetime(20 * time.Second)
	s.Cleanup(func() { _ = s.db.Close() })
	s.ledger = ledger.New(rdb, ledger.Options{})
	s.sources = invariant.Sources{Ledger: s.ledger, Store: s.store, Kafka: admin, Topic: cfg.Topics.Orders, Group: cfg.Group}
}

func (s *stack) cmd(program, config string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, program), append(args, "--config", filepath.Join(s.dir, config))...)
	for _, v := range os.Environ() { // what is exported for tests is not for these programs
		if !strings.HasPrefix(v, "SECKILL_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "HOME="+s.dir, "XDG_CONFIG_HOME="+s.dir, "XDG_DATA_HOME="+s.dir)
	return cmd
}

// command runs an operator's command that has to succeed.
func (s *stack) command(program string, args ...string) {
	s.Helper()
	if out, err := s.within(2*time.Minute, program, args...); err != nil {
		s.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
}

// try runs an operator's command, for half a minute at most.
func (s *stack) try(program string, args ...string) (string, error) {
	s.Helper()
	return s.within(30*time.Second, program, args...)
}

func (s *stack) within(d time.Duration, program string, args ...string) (string, error) {
	s.Helper()
	config := tool + ".yaml"
	if program == "seckill-worker" {
		config = "tool-worker.yaml"
	}
	ctx, cancel := context.WithTimeout(s.Context(), d)
	defer cancel()
	cmd := s.cmd(program, config, args...)
	bounded := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	bounded.Env = cmd.Env
	out, err := bounded.CombinedOutput()
	return string(out), err
}

// start runs one of the product's processes.
func (s *stack) start(name string) {
	s.Helper()
	var command func() *exec.Cmd
	var up string
	kind := strings.TrimRight(name, "123")
	switch kind {
	case "gateway":
		command = func() *exec.Cmd { return s.cmd("caddy", name+".caddyfile", "run", "--adapter", "caddyfile") }
		up = s.sites[slices.Index(Programs, name)] + "/up"
	default:
		command = func() *exec.Cmd { return s.cmd("seckill-"+kind, name+".yaml", "run") }
		up = s.health(name) + "/livez"
	}
	s.programs[name] = testenv.StartProgram(s, name, command, func() error { return fetch(up) })
}

func (s *stack) health(name string) string {
	b, err := os.ReadFile(filepath.Join(s.dir, name+".yaml"))
	if err != nil {
		s.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), `listen: "`)
	addr, _, _ := strings.Cut(rest, `"`)
	return "http://" + addr
}

func fetch(url string) error {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}

// sell opens the sale and waits until both gateways show it open.
func (s *stack) sell(units int64) {
	s.Helper()
	s.command("seckill-syncer", "activity", "create", "--id", fmt.Sprint(s.activity), "--item", fmt.Sprint(s.item), "--title", "chaos",
		"--starts", "now", "--ends", "+"+s.ends.String(), "--max-per-user", "3", "--stock", fmt.Sprint(units), "--wait", "60s")
	for _, site := range s.sites {
		url := fmt.Sprintf("%s/seckill/%d", site, s.activity)
		testenv.Eventually(s, time.Minute, "the sale is open at "+site, func() bool {
			resp, err := http.Get(url)
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			b := make([]byte, 512)
			n, _ := resp.Body.Read(b)
			return strings.Contains(string(b[:n]), `"open"`)
		})
	}
	http.DefaultClient.CloseIdleConnections()
}

// heal ends every fault of the links.
func (s *stack) heal() {
	for _, proxies := range s.links {
		for _, p := range proxies {
			p.Heal()
		}
	}
}

// keep copies what the processes have logged.
func (s *stack) keep(dir string) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.Log(err)
		return
	}
	for name, p := range s.programs {
		if err := os.WriteFile(filepath.Join(dir, name+".log"), []byte(p.Log()), 0o600); err != nil {
			s.Log(err)
		}
	}
}
