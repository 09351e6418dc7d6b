package landing

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// landAgain replays dead letters.
func (e *live) landAgain(letters ...Letter) []Fate {
	e.t.Helper()
	fates, err := e.lander().LandAgain(e.t.Context(), letters)
	if err != nil {
		e.t.Fatal(err)
	}
	return fates
}

// letterFor is a dead letter whose value is an order.
func (e *live) letterFor(offset int64, o *order.Order) Letter {
	e.t.Helper()
	value, err := o.Encode()
	if err != nil {
		e.t.Fatal(err)
	}
	return Letter{Record: Record{Topic: e.kafka.Topics.DeadLetters, Offset: offset, Value: value}}
}

// lander is a Lander outside of any group, as replay uses it.
func (e *live) lander() *Lander {
	return NewLander(Config{MaxOrders: 40}, e.store, e.ledger, NewTopicDeadLetters(e.producer, e.kafka), new(fakeResults), e.health, NewMetrics(nil), e.log)
}

// TestE103ReplayLandsWhatMySQLLost: rows and stock changes are gone as after a fail-over; a dry run counts them, a replay brings them
// back, a second one changes nothing.
func TestE103ReplayLandsWhatMySQLLost(t *testing.T) {
	t.Parallel()
	e := onServers(t, 3).sale(1000)
	before := e.orders(100, one)
	e.reserve(before...)
	e.publish(before...)
	e.raw([]byte("poison"))
	w := e.worker(Config{}, nil, nil)
	e.done(time.Minute)
	w.Stop()
	e.settled(900)

	db := e.store.DB()
	if _, err := db.ExecContext(t.Context(), "DELETE FROM orders WHERE activity_id = ? AND user_id LIKE 'buyer-1%'", e.activity); err != nil {
		t.Fatal(err)
	}
	lost := 100 - e.rows()["CONFIRMED"]
	if _, err := db.ExecContext(t.Context(), "UPDATE inventory SET stock = stock + ? WHERE item_id = ?", lost, e.item); err != nil {
		t.Fatal(err)
	}
	l := e.lander()
	hourAgo := time.Now().Add(-time.Hour)
	dry, err := l.Replay(t.Context(), e.admin, e.kafka.Topics.Orders, hourAgo, true)
	if err != nil {
		t.Fatal(err)
	}
	if dry.Records != 101 || dry.Missing != lost || dry.Present != 100-lost || dry.Invalid != 1 {
		t.Errorf("dry run %+v: want %d missing, %d present, 1 invalid", dry, lost, 100-lost)
	}
	if n := e.rows()["CONFIRMED"]; n != 100-lost {
		t.Fatalf("the dry run changed rows: %d", n)
	}
	for range 2 {
		got, err := l.Replay(t.Context(), e.admin, e.kafka.Topics.Orders, hourAgo, false)
		if err != nil {
			t.Fatal(err)
		}
		if got.Records != 101 || got.Landed != 100 || got.Refused != 1 || len(got.Cut) != 0 {
			t.Errorf("replay %+v: want 100 landed and 1 refused", got)
		}
		e.settled(900)
	}
	if n := len(e.letters()); n != 1 {
		t.Errorf("%d dead letters, want the first one only", n)
	}
	if got, err := l.Replay(t.Context(), e.admin, e.kafka.Topics.Orders, time.Now().Add(time.Hour), false); err != nil || got.Records != 0 {
		t.Errorf("replay from the future %+v, %v: want nothing", got, err)
	}
}

// TestE103ReplayBesideTheWorker: both land the same orders at the same time.
func TestE103ReplayBesideTheWorker(t *testing.T) {
	t.Parallel()
	e := onServers(t, 2).sale(2000)
	orders := e.orders(1000, one)
	e.reserve(orders...)
	e.publish(orders...)
	e.worker(Config{MaxOrders: 50}, nil, nil)
	got, err := e.lander().Replay(t.Context(), e.admin, e.kafka.Topics.Orders, time.Now().Add(-time.Hour), false)
	if err != nil || got.Landed != 1000 {
		t.Fatalf("replay %+v, %v", got, err)
	}
	e.done(time.Minute)
	e.settled(1000)
}

