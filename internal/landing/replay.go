package landing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// Source reads ranges of a topic. *kafka.Admin is one.
type Source interface {
	Oldest(ctx context.Context, topic string) (map[int32]int64, error)
	OffsetsAt(ctx context.Context, topic string, t time.Time) (map[int32]int64, error)
	HighWater(ctx context.Context, topic string) (map[int32]int64, error)
	Read(ctx context.Context, topic string, from, to map[int32]int64,
		fn func(partition int32, offset int64, ts time.Time, key, value []byte) error) error
}

// Replayed is what a replay did, or in a dry run would do.
type Replayed struct {
	Tally
	Present int // dry run: orders that have a row
	Missing int // dry run: orders that have none and would be landed
	Invalid int // dry run: records that can never become orders
	// Undecided are orders without a row that could not be decided. Nothing was written of them; see ErrUndecided.
	Undecided int
	// Cut lists partitions in which Kafka no longer has everything since the asked-for time.
	Cut []int32
}

// Replay reads the orders topic from a time up to where it ends now, outside of the consumer group, and lands each record
// again: where MySQL has the order's row nothing changes. It brings back what MySQL lost in a fail-over, and may run beside
// the workers. Records that can never become orders, whatever MySQL says, are in the dead-letter topic already and are only counted.
// Of an order without a row that MySQL has nothing to decide by, now, nothing is written, and ErrUndecided tells of it at the end:
// it may have been a live one before the fail-over.
func (l *Lander) Replay(ctx context.Context, src Source, topic string, since time.Time, dryRun bool) (Replayed, error) {
	var done Replayed
	from, err := src.OffsetsAt(ctx, topic, since)
	if err != nil {
		return done, fmt.Errorf("offsets of %s at %s: %w", topic, since.Format(time.RFC3339), err)
	}
	oldest, err := src.Oldest(ctx, topic)
	if err != nil {
		return done, fmt.Errorf("oldest offsets of %s: %w", topic, err)
	}
	to, err := src.HighWater(ctx, topic)
	if err != nil {
		return done, fmt.Errorf("high-water marks of %s: %w", topic, err)
	}
	for part, at := range from {
		// The first record that is left may be younger than `since` only because older ones are gone.
		if at > 0 && at == oldest[part] && at < to[part] {
			done.Cut = append(done.Cut, part)
		}
	}
	slices.Sort(done.Cut)

	again := *l
	again.deadLetters = alreadySetAside{}
	again.cfg.StockTries = 1   // whoever asks for this wants to know
	again.cfg.MissingWait = -1 // and can ask again
	var open undecided
	var mu sync.Mutex // records of different partitions may come at the same time
	waiting := make(map[int32][]Record)
	flush := func(part int32) error {
		batch := waiting[part]
		delete(waiting, part)
		if dryRun {
			return again.look(ctx, batch, &done)
		}
		t, err := again.landOrLeave(ctx, batch, &open)
		done.Tally = done.Add(t)
		done.Undecided = len(open.why)
		return err
	}
	err = src.Read(ctx, topic, from, to, func(part int32, offset int64, ts time.Time, key, value []byte) error {
		mu.Lock()
		defer mu.Unlock()
		waiting[part] = append(waiting[part], Record{Topic: topic, Partition: part, Offset: offset, Time: ts, Key: key, Value: value})
		if len(waiting[part]) < l.cfg.MaxOrders {
			return nil
		}
		return flush(part)
	})
	if err != nil {
		return done, err
	}
	for _, part := range slices.Sorted(maps.Keys(waiting)) {
		if err := flush(part); err != nil {
			return done, err
		}
	}
	l.log.Info("replay ended", zap.Time("since", since), zap.Bool("dry_run", dryRun), zap.Any("counts", done))
	return done, open.err()
}

// ErrUndecided says that a replay left orders as they are, for want of something that a person can mend.
var ErrUndecided = errors.New("could not be decided and are left as they are")

// undecided are the orders that a replay leaves, and why.
type undecided struct{ why map[string]error }

// told is how many reasons are worth telling; as a rule all orders have one.
const told = 5

func (u *undecided) err() error {
	if len(u.why) == 0 {
		return nil
	}
	first := map[string]string{} // reason → an order of it
	for _, id := range slices.Sorted(maps.Keys(u.why)) {
		if text := u.why[id].Error(); first[text] == "" {
			first[text] = id
		}
	}
	var texts []string
	for _, text := range slices.Sorted(maps.Keys(first)) {
		if len(texts) == told {
			texts = append(texts, fmt.Sprintf("and %d more reasons", len(first)-told))
			break
		}
		texts = append(texts, "order "+first[text]+", for one: "+text)
	}
	return fmt.Errorf("%d orders without a row %w: %s: mend that, and run the replay again", len(u.why), ErrUndecided, strings.Join(texts, "; "))
}

