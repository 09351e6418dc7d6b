package ledger

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// STUBS, being written.

type Options struct {
	// Retention is how long results and tombstones outlive the end of their activity. Default 24 h.
	Retention time.Duration
}

type Ledger struct{ rdb redis.UniversalClient }

func New(rdb redis.UniversalClient, o Options) *Ledger { return nil }

// NotAfter gives the Redis time, in epoch ms, that lies d in the future by a conservative estimate of the server's clock.
func (l *Ledger) NotAfter(ctx context.Context, d time.Duration) (int64, error) { panic("stub") }

// Reserve runs one reserve call for members of one activity. Most callers use a Batcher.
func (l *Ledger) Reserve(ctx context.Context, activity int64, members []Reservation) ([]Decision, error) {
	panic("stub")
}

// Batcher: group commit.
type Batcher struct{}
type BatcherOptions struct {
	MaxBatch int // default 64
	MaxQueue int // waiting members per activity; default 10000. Beyond: ErrNotExecuted at once
	Observe  func(activity int64, batch int, took time.Duration, err error)
}

func NewBatcher(l *Ledger, o BatcherOptions) *Batcher { panic("stub") }

// Reserve joins the next call of the activity. A ctx that ends while the member still waits in the queue gives
// ErrNotExecuted, after that ErrUnknown.
func (b *Batcher) Reserve(ctx context.Context, activity int64, r Reservation) (Decision, error) {
	panic("stub")
}

// Close refuses new members and waits for calls in flight.
func (b *Batcher) Close() { panic("stub") }

// Settle, in slices of at most 100 orders (the caller may pass any number).
func (l *Ledger) Settle(ctx context.Context, s Settlement) (Settled, error) { panic("stub") }

// Release gives back a reservation that provably was never published, or fences one that may never have been made.
// maxAge is the publish budget.
func (l *Ledger) Release(ctx context.Context, activity int64, r Reservation, maxAge time.Duration) (Released, error) {
	panic("stub")
}

// MarkQueued keeps the Kafka offset of published orders with their result. Losing it costs only a buyer's position.
func (l *Ledger) MarkQueued(ctx context.Context, activity int64, acks []Ack) error { panic("stub") }

// Lookup finds an order. Mine finds the user's live order, else the last one that died.
func (l *Ledger) Lookup(ctx context.Context, activity int64, orderID string) (View, error) {
	panic("stub")
}
func (l *Ledger) Mine(ctx context.Context, activity int64, user string) (View, error) { panic("stub") }

func (l *Ledger) Inspect(ctx context.Context, activities ...int64) ([]Snapshot, error) { panic("stub") }

func (l *Ledger) Catalogue(ctx context.Context) (*Catalogue, error) { panic("stub") }

// PutCatalogue replaces the catalogue and tells the gateways.
func (l *Ledger) PutCatalogue(ctx context.Context, c *Catalogue) error { panic("stub") }

// Loading (syncer). Every call but LoadBegin is fenced by the epoch and by the server's identity (ErrFenced).
type Load struct {
	Epoch     string
	BeganMs   int64
	Survivors int64
}

// LoadBegin puts the activity to recovering under a new epoch, drops keys of a wrong type and the buyers (they are
// rebuilt), and keeps stock, version, pending and ledger as they are.
func (l *Ledger) LoadBegin(ctx context.Context, a Activity, t Timings) (Load, error) { panic("stub") }

// LoadOrders writes outcomes of MySQL: live ones become buyers, dead ones free theirs, all lose their ledger entry and get a result.
func (l *Ledger) LoadOrders(ctx context.Context, activity int64, epoch string, orders []Outcome) error {
	panic("stub")
}

// LoadEntries puts back reservations: Kafka records not yet landed, and survivors of the ledger (ledger and buyers, where absent).
func (l *Ledger) LoadEntries(ctx context.Context, activity int64, epoch string, entries []Entry) error {
	panic("stub")
}

// LoadFinish sets stock and version (unless a settle brought newer ones), pending = sum of the ledger, and the state.
func (l *Ledger) LoadFinish(ctx context.Context, activity int64, epoch string, version, stock int64, state State) (Snapshot, error) {
	panic("stub")
}

// SetActivity applies a changed row of MySQL's activity table to a loaded activity. While a load is under way the state
// stays recovering. It reports whether the activity is known to Redis.
func (l *Ledger) SetActivity(ctx context.Context, a Activity) (bool, error) { panic("stub") }

// SetRecovering closes an activity until it is loaded again.
func (l *Ledger) SetRecovering(ctx context.Context, activity int64, why string) error { panic("stub") }

// ScanLedger and ScanBuyers read a slice; cursor 0 starts, 0 ends. ScanBuyers says of each whether its order is still in the ledger.
func (l *Ledger) ScanLedger(ctx context.Context, activity int64, cursor uint64, count int64) ([]Entry, uint64, error) {
	panic("stub")
}

type Buyer struct {
	User, Order string
	InLedger    bool
}

func (l *Ledger) ScanBuyers(ctx context.Context, activity int64, cursor uint64, count int64) ([]Buyer, uint64, error) {
	panic("stub")
}

// BuyersOf gives the order that Redis holds for each user ("" for none).
func (l *Ledger) BuyersOf(ctx context.Context, activity int64, users []string) ([]string, error) {
	panic("stub")
}

// AddBuyers records live orders of MySQL that Redis forgot, where the user has none. The caller must read MySQL again
// afterwards and settle those that died meanwhile.
func (l *Ledger) AddBuyers(ctx context.Context, activity int64, buyers []Buyer) (int, error) {
	panic("stub")
}

// FreeBuyers frees users by compare on the order id, unless the ledger has the order.
func (l *Ledger) FreeBuyers(ctx context.Context, activity int64, buyers []Buyer) (int, error) {
	panic("stub")
}

// RepairStock is compare-and-set at an equal version.
func (l *Ledger) RepairStock(ctx context.Context, activity, version, have, want int64) (bool, error) {
	panic("stub")
}

// Retire removes an ended activity's keys in slices; it refuses while the ledger is not empty. Results keep their TTL.
func (l *Ledger) Retire(ctx context.Context, activity int64) error { panic("stub") }

func (l *Ledger) SetLanded(ctx context.Context, at map[int32]LandedAt) error { panic("stub") }
func (l *Ledger) Landed(ctx context.Context) (map[int32]LandedAt, error)     { panic("stub") }

// Subscribe delivers events until ctx ends; it reconnects by itself. A nil-activity event with Catalogue set is sent after
// each (re)connect, since events may have been missed.
func (l *Ledger) Subscribe(ctx context.Context) <-chan Event { panic("stub") }

// SavePosition and Position keep the binlog position where the state is that it describes. ErrNotLeader when the lease is lost.
func (l *Ledger) SavePosition(ctx context.Context, lease string, position string) error {
	panic("stub")
}
func (l *Ledger) Position(ctx context.Context) (string, error) { panic("stub") }

// Lease: at most one holder. Acquire or renew for ttl.
func (l *Ledger) Lease(ctx context.Context, holder string, ttl time.Duration) (bool, error) {
	panic("stub")
}
func (l *Ledger) DropLease(ctx context.Context, holder string) error { panic("stub") }
func (l *Ledger) LeaseHolder(ctx context.Context) (string, error)    { panic("stub") }

// Ping checks the server and returns findings (eviction policy, version) for start-up checks.
func (l *Ledger) Check(ctx context.Context) ([]string, error) { panic("stub") }
