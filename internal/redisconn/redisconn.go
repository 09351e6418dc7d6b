// Package redisconn turns configuration into a Redis client whose behaviour the reservation protocol can reason about:
// no silent retries, deadlines that are obeyed, and a bounded pool that fails fast.
//
// Limitations: one logical database (0 by default; cluster knows only 0), and no reads from replicas, since a replica may
// be behind.
package redisconn

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Config says which Redis to talk to and within which bounds. The zero value is not valid: Addrs is required.
type Config struct {
	// Addrs are host:port addresses. One: a single server. Several: seeds of a cluster, or with Sentinel the sentinels.
	Addrs []string `yaml:"addrs" json:"addrs,omitempty"`
	// Sentinel is the name of the master that the sentinels at Addrs watch. Default: none, no Sentinel.
	Sentinel string `yaml:"sentinel" json:"sentinel,omitempty"`
	// Cluster says that a single address is the seed of a cluster. Several addresses imply it. Default: false.
	Cluster bool `yaml:"cluster" json:"cluster,omitempty"`
	// DB is the logical database of a single server or behind Sentinel. Default: 0.
	DB int `yaml:"db" json:"db,omitempty"`

	// Username is the ACL user. Default: the server's default user.
	Username string `yaml:"username" json:"username,omitempty"`
	// Password of the user. Default: none.
	Password string `yaml:"password" json:"password,omitempty" secret:"true"`
	// SentinelUsername and SentinelPassword are for the sentinels themselves. Default: none.
	SentinelUsername string `yaml:"sentinel_username" json:"sentinel_username,omitempty"`
	SentinelPassword string `yaml:"sentinel_password" json:"sentinel_password,omitempty" secret:"true"`

	// TLS encrypts the connections, of sentinels too. Default: false.
	TLS bool `yaml:"tls" json:"tls,omitempty"`
	// CAFile is a PEM file of authorities to trust in place of the system's. Default: the system's.
	CAFile string `yaml:"ca_file" json:"ca_file,omitempty"`

	// PoolSize bounds the connections in use per server. Default: 64.
	PoolSize int `yaml:"pool_size" json:"pool_size,omitempty"`
	// MinIdle is how many idle connections to keep open. Default: 0.
	MinIdle int `yaml:"min_idle" json:"min_idle,omitempty"`
	// DialTimeout bounds connecting. Default: 1 s.
	DialTimeout time.Duration `yaml:"dial_timeout" json:"dial_timeout,omitempty"`
	// ReadTimeout bounds waiting for a reply. Default: 500 ms.
	ReadTimeout time.Duration `yaml:"read_timeout" json:"read_timeout,omitempty"`
	// WriteTimeout bounds sending a command. Default: 500 ms.
	WriteTimeout time.Duration `yaml:"write_timeout" json:"write_timeout,omitempty"`
	// PoolTimeout bounds waiting for a connection when all are in use. Default: 200 ms.
	PoolTimeout time.Duration `yaml:"pool_timeout" json:"pool_timeout,omitempty"`
}

// Defaults of Config.
const (
	DefaultPoolSize    = 64
	DefaultDialTimeout = time.Second
	DefaultIOTimeout   = 500 * time.Millisecond
	DefaultPoolTimeout = 200 * time.Millisecond
)

// SetDefaults fills every bound that is still zero.
func (c *Config) SetDefaults() {
	c.PoolSize = cmp.Or(c.PoolSize, DefaultPoolSize)
	c.DialTimeout = cmp.Or(c.DialTimeout, DefaultDialTimeout)
	c.ReadTimeout = cmp.Or(c.ReadTimeout, DefaultIOTimeout)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, DefaultIOTimeout)
	c.PoolTimeout = cmp.Or(c.PoolTimeout, DefaultPoolTimeout)
}

// Validate checks the configuration without touching the network. Its messages begin with the key.
func (c Config) Validate() error {
	if len(c.Addrs) == 0 {
		return errors.New("addrs: no address: want host:port, several for a cluster or for sentinels")
	}
	for i, a := range c.Addrs {
		host, port, err := net.SplitHostPort(a)
		if err != nil || host == "" {
			return fmt.Errorf("addrs: %q is not host:port", shown(a))
		}
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return fmt.Errorf("addrs: %q: port %q is not between 1 and 65535", shown(a), port)
		}
		if slices.Contains(c.Addrs[:i], a) {
			return fmt.Errorf("addrs: %q is given twice", shown(a))
		}
	}
	switch {
	case c.Sentinel != "" && c.Cluster:
		return fmt.Errorf("sentinel: %q and cluster exclude each other: set one", c.Sentinel)
	case c.clustered() && c.DB != 0:
		return fmt.Errorf("db: %d: a cluster knows only database 0", c.DB)
	case c.DB < 0:
		return fmt.Errorf("db: %d is negative", c.DB)
	case c.Username != "" && c.Password == "":
		return fmt.Errorf("password: user %q has none: set it", c.Username)
	case c.CAFile != "" && !c.TLS:
		return fmt.Errorf("ca_file: %q without tls: set tls to true", c.CAFile)
	case c.PoolSize < 0:
		return fmt.Errorf("pool_size: %d is negative", c.PoolSize)
	case c.MinIdle < 0 || c.MinIdle > cmp.Or(c.PoolSize, DefaultPoolSize):
		return fmt.Errorf("min_idle: %d is not between 0 and pool_size %d", c.MinIdle, cmp.Or(c.PoolSize, DefaultPoolSize))
	}
	for _, t := range []struct {
		name string
		d    time.Duration
	}{
		{"dial_timeout", c.DialTimeout},
		{"read_timeout", c.ReadTimeout},
		{"write_timeout", c.WriteTimeout},
		{"pool_timeout", c.PoolTimeout},
	} {
		// go-redis reads negative values as "none": a call without a bound would hold a buyer for ever.
		if t.d != 0 && t.d < time.Millisecond {
			return fmt.Errorf("%s: %v: want at least 1ms, or 0 for the default", t.name, t.d)
		}
	}
	return nil
}

