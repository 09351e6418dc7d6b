package kafka

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// Level says how bad a Finding is.
type Level string

// Levels of findings.
const (
	Info    Level = "info"
	Warning Level = "warning" // works, but not as safe as it should be
	Unsafe  Level = "unsafe"  // may lose accepted orders: refuse to start unless overridden by name
)

// Finding is one line about a topic: what is, and what to do about it.
type Finding struct {
	Level Level
	Name  string // short stable word, such as "replication", by which it may be overridden
	Text  string
}

// TopicOptions say what EnsureTopics creates and what it compares with. The zero value of each field means its default.
type TopicOptions struct {
	// Create creates the topics that are missing. Without it a missing topic is an Unsafe finding "missing".
	Create bool
	// Partitions of a new orders topic. Default: 12.
	Partitions int32
	// Replication of new topics. Default: 3, or as many brokers as there are when fewer.
	Replication int16
	// MinRetention is the longest outage of the workers planned for. Default: 24h.
	MinRetention time.Duration
}

// Admin reads offsets and records and looks after topics. It dials when first used. All methods are safe for concurrent use and
// bounded by their context.
type Admin struct{}

// NewAdmin checks the configuration and does not dial.
func NewAdmin(cfg Config, log *zap.Logger) (*Admin, error) { panic("TODO") }

// Close ends all connections.
func (a *Admin) Close() error { panic("TODO") }

// EnsureTopics checks the three topics of the configuration and creates the missing ones if asked to. It never changes an existing one.
func (a *Admin) EnsureTopics(ctx context.Context, opt TopicOptions) ([]Finding, error) {
	panic("TODO")
}

// HighWater is the offset that the next record of each partition will get, among records that all replicas have.
func (a *Admin) HighWater(ctx context.Context, topic string) (map[int32]int64, error) { panic("TODO") }

// Oldest is the first offset still kept in each partition.
func (a *Admin) Oldest(ctx context.Context, topic string) (map[int32]int64, error) { panic("TODO") }

// OffsetsAt is the first offset in each partition whose record is at or after t; the high water mark where there is none.
func (a *Admin) OffsetsAt(ctx context.Context, topic string, t time.Time) (map[int32]int64, error) {
	panic("TODO")
}

// Committed is the group's committed offset in each partition of the topic: the next one to consume; -1 where there is none.
func (a *Admin) Committed(ctx context.Context, group, topic string) (map[int32]int64, error) {
	panic("TODO")
}

// Read calls fn for every record at from[p] <= offset < to[p], in order within each partition, and returns once all partitions of
// `to` are read, fn fails or ctx ends. A partition that is missing or negative in from is read from its oldest record. Control
// records and gaps are passed over. A from below the oldest record kept is ErrOffsetGone: records were lost to retention.
func (a *Admin) Read(ctx context.Context, topic string, from, to map[int32]int64,
	fn func(partition int32, offset int64, ts time.Time, key, value []byte) error,
) error {
	panic("TODO")
}
