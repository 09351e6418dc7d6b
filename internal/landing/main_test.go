package landing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.KnownLeaks()...) }

// fakeStore stands for MySQL where a test needs to decide what MySQL says.
type fakeStore struct {
	mu         sync.Mutex
	activities map[int64]int64 // activity → item
	rows       map[string]ledger.Outcome
	batches    [][]*order.Order
	land       func(n int, orders []*order.Order) error // n counts calls from 1; nil error: lands
	calls      int
	races      int   // what a landing says that it lost
	broken     error // of Record
	gone       bool  // there is no inventory row to read a version from
}

func newFakeStore(activity, item int64) *fakeStore {
	return &fakeStore{activities: map[int64]int64{activity: item}, rows: make(map[string]ledger.Outcome)}
}

func (s *fakeStore) Land(_ context.Context, item int64, orders []*order.Order) (store.Landing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.land != nil {
		if err := s.land(s.calls, orders); errors.Is(err, store.ErrNoInventory) || errors.Is(err, store.ErrNoStock) {
			return s.unsold(item, orders, err)
		} else if err != nil {
			return store.Landing{}, err
		}
	}
	s.batches = append(s.batches, orders)
	out := store.Landing{Item: item, Stock: 1000, Version: int64(s.calls), Races: s.races}
	if s.gone {
		out.Stock, out.Version = 0, 0
	}
	seen := make(map[string]bool)
	for _, o := range orders {
		if seen[o.ID] {
			continue
		}
		seen[o.ID] = true
		if _, ok := s.rows[o.ID]; !ok {
			s.rows[o.ID] = ledger.Outcome{Order: o.ID, User: o.User, Item: o.Item, Quantity: o.Quantity, Status: order.Confirmed}
		}
		out.Outcomes = append(out.Outcomes, s.rows[o.ID])
	}
	return out, nil
}

// unsold is what MySQL says while it does not know how much there is to sell.
func (s *fakeStore) unsold(item int64, orders []*order.Order, why error) (store.Landing, error) {
	out := store.Landing{Item: item}
	var undecided []string
	for _, o := range orders {
		row, ok := s.rows[o.ID]
		switch {
		case ok:
			out.Outcomes = append(out.Outcomes, row)
		case o.Patient:
			out.Left = append(out.Left, o.ID)
		default:
			undecided = append(undecided, o.ID)
		}
	}
	if len(undecided) > 0 {
		return store.Landing{}, &store.ErrUnsold{Orders: undecided, Err: why}
	}
	return out, nil
}

func (s *fakeStore) Record(_ context.Context, o order.Order, status order.Status, reason string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return s.broken
	}
	if _, ok := s.rows[o.ID]; !ok {
		s.rows[o.ID] = ledger.Outcome{Order: o.ID, User: o.User, Item: o.Item, Quantity: o.Quantity, Status: status, Dead: true, Reason: reason}
	}
	return nil
}

func (s *fakeStore) Orders(_ context.Context, ids []string) (map[string]ledger.Outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]ledger.Outcome)
	for _, id := range ids {
		if row, ok := s.rows[id]; ok {
			out[id] = row
		}
	}
	return out, nil
}

func (s *fakeStore) Activity(_ context.Context, id int64) (ledger.Activity, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	item, ok := s.activities[id]
	if !ok {
		return ledger.Activity{}, fmt.Errorf("activity %d: %w", id, store.ErrNoActivity)
	}
	return ledger.Activity{ID: id, Item: item}, nil
}

// fakeLedger stands for Redis.
type fakeLedger struct {
	mu      sync.Mutex
	settled []ledger.Settlement
	landed  map[int32]ledger.LandedAt
	answer  func(n int) (ledger.Settled, error) // n counts calls from 1
	calls   int
	has     map[int64]bool // the activities that it has
	open    map[string]bool
	tries   map[string]int64
}

func (l *fakeLedger) Inspect(_ context.Context, activities ...int64) ([]ledger.Snapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]ledger.Snapshot, len(activities))
	for i, id := range activities {
		out[i] = ledger.Snapshot{Activity: ledger.Activity{ID: id}, Exists: l.has[id]}
	}
	return out, nil
}

