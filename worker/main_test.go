package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/internal/bench"
	"github.com/seckillgate/seckillgate/internal/config"
	"github.com/seckillgate/seckillgate/internal/crashpoint"
	"github.com/seckillgate/seckillgate/internal/invariant"
	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/testenv"
	"github.com/seckillgate/seckillgate/internal/told"
)

func TestMain(m *testing.M) {
	if os.Getenv(benchWorker) != "" {
		main()
		return
	}
	for _, kv := range os.Environ() { // what a test means to run with, it sets itself
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, config.EnvPrefix) {
			_ = os.Unsetenv(name)
		}
	}
	goleak.VerifyTestMain(m, append(testenv.KnownLeaks(), goleak.Cleanup(func(code int) {
		if built.dir != "" {
			_ = os.RemoveAll(built.dir)
		}
		bench.Print(os.Stdout)
		os.Exit(code)
	}))...)
}

// command runs the command line in this process, with nothing in the environment but what a test sets.
func command(t testing.TB, args ...string) (out string, err error) {
	t.Helper()
	root := newRoot()
	var b bytes.Buffer
	root.SetOut(&b)
	root.SetErr(&b)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	return b.String(), err
}

func mustCommand(t testing.TB, args ...string) string {
	t.Helper()
	out, err := command(t, args...)
	if err != nil {
		t.Fatalf("seckill-worker %v: %v\n%s", args, err, out)
	}
	return out
}

// deployment is a Redis, a database and topics of a test's own, and what the rest of the product would do with them.
type deployment struct {
	t              testing.TB
	redis          *testenv.Redis
	dsn            string
	kafka          kafka.Config
	ledger         *ledger.Ledger
	store          *store.Store
	producer       *kafka.Producer
	admin          *kafka.Admin
	activity, item int64
	config         string // the worker's configuration file
}

