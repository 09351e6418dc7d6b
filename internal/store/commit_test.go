package store

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// through gives a second store whose connections pass a proxy.
func through(t *testing.T, b *bench, change ...func(*Config)) (*bench, *faultproxy.Proxy) {
	t.Helper()
	d, err := mysql.ParseDSN(b.dsn)
	if err != nil {
		t.Fatal(err)
	}
	p := faultproxy.New(t, d.Addr)
	d.Addr = p.Addr()
	change = append([]func(*Config){func(c *Config) { c.StatementTimeout = 1500 * time.Millisecond }}, change...)
	return &bench{Store: openStore(t, d.FormatDSN(), change...), t: t, dsn: d.FormatDSN(), item: b.item, activity: b.activity}, p
}

// commit matches the statement alone: READ COMMITTED, which every new session sets, is no COMMIT.
func commit(request []byte) bool { return bytes.HasSuffix(request, []byte("\x03COMMIT")) }

func TestE63_AmbiguousCommit(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*faultproxy.Proxy, int) *faultproxy.Rule{
		"reply withheld":         func(p *faultproxy.Proxy, n int) *faultproxy.Rule { return p.WithholdReply(commit, n) },
		"closed after execution": func(p *faultproxy.Proxy, n int) *faultproxy.Rule { return p.CloseAfter(commit, n) },
		"closed before":          func(p *faultproxy.Proxy, n int) *faultproxy.Rule { return p.CloseBefore(commit, n) },
		"held, arrives late":     func(p *faultproxy.Proxy, n int) *faultproxy.Rule { return p.Hold(commit, n) },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 10)
			s, p := through(t, b)
			orders := append(b.orders(3, 1), b.order("u-big", 8))
			rule := fault(p, 1)
			l := s.land(orders...)
			want(t, l, "CONFIRMED", "CONFIRMED", "CONFIRMED", "FAILED sold_out")
			if rule.Fired() != 1 {
				t.Fatalf("the fault fired %d times", rule.Fired())
			}
			if l.Stock != 7 {
				t.Fatalf("stock %d, want 7", l.Stock)
			}
			rows, err := b.Orders(t.Context(), ids(orders)) // what was told is there, before anything is delivered again
			if err != nil || len(rows) != 4 || rows[orders[0].ID].Dead {
				t.Fatalf("%d rows: %v", len(rows), err)
			}
			b.exact(10)
			p.Heal() // a late COMMIT arrives now
			b.unlocked()
			want(t, b.land(orders...), "CONFIRMED", "CONFIRMED", "CONFIRMED", "FAILED sold_out")
			b.exact(10)
		})
	}
}

// Before anything else is written, the rows of an unknown COMMIT are read, by a read that waits for it.
func TestE63_UnknownIsLookedUpFirst(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	s, p := through(t, b)
	var mu sync.Mutex
	var seen []string
	p.Hold(func(request []byte) bool { // it only listens
		mu.Lock()
		defer mu.Unlock()
		for word, part := range map[string]string{"insert": "INSERT INTO `orders`", "commit": "\x03COMMIT", "look": " LOCK IN SHARE MODE"} {
			if bytes.Contains(request, []byte(part)) {
				seen = append(seen, word)
			}
		}
		return false
	}, 1)
	p.CloseAfter(commit, 1)
	want(t, s.land(b.order("u1", 1)), "CONFIRMED")
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(seen, " "); got != "insert commit look" {
		t.Errorf("statements %q, want the insert, its COMMIT and then a look", got)
	}
}

// Nothing can be looked up: the caller hears "unknown", and the next delivery finds out.
func TestE63_UnknownStaysUnknown(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	s, p := through(t, b, func(c *Config) { c.Tries = 2 })
	o := b.order("u1", 2)
	p.CloseAfter(commit, 1)
	p.CloseBefore(faultproxy.Contains("SELECT order_id"), 100)
	_, err := s.Land(t.Context(), b.item, []*order.Order{o})
	if err == nil || !IsTransient(err) {
		t.Fatalf("want a transient error, unknown is no decision: %v", err)
	}
	p.Heal()
	want(t, s.land(o), "CONFIRMED")
	b.exact(10)
}

// A COMMIT that is still under way elsewhere is waited for and not taken for lost.
func TestE63_LookWaitsForTheOldSession(t *testing.T) {
	t.Parallel()
	b := setup(t, 10, func(c *Config) { c.LockWait, c.StatementTimeout = 5*time.Second, 20*time.Second })
	o := b.order("u1", 2)
	tx, err := b.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(b.sql.insert(1), rowArgs(o, b.plan1(o))...); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(b.sql.take, 2, b.item, 2); err != nil {
		t.Fatal(err)
	}
	batch, err := newBatch(b.item, []*order.Order{o})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		l, err := b.landOnce(t.Context(), batch, manner{look: true, wait: true})
		if err == nil && l.Outcomes[0].Status != order.Confirmed {
			err = errors.New("the look saw no row")
		}
		done <- err
	}()
	waitForLockWait(t, b)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.exact(10)
}

// The network is gone in the middle of a transaction that holds the hot row: others go on as soon as the worker's own next
// try, or the server's wait_timeout, ends the session that was left behind.
func TestLostSessionDoesNotHoldTheRow(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	s, p := through(t, b, func(c *Config) { c.Tries = 3 })
	s.land(b.order("u0", 1))
	rule := p.WithholdReply(faultproxy.Contains("UPDATE `inventory`"), 1)
	want(t, s.land(b.order("u1", 1)), "CONFIRMED")
	if rule.Fired() != 1 {
		t.Fatal("the fault did not fire")
	}
	b.unlocked()
	b.exact(10)
}

// A store whose connections are broken closes without complaint.
func TestCloseAfterTheConnectionIsLost(t *testing.T) {
	t.Parallel()
	s, p := through(t, setup(t, 10))
	s.land(s.order("u0", 1))
	p.Cut()
	testenv.Eventually(t, 10*time.Second, "the connections to be cut", func() bool { return p.Conns() == 0 })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestKillSparesOtherServers(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	victim, err := b.session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = victim.close(context.Background()) }()
	if err := b.kill(t.Context(), identity{"another", victim.who.id}); err != nil {
		t.Fatal(err)
	}
	if _, err := victim.exec(t.Context(), "DO 1"); err != nil {
		t.Fatalf("a session of this server was ended for one of another: %v", err)
	}
	if err := b.kill(t.Context(), victim.who); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, "the session is gone", func() bool {
		_, err := victim.exec(t.Context(), "DO 1")
		return err != nil
	})
	if err := b.kill(t.Context(), victim.who); err != nil {
		t.Fatalf("gone already is success: %v", err)
	}
}
