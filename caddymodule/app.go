package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/gate"
	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/redisconn"
)

// App is the Caddy app `seckill`. It holds the clients that all seckill handlers share. They are made when the
// configuration starts to run, and they outlive a reload that does not change them. No server has to be up for Caddy to
// start: until Redis and Kafka answer, buyers hear 503 with Retry-After.
type App struct {
	// Where the reservations live. Required.
	Redis Redis `json:"redis"`

	// Where accepted orders go. Required.
	Kafka kafka.Config `json:"kafka"`

	// The path prefix of the contract's own calls, without a slash at its end. Default: /seckill.
	Prefix string `json:"prefix,omitempty"`

	// How long a buyer waits for an answer at most; what is undecided by then is answered as `processing`. Default: 1s.
	RequestTimeout caddy.Duration `json:"request_timeout,omitempty"`

	// How long the producer may try to get one order into Kafka, its own retries included. It has to be shorter than the
	// publish budget that the syncer sets for all gateways (5s by default). Default: 2s.
	PublishTimeout caddy.Duration `json:"publish_timeout,omitempty"`

	// How many reservations one call to Redis carries at most. Default: 64.
	MaxBatch int `json:"max_batch,omitempty"`

	// How many reservations of one activity may wait for the next call; more are refused at once. Default: 10000.
	MaxQueue int `json:"max_queue,omitempty"`

	// How many orders may be in work at the same time; more are refused before they reserve. Default: 20000.
	MaxOpen int `json:"max_open,omitempty"`

	// How many buyers may wait for their order's outcome by long-poll or stream; more get the status as it is.
	// Default: 50000.
	MaxWaiters int `json:"max_waiters,omitempty"`

	// How long a reload or shutdown waits for orders in work before it closes the clients. Default: 10s.
	DrainTimeout caddy.Duration `json:"drain_timeout,omitempty"`

	shared *shared
	pooled string
	log    *zap.Logger
	ctx    caddy.Context
	events *caddyevents.App
}

// Redis says which Redis to talk to and within which bounds.
type Redis struct {
	// Addresses, host:port. One: a single server. Several: seeds of a cluster, or with `sentinel` the sentinels. Required.
	Addresses []string `json:"addresses"`

	// The name of the master that the sentinels at `addresses` watch. Default: none, no Sentinel.
	Sentinel string `json:"sentinel,omitempty"`

	// Take a single address for the seed of a cluster; several imply it. Default: false.
	Cluster bool `json:"cluster,omitempty"`

	// The logical database of a single server or behind Sentinel. Default: 0.
	DB int `json:"db,omitempty"`

	// The ACL user. Default: the server's default user.
	Username string `json:"username,omitempty"`

	// The user's password; placeholders such as {env.REDIS_PASSWORD} are replaced. Default: none.
	Password string `json:"password,omitempty"`

	// The sentinels' own user and password. Default: none.
	SentinelUsername string `json:"sentinel_username,omitempty"`
	SentinelPassword string `json:"sentinel_password,omitempty"`

	// Encrypt connections. Default: false.
	TLS bool `json:"tls,omitempty"`

	// A PEM file of authorities to trust in place of the system's. Default: none.
	CAFile string `json:"ca_file,omitempty"`

	// Connections in use per server at most. Default: 64.
	PoolSize int `json:"pool_size,omitempty"`

	// Idle connections to keep open. Default: 0.
	MinIdle int `json:"min_idle,omitempty"`

	// Bound of connecting. Default: 1s.
	DialTimeout caddy.Duration `json:"dial_timeout,omitempty"`

	// Bound of waiting for a reply. Default: 500ms.
	ReadTimeout caddy.Duration `json:"read_timeout,omitempty"`

	// Bound of sending a command. Default: 500ms.
	WriteTimeout caddy.Duration `json:"write_timeout,omitempty"`

	// Bound of waiting for a connection when all are in use. Default: 200ms.
	PoolTimeout caddy.Duration `json:"pool_timeout,omitempty"`
}

func (r *Redis) config() redisconn.Config {
	return redisconn.Config{
		Addrs: r.Addresses, Sentinel: r.Sentinel, Cluster: r.Cluster, DB: r.DB,
		Username: r.Username, Password: r.Password,
		SentinelUsername: r.SentinelUsername, SentinelPassword: r.SentinelPassword,
		TLS: r.TLS, CAFile: r.CAFile, PoolSize: r.PoolSize, MinIdle: r.MinIdle,
		DialTimeout: time.Duration(r.DialTimeout), ReadTimeout: time.Duration(r.ReadTimeout),
		WriteTimeout: time.Duration(r.WriteTimeout), PoolTimeout: time.Duration(r.PoolTimeout),
	}
}

// CaddyModule returns the Caddy module information.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "seckill", New: func() caddy.Module { return new(App) }}
}

