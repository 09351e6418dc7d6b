package runner_test

import (
	"context"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// Whatever stands in the rows of the shop's other items, the sales go on and the binlog is followed.
func TestRowsOfOtherItems(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ ddl, item, stock string }{
		"snowflake":            {"", "1796011263608303617", "5"},
		"negative":             {"", "-1", "5"},
		"beyond bigint":        {"ALTER TABLE inventory MODIFY item_id BIGINT UNSIGNED NOT NULL", "18446744073709551615", "5"},
		"stock NULL":           {"ALTER TABLE inventory MODIFY stock BIGINT NULL", "5", "NULL"},
		"stock of a snowflake": {"", "5", "1796011263608303617"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := synctest.New(t, synctest.Quiet)
			if c.ddl != "" {
				b.Exec(c.ddl)
			}
			a, _, _ := following(t, b, 10)
			epoch := b.Look(a).Epoch
			b.Exec("INSERT INTO inventory (item_id, stock) VALUES (" + c.item + ", " + c.stock + ")")
			b.Exec("UPDATE inventory SET version = version + 1 WHERE item_id = " + c.item)
			b.Restock(a, 3)
			b.Exec("DELETE FROM inventory WHERE item_id = " + c.item)
			b.Restock(a, 1)
			testenv.Eventually(t, 20*time.Second, "the restock to reach redis", func() bool { return b.Look(a).Stock == 14 })
			if s := b.Look(a); s.Epoch != epoch || !s.Loaded {
				t.Errorf("the sale was closed by another item: %+v", s)
			}
		})
	}
}

// E48: a stock that is no whole number, as the shop's column may allow, is never taken for one: it closes the sale of that
// item and no other, until it is a number again.
func TestE48NoUsableStock(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ kind, bad string }{
		"null":           {"BIGINT NULL", "NULL"},
		"negative":       {"BIGINT NOT NULL", "-3"},
		"fraction":       {"DECIMAL(20,2) NOT NULL", "5.50"},
		"beyond redis":   {"BIGINT NOT NULL", "9007199254740994"},
		"beyond 63 bits": {"BIGINT UNSIGNED NOT NULL", "9223372036854775809"},
		"text":           {"VARCHAR(20) NOT NULL", "'many'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := synctest.New(t, synctest.Quiet)
			if !testenv.OnMariaDB(t, b.Cfg.MySQL.DSN) { // where the check belongs to the column, and goes with its old kind
				b.Exec("ALTER TABLE inventory DROP CHECK inventory_chk_1")
			}
			b.Exec("ALTER TABLE inventory MODIFY stock " + c.kind)
			a, _, h := following(t, b, 10)
			other := b.Activity(10)
			epoch := b.Loaded(other, "").Epoch
			b.Exec("UPDATE inventory SET stock = "+c.bad+" WHERE item_id = ?", a.Item)
			testenv.Eventually(t, 20*time.Second, "the sale to be closed", func() bool { return b.Look(a).State == ledger.Recovering })
			b.Exec("UPDATE inventory SET stock = 11 WHERE item_id = ?", other.Item)
			testenv.Eventually(t, 20*time.Second, "a restock of another item", func() bool { return b.Look(other).Stock == 11 })
			if s := b.Look(other); s.Epoch != epoch {
				t.Errorf("the other sale was closed too: %+v", s)
			}
			b.Exec("UPDATE inventory SET stock = 4 WHERE item_id = ?", a.Item)
			testenv.Eventually(t, 20*time.Second, "the sale to be open again", func() bool { s := b.Look(a); return s.Loaded && s.Stock == 4 })
			b.Ready(h)
		})
	}
}

// What Redis has of a loaded activity is held against its row all the time: no event of the binlog undoes a late write.
func TestKeysThatDifferFromTheRowAreMended(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	a, _, _ := following(t, b, 10)
	epoch := b.Look(a).Epoch
	stale := a
	stale.State, stale.MaxPerUser, stale.EndsAtMs = ledger.Closed, a.MaxPerUser+1, a.EndsAtMs+1000
	if _, err := b.Ledger.SetActivity(t.Context(), stale); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, "the activity to be as in mysql", func() bool {
		s := b.Look(a)
		return s.State == a.State && s.Activity.MaxPerUser == a.MaxPerUser && s.Activity.EndsAtMs == a.EndsAtMs
	})
	if s := b.Look(a); s.Epoch != epoch {
		t.Error("it was loaded again, which closes it")
	}
}

