package compare

import "fmt"

// Kind names a repair, for programs.
type Kind string

// The repairs.
const (
	Behind      Kind = "behind"      // Redis had an older version of the stock
	Stock       Kind = "stock"       // the same version with another stock
	Ahead       Kind = "ahead"       // Redis had a newer version: MySQL lost commits
	NoRow       Kind = "no_row"      // MySQL has no inventory row
	BuyerFreed  Kind = "buyer_freed" // the buyer's order is dead, or nowhere
	BuyerAdded  Kind = "buyer_added" // MySQL has a live order that Redis did not know
	Settled     Kind = "settled"     // a reservation whose order had landed
	Republished Kind = "republished" // a reservation that never reached Kafka
)

// Repair is one difference and what was done about it (or would be, in a dry run).
type Repair struct {
	Kind  Kind   `json:"kind"`
	Order string `json:"order_id,omitempty"`
	User  string `json:"user_id,omitempty"`
	From  *int64 `json:"from,omitempty"` // stock
	To    *int64 `json:"to,omitempty"`
	Why   string `json:"why"`
}

// Side is one side of the comparison.
type Side struct {
	Stock   int64 `json:"stock"`
	Version int64 `json:"version"`
}

// Activity is what was found about one activity.
type Activity struct {
	ID       int64    `json:"activity_id"`
	Item     int64    `json:"item_id"`
	State    string   `json:"state"`
	Skipped  string   `json:"skipped,omitempty"` // why it was not compared
	Redis    Side     `json:"redis"`
	MySQL    Side     `json:"mysql"`
	Pending  int64    `json:"pending"`
	Ledger   int64    `json:"ledger"`
	OldestMs int64    `json:"oldest_ms"` // age of the oldest reservation
	Waiting  int      `json:"waiting"`   // old reservations left alone, since the worker may still land them
	Buyers   int64    `json:"buyers"`
	Drift    bool     `json:"drift"` // something differed that no delay explains
	Repairs  []Repair `json:"repairs,omitempty"`
	Unlisted int      `json:"repairs_unlisted,omitempty"` // beyond those listed
	Alarms   []string `json:"alarms,omitempty"`
	Error    string   `json:"error,omitempty"`
	repairs  int      // buyers mended, against the cap
	overCap  bool
}

// Report is what one run found and did.
type Report struct {
	AtMs       int64      `json:"at_ms"`
	TookMs     int64      `json:"took_ms"`
	DryRun     bool       `json:"dry_run"`
	Activities []Activity `json:"activities"`
	Alarms     []string   `json:"alarms,omitempty"`
	// LostSince is set while MySQL lacks orders that had landed: since then (epoch ms) Kafka has to be landed again.
	LostSince  int64 `json:"lost_since_ms,omitempty"`
	LostOrders int   `json:"lost_orders,omitempty"`
}

// Repaired counts repairs over all activities.
func (r *Report) Repaired() int {
	n := 0
	for i := range r.Activities {
		n += len(r.Activities[i].Repairs) + r.Activities[i].Unlisted
	}
	return n
}

// Err is nil when nothing needs a person.
func (r *Report) Err() error {
	for _, a := range r.Alarms {
		return fmt.Errorf("%s", a)
	}
	for i := range r.Activities {
		for _, a := range r.Activities[i].Alarms {
			return fmt.Errorf("activity %d: %s", r.Activities[i].ID, a)
		}
	}
	for i := range r.Activities {
		if e := r.Activities[i].Error; e != "" {
			return fmt.Errorf("activity %d could not be compared: %s", r.Activities[i].ID, e)
		}
	}
	return nil
}

// listed bounds the repairs that a report lists for one activity.
const listed = 10_000

func (a *Activity) add(r Repair) {
	if len(a.Repairs) >= listed {
		a.Unlisted++
		return
	}
	a.Repairs = append(a.Repairs, r)
}

func (a *Activity) alarm(format string, args ...any) {
	a.Alarms = append(a.Alarms, fmt.Sprintf(format, args...))
}