// Provision checks the configuration and takes the clients from the pool. It neither dials nor starts anything, since
// `caddy validate` provisions too.
func (a *App) Provision(ctx caddy.Context) error {
	if len(a.Redis.Addresses) == 0 && len(a.Kafka.Brokers) == 0 {
		return errors.New("seckill is not configured: add `seckill { redis <address> kafka <broker> }` to the global options")
	}
	if a.Prefix == "" {
		a.Prefix = DefaultPrefix
	}
	if err := checkPrefix(a.Prefix); err != nil {
		return err
	}
	if err := a.expand(); err != nil {
		return err
	}
	c := a.settings()
	if err := c.validate(); err != nil {
		return err
	}
	key, err := c.key()
	if err != nil {
		return err
	}
	a.ctx, a.log = ctx, ctx.Logger()
	events, err := ctx.App("events")
	if err != nil {
		return err
	}
	a.events = events.(*caddyevents.App)
	v, _, err := sharedPool.LoadOrNew(key, func() (caddy.Destructor, error) { return newShared(c, a.log), nil })
	if err != nil {
		return err
	}
	a.pooled, a.shared = key, v.(*shared)
	return registerMetrics(ctx)
}

// expand replaces placeholders that are known now, {env.…} and {file.…}: secrets should not stand in a configuration file.
func (a *App) expand() error {
	repl := caddy.NewReplacer()
	type setting struct {
		name  string
		value *string
	}
	settings := []setting{
		{"redis username", &a.Redis.Username},
		{"redis password", &a.Redis.Password},
		{"redis sentinel_username", &a.Redis.SentinelUsername},
		{"redis sentinel_password", &a.Redis.SentinelPassword},
		{"redis ca_file", &a.Redis.CAFile},
		{"kafka sasl user", &a.Kafka.SASL.User},
		{"kafka sasl password", &a.Kafka.SASL.Password},
		{"kafka ca_file", &a.Kafka.TLS.CAFile},
		{"kafka cert", &a.Kafka.TLS.CertFile},
		{"kafka cert key", &a.Kafka.TLS.KeyFile},
	}
	for i := range a.Redis.Addresses {
		settings = append(settings, setting{"redis address", &a.Redis.Addresses[i]})
	}
	for i := range a.Kafka.Brokers {
		settings = append(settings, setting{"kafka broker", &a.Kafka.Brokers[i]})
	}
	for _, s := range settings {
		v, err := repl.ReplaceOrErr(*s.value, true, true)
		if err != nil { // which repeats a part of the value, and that may be of a password with braces in it
			what := "a placeholder"
			if where := source.FindString(*s.value); where != "" {
				what = where
			}
			return fmt.Errorf("seckill: %s has %s, which is unknown or empty: set what {env.NAME} or {file.PATH} names, or write \\{ for a brace", s.name, what)
		}
		*s.value = v
	}
	return nil
}

// source is a placeholder by its spelling, which no password has by accident.
var source = regexp.MustCompile(`\{(env\.[A-Za-z_][A-Za-z0-9_]*|file\.[^{}]+)\}`)

func (a *App) settings() settings {
	return settings{
		Redis: a.Redis.config(), Kafka: a.Kafka,
		RequestTimeout: time.Duration(a.RequestTimeout), PublishTimeout: time.Duration(a.PublishTimeout),
		MaxBatch: a.MaxBatch, MaxQueue: a.MaxQueue, MaxOpen: a.MaxOpen, MaxWaiters: a.MaxWaiters,
		DrainTimeout: time.Duration(a.DrainTimeout),
	}
}

// Start begins to look at the sales, so that the first buyers do not have to wait for it.
func (a *App) Start() error {
	a.shared.start(a)
	_, err := a.shared.get()
	return err
}

// Stop does nothing: requests of this configuration may still be running. The clients close in Cleanup, once nobody uses
// them any more.
func (a *App) Stop() error { return nil }

// emit tells Caddy's event handlers that a sale is in another state.
func (a *App) emit(c gate.Change) {
	a.events.Emit(a.ctx, "seckill_"+c.To, map[string]any{
		"activity_id": c.Activity.ID, "item_id": c.Activity.Item, "title": c.Activity.Title, "from": c.From, "to": c.To,
	})
}

// Cleanup gives the clients back.
func (a *App) Cleanup() error {
	if a.pooled == "" {
		return nil
	}
	a.shared.stop(a)
	_, err := sharedPool.Delete(a.pooled)
	a.pooled = ""
	return err
}

// appOf gives the app to a handler that is being provisioned.
func appOf(ctx caddy.Context) (*App, error) {
	v, err := ctx.App("seckill")
	if err != nil {
		return nil, err
	}
	return v.(*App), nil
}

// prefixInJSON reads the prefix of an adapted app.
func prefixInJSON(raw json.RawMessage) string {
	var a struct {
		Prefix string `json:"prefix"`
	}
	if json.Unmarshal(raw, &a) != nil {
		return ""
	}
	return a.Prefix
}

// Interface guards.
var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
