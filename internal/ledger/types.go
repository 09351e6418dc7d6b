package ledger

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/seckillgate/seckillgate/internal/order"
)

// State is the state of an activity in Redis.
type State string

// The states of an activity. MySQL knows the first three; Recovering exists only in Redis, while a load is needed or
// under way.
const (
	Open       State = "open"
	Paused     State = "paused"
	Closed     State = "closed"
	Recovering State = "recovering"
)

// Scan implements sql.Scanner, as order.Status does.
func (s *State) Scan(column any) error {
	text, err := order.Column(column)
	*s = State(text)
	return err
}

// Activity is what Redis keeps of a row of MySQL's activity table.
type Activity struct {
	ID         int64  `json:"id"`
	Item       int64  `json:"item"`
	StartsAtMs int64  `json:"starts_at"`
	EndsAtMs   int64  `json:"ends_at"`
	MaxPerUser int64  `json:"max"`
	State      State  `json:"state"`
	Title      string `json:"title,omitempty"`
}

// Timings are the protocol's time bounds. One place configures them, the syncer, which hands them to the gateways with
// the catalogue, so that no gateway can disagree with the sweep about when a reservation is old.
type Timings struct {
	// ReserveDeadlineMs is how long after its start a reserve call may still take effect.
	ReserveDeadlineMs int64 `json:"reserve_deadline_ms"`
	// PublishBudgetMs is how long after its reserve call began a gateway may still publish an order.
	PublishBudgetMs int64 `json:"publish_budget_ms"`
	// HorizonMs is the age from which the sweep looks after a reservation. At least twice the publish budget.
	HorizonMs int64 `json:"horizon_ms"`
}

// Catalogue is the hash seckill:activities.
type Catalogue struct {
	Activities map[int64]Activity
	Timings    Timings
}

// Code is the outcome of a reservation attempt.
type Code int

// The codes of the reserve script, in the order in which it judges.
const (
	Reserved     Code = iota // reserved by this call
	Again                    // the ledger already had the order: reserved earlier, see ReservedAtMs and Result
	Decided                  // a result or a tombstone of this order stands: see Result
	WrongServer              // this Redis is not the one that the activity was loaded on; buyers hear 503
	TooLate                  // Redis time is past NotAfter; buyers hear 503
	AlreadyHas               // the buyer's live order is LiveOrder
	NotLoaded                // keys of the activity are missing or of a wrong type; buyers hear 503
	IsRecovering             // a load is under way; buyers hear 503
	IsEnded                  // closed, or past its end
	NotStarted               // before its start
	IsPaused                 // paused by an admin
	TooMany                  // more units than max_per_user
	TooFrequent              // inside the user window: see RetryAfter
	SoldOut                  // fewer units available than asked for; Available says how many
	BadKey                   // a key of this buyer alone is broken: see Err; the rest of the batch is not touched
)

// Reservation is one buyer's wish, a member of a reserve call.
type Reservation struct {
	Order string
	// Nonce names the request that asks. A reservation met by a second request with the same order id (same
	// Idempotency-Key) can no longer be released by the first, since the second may publish it.
	Nonce    string
	User     string
	Quantity int64
	Extra    json.RawMessage // compact JSON, no control characters
	Window   time.Duration   // user window; 0: none
	// NotAfterMs is the Redis time after which this call must do nothing. See Ledger.NotAfter.
	NotAfterMs int64
	// Refused is for Release: the buyer hears a refusal and not this order's id, so its tombstone stops copies of this call
	// but is no answer to the buyer's next request (order.ReasonRefused).
	Refused bool
	// Item is for Release too: what a tombstone tells the buyer that the order was for. 0 where it is not known.
	Item int64
}

// Decision is the answer to one Reservation.
type Decision struct {
	Order        string
	Code         Code
	NowMs        int64 // Redis time of the decision
	Available    int64 // after this decision, as far as known (0 where the activity is not loaded)
	Item         int64
	LiveOrder    string        // AlreadyHas
	ReservedAtMs int64         // Reserved, Again
	RetryAfter   time.Duration // TooFrequent
	Result       *Result       // Decided; Again once Kafka acknowledged it
	StartsAtMs   int64         // NotStarted
	Err          string        // BadKey, NotLoaded
	// Repeated says that the call may have run more than once: a refusal must be fenced by Release before it is told.
	Repeated bool
}

// Reserve errors. Everything else that Reserve returns is unknown: the call may have run.
var (
	// ErrNotExecuted: provably nothing ran (the server refused the command, the queue was full, no connection was had).
	ErrNotExecuted = errors.New("reservation not executed")
	// ErrUnknown: the outcome is not known.
	ErrUnknown = errors.New("reservation outcome unknown")
)

