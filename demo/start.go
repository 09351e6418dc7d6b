package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/demo/shop"
	"github.com/seckillgate/seckillgate/demo/stack"
	"github.com/seckillgate/seckillgate/internal/invariant"
	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/store"
)

//go:embed Caddyfile
var caddyfile []byte

type options struct {
	base   string // where everything is kept
	unpack bool   // do not use installed servers
	port   int    // preferred port of the page
}

// demo is everything that runs.
type demo struct {
	opt options
	bin *binaries
	ui  *ui
	dir string // of this run

	procs    *stack.Procs
	children map[string]*stack.Child
	kafka    *stack.Kafka
	db       *sql.DB
	src      invariant.Sources
	closers  []func()
	key      []byte
	env      []string // of the product's processes
	url      string   // of the page

	mu   sync.Mutex
	sale shop.Sale // on the page
}

// partitions of the orders topic. One activity uses one of them.
const partitions = 4

// grace is how long each process may take to end.
const grace = 8 * time.Second

// start brings up the stack, the product and the shop, and cleans up after itself when something fails.
func start(ctx context.Context, opt options, bin *binaries, ui *ui) (d *demo, err error) {
	d = &demo{opt: opt, bin: bin, ui: ui, dir: filepath.Join(opt.base, "run"), children: map[string]*stack.Child{}}
	unlock, err := lock(opt.base)
	if err != nil {
		return nil, err
	}
	d.closers = append(d.closers, unlock)
	defer func() {
		if err != nil {
			d.stop()
		}
	}()
	if err := os.RemoveAll(d.dir); err != nil {
		return d, fmt.Errorf("clear what the last run left: %w", err)
	}
	if d.procs, err = stack.NewProcs(filepath.Join(d.dir, "logs")); err != nil {
		return d, err
	}
	for _, step := range []func(context.Context) error{d.startServers, d.migrate, d.startProduct, d.openSources} {
		if err := step(ctx); err != nil {
			return d, err
		}
	}
	return d, nil
}

func (d *demo) startServers(ctx context.Context) error {
	servers, err := stack.Find(ctx, d.opt.base, d.opt.unpack, func(s string) { d.ui.progress("servers", s) })
	if err != nil {
		return err
	}
	where := "installed here"
	if servers.Unpacked {
		where = "unpacked here, not installed"
	}
	redis, err := stack.StartRedis(ctx, d.procs, servers.Redis, filepath.Join(d.dir, "redis"))
	if err != nil {
		return err
	}
	d.ui.done("redis", redis.Addr+" ("+where+")")
	d.ui.progress("mariadb", "starting")
	maria, err := stack.StartMariaDB(ctx, d.procs, servers.MariaDB, filepath.Join(d.dir, "mariadb"))
	if err != nil {
		return err
	}
	d.ui.done("mariadb", maria.Addr+" ("+where+")")
	if d.kafka, err = stack.StartKafka(filepath.Join(d.dir, "kafka"), partitions, order.TopicOrders, order.TopicDeadLetters, order.TopicResults); err != nil {
		return err
	}
	d.closers = append(d.closers, d.kafka.Stop)
	d.ui.done("kafka", strings.Join(d.kafka.Brokers, ",")+" (embedded)")
	if d.db, err = sql.Open("mysql", maria.DSN); err != nil {
		return fmt.Errorf("open mariadb: %w", err)
	}
	d.closers = append(d.closers, func() { _ = d.db.Close() })
	d.env = []string{
		"SECKILL_REDIS_ADDRS=" + redis.Addr,
		"SECKILL_KAFKA_BROKERS=" + strings.Join(d.kafka.Brokers, ","),
		"SECKILL_MYSQL_DSN=" + maria.DSN,
	}
	return d.writeEnv()
}

// writeEnv lets a person point the product's commands at the running demo.
func (d *demo) writeEnv() error {
	var b strings.Builder
	for _, kv := range d.env {
		name, value, _ := strings.Cut(kv, "=")
		fmt.Fprintf(&b, "export %s='%s'\n", name, value)
	}
	path := filepath.Join(d.opt.base, "env")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("write the demo's addresses: %w", err)
	}
	d.closers = append(d.closers, func() { _ = os.Remove(path) })
	return nil
}

func (d *demo) migrate(ctx context.Context) error {
	if out, err := d.command(ctx, d.bin.worker, "migrate"); err != nil {
		return fmt.Errorf("lay the tables: %w: %s", err, out)
	}
	d.ui.done("tables", "laid by seckill-worker migrate")
	return nil
}

// command runs one of the product's commands to its end.
func (d *demo) command(ctx context.Context, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), d.env...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// startProduct runs worker, syncer, shop and gateway.
func (d *demo) startProduct(ctx context.Context) error {
	for _, p := range []struct{ name, path string }{{"worker", d.bin.worker}, {"syncer", d.bin.syncer}} {
		if err := d.service(ctx, p.name, p.path); err != nil {
			return err
		}
	}
	d.key = make([]byte, 32)
	if _, err := rand.Read(d.key); err != nil {
		return fmt.Errorf("make a key for the shop's sessions: %w", err)
	}
	shopAddr, err := d.startShop()
	if err != nil {
		return err
	}
	if err := d.startGateway(ctx, shopAddr); err != nil {
		return err
	}
	d.ui.done("product", "worker, syncer, gateway in front of the shop")
	return nil
}

