package landing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/crashpoint"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
)

// Lander lands records. It holds no state but caches and how wide transactions are, so any number of goroutines may land at once, and any number of
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
	widths      *widths
}

// NewLander wires a Lander.
func NewLander(cfg Config, s Store, l Ledger, d DeadLetters, r Results, h Health, m *Metrics, log *zap.Logger) *Lander {
	cfg.SetDefaults()
	return &Lander{
		cfg: cfg, store: s, ledger: l, deadLetters: d, results: r, log: log, metrics: m,
		activities: newActivities(s),
		missing:    newMissing(),
		troubles:   &troubles{health: h, count: make(map[string]int)},
		widths:     newWidths(cfg.MaxOrders, m.batchLimit),
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
	Left     int // orders that MySQL is short of stock for and that stay open, to be tried again
}

// Add sums two tallies.
func (t Tally) Add(o Tally) Tally {
	return Tally{t.Records + o.Records, t.Landed + o.Landed, t.Failed + o.Failed, t.Refused + o.Refused, t.Redone + o.Redone, t.Released + o.Released, t.Left + o.Left}
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

// passing says that the record is an order, and is refused only for what MySQL has or has not: a row of its activity or of its item, a stock
// that is a number, columns and triggers that take its row.
func (r refusal) passing() bool {
	var unsold *store.ErrUnsold
	var row *store.ErrRowRefused
	return errors.As(r.why, &unsold) || errors.As(r.why, &row) || errors.Is(r.why, errUnknownActivity)
}

// refuseAll refuses what can never become orders, and counts it.
func (l *Lander) refuseAll(ctx context.Context, refused []refusal, tally *Tally) error {
	for _, r := range refused {
		released, err := l.refuse(ctx, r)
		if err != nil {
			return err
		}
		tally.Refused++
		if released {
			tally.Released++
		}
	}
	return nil
}

// Land brings every record of a batch to its end. It returns an error only when ctx ended before that; nothing of the
// batch may be marked then, and landing it again is harmless.
func (l *Lander) Land(ctx context.Context, records []Record) (tally Tally, err error) {
	ctx, s := span(ctx, records)
	defer func() { ended(s, err) }()
	began := time.Now()
	tally, refused, err := l.decide(ctx, records)
	if err != nil {
		return tally, err
	}
	if err := l.refuseAll(ctx, refused, &tally); err != nil {
		return tally, err
	}
	if ce := l.log.Check(zap.DebugLevel, "batch landed"); ce != nil && len(records) > 0 {
		ce.Write(zap.Int32("partition", records[0].Partition), zap.Int64("from", records[0].Offset),
			zap.Int64("to", records[len(records)-1].Offset), zap.Int("landed", tally.Landed), zap.Int("failed", tally.Failed),
			zap.Int("refused", tally.Refused), zap.Int("left", tally.Left), zap.Duration("took", time.Since(began)))
	}
	return tally, nil
}

// decide lands what can be landed and gives back what can never become an order, of which it has written nothing.
func (l *Lander) decide(ctx context.Context, records []Record) (tally Tally, refused []refusal, err error) {
	tally = Tally{Records: len(records)}
	good, refused, err := l.triage(ctx, records)
	if err != nil {
		return tally, nil, err
	}
	for _, group := range byItem(good) {
		outcomes, bad, left, err := l.landItem(ctx, group)
		if err != nil {
			return tally, nil, err
		}
		refused = append(refused, bad...)
		for _, o := range outcomes {
			if o.Dead {
				tally.Failed++
			} else {
				tally.Landed++
			}
		}
		tally.Left += left
		tally.Redone += len(group) - len(bad) - len(outcomes) - left
	}
	return tally, refused, nil
}

// landItem lands the messages of one item, in one transaction as a rule, settles them and passes the outcomes on, one for
// each order id. Messages that MySQL refuses for good come back beside them, and the number of orders that are left to be tried again.
func (l *Lander) landItem(ctx context.Context, todo []message) (outcomes []ledger.Outcome, refused []refusal, left int, err error) {
	item := todo[0].order.Item
	absent := wait{l: l, row: row{"inventory", item}}
	defer absent.end()
	for len(todo) > 0 {
		landing, part, err := l.transaction(ctx, item, todo)
		var bad *store.ErrRowRefused
		var unsold *store.ErrUnsold
		switch {
		case err == nil:
			if landing.Version > 0 {
				absent.found()
			}
			if err := l.settle(ctx, landing, part); err != nil {
				return nil, refused, left, err
			}
			crashpoint.Here("after_settle")
			fresh := without(landing.Outcomes, outcomes)
			l.publish(fresh, part)
			outcomes, todo = append(outcomes, fresh...), todo[len(part):]
			n, again, err := l.leave(ctx, landing.Left, part)
			if err != nil {
				return nil, refused, left, err
			}
			left, todo = left+n, append(again, todo...)
		case errors.As(err, &bad):
			refused = append(refused, refusal{todo[bad.Index], "row", err})
			todo = append(todo[:bad.Index:bad.Index], todo[bad.Index+1:]...)
		case errors.As(err, &unsold):
			// A shop may be replacing the row at this very moment (DELETE, then INSERT), and an activity sells the item; or a person
			// notices that its stock is no number and sets it. The other items of the partition cannot wait for that for ever.
			more, ended := absent.again(ctx, err)
			if ended != nil {
				return nil, refused, left, ended
			}
			if more {
				continue
			}
			// The others need no stock: they have landed before, or have tries left and wait for it in the ledger.
			var rest []message
			for _, m := range todo {
				if slices.Contains(unsold.Orders, m.order.ID) {
					refused = append(refused, refusal{m, "item", err})
				} else {
					rest = append(rest, m)
				}
			}
			todo = rest
		default:
			return nil, refused, left, err
		}
	}
	return outcomes, refused, left, nil
}

// without gives the outcomes of orders that an earlier transaction of the same batch has not told already.
func without(outcomes, told []ledger.Outcome) []ledger.Outcome {
	if len(told) == 0 {
		return outcomes
	}
	known := make(map[string]bool, len(told))
	for _, o := range told {
		known[o.Order] = true
	}
	var fresh []ledger.Outcome
	for _, o := range outcomes {
		if !known[o.Order] {
			fresh = append(fresh, o)
		}
	}
	return fresh
}

// transaction is one store.Land of as many messages as the item's width allows, again until MySQL has decided. Only what
// MySQL says of one row, or of an inventory row that is missing or of no use, is a decision; everything else, known or not, may pass and is waited
// for. Each try may be narrower than the one before: which orders share a transaction matters to none of them.
func (l *Lander) transaction(ctx context.Context, item int64, todo []message) (landing store.Landing, part []message, err error) {
	decided := func(err error) bool {
		var row *store.ErrRowRefused
		var unsold *store.ErrUnsold
		return errors.As(err, &unsold) || errors.As(err, &row) && row.Index >= 0 && row.Index < len(part)
	}
	err = l.until(ctx, stepMySQL, tryMySQL, decided, func(ctx context.Context) (err error) {
		part = todo[:l.widths.of(item, len(todo))]
		orders := make([]*order.Order, len(part))
		for i, m := range part {
			orders[i] = m.order
			orders[i].Patient = m.order.Attempt+1 < int64(l.cfg.StockTries)
		}
		began := time.Now()
		ctx, s := tracer.Start(ctx, "mysql transaction")
		landing, err = l.store.Land(ctx, item, orders)
		ended(s, err)
		l.metrics.transaction.Observe(time.Since(began).Seconds())
		if contended := store.IsContention(err); err == nil || contended {
			l.widths.note(item, len(part), landing.Races, contended)
		}
		return err
	})
	l.metrics.batchOrders.Observe(float64(len(part)))
	if err != nil {
		return landing, part, fmt.Errorf("land %d orders of item %d: %w", len(part), item, err)
	}
	return landing, part, nil
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