// Result is what seckill:result holds: the outcome that a buyer polls.
type Result struct {
	Status    order.Status
	User      string
	Item      int64
	Quantity  int64
	Reason    string
	Partition int32 // -1: not known
	Offset    int64
	AtMs      int64
}

// Final says whether the order has been decided (landed, failed or released), as opposed to merely queued.
func (r *Result) Final() bool { return r.Status != order.Queued && r.Status != order.Processing }

// Source says who settles; it decides whose result words win.
type Source int

// FromWorker writes a result only where there is no final one. FromBinlog overwrites.
const (
	FromWorker Source = iota
	FromBinlog
)

// Outcome is an order's state in MySQL, as settle and load take it.
type Outcome struct {
	Order    string
	User     string
	Item     int64
	Quantity int64
	Status   order.Status
	Dead     bool // the status is one of the dead ones: the buyer is freed, by compare on the order id
	Reason   string
}

// Settlement tells Redis what MySQL decided. Any number of repetitions in any order end in one state.
type Settlement struct {
	Activity int64
	// Version and Stock are inventory.version and inventory.stock read together. Version 0: not known, orders only.
	Version int64
	Stock   int64
	// Item is the one whose version and stock these are. They are passed over where the activity was loaded with another one.
	// 0: the activity's.
	Item   int64
	Source Source
	Orders []Outcome
}

// Settled is the answer to a Settlement.
type Settled struct {
	NotLoaded bool // nothing was written; counts as done
	Broken    bool // the keys contradict each other; the activity was put to recovering and must be loaded again
	Dropped   int  // ledger entries that this call settled
	Advanced  bool // stock and version moved forward
	Available int64
}

// Released is the answer to Release.
type Released int

// Answers to Release.
const (
	// ReleasedNow: the order holds nothing and never will; its tombstone stands.
	ReleasedNow Released = iota
	// Kept: the reservation stays, since it may have been published by the sweep or by another request.
	Kept
	// KeptDecided: the order has a final result already.
	KeptDecided
)

// Entry is an open reservation in the ledger.
type Entry struct {
	Order        string
	User         string
	Item         int64
	Quantity     int64
	ReservedAtMs int64
	Extra        json.RawMessage
	// Tries is how often MySQL was short of stock for it and it was left open, to be published again.
	Tries int64
}

// View is what a buyer may see of an order.
type View struct {
	Order     string
	Found     bool
	Status    order.Status
	User      string
	Item      int64
	Quantity  int64
	Reason    string
	Partition int32 // -1: not known
	Offset    int64
}

// Ack records where Kafka keeps a published order.
type Ack struct {
	Order     string
	User      string
	Item      int64
	Quantity  int64
	Partition int32
	Offset    int64
}

// Snapshot is one consistent look at an activity's keys.
type Snapshot struct {
	Activity      Activity
	Exists        bool  // the activity hash is there
	Loaded        bool  // every key is there and well-formed, and the state is not recovering
	SameServer    bool  // the server is the one it was loaded on
	State         State // as Redis has it, recovering included
	Stock         int64
	Version       int64
	Pending       int64
	Available     int64
	LedgerLen     int64
	BuyersLen     int64
	Epoch         string
	Problem       string // why Loaded is false, for people
	NowMs         int64
	StockPresent  bool
	ServerVisible bool // the server shows its run id; otherwise the weaker marker key stands in
}

// MaxNumber is the largest number that the scripts count with: a stock, a version. They know numbers as doubles, and from 2^53 on
// neighbours read alike.
const MaxNumber = 1<<53 - 1

// LandedAt is how far the worker has landed a partition.
type LandedAt struct {
	Offset int64 // the next offset to land
	TimeMs int64 // record time of the last landed record
}

// Event is pushed to every gateway when something that it caches has changed.
type Event struct {
	Activity  int64
	NowMs     int64
	Available int64
	State     State          // empty: unchanged
	Outcomes  []EventOutcome // orders that were decided
	Catalogue bool           // the catalogue changed: read it again
}

// EventOutcome is a decided order in an Event.
type EventOutcome struct {
	Order  string
	Status order.Status
}

// Errors of loading.
var (
	// ErrFenced: another load of the activity has begun, the activity was closed anew (SetRecovering), or the server changed;
	// this one must stop.
	ErrFenced = errors.New("load fenced: another load began, the activity was closed anew, or redis changed servers")
	// ErrNoCatalogue: seckill:activities is missing; every activity answers 503 until the syncer has written it.
	ErrNoCatalogue = errors.New("redis has no catalogue of activities (seckill:activities)")
)