func deploy(t testing.TB, partitions int32) *deployment {
	t.Helper()
	d := &deployment{t: t, redis: testenv.StartRedis(t), dsn: testenv.MySQL(t), activity: testenv.ID(), item: testenv.ID()}
	d.kafka = kafka.Config{
		Brokers: testenv.Brokers(t), Group: testenv.Topic(t, "group", 1),
		Topics: kafka.Topics{
			Orders: testenv.Topic(t, "orders", partitions), DeadLetters: testenv.Topic(t, "dlq", 1), Results: testenv.Topic(t, "results", 1),
		},
	}
	d.config = filepath.Join(t.TempDir(), "worker.yaml")
	yaml := fmt.Sprintf(`redis: {addrs: [%q]}
kafka:
  brokers: [%q]
  group: %s
  topics: {orders: %s, dead_letters: %s, results: %s}
mysql: {dsn: %q}
http: {listen: "127.0.0.1:0"}
log: {level: warn, format: console}
accept: [replication, min_insync, retention, clock, durability, binlog_format, log_bin]
`, d.redis.Addr, d.kafka.Brokers[0], d.kafka.Group, d.kafka.Topics.Orders, d.kafka.Topics.DeadLetters, d.kafka.Topics.Results, d.dsn)
	if err := os.WriteFile(d.config, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	mustCommand(t, "migrate", "--config", d.config)

	rdb, err := redisconn.New(redisconn.Config{Addrs: []string{d.redis.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	d.ledger = ledger.New(rdb, ledger.Options{})
	if d.store, err = store.Open(t.Context(), store.Config{DSN: d.dsn}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.store.Close() })
	if d.producer, err = kafka.NewProducer(d.kafka, kafka.ProducerOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.producer.Close() })
	if d.admin, err = kafka.NewAdmin(d.kafka, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.admin.Close() })
	d.kafka.SetDefaults()
	return d
}

// sale opens an activity with that stock.
func (d *deployment) sale(stock int64) *deployment {
	d.t.Helper()
	ctx, now := d.t.Context(), time.Now().UnixMilli()
	a := ledger.Activity{ID: d.activity, Item: d.item, StartsAtMs: now - 60_000, EndsAtMs: now + 3_600_000, MaxPerUser: 10, State: ledger.Open}
	if err := d.store.CreateActivity(ctx, a, &stock); err != nil {
		d.t.Fatal(err)
	}
	load, err := d.ledger.LoadBegin(ctx, a)
	if err != nil {
		d.t.Fatal(err)
	}
	stock, version, _, err := d.store.Inventory(ctx, d.item)
	if err != nil {
		d.t.Fatal(err)
	}
	if _, err := d.ledger.LoadFinish(ctx, a.ID, load.Epoch, version, stock, a.State); err != nil {
		d.t.Fatal(err)
	}
	return d
}

// accept reserves and publishes n orders of new buyers, as the gateway would, over all partitions.
func (d *deployment) accept(n int) []*order.Order {
	d.t.Helper()
	orders := d.reserve(n)
	var all sync.WaitGroup
	for _, o := range orders {
		all.Go(func() {
			value, err := o.Encode()
			if err == nil {
				_, err = d.producer.Send(d.t.Context(), d.kafka.Topics.Orders, []byte(o.ID), value, nil)
			}
			if err != nil {
				d.t.Errorf("publish: %v", err)
			}
		})
	}
	all.Wait()
	return orders
}

// reserve puts n orders of new buyers in the ledger, for one to three units each.
func (d *deployment) reserve(n int) []*order.Order {
	d.t.Helper()
	orders := make([]*order.Order, n)
	members := make([]ledger.Reservation, n)
	for i := range orders {
		id, err := order.NewID()
		if err != nil {
			d.t.Fatal(err)
		}
		orders[i] = &order.Order{
			V: order.SchemaVersion, ID: id, Activity: d.activity, User: "buyer " + id, Item: d.item, Quantity: int64(i%3) + 1,
			CreatedAtMs: time.Now().UnixMilli(),
		}
		members[i] = ledger.Reservation{
			Order: id, Nonce: id, User: orders[i].User, Quantity: orders[i].Quantity, NotAfterMs: time.Now().Add(time.Minute).UnixMilli(),
		}
	}
	for from := 0; from < n; from += 100 {
		got, err := d.ledger.Reserve(d.t.Context(), d.activity, members[from:min(n, from+100)])
		if err != nil {
			d.t.Fatal(err)
		}
		for _, one := range got {
			if one.Code != ledger.Reserved {
				d.t.Fatalf("reserve: %+v", one)
			}
		}
	}
	return orders
}

// configure adds lines to the worker's configuration file.
func (d *deployment) configure(lines string) {
	d.t.Helper()
	if err := os.WriteFile(d.config, []byte(readFile(d.t, d.config)+lines+"\n"), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// edit replaces words in it.
func (d *deployment) edit(old, with string) {
	d.t.Helper()
	text := readFile(d.t, d.config)
	if !strings.Contains(text, old) {
		d.t.Fatalf("no %q in %s", old, d.config)
	}
	if err := os.WriteFile(d.config, []byte(strings.ReplaceAll(text, old, with)), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// done waits until the group has committed everything.
func (d *deployment) done(within time.Duration) {
	d.t.Helper()
	testenv.Eventually(d.t, within, "every record is landed and its offset committed", func() bool {
		high, err := d.admin.HighWater(d.t.Context(), d.kafka.Topics.Orders)
		if err != nil {
			d.t.Fatal(err)
		}
		committed, err := d.admin.Committed(d.t.Context(), d.kafka.Group, d.kafka.Topics.Orders)
		if err != nil {
			d.t.Fatal(err)
		}
		for part, end := range high {
			if end > 0 && committed[part] < end {
				return false
			}
		}
		return true
	})
}

// exact checks that every accepted order is confirmed, each once, and I2.
func (d *deployment) exact(stock int64, accepted []*order.Order) {
	d.t.Helper()
	var sum int64
	ids := make([]string, len(accepted))
	for i, o := range accepted {
		sum += o.Quantity
		ids[i] = o.ID
	}
	rows, err := d.store.Orders(context.Background(), ids)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, id := range ids {
		if rows[id].Status != order.Confirmed {
			d.t.Errorf("order %s is %+v, want it confirmed", id, rows[id])
		}
	}
	m, version, _, err := d.store.Inventory(context.Background(), d.item)
	if err != nil {
		d.t.Fatal(err)
	}
	got, err := d.ledger.Inspect(context.Background(), d.activity)
	if err != nil {
		d.t.Fatal(err)
	}
	if s := got[0]; m != stock-sum || s.Stock != m || s.Version != version || s.Pending != 0 || s.LedgerLen != 0 {
		d.t.Errorf("sold %d of %d: mysql has %d (version %d), redis %d (version %d), pending %d, ledger %d",
			sum, stock, m, version, s.Stock, s.Version, s.Pending, s.LedgerLen)
	}
}

// check judges I1 to I4.
func (d *deployment) check(units int64, records []told.Record) *invariant.Report {
	d.t.Helper()
	src := invariant.Sources{Ledger: d.ledger, Store: d.store, Kafka: d.admin, Topic: d.kafka.Topics.Orders, Group: d.kafka.Group}
	r, err := invariant.Check(d.t.Context(), src, d.activity, records, invariant.Options{Units: units, ToldRecords: true}, time.Minute)
	if err != nil {
		d.t.Fatal(err)
	}
	if err := r.Err(); err != nil {
		var text strings.Builder
		_ = r.Write(&text)
		d.t.Errorf("%v\n%s", err, &text)
	}
	return r
}

// built is the binary with crash points, made once.
var built struct {
	sync.Once
	dir string
	err error
}

func binary(t testing.TB) string {
	t.Helper()
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "seckill-worker-test"); built.err != nil {
			return
		}
		out, err := exec.Command("go", "build", "-tags", "crashpoints", "-o", filepath.Join(built.dir, "seckill-worker"), ".").CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("build with crash points: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "seckill-worker")
}

// child is a worker in a process of its own.
type child struct {
	t    testing.TB
	cmd  *exec.Cmd
	log  *journal
	done chan struct{}
	err  error
}

// journal is what a child has printed so far.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// start runs the binary; crashAt is a crash point or "".
func (d *deployment) start(crashAt string, args ...string) *child {
	d.t.Helper()
	c := &child{t: d.t, log: new(journal), done: make(chan struct{})}
	c.cmd = exec.Command(binary(d.t), append(args, "--config", d.config)...)
	c.cmd.Env = append(os.Environ(), crashpoint.Env+"="+crashAt)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	if err := c.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	go func() { c.err = c.cmd.Wait(); close(c.done) }()
	d.t.Cleanup(c.kill)
	return c
}

// kill is kill -9.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

// stop is SIGTERM, and wants an orderly end.
func (c *child) stop() {
	c.t.Helper()
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		c.t.Fatalf("still running 20s after SIGTERM\n%s", c.log)
	}
	if c.err != nil {
		c.t.Errorf("ended with %v\n%s", c.err, c.log)
	}
}

// killed waits until the worker has died at its crash point.
func (c *child) killed(within time.Duration) {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(within):
		c.kill()
		c.t.Fatalf("not dead within %s\n%s", within, c.log)
	}
	var exit *exec.ExitError
	if !errors.As(c.err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		c.t.Fatalf("ended with %v, want kill -9\n%s", c.err, c.log)
	}
}

func status(url string) int {
	resp, err := http.Get(url)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func itoa(n int) string { return strconv.Itoa(n) }

func mustEncode(t testing.TB, o *order.Order) []byte {
	t.Helper()
	value, err := o.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// producerRaw sends any bytes to the orders topic.
func (d *deployment) producerRaw(key string, value []byte) {
	d.t.Helper()
	if _, err := d.producer.Send(d.t.Context(), d.kafka.Topics.Orders, []byte(key), value, nil); err != nil {
		d.t.Fatal(err)
	}
}

func deleteTopic(t *testing.T, d *deployment, topic string) {
	t.Helper()
	cfg, err := d.kafka.Sarama()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Metadata.Full = true
	admin, err := sarama.NewClusterAdmin(d.kafka.Brokers, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := admin.DeleteTopic(topic); err != nil {
		t.Error(err)
	}
}