// TestReplaySaysWhatRetentionTook: an oldest record that is not the first may mean that older ones are missing.
func TestReplaySaysWhatRetentionTook(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(100)
	e.publish(e.orders(10, one)...)
	if err := e.clusterAdmin().DeleteRecords(e.kafka.Topics.Orders, map[int32]int64{0: 4}); err != nil {
		t.Fatal(err)
	}
	got, err := e.lander().Replay(t.Context(), e.admin, e.kafka.Topics.Orders, time.Now().Add(-time.Hour), false)
	if err != nil || got.Landed != 6 || fmt.Sprint(got.Cut) != "[0]" {
		t.Errorf("replay %+v, %v: want 6 landed and partition 0 named as cut", got, err)
	}
}

// TestE103ReplayOfWhatCannotBeDecided: MySQL lost rows, and the stock of their item is NULL, or the row of their activity is gone, or a column
// does not take them. Nothing is recorded of them, for FAILED would be for good: they land once that is mended.
func TestE103ReplayOfWhatCannotBeDecided(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(100)
	exec := func(text string, args ...any) {
		t.Helper()
		if _, err := e.store.DB().ExecContext(t.Context(), text, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec("ALTER TABLE inventory MODIFY stock BIGINT NULL")
	other := *e
	other.activity, other.item = testenv.ID(), testenv.ID()
	other.sale(100)
	mine, beside := e.orders(5, one), other.orders(2, one)
	lost := mine[:3]
	e.reserve(mine...)
	other.reserve(beside...)
	e.publish(slices.Concat(mine, beside)...)
	w := e.worker(Config{}, nil, nil)
	e.done(time.Minute)
	w.Stop()
	for _, o := range slices.Concat(lost, beside) {
		exec("DELETE FROM orders WHERE order_id = ?", o.ID)
	}
	replay := func() (Replayed, error) {
		return e.lander().Replay(t.Context(), e.admin, e.kafka.Topics.Orders, time.Now().Add(-time.Hour), false)
	}
	for name, c := range map[string]struct{ spoil, mend, says string }{
		"stock of NULL": {
			fmt.Sprintf("UPDATE inventory SET stock = NULL WHERE item_id = %d", e.item),
			fmt.Sprintf("UPDATE inventory SET stock = 95 WHERE item_id = %d", e.item),
			fmt.Sprintf("it is NULL (UPDATE inventory SET stock = … WHERE item_id = %d)", e.item),
		},
		"no activity": {
			fmt.Sprintf("UPDATE activity SET activity_id = 7 WHERE activity_id = %d", e.activity),
			fmt.Sprintf("UPDATE activity SET activity_id = %d WHERE activity_id = 7", e.activity),
			fmt.Sprintf("activity_id %d: activity is not in mysql", e.activity),
		},
		"a column that refuses": {
			fmt.Sprintf("ALTER TABLE orders ADD CONSTRAINT nothing CHECK (item_id <> %d OR user_id <> '%s' AND user_id <> '%s' AND user_id <> '%s')",
				e.item, lost[0].User, lost[1].User, lost[2].User),
			"ALTER TABLE orders DROP CONSTRAINT nothing",
			"nothing",
		},
	} {
		exec(c.spoil)
		got, err := replay()
		if !errors.Is(err, ErrUndecided) || !strings.Contains(err.Error(), c.says) ||
			!slices.ContainsFunc(lost, func(o *order.Order) bool { return strings.Contains(err.Error(), o.ID) }) {
			t.Errorf("%s: %v, want the order and %q named", name, err, c.says)
		}
		if got.Records != 7 || got.Undecided != 3 || got.Landed != 4 || got.Refused != 0 || got.Failed != 0 {
			t.Errorf("%s: replay %+v, want 4 live and 3 undecided", name, got)
		}
		if mine, beside := e.rows(), other.rows(); mine["CONFIRMED"] != 2 || mine["FAILED"] != 0 || beside["CONFIRMED"] != 2 {
			t.Fatalf("%s: rows %v and %v, want those that can be decided", name, mine, beside)
		}
		exec(c.mend)
	}
	if got, err := replay(); err != nil || got.Landed != 7 || got.Undecided != 0 {
		t.Errorf("replay once it is mended: %+v, %v; want 7 live", got, err)
	}
	if rows := e.rows(); rows["CONFIRMED"] != 5 || len(e.letters()) != 0 {
		t.Errorf("rows %v and %d dead letters, want 5 confirmed and none", rows, len(e.letters()))
	}
}

// TestE42DeadLettersLandAgain: applied where no row exists, and only once; an order that failed stays failed, though its activity was added.
func TestE42DeadLettersLandAgain(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(100)
	unreadable := newOrder(e.activity, e.item, "no-row")
	e.reserve(unreadable)
	// A producer of the shop's own wrote the version as a word: the worker cannot read the id of such a record.
	value, err := unreadable.Encode()
	if err != nil {
		t.Fatal(err)
	}
	e.raw(append([]byte("x"), value...))
	failed := newOrder(testenv.ID(), e.item, "failed")
	e.publish(failed)
	w := e.worker(Config{}, nil, nil)
	e.done(time.Minute)
	w.Stop()
	letters := e.letters()
	if len(letters) != 2 {
		t.Fatalf("dead letters %+v, want 2", letters)
	}
	stock := int64(5)
	e.create(failed.Activity, e.item+1, &stock)
	letters[0].Value = letters[0].Value[1:] // mended by hand
	for range 2 {
		fates := e.landAgain(letters...)
		if f := fates[0]; !f.Live() || f.ID != unreadable.ID || f.Row.Status != order.Confirmed {
			t.Errorf("the mended letter came to %+v, want a live order", f)
		}
		if f := fates[1]; f.Live() || f.ID != failed.ID || f.Refused == nil || f.Row.Status != order.Failed {
			t.Errorf("the other one came to %+v, want it refused, with a failed row", f)
		}
		e.settled(99)
	}
	rows, err := e.store.Orders(t.Context(), []string{failed.ID, unreadable.ID})
	if err != nil {
		t.Fatal(err)
	}
	if rows[failed.ID].Status != order.Failed || rows[unreadable.ID].Status != order.Confirmed {
		t.Errorf("rows %+v", rows)
	}
}

// TestE42ReplayRecordsNothingOfWhatItRefuses: what is refused again can land once its cause is mended, and a letter of an order that is sold
// is that order, whatever else is wrong with it and with its batch.
func TestE42ReplayRecordsNothingOfWhatItRefuses(t *testing.T) {
	t.Parallel()
	e := onServers(t, 1).sale(100)
	sold, fresh, early := newOrder(e.activity, e.item, "sold"), newOrder(e.activity, e.item, "fresh"), newOrder(testenv.ID(), testenv.ID(), "early")
	e.reserve(sold, fresh)
	spoilt := *sold
	spoilt.Quantity = -1
	letters := []Letter{e.letterFor(0, sold), e.letterFor(1, fresh), e.letterFor(2, early), e.letterFor(3, &spoilt)}
	if fates := e.landAgain(letters[0]); !fates[0].Live() {
		t.Fatalf("%+v, want it landed", fates)
	}
	stock := int64(5)
	db := e.store.DB()
	if _, err := db.ExecContext(t.Context(), "DELETE FROM inventory WHERE item_id = ?", e.item); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		fates := e.landAgain(letters...)
		if !fates[0].Live() || fates[0].Refused != nil || !fates[3].Live() || fates[3].Refused == nil {
			t.Errorf("the letters of the order that is sold came to %+v and %+v, want both live", fates[0], fates[3])
		}
		for i, o := range []*order.Order{1: fresh, 2: early} {
			if o != nil && (fates[i].Refused == nil || fates[i].Row.Order != "" || e.status(o) != "") {
				t.Errorf("letter %d came to %+v, want it refused and no row of it", i, fates[i])
			}
		}
	}
	if _, err := db.ExecContext(t.Context(), "INSERT INTO inventory (item_id, stock, version) VALUES (?, 99, 1000)", e.item); err != nil {
		t.Fatal(err)
	}
	e.create(early.Activity, early.Item, &stock)
	for i, f := range e.landAgain(letters...) {
		if !f.Live() || f.Row.Status != order.Confirmed {
			t.Errorf("once the causes are mended letter %d came to %+v, want a live order", i, f)
		}
	}
	e.settled(98)
}