// landOrLeave is Land for what came before: of an order that is refused for what MySQL has, or has not, and not for what the record
// says, a row that says failed would keep it from landing once that is mended.
func (l *Lander) landOrLeave(ctx context.Context, records []Record, open *undecided) (Tally, error) {
	tally, refused, err := l.decide(ctx, records)
	if err != nil {
		return tally, err
	}
	why := map[string]error{}
	refused = slices.DeleteFunc(refused, func(r refusal) bool {
		if r.passing() {
			why[r.order.ID] = r.why
		}
		return r.passing()
	})
	if err := l.refuseAll(ctx, refused, &tally); err != nil {
		return tally, err
	}
	if len(why) == 0 {
		return tally, nil
	}
	ids := slices.Sorted(maps.Keys(why))
	return tally, l.until(ctx, stepMySQL, tryMySQL, nil, func(ctx context.Context) error {
		rows, err := l.store.Orders(ctx, ids)
		if err != nil {
			return err
		}
		for _, id := range ids {
			row, there := rows[id]
			switch {
			case !there && open.why == nil:
				open.why = map[string]error{id: why[id]}
			case !there:
				open.why[id] = why[id]
			case row.Dead:
				tally.Failed++
			default:
				tally.Landed++
			}
		}
		return nil
	})
}

// look counts what landing a batch would do.
func (l *Lander) look(ctx context.Context, batch []Record, done *Replayed) error {
	ids := make([]string, 0, len(batch))
	for _, r := range batch {
		done.Records++
		o, err := order.Decode(r.Value)
		if err != nil {
			done.Invalid++
			continue
		}
		ids = append(ids, o.ID)
	}
	slices.Sort(ids)
	distinct := slices.Compact(slices.Clone(ids))
	done.Redone += len(ids) - len(distinct)
	if len(distinct) == 0 {
		return nil
	}
	return l.until(ctx, stepMySQL, tryMySQL, nil, func(ctx context.Context) error {
		rows, err := l.store.Orders(ctx, distinct)
		if err != nil {
			return err
		}
		done.Present += len(rows)
		done.Missing += len(distinct) - len(rows)
		return nil
	})
}

// Fate is what became of a dead letter that was landed again.
type Fate struct {
	ID  string         // of the order; "" where it cannot be read
	Row ledger.Outcome // what MySQL holds of the order, whoever put it there; its Order is "" where there is no row
	// Refused is why the letter still can never become an order. Where the order has a row all the same, as one of which another
	// record landed, the row decides.
	Refused error
}

// Live says that the letter's order is one of those that are sold.
func (f Fate) Live() bool { return f.Row.Order != "" && !f.Row.Dead }

// Dead says that the letter's order has failed or was cancelled, for good.
func (f Fate) Dead() bool { return f.Row.Order != "" && f.Row.Dead }

// LandAgain lands dead letters once more, in one batch, where the order has no row, and says of each what became of it. It is
// idempotent. Of what is still refused it records nothing: the worker that set the letter aside has told the buyer what could be
// told, and a row that says failed would keep the order from landing once its cause is mended.
func (l *Lander) LandAgain(ctx context.Context, letters []Letter) ([]Fate, error) {
	again := *l
	again.cfg.StockTries = 1
	again.cfg.MissingWait = -1 // whoever asks for this can ask again
	records := make([]Record, len(letters))
	for i := range letters {
		records[i] = letters[i].Record
	}
	_, refused, err := again.decide(ctx, records)
	if err != nil {
		return nil, err
	}
	why := make(map[place]error, len(refused))
	for _, r := range refused {
		why[placeOf(r.Record)] = r.why
	}
	fates := make([]Fate, len(letters))
	var ids []string
	for i, r := range records {
		fates[i].Refused = why[placeOf(r)]
		if o, _ := order.Decode(r.Value); o != nil && order.ValidID(o.ID) {
			fates[i].ID = o.ID
			ids = append(ids, o.ID)
		}
	}
	if len(ids) == 0 {
		return fates, nil
	}
	err = l.until(ctx, stepMySQL, tryMySQL, nil, func(ctx context.Context) error {
		rows, err := l.store.Orders(ctx, ids)
		for i := range fates {
			fates[i].Row = rows[fates[i].ID]
		}
		return err
	})
	return fates, err
}

// place is where a record lies within its topic.
type place struct {
	partition int32
	offset    int64
}

func placeOf(r Record) place { return place{r.Partition, r.Offset} }

// alreadySetAside is where refused records of a replay go: they were set aside when they first came.
type alreadySetAside struct{}

func (alreadySetAside) Put(context.Context, Record, error) error { return nil }