// A read of the table that was overtaken by the write of a row does not show it: before a sale is closed for want of its row,
// the row is looked for by its key.
func TestLateReadOfTheTableClosesNothing(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a := b.Activity(5)
	b.Load(a)
	if err := b.All.List(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	standing := func() (ledger.State, ledger.State) {
		t.Helper()
		if err := runner.PublishAfterStaleRead(t.Context(), b.All, &synctest.Health{}); err != nil {
			t.Fatal(err)
		}
		c, err := b.Ledger.Catalogue(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return b.Look(a).State, c.Activities[a.ID].State
	}
	if keys, listed := standing(); keys != ledger.Open || listed != ledger.Open {
		t.Errorf("the sale is %q, and %q in the catalogue", keys, listed)
	}
	b.Exec("DELETE FROM activity WHERE activity_id = ?", a.ID)
	if keys, listed := standing(); keys != ledger.Closed || listed != ledger.Closed {
		t.Errorf("without its row the sale is %q, and %q in the catalogue", keys, listed)
	}
}

// The binlog shows a change before a reader of MySQL sees it. The read of the table that follows at once may undo the change, and does not
// have the last word.
func TestReadOfTheTableThatIsEarlierThanTheBinlog(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, func(c *runner.Config) { c.ActivityInterval = time.Hour })
	a := b.Activity(5)
	b.Load(a)
	ctx, cancel := context.WithCancel(t.Context())
	changed, wait := runner.Table(ctx, b.All, &synctest.Health{})
	defer wait()
	defer cancel()
	standing := func(want ledger.State) bool {
		c, err := b.Ledger.Catalogue(t.Context())
		return err == nil && c.Activities[a.ID].State == want && b.Look(a).State == want
	}
	paused, closed := a, a
	paused.State, closed.State = ledger.Paused, ledger.Closed
	var told time.Time
	for time.Since(told) > runner.ReadAgain/2 { // where the machine stalls the second read may be as early as the first
		if !told.IsZero() {
			b.Exec("UPDATE activity SET state = 'open' WHERE activity_id = ?", a.ID)
			changed(a)
			<-time.After(2 * runner.ReadAgain)
		}
		testenv.Eventually(t, 20*time.Second, "the sale to be open", func() bool { return standing(ledger.Open) })
		if err := b.All.List(t.Context(), paused); err != nil { // the list is somewhat behind
			t.Fatal(err)
		}
		if _, err := b.Ledger.SetActivity(t.Context(), closed); err != nil {
			t.Fatal(err)
		}
		told = time.Now()
		changed(closed)
		testenv.Eventually(t, 20*time.Second, "a read of the table to undo the change", func() bool { return standing(ledger.Open) })
		b.Exec("UPDATE activity SET state = 'closed' WHERE activity_id = ?", a.ID)
	}
	testenv.Eventually(t, 20*time.Second, "the change to stand", func() bool { return standing(ledger.Closed) })
}

// A sale whose row is deleted is closed, for the gateways too; when the row is there again it goes on.
func TestDeletedRowOfASale(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, synctest.Quiet)
	a, _, _ := following(t, b, 10)
	b.MustReserve(a, "u", 1) // what is open keeps it from being retired
	listed := func() ledger.State {
		c, err := b.Ledger.Catalogue(t.Context())
		if err != nil {
			return ""
		}
		return c.Activities[a.ID].State
	}
	b.Exec("DELETE FROM activity WHERE activity_id = ?", a.ID)
	testenv.Eventually(t, 20*time.Second, "the sale to be closed", func() bool { return b.Look(a).State == ledger.Closed && listed() == ledger.Closed })
	b.Exec("INSERT INTO activity (activity_id, item_id, title, starts_at_ms, ends_at_ms, max_per_user, state) VALUES (?, ?, ?, ?, ?, ?, 'open')",
		a.ID, a.Item, a.Title, a.StartsAtMs, a.EndsAtMs, a.MaxPerUser)
	testenv.Eventually(t, 20*time.Second, "the sale to go on", func() bool { return b.Look(a).State == ledger.Open && listed() == ledger.Open })
}
