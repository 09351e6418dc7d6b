// Package redisconn turns configuration into a Redis client whose behaviour the reservation protocol can reason about:
// no silent retries, deadlines that are obeyed, and a bounded pool that fails fast.
//
// Limitations: one logical database (0 by default; cluster knows only 0), and no reads from replicas, since a replica may
// be behind.
package redisconn

import (
	"time"

	"github.com/redis/go-redis/v9"
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
	Password string `yaml:"password" json:"password,omitempty"`
	// SentinelUsername and SentinelPassword are for the sentinels themselves. Default: none.
	SentinelUsername string `yaml:"sentinel_username" json:"sentinel_username,omitempty"`
	SentinelPassword string `yaml:"sentinel_password" json:"sentinel_password,omitempty"`

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

// Validate checks the configuration without touching the network.
func (c Config) Validate() error { panic("stub") }

// New makes a client. It does not dial: the first command does.
func New(c Config) (redis.UniversalClient, error) { panic("stub") }
