package store

import (
	"context"
	"database/sql"
	"io"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// STUBS, being written: the signatures stay.

// Store is the access to MySQL. Its methods are safe for concurrent use.
type Store struct{}

// Open checks the configuration and prepares a pool. It does not wait for the server: a process starts with MySQL down.
func Open(ctx context.Context, cfg Config) (*Store, error) { panic("stub") }

// Close closes all connections.
func (s *Store) Close() error { panic("stub") }

// DB is the pool, for tests and for what has no method.
func (s *Store) DB() *sql.DB { panic("stub") }

// Ping asks the server for a sign of life.
func (s *Store) Ping(ctx context.Context) error { panic("stub") }

// Config is the configuration with its defaults filled in.
func (s *Store) Config() Config { panic("stub") }

// Landing is what became of a batch.
type Landing struct {
	Item    int64
	Stock   int64 // with Version, a committed pair that includes every outcome below
	Version int64
	// Outcomes has one entry per distinct order id of the batch, in the order of its first appearance.
	Outcomes []ledger.Outcome
}

// Land lands orders of one item in one transaction.
func (s *Store) Land(ctx context.Context, item int64, orders []*order.Order) (Landing, error) {
	panic("stub")
}

// Record writes a row with a dead status for an order that was refused before it could land, where no row exists. A row that
// exists is the truth and stays as it is; Orders tells.
func (s *Store) Record(ctx context.Context, o order.Order, status order.Status, reason string) error {
	panic("stub")
}

// Orders gives the rows of those ids that have one.
func (s *Store) Orders(ctx context.Context, ids []string) (map[string]ledger.Outcome, error) {
	panic("stub")
}

// LiveOrders gives up to limit live orders of an activity with ids above afterOrderID, by id. "" starts; fewer than limit: the end.
func (s *Store) LiveOrders(ctx context.Context, activity int64, afterOrderID string, limit int) ([]ledger.Outcome, error) {
	panic("stub")
}

// LiveByUsers gives the live order of each user that has one.
func (s *Store) LiveByUsers(ctx context.Context, activity int64, users []string) (map[string]ledger.Outcome, error) {
	panic("stub")
}

// Inventory reads an item's stock and version together.
func (s *Store) Inventory(ctx context.Context, item int64) (stock, version int64, found bool, err error) {
	panic("stub")
}

// Touch moves an item's version forward and leaves its stock.
func (s *Store) Touch(ctx context.Context, item int64) (stock, version int64, err error) {
	panic("stub")
}

// TouchPast is Touch to a version above past, also where MySQL's clock is behind it.
func (s *Store) TouchPast(ctx context.Context, item, past int64) (stock, version int64, err error) {
	panic("stub")
}

// Activities gives every row of the activity table, by id.
func (s *Store) Activities(ctx context.Context) ([]ledger.Activity, error) { panic("stub") }

// Activity gives one row, or ErrNoActivity.
func (s *Store) Activity(ctx context.Context, id int64) (ledger.Activity, error) { panic("stub") }

// CreateActivity adds an activity, and the item's inventory row where initialStock is given and there is none. It refuses
// (ErrOverlap) an item that another activity, not closed, sells at the same time, and (ErrInvalid) to change a stock that is there.
func (s *Store) CreateActivity(ctx context.Context, a ledger.Activity, initialStock *int64) error {
	panic("stub")
}

// SetActivityState opens, pauses or closes an activity.
func (s *Store) SetActivityState(ctx context.Context, id int64, state ledger.State) error {
	panic("stub")
}

// Snapshot begins one consistent view of all tables. It uses one connection until Close.
func (s *Store) Snapshot(ctx context.Context) (*Snapshot, error) { panic("stub") }

// Snapshot is one consistent view. It is not safe for concurrent use.
type Snapshot struct{}

// Inventory reads an item's stock and version in the view.
func (v *Snapshot) Inventory(ctx context.Context, item int64) (stock, version int64, found bool, err error) {
	panic("stub")
}

// Activity reads one activity in the view.
func (v *Snapshot) Activity(ctx context.Context, id int64) (ledger.Activity, error) { panic("stub") }

// Orders gives all orders of an activity, live and dead, to fn in slices of at most 1000, by id.
func (v *Snapshot) Orders(ctx context.Context, activity int64, fn func([]ledger.Outcome) error) error {
	panic("stub")
}

// Close ends the view. It may be called twice.
func (v *Snapshot) Close() error { panic("stub") }

// LockInventory locks an item's row against every writer for at most maxHold.
func (s *Store) LockInventory(ctx context.Context, item int64, maxHold time.Duration) (*Locked, error) {
	panic("stub")
}

// Locked is an inventory row under lock, with the values that the locking read gave.
type Locked struct {
	Stock   int64
	Version int64
}

// Done is closed once the lock is gone, by Release, by maxHold or by a lost connection that was noticed.
func (l *Locked) Done() <-chan struct{} { panic("stub") }

// Release gives the lock back. It returns ErrLockLost if the row was not locked until now, so that what was done under the
// lock must not be trusted. It may be called twice.
func (l *Locked) Release() error { panic("stub") }

// MigrateOptions say how Migrate works.
type MigrateOptions struct {
	DryRun     bool      // print the statements and change nothing
	NoTriggers bool      // leave the triggers out
	Out        io.Writer // where to report; default: nowhere
}

// Migrate creates or upgrades the schema.
func (s *Store) Migrate(ctx context.Context, opt MigrateOptions) error { panic("stub") }

// Level says how bad a Finding is.
type Level string

// Levels of findings.
const (
	Info    Level = "info"
	Warning Level = "warning" // works, but not as safe or as fast as it should be
	Unsafe  Level = "unsafe"  // may lose, oversell or stop: refuse to start unless overridden by name
)

// Finding is one line about the server or the schema: what is, and what to do about it.
type Finding struct {
	Level Level
	Name  string // short stable word, such as "binlog_format", by which it may be overridden
	Text  string
}

// Check looks at the schema, triggers and their definer, binlog, durability and privileges.
func (s *Store) Check(ctx context.Context) ([]Finding, error) { panic("stub") }

// Flavors of servers, in go-mysql's words.
const (
	MySQL   = "mysql"
	MariaDB = "mariadb"
)

// Flavor says which kind of server it is.
func (s *Store) Flavor(ctx context.Context) (string, error) { panic("stub") }

// Position is a place in the server's binary log.
type Position struct {
	Flavor string
	File   string
	Pos    uint32
	GTID   string // everything up to here; empty where the server does not use GTIDs
}

// BinlogPosition is where the binary log ends now, or a little before.
func (s *Store) BinlogPosition(ctx context.Context) (Position, error) { panic("stub") }

// Triggers says whether the triggers are there. Without them the caller must return stock itself when an order dies.
func (s *Store) Triggers(ctx context.Context) (bool, error) { panic("stub") }