func (l *fakeLedger) Settle(_ context.Context, s ledger.Settlement) (ledger.Settled, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if l.answer != nil {
		if got, err := l.answer(l.calls); err != nil || got.NotLoaded || got.Broken {
			return got, err
		}
	}
	l.settled = append(l.settled, s)
	return ledger.Settled{Dropped: len(s.Orders)}, nil
}

func (l *fakeLedger) Postpone(_ context.Context, _ int64, tries map[string]int64) (map[string]bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := make(map[string]bool)
	for id, n := range tries {
		if l.open[id] {
			kept[id] = true
			l.tries[id] = max(l.tries[id], n)
		}
	}
	return kept, nil
}

func (l *fakeLedger) SetLanded(_ context.Context, at map[int32]ledger.LandedAt) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.landed == nil {
		l.landed = make(map[int32]ledger.LandedAt)
	}
	for p, x := range at {
		l.landed[p] = x
	}
	return nil
}

// fakeLetters keeps dead letters.
type fakeLetters struct {
	mu      sync.Mutex
	records []Record
	why     []error
	fail    int // how many calls fail first
}

func (d *fakeLetters) Put(_ context.Context, r Record, why error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail > 0 {
		d.fail--
		return errors.New("no broker")
	}
	d.records, d.why = append(d.records, r), append(d.why, why)
	return nil
}

// fakeResults keeps outcomes.
type fakeResults struct {
	mu  sync.Mutex
	got []order.Result
}

func (r *fakeResults) Put(x order.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, x)
}

// fakeHealth remembers what is red now and what ever was.
type fakeHealth struct {
	mu   sync.Mutex
	now  map[string]error
	ever map[string]bool
}

func newFakeHealth() *fakeHealth {
	return &fakeHealth{now: make(map[string]error), ever: make(map[string]bool)}
}

func (h *fakeHealth) Set(name string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now[name] = err
	if err != nil {
		h.ever[name] = true
	}
}

func (h *fakeHealth) red(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now[name]
}

// bench is a Lander on fakes.
type bench struct {
	*testing.T
	*Lander
	store          *fakeStore
	ledger         *fakeLedger
	letters        *fakeLetters
	results        *fakeResults
	health         *fakeHealth
	activity, item int64
	offset         int64
}

// fast are short pauses, so that tests of retries end soon.
var fast = Config{RetryMin: time.Millisecond, RetryMax: 5 * time.Millisecond, MissingWait: 200 * time.Millisecond}

func onFakes(t *testing.T) *bench {
	b := &bench{
		T: t, ledger: &fakeLedger{}, letters: &fakeLetters{}, results: &fakeResults{}, health: newFakeHealth(),
		activity: testenv.ID(), item: testenv.ID(),
	}
	b.store = newFakeStore(b.activity, b.item)
	b.Lander = NewLander(fast, b.store, b.ledger, b.letters, b.results, b.health, NewMetrics(nil), zap.NewNop())
	return b
}

// newOrder is a valid order for one unit.
func newOrder(activity, item int64, user string) *order.Order {
	id, err := order.NewID()
	if err != nil {
		panic(err)
	}
	return &order.Order{
		V: order.SchemaVersion, ID: id, Activity: activity, User: user, Item: item, Quantity: 1, CreatedAtMs: time.Now().UnixMilli(),
	}
}

func (b *bench) order() *order.Order { return newOrder(b.activity, b.item, "buyer") }

// record is o as Kafka would deliver it next. It does not mend the order as Encode does.
func (b *bench) record(o *order.Order) Record {
	b.Helper()
	value, err := json.Marshal(o)
	if err != nil {
		b.Fatal(err)
	}
	return b.raw(value)
}

func (b *bench) raw(value []byte) Record {
	b.offset++
	return Record{Topic: "orders", Partition: 3, Offset: b.offset - 1, Time: time.Now(), Key: []byte("k"), Value: value}
}

func (b *bench) mustLand(records ...Record) Tally {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
	defer cancel()
	t, err := b.Land(ctx, records)
	if err != nil {
		b.Fatal(err)
	}
	return t
}