// shown is an address without what stands before an @, where somebody may have put a password.
func shown(addr string) string { return addr[strings.LastIndexByte(addr, '@')+1:] }

// clustered says whether Addrs are seeds of a cluster.
func (c Config) clustered() bool { return c.Cluster || (c.Sentinel == "" && len(c.Addrs) > 1) }

// Mode is single, sentinel or cluster: for logs.
func (c Config) Mode() string {
	switch {
	case c.Sentinel != "":
		return "sentinel"
	case c.clustered():
		return "cluster"
	default:
		return "single"
	}
}

// quiet swallows what go-redis prints to stderr: a line per failed dial, which a Redis that is down turns into a flood. Every
// failure reaches the caller as an error, and whoever polls Redis logs when it goes and when it comes back.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

var silence = sync.OnceFunc(func() { redis.SetLogger(quiet{}) })

// New makes a client. It does not dial: the first command does.
//
// Hooks are left to the caller; the reservation ledger counts attempts with one.
func New(c Config) (redis.UniversalClient, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	c.SetDefaults()
	silence()
	var tc *tls.Config
	if c.TLS {
		tc = &tls.Config{MinVersion: tls.VersionTLS12}
		if c.CAFile != "" {
			pem, err := os.ReadFile(c.CAFile)
			if err != nil {
				return nil, fmt.Errorf("redis: read ca_file: %w", err)
			}
			tc.RootCAs = x509.NewCertPool()
			if !tc.RootCAs.AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("redis: ca_file %q has no PEM certificate", c.CAFile)
			}
		}
	}
	// What the three kinds of client share. The retries are the point: 0 would mean 3, and a reserve call repeated behind
	// our back would be told as if it had run once. Everything that repeats a call does so knowingly, with the same order id.
	o := redis.Options{
		MaxRetries:            -1,
		ContextTimeoutEnabled: true,
		DB:                    c.DB,
		Username:              c.Username,
		Password:              c.Password,
		TLSConfig:             tc,
		PoolSize:              c.PoolSize,
		MinIdleConns:          c.MinIdle,
		DialTimeout:           c.DialTimeout,
		ReadTimeout:           c.ReadTimeout,
		WriteTimeout:          c.WriteTimeout,
		PoolTimeout:           c.PoolTimeout,
		// One try per dial: the default tries 5 times, 100 ms apart, while a buyer waits.
		DialerRetries: 1,
		// CLIENT SETINFO is one more right that users would need for nothing, and Redis before 7.2 does not know it.
		DisableIdentity: true,
		// Hand-off notices are for one vendor's managed service, and asking costs each new connection a round trip.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	switch c.Mode() {
	case "sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName:            c.Sentinel,
			SentinelAddrs:         c.Addrs,
			SentinelUsername:      c.SentinelUsername,
			SentinelPassword:      c.SentinelPassword,
			DB:                    o.DB,
			Username:              o.Username,
			Password:              o.Password,
			MaxRetries:            o.MaxRetries,
			ContextTimeoutEnabled: o.ContextTimeoutEnabled,
			TLSConfig:             o.TLSConfig,
			PoolSize:              o.PoolSize,
			MinIdleConns:          o.MinIdleConns,
			DialTimeout:           o.DialTimeout,
			ReadTimeout:           o.ReadTimeout,
			WriteTimeout:          o.WriteTimeout,
			PoolTimeout:           o.PoolTimeout,
			DialerRetries:         o.DialerRetries,
			DisableIdentity:       o.DisableIdentity,
		}), nil
	case "cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs:                 c.Addrs,
			Username:              o.Username,
			Password:              o.Password,
			MaxRetries:            o.MaxRetries,
			ContextTimeoutEnabled: o.ContextTimeoutEnabled,
			TLSConfig:             o.TLSConfig,
			PoolSize:              o.PoolSize,
			MinIdleConns:          o.MinIdleConns,
			DialTimeout:           o.DialTimeout,
			ReadTimeout:           o.ReadTimeout,
			WriteTimeout:          o.WriteTimeout,
			PoolTimeout:           o.PoolTimeout,
			DialerRetries:         o.DialerRetries,
			DisableIdentity:       o.DisableIdentity,
			// The redirect loop repeats time-outs too, whatever MaxRetries says. It is needed for MOVED and ASK, so it stays,
			// with short pauses; the scripts are safe to run twice and the ledger counts the attempts.
			MaxRedirects:    3,
			MinRetryBackoff: 8 * time.Millisecond,
			MaxRetryBackoff: 64 * time.Millisecond,
			// A node is avoided for so long after an error that the client takes for the node's. The default of 15 s would turn
			// a moment's trouble into a long one.
			FailingTimeoutSeconds:    1,
			MaintNotificationsConfig: o.MaintNotificationsConfig,
		}), nil
	default:
		o.Addr = c.Addrs[0]
		return redis.NewClient(&o), nil
	}
}