// service runs one of the product's daemons and waits until it says that it is ready.
func (d *demo) service(ctx context.Context, name, path string) error {
	d.ui.progress(name, "starting")
	port, err := stack.FreePort(0)
	if err != nil {
		return err
	}
	listen := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	c, err := d.procs.Start(stack.Spec{
		Name: name, Path: path, Args: []string{"run"}, Dir: d.dir, Env: append(d.env, "SECKILL_HTTP_LISTEN="+listen),
	})
	if err != nil {
		return err
	}
	d.children[name] = c
	return c.Wait(ctx, 60*time.Second, func(ctx context.Context) error { return get(ctx, "http://"+listen+"/readyz") })
}

func (d *demo) startShop() (addr string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("start the shop: %w", err)
	}
	srv := &http.Server{
		Handler:           shop.New(shop.Config{Key: d.key, DB: d.db, Sale: d.currentSale}),
		ReadHeaderTimeout: 10 * time.Second,
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	d.closers = append(d.closers, func() { _ = srv.Close(); <-done })
	return l.Addr().String(), nil
}

func (d *demo) startGateway(ctx context.Context, shopAddr string) error {
	d.ui.progress("gateway", "starting")
	config := filepath.Join(d.dir, "Caddyfile")
	if err := os.WriteFile(config, caddyfile, 0o600); err != nil {
		return fmt.Errorf("write the gateway's configuration: %w", err)
	}
	port, err := stack.FreePort(d.opt.port)
	if err != nil {
		return err
	}
	admin, err := stack.FreePort(0)
	if err != nil {
		return err
	}
	d.url = "http://127.0.0.1:" + strconv.Itoa(port)
	storage := filepath.Join(d.dir, "caddy")
	c, err := d.procs.Start(stack.Spec{
		Name: "gateway", Path: d.bin.gateway, Args: []string{"run", "--config", config, "--adapter", "caddyfile"}, Dir: d.dir,
		Env: append(d.env, "DEMO_PORT="+strconv.Itoa(port), "DEMO_ADMIN=127.0.0.1:"+strconv.Itoa(admin), "DEMO_SHOP="+shopAddr,
			"DEMO_STORAGE="+storage, "DEMO_JWT_KEY="+base64.StdEncoding.EncodeToString(d.key),
			"XDG_DATA_HOME="+storage, "XDG_CONFIG_HOME="+storage),
	})
	if err != nil {
		return err
	}
	d.children["gateway"] = c
	return c.Wait(ctx, 60*time.Second, func(ctx context.Context) error { return get(ctx, d.url+"/healthz") })
}

// openSources makes the clients with which the end state is judged.
func (d *demo) openSources(ctx context.Context) error {
	value := func(i int) string { _, v, _ := strings.Cut(d.env[i], "="); return v }
	rdb, err := redisconn.New(redisconn.Config{Addrs: []string{value(0)}})
	if err != nil {
		return err
	}
	d.closers = append(d.closers, func() { _ = rdb.Close() })
	s, err := store.Open(ctx, store.Config{DSN: value(2)})
	if err != nil {
		return err
	}
	d.closers = append(d.closers, func() { _ = s.Close() })
	cfg := kafka.Config{Brokers: d.kafka.Brokers}
	cfg.SetDefaults()
	admin, err := kafka.NewAdmin(cfg, zap.NewNop())
	if err != nil {
		return err
	}
	d.closers = append(d.closers, func() { _ = admin.Close() })
	d.src = invariant.Sources{
		Ledger: ledger.New(rdb, ledger.Options{}), Store: s, Kafka: admin, Topic: cfg.Topics.Orders, Group: cfg.Group,
	}
	return nil
}

// stop ends everything, what was started last first.
func (d *demo) stop() {
	d.ui.progress("stop", "ending everything")
	// The product goes before what it depends on, so that nothing is torn from under it.
	for _, name := range []string{"gateway", "worker", "syncer"} {
		if c := d.children[name]; c != nil {
			d.procs.End(c, grace)
		}
	}
	for i := len(d.closers) - 1; i > 0; i-- {
		d.closers[i]()
	}
	if d.procs != nil {
		d.procs.Stop(grace)
	}
	http.DefaultClient.CloseIdleConnections()
	if len(d.closers) > 0 {
		d.closers[0]() // the lock
	}
	d.ui.done("stop", "everything has ended")
}

func (d *demo) currentSale() shop.Sale {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sale
}

func (d *demo) setSale(s shop.Sale) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sale = s
}

func get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}

var errRunning = errors.New("another demo runs in this checkout; end it first")
