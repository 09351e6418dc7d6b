package runner_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/syncer/binlog"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// slowly opens the parts of a process whose way to Redis can be disturbed.
func slowly(b *synctest.Bench) (*runner.Parts, *faultproxy.Proxy) {
	b.Helper()
	proxy := faultproxy.New(b, b.Server.Addr)
	cfg := b.Cfg
	cfg.Redis.Addrs = []string{proxy.Addr()}
	return b.OpenParts(cfg), proxy
}

// tells matches the script that tells the keys of an activity of a state.
func tells(a ledger.Activity, state ledger.State) func([]byte) bool {
	return faultproxy.Contains("evalsha", ledger.KeysOf(a.ID).Stock, "\r\n"+string(state)+"\r\n")
}

// A pause comes when a leader has read the table, and has not written what it read: the binlog's word is the later one and stays so, for it
// could be half a second until a look at the keys mends them, in which a buyer could buy.
func TestE116PauseDuringTheFirstLookOfATerm(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a := b.Activity(5)
	b.Load(a)
	p, proxy := slowly(b)
	bring, apply := runner.Term(p, &synctest.Health{})
	stuck := proxy.Hold(tells(a, ledger.Open), 1)
	defer stuck.Release()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := bring(t.Context()); err != nil {
			t.Errorf("the first look: %v", err)
		}
	})
	<-stuck.Seen()
	b.Exec("UPDATE activity SET state = 'paused' WHERE activity_id = ?", a.ID)
	paused := a
	paused.State = ledger.Paused
	applied := make(chan struct{})
	wg.Go(func() {
		defer close(applied)
		if err := apply(t.Context(), &binlog.Transaction{Activities: []ledger.Activity{paused}}); err != nil {
			t.Errorf("apply: %v", err)
		}
	})
	select { // an order that is wrong has time to be
	case <-applied:
	case <-time.After(500 * time.Millisecond):
	}
	stuck.Release()
	wg.Wait()
	if s := b.Look(a); s.State != ledger.Paused {
		t.Errorf("the sale is %s in redis, want paused", s.State)
	}
}

// The stream goes back and shows again what has been paused since: at no moment is the sale open.
func TestE116ReplayDoesNotOpenWhatIsPaused(t *testing.T) {
	t.Parallel()
	b := synctest.New(t, func(c *runner.Config) { c.MySQL.LockWait = time.Second })
	a := b.Activity(5)
	b.Load(a)
	_, apply := runner.Term(b.All, &synctest.Health{})
	state := func(told ledger.State) ledger.State {
		t.Helper()
		act := a
		act.State = told
		if err := apply(t.Context(), &binlog.Transaction{Activities: []ledger.Activity{act}}); err != nil {
			t.Fatal(err)
		}
		return b.Look(a).State
	}
	b.Exec("UPDATE activity SET state = 'paused' WHERE activity_id = ?", a.ID)
	for _, told := range []ledger.State{ledger.Paused, ledger.Open, ledger.Closed} {
		if got := state(told); got != ledger.Paused {
			t.Errorf("after a row that says %s the sale is %s, want paused as the row is by now", told, got)
		}
	}

	// Somebody holds the row, and does not say what he will do: the stricter of what is known counts.
	db := b.OpenDB()
	hold := func() (commit func()) {
		t.Helper()
		tx, err := db.BeginTx(t.Context(), nil)
		if err == nil {
			_, err = tx.ExecContext(t.Context(), "UPDATE activity SET title = CONCAT(title, '!') WHERE activity_id = ?", a.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := tx.Commit(); err != nil {
				t.Error(err)
			}
		}
	}
	commit := hold()
	if got := state(ledger.Open); got != ledger.Paused {
		t.Errorf("while somebody holds the row the sale is %s, want paused", got)
	}
	commit()
	b.Exec("UPDATE activity SET state = 'open' WHERE activity_id = ?", a.ID)
	if got := state(ledger.Open); got != ledger.Open {
		t.Errorf("the sale is %s, want open", got)
	}
	commit = hold()
	if got := state(ledger.Paused); got != ledger.Paused {
		t.Errorf("a pause whose commit is not visible yet leaves the sale %s", got)
	}
	commit()
	if got := state(ledger.Paused); got != ledger.Open {
		t.Errorf("the sale is %s once the row can be read, want open", got)
	}
}

// A pause is in the log before a plain read sees it, and may be told of without an image of the row.
func TestE47PauseInDoubtIsReadOnceItIsVisible(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a := b.Activity(5)
	b.Load(a)
	_, apply := runner.Term(b.All, &synctest.Health{})
	tx, err := b.OpenDB().BeginTx(t.Context(), nil)
	if err == nil {
		_, err = tx.ExecContext(t.Context(), "UPDATE activity SET state = 'paused' WHERE activity_id = ?", a.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	applied := make(chan error, 1)
	go func() { applied <- apply(t.Context(), &binlog.Transaction{DoubtActivities: []int64{a.ID}}) }()
	testenv.Eventually(t, 20*time.Second, "the read to wait for the row, or to have passed it by", func() bool {
		var waits int
		err := b.Store.DB().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE id <> CONNECTION_ID() AND info LIKE ?",
			fmt.Sprintf("%%activity_id = %d FOR UPDATE%%", a.ID)).Scan(&waits)
		return err == nil && (waits > 0 || len(applied) > 0)
	})
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	if s := b.Look(a); s.State != ledger.Paused {
		t.Errorf("the sale is %s in redis, want paused", s.State)
	}
}

// The catalogue is written and an activity's keys are not, or nobody knows: the next look at the table writes them, and does not wait for
// what compares keys with rows.
func TestKeysThatTheCatalogueIsAheadOf(t *testing.T) {
	t.Parallel()
	b := synctest.New(t)
	a := b.Activity(5)
	b.Load(a)
	p, proxy := slowly(b)
	bring, _ := runner.Term(p, &synctest.Health{})
	if err := bring(t.Context()); err != nil {
		t.Fatal(err)
	}
	set := func(state ledger.State) {
		b.Exec("UPDATE activity SET state = ? WHERE activity_id = ?", string(state), a.ID)
	}
	listed := func() ledger.State {
		c, err := b.Ledger.Catalogue(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return c.Activities[a.ID].State
	}
	for name, c := range map[string]struct {
		state ledger.State
		spoil func() *faultproxy.Rule
	}{
		"the keys are not written": {ledger.Paused, func() *faultproxy.Rule {
			return proxy.CloseBefore(tells(a, ledger.Paused), 1000)
		}},
		"the catalogue's answer is lost": {ledger.Closed, func() *faultproxy.Rule {
			return proxy.CloseAfter(faultproxy.Contains("evalsha", "seckill:activities", `"closed"`), 1000)
		}},
	} {
		set(c.state)
		rule := c.spoil()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		err := bring(ctx)
		cancel()
		proxy.Heal()
		if err == nil || rule.Fired() == 0 || listed() != c.state || b.Look(a).State == c.state {
			t.Fatalf("%s: %v, fired %d, listed %s, the keys say %s: this is no case of it", name, err, rule.Fired(), listed(), b.Look(a).State)
		}
		testenv.Eventually(t, 20*time.Second, "a look at the table", func() bool { return bring(t.Context()) == nil })
		if s := b.Look(a); s.State != c.state {
			t.Errorf("%s: the keys say %s after the next look, want %s", name, s.State, c.state)
		}
	}
}
