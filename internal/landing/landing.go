// Package landing brings orders from Kafka to MySQL and tells Redis, in that order, so that an order's effect is exactly
// once whatever is killed or delivered again. It promises:
//
//   - An offset is marked only once every record below it is done: landed in MySQL and settled in Redis, or written to the
//     dead-letter topic. A crash at any point leads to a redelivery, and a redelivered order finds its row and only repeats
//     the settle.
//   - A record that can never become an order is set aside, and the next one flows. Whatever may pass by itself is waited
//     for in place, with health red, for as long as it takes: it is never a reason for a dead letter. The one bound is for
//     a row that a shop may be replacing (DELETE, then INSERT), or whose stock is NULL: see Config.MissingWait.
//   - When a session ends (rebalance) the running batch is finished or abandoned within a second, on shutdown within
//     Config.ShutdownGrace.
//
// Lander does the work and knows nothing of consumer groups; Consumer feeds it from the group, Replay from a range of
// offsets.
package landing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
)

// Record is one message of the orders topic, or of the dead-letter topic when dead letters are replayed.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Time      time.Time
	Key       []byte
	Value     []byte
	Trace     trace.SpanContext // of the buyer's request, where it had one
}

// Store is what landing needs of MySQL. *store.Store is the one implementation; tests put failures in between.
type Store interface {
	Land(ctx context.Context, item int64, orders []*order.Order) (store.Landing, error)
	Record(ctx context.Context, o order.Order, status order.Status, reason string) error
	Orders(ctx context.Context, ids []string) (map[string]ledger.Outcome, error)
	Activity(ctx context.Context, id int64) (ledger.Activity, error)
}

// Ledger is what landing needs of Redis.
type Ledger interface {
	Settle(ctx context.Context, s ledger.Settlement) (ledger.Settled, error)
	SetLanded(ctx context.Context, at map[int32]ledger.LandedAt) error
	Inspect(ctx context.Context, activities ...int64) ([]ledger.Snapshot, error)
	Postpone(ctx context.Context, activity int64, tries map[string]int64) (kept map[string]bool, err error)
}

// DeadLetters sets a record aside. Put returns once the record is safe, or an error that is worth another try.
type DeadLetters interface {
	Put(ctx context.Context, r Record, why error) error
}

// Results hears what became of an order, for whoever listens. Put must not block. It may miss what a kill cut off: what must not be
// missed is in MySQL's outbox, which the store wrote with the order.
type Results interface {
	Put(r order.Result)
}

// Health takes the state of a named part of the process: nil while it is well.
type Health interface {
	Set(name string, err error)
}

