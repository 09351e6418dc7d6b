package binlog

import (
	"context"
	"errors"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// ErrLoadAgain says that the log cannot tell what became of the tables: every activity must be loaded again, and the
// stream goes on from a position noted before that.
var ErrLoadAgain = errors.New("load again")

// Stock is an inventory row as a transaction left it.
type Stock struct {
	Version, Stock int64
	Deleted        bool // the row is gone; Version is the one that it had
}

// Order is an order row as a transaction left it.
type Order struct {
	Activity int64
	ledger.Outcome
}

// Transaction is what one committed transaction did to the watched tables.
type Transaction struct {
	CommittedAt time.Time // by MySQL's clock, whole seconds
	Items       map[int64]Stock
	Orders      []Order
	// Deleted are order rows that are gone.
	Deleted []Order
	// Activities are changed rows of the activity table.
	Activities []ledger.Activity
	// The rest are rows that changed in a way the log does not tell for certain. They have to be read from MySQL.
	DoubtItems      []int64
	DoubtOrders     []string
	DoubtActivities []int64
}

func (t *Transaction) empty() bool {
	return len(t.Items) == 0 && len(t.Orders) == 0 && len(t.Deleted) == 0 && len(t.Activities) == 0 &&
		len(t.DoubtItems) == 0 && len(t.DoubtOrders) == 0 && len(t.DoubtActivities) == 0
}

// distrust turns everything that is known about the transaction into doubts.
func (t *Transaction) distrust() {
	for item := range t.Items {
		t.DoubtItems = append(t.DoubtItems, item)
	}
	for _, o := range append(t.Orders, t.Deleted...) {
		t.DoubtOrders = append(t.DoubtOrders, o.Order)
	}
	for _, a := range t.Activities {
		t.DoubtActivities = append(t.DoubtActivities, a.ID)
	}
	t.Items, t.Orders, t.Deleted, t.Activities = nil, nil, nil, nil
}

// Sink takes what the stream reads, one call at a time and in the order of the log.
type Sink interface {
	// Apply returns once Redis has the transaction, or ctx has ended. An error ends the stream.
	Apply(ctx context.Context, t *Transaction) error
	// Synced says that everything before p has been applied.
	Synced(p Position)
	// Sells says whether any activity sells an item: the inventory has the shop's other items too.
	Sells(item int64) bool
	// Doubt counts a row, or a table, that could not be trusted, with the reason.
	Doubt(table string, why error)
}
