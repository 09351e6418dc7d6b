package runner

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/syncer/binlog"
	"github.com/seckillgate/seckillgate/internal/syncer/compare"
	"github.com/seckillgate/seckillgate/internal/telemetry"
)

// Config is the whole configuration of the syncer. syncer/seckill-syncer.yaml has every key with its meaning.
type Config struct {
	Redis  redisconn.Config `yaml:"redis"`
	Kafka  kafka.Config     `yaml:"kafka"`
	MySQL  store.Config     `yaml:"mysql"`
	Binlog binlog.Config    `yaml:"binlog"`
	HTTP   telemetry.HTTP   `yaml:"http"`
	Log    telemetry.Log    `yaml:"log"`

	// ReserveDeadline is how long after its start a reserve call may still take effect. The syncer hands it, and the next
	// two, to the gateways with the catalogue. Default: 2s.
	ReserveDeadline time.Duration `yaml:"reserve_deadline"`
	// PublishBudget is how long after its reserve call began a gateway may still publish an order. A load outwaits it and
	// the reserve deadline: that long, at least, is a sale closed when Redis lost it. At least 500ms. Default: 5s.
	PublishBudget time.Duration `yaml:"publish_budget"`
	// Horizon is the age from which the sweep looks after a reservation. At least twice the publish budget. Default: 30s.
	Horizon time.Duration `yaml:"horizon"`

	// CompareInterval is the pause between two comparisons. Default: 30s.
	CompareInterval time.Duration `yaml:"compare_interval"`
	// LoadBack is how far before the workers' committed offsets a load reads Kafka. It is for shops whose workers have
	// landing.stock_tries above 1: at least that many times Horizon and CompareInterval together. Default: 0.
	LoadBack time.Duration `yaml:"load_back"`
	// RepairCap is the most buyers, or units of stock at an equal version, that one comparison mends in one activity;
	// beyond it there is an alarm that asks for force. Default: 1000.
	RepairCap int `yaml:"repair_cap"`
	// WatchInterval is how often each activity's keys are looked at. Default: 500ms.
	WatchInterval time.Duration `yaml:"watch_interval"`
	// ActivityInterval is how often the activity table is read besides what the binlog says. Default: 2s.
	ActivityInterval time.Duration `yaml:"activity_interval"`
	// EndGrace is how long after its end an activity stays in Redis. Default: 10m.
	EndGrace time.Duration `yaml:"end_grace"`
	// Retention is how long results outlive the end of their activity. Default: 24h.
	Retention time.Duration `yaml:"retention"`

	// LeaseTTL is how long after its last sign of life another syncer takes over from a leader. Default: 5s.
	LeaseTTL time.Duration `yaml:"lease_ttl"`
	// Name is what this syncer is called in status and locks. Default: host name and process id.
	Name string `yaml:"name"`

	// Accept lists findings of the start-up checks, by name, that would otherwise refuse the start. Default: none.
	Accept []string `yaml:"accept"`
}

// SetDefaults fills what is zero.
func (c *Config) SetDefaults() {
	set(&c.HTTP.Listen, "127.0.0.1:9302")
	set(&c.ReserveDeadline, 2*time.Second)
	set(&c.PublishBudget, 5*time.Second)
	set(&c.Horizon, 30*time.Second)
	set(&c.CompareInterval, 30*time.Second)
	set(&c.RepairCap, compare.DefaultRepairCap)
	set(&c.WatchInterval, 500*time.Millisecond)
	set(&c.ActivityInterval, 2*time.Second)
	set(&c.EndGrace, 10*time.Minute)
	set(&c.Retention, ledger.DefaultRetention)
	set(&c.LeaseTTL, 5*time.Second)
	if c.Name == "" {
		host, _ := os.Hostname()
		c.Name = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	c.Binlog.SetDefaults()
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate checks the configuration after SetDefaults.
func (c *Config) Validate() error {
	var errs []error
	check := func(ok bool, name string, value any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: %v: want %s", name, value, want))
		}
	}
	check(c.ReserveDeadline >= 100*time.Millisecond, "reserve_deadline", c.ReserveDeadline, "at least 100ms")
	check(c.PublishBudget >= 500*time.Millisecond, "publish_budget", c.PublishBudget, "at least 500ms")
	check(c.Horizon >= 2*c.PublishBudget, "horizon", c.Horizon, fmt.Sprintf("at least twice publish_budget (%s)", c.PublishBudget))
	check(c.CompareInterval >= 100*time.Millisecond, "compare_interval", c.CompareInterval, "at least 100ms")
	check(c.LoadBack >= 0, "load_back", c.LoadBack, "no negative duration")
	check(c.RepairCap >= 1, "repair_cap", c.RepairCap, "at least 1")
	check(c.WatchInterval >= 10*time.Millisecond, "watch_interval", c.WatchInterval, "at least 10ms")
	check(c.ActivityInterval >= 10*time.Millisecond, "activity_interval", c.ActivityInterval, "at least 10ms")
	check(c.EndGrace >= 0, "end_grace", c.EndGrace, "no negative duration")
	check(c.Retention > c.ReserveDeadline+c.PublishBudget, "retention", c.Retention,
		"more than reserve_deadline and publish_budget together, since tombstones must outlive late calls")
	check(c.LeaseTTL >= 500*time.Millisecond, "lease_ttl", c.LeaseTTL, "at least 500ms")
	return errors.Join(errs...)
}

// Timings are what the gateways have to know.
func (c *Config) Timings() ledger.Timings {
	return ledger.Timings{
		ReserveDeadlineMs: c.ReserveDeadline.Milliseconds(),
		PublishBudgetMs:   c.PublishBudget.Milliseconds(),
		HorizonMs:         c.Horizon.Milliseconds(),
	}
}

// Accepts says whether a finding of the start-up checks is accepted.
func (c *Config) Accepts(name string) bool { return slices.Contains(c.Accept, name) }