// Config bounds the work. The zero value of each field means its default.
type Config struct {
	// MaxOrders is the most orders of one batch. Default: 500.
	MaxOrders int `yaml:"max_orders"`
	// MaxBytes is the most bytes of message values in one batch. A larger message is a batch by itself. Default: 1048576.
	MaxBytes int `yaml:"max_bytes"`
	// MaxWait is how long the first message of a batch waits for company. While a transaction is running the next
	// batch gathers anyway. Negative: not at all. Default: 1ms.
	MaxWait time.Duration `yaml:"max_wait"`
	// ShutdownGrace is how long a batch that is running when the worker is told to stop may take to finish. Then it is
	// abandoned, and its messages are delivered again later. Default: 10s.
	ShutdownGrace time.Duration `yaml:"shutdown_grace"`
	// RebalanceGrace is the same when the partition goes to another worker. Default: 500ms.
	RebalanceGrace time.Duration `yaml:"rebalance_grace"`
	// LandedEvery is the least time between two reports of how far landing has come (seckill:landed). Default: 200ms.
	LandedEvery time.Duration `yaml:"landed_every"`
	// RetryMin and RetryMax bound the pause between two tries of a step that failed. Defaults: 50ms and 5s.
	RetryMin time.Duration `yaml:"retry_min"`
	RetryMax time.Duration `yaml:"retry_max"`
	// UnknownTries is how often an activity that neither MySQL nor Redis has is looked for, RetryMin·4 apart, before its
	// orders become dead letters. Default: 4.
	UnknownTries int `yaml:"unknown_tries"`
	// MissingWait is how long the inventory row of an activity's item may be away or its stock be no number (NULL), or the row of
	// an activity that Redis has be away, before its orders become dead letters (failed, invalid): their buyers were told that
	// they are in the queue. It counts from when the row was first missed. The wait is in place, with health red, and holds up
	// all orders of the partition, of other items too, once and not again for each batch. Negative: only UnknownTries. Default: 1m.
	MissingWait time.Duration `yaml:"missing_wait"`
	// StockTries is how often an order is tried for which MySQL has too little stock although it was reserved: at the last of them it
	// fails, sold_out. Until then it stays open in the ledger, and the sweep publishes it again once it is older than the syncer's
	// horizon, at each comparison. For shops that restock during the sale; the syncer's load_back belongs to it. Default: 1.
	StockTries int `yaml:"stock_tries"`
	// StallAfter is the age of an unfinished batch, and of the last session with the consumer group, from which health
	// is red. Default: 30s.
	StallAfter time.Duration `yaml:"stall_after"`
	// AcceptLostOffsets lets the worker go on from the oldest record that Kafka still has when the offset that it
	// committed is gone. Without it the worker stops there and says so, since accepted orders may have been lost with
	// those records. Default: false.
	AcceptLostOffsets bool `yaml:"accept_lost_offsets"`
}

// SetDefaults fills in what is not set.
func (c *Config) SetDefaults() {
	set(&c.MaxOrders, 500)
	set(&c.MaxBytes, 1<<20)
	set(&c.MaxWait, time.Millisecond)
	set(&c.ShutdownGrace, 10*time.Second)
	set(&c.RebalanceGrace, 500*time.Millisecond)
	set(&c.LandedEvery, 200*time.Millisecond)
	set(&c.RetryMin, 50*time.Millisecond)
	set(&c.RetryMax, 5*time.Second)
	set(&c.UnknownTries, 4)
	set(&c.MissingWait, time.Minute)
	set(&c.StockTries, 1)
	set(&c.StallAfter, 30*time.Second)
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate refuses values that cannot work. It expects defaults to be filled in. Its messages begin with the key.
func (c *Config) Validate() error {
	var errs []error
	check := func(ok bool, name string, value any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: %v: want %s", name, value, want))
		}
	}
	check(c.MaxOrders >= 1 && c.MaxOrders <= 5000, "max_orders", c.MaxOrders, "1 to 5000")
	check(c.MaxBytes >= 1024 && c.MaxBytes <= 64<<20, "max_bytes", c.MaxBytes, "1024 to 67108864")
	check(c.MaxWait <= time.Second, "max_wait", c.MaxWait, "at most 1s")
	check(c.ShutdownGrace > 0, "shutdown_grace", c.ShutdownGrace, "a positive duration")
	check(c.RebalanceGrace > 0 && c.RebalanceGrace <= 700*time.Millisecond, "rebalance_grace", c.RebalanceGrace,
		"at most 700ms, since a statement under way may take 200ms more and the partition must be free within a second")
	check(c.LandedEvery >= 10*time.Millisecond, "landed_every", c.LandedEvery, "at least 10ms")
	check(c.RetryMin > 0 && c.RetryMin <= c.RetryMax, "retry_min", c.RetryMin, "a positive duration not above retry_max")
	check(c.UnknownTries >= 1, "unknown_tries", c.UnknownTries, "at least 1")
	check(c.MissingWait <= 24*time.Hour, "missing_wait", c.MissingWait, "at most 24h")
	check(c.StockTries >= 1 && c.StockTries <= 1000, "stock_tries", c.StockTries, "1 to 1000")
	check(c.StallAfter >= time.Second, "stall_after", c.StallAfter, "at least 1s")
	return errors.Join(errs...)
}
