package landing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/crashpoint"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
)

// Lander lands records. It holds no state but caches, so any number of goroutines may land at once, and any number of
// processes: MySQL decides.
type Lander struct {
	cfg         Config
	store       Store
	ledger      Ledger
	deadLetters DeadLetters
	results     Results
	log         *zap.Logger
	metrics     *Metrics
	activities  *activities
	missing     *missing
	troubles    *troubles
}

// NewLander wires a Lander.
func NewLander(cfg Config, s Store, l Ledger, d DeadLetters, r Results, h Health, m *Metrics, log *zap.Logger) *Lander {
	cfg.SetDefaults()
	return &Lander{
		cfg: cfg, store: s, ledger: l, deadLetters: d, results: r, log: log, metrics: m,
		activities: newActivities(s),
		missing:    newMissing(),
		troubles:   &troubles{health: h, count: make(map[string]int)},
	}
}

// Tally counts what became of a batch.
type Tally struct {
	Records  int // read
	Landed   int // orders that MySQL holds in a live status, whether this batch or an earlier one put them there
	Failed   int // orders that MySQL holds in a dead status
	Refused  int // records set aside as dead letters
	Redone   int // records whose order stood in this batch already
	Released int // of the refused: those whose reservation was settled by its id
}

// Add sums two tallies.
func (t Tally) Add(o Tally) Tally {
	return Tally{t.Records + o.Records, t.Landed + o.Landed, t.Failed + o.Failed, t.Refused + o.Refused, t.Redone + o.Redone, t.Released + o.Released}
}

// message is a record and what it says.
type message struct {
	Record
	order *order.Order
}

// refusal is a record that can never become an order, and why.
type refusal struct {
	message
	cause string // a word for metrics
	why   error
}

// Land brings every record of a batch to its end. It returns an error only when ctx ended before that; nothing of the
// batch may be marked then, and landing it again is harmless.
func (l *Lander) Land(ctx context.Context, records []Record) (Tally, error) {
	began := time.Now()
	tally := Tally{Records: len(records)}
	good, refused, err := l.triage(ctx, records)
	if err != nil {
		return tally, err
	}
	for _, group := range byItem(good) {
		outcomes, bad, err := l.landItem(ctx, group)
		refused = append(refused, bad...)
		if err != nil {
			return tally, err
		}
		for _, o := range outcomes {
			if o.Dead {
				tally.Failed++
			} else {
				tally.Landed++
			}
		}
		tally.Redone += len(group) - len(bad) - len(outcomes)
	}
	for _, r := range refused {
		released, err := l.refuse(ctx, r)
		if err != nil {
			return tally, err
		}
		tally.Refused++
		if released {
			tally.Released++
		}
	}
	if ce := l.log.Check(zap.DebugLevel, "batch landed"); ce != nil && len(records) > 0 {
		ce.Write(zap.Int32("partition", records[0].Partition), zap.Int64("from", records[0].Offset),
			zap.Int64("to", records[len(records)-1].Offset), zap.Int("landed", tally.Landed), zap.Int("failed", tally.Failed),
			zap.Int("refused", tally.Refused), zap.Duration("took", time.Since(began)))
	}
	return tally, nil
}

// landItem lands the messages of one item in one transaction, settles it and passes the outcomes on. Messages that MySQL
// refuses for good come back beside them.
func (l *Lander) landItem(ctx context.Context, todo []message) (outcomes []ledger.Outcome, refused []refusal, err error) {
	item := todo[0].order.Item
	absent := wait{l: l, row: row{"inventory", item}}
	defer absent.end()
	for len(todo) > 0 {
		landing, err := l.transaction(ctx, item, todo)
		var bad *store.ErrRowRefused
		switch {
		case err == nil:
			absent.found()
			if err := l.settle(ctx, landing, todo); err != nil {
				return nil, refused, err
			}
			crashpoint.Here("after_settle")
			l.publish(landing.Outcomes, todo)
			return landing.Outcomes, refused, nil
		case errors.As(err, &bad):
			refused = append(refused, refusal{todo[bad.Index], "row", err})
			todo = append(todo[:bad.Index:bad.Index], todo[bad.Index+1:]...)
		case errors.Is(err, store.ErrNoInventory):
			// A shop may be replacing the row at this very moment (DELETE, then INSERT), and an activity sells the item.
			more, ended := absent.again(ctx, err)
			if ended != nil {
				return nil, refused, ended
			}
			if more {
				continue
			}
			for _, m := range todo {
				refused = append(refused, refusal{m, "item", err})
			}
			return nil, refused, nil
		default:
			return nil, refused, err
		}
	}
	return nil, refused, nil
}

// transaction is one store.Land, again until MySQL has decided. Only what MySQL says of one row, or of a missing
// inventory row, is a decision; everything else, known or not, may pass and is waited for.
func (l *Lander) transaction(ctx context.Context, item int64, todo []message) (landing store.Landing, err error) {
	orders := make([]*order.Order, len(todo))
	for i, m := range todo {
		orders[i] = m.order
	}
	l.metrics.batchOrders.Observe(float64(len(orders)))
	decided := func(err error) bool {
		var row *store.ErrRowRefused
		return errors.Is(err, store.ErrNoInventory) || errors.As(err, &row) && row.Index >= 0 && row.Index < len(orders)
	}
	err = l.until(ctx, stepMySQL, tryMySQL, decided, func(ctx context.Context) (err error) {
		began := time.Now()
		landing, err = l.store.Land(ctx, item, orders)
		l.metrics.transaction.Observe(time.Since(began).Seconds())
		return err
	})
	if err != nil {
		return landing, fmt.Errorf("land %d orders of item %d: %w", len(orders), item, err)
	}
	return landing, nil
}

// byItem groups messages by their item, in the order in which items and messages appear.
func byItem(messages []message) [][]message {
	var groups [][]message
	at := make(map[int64]int)
	for _, m := range messages {
		i, ok := at[m.order.Item]
		if !ok {
			i = len(groups)
			at[m.order.Item] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], m)
	}
	return groups
}
