package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// told lists what waits for a listener: "id STATUS reason".
func (b *bench) told(k Sink) (all []string) {
	b.t.Helper()
	events, err := b.Events(b.t.Context(), k, 0, 10_000)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range events {
		all = append(all, strings.TrimSpace(e.ID+" "+string(e.Status)+" "+e.Reason))
	}
	return all
}

func (b *bench) subscribe(sinks ...Sink) {
	b.t.Helper()
	for range 2 { // again does nothing
		if err := b.Subscribe(b.t.Context(), sinks...); err != nil {
			b.t.Fatal(err)
		}
	}
}

// TestOutboxHearsOfEveryChange, whoever makes it, once for each listener, in order for each order; with the triggers, and without them
// by the documented SQL.
func TestOutboxHearsOfEveryChange(t *testing.T) {
	t.Parallel()
	for name, without := range map[string]bool{"triggers": false, "no triggers": true} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 3, func(c *Config) { c.NoTriggers = without })
			before := b.order("early", 1)
			b.land(before)
			if got := b.told(Results); len(got) != 0 {
				t.Fatalf("nobody listens and the outbox holds %v", got)
			}
			b.subscribe(Results, Webhook)
			paid, failed, unpaid := b.order("u1", 1), b.order("u2", 5), b.order("u3", 1)
			paid.Extra = []byte(`{"address":5}`)
			b.land(paid, failed, unpaid)
			b.land(paid, failed, before) // delivered again: nothing new
			refused := b.order("u4", 1)
			for range 2 {
				if err := b.Record(t.Context(), *refused, order.Failed, order.ReasonInvalid); err != nil {
					t.Fatal(err)
				}
			}
			if without {
				d := readDocument(t, "sql-without-triggers.md")
				d.run(b, "Pay", map[string]any{"order": paid.ID})
				if n := d.run(b, "Tell who listens", map[string]any{"order": paid.ID}); n != 2 {
					t.Errorf("the documented SQL wrote %d events, want one for each listener", n)
				}
			} else {
				b.exec("UPDATE orders SET status = 'PAID' WHERE order_id = ?", paid.ID)
				b.exec("UPDATE orders SET reason = 'noted' WHERE order_id = ?", paid.ID) // no change of status
			}
			b.exec("UPDATE orders SET updated_at_ms = 1 WHERE order_id = ?", unpaid.ID)
			if e, err := b.Expire(t.Context(), window, b.item, []string{unpaid.ID, paid.ID}); err != nil || e.Orders != 1 {
				t.Fatalf("%+v, %v", e, err)
			}
			want := []string{
				paid.ID + " CONFIRMED", failed.ID + " FAILED sold_out", unpaid.ID + " CONFIRMED",
				refused.ID + " FAILED invalid", paid.ID + " PAID", unpaid.ID + " EXPIRED unpaid",
			}
			for _, k := range []Sink{Results, Webhook} {
				got := b.told(k)
				slices.Sort(got[:3]) // orders of one transaction, in any order
				slices.Sort(want[:3])
				if !slices.Equal(got, want) {
					t.Errorf("%s is to be told\n%s\nwant\n%s", k, strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			}
			events, err := b.Events(t.Context(), Webhook, 0, 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events {
				if e.ID == paid.ID && (e.V != 1 || e.User != "u1" || e.Activity != b.activity || e.Item != b.item || e.Quantity != 1 || string(e.Extra) != `{"address":5}` ||
					time.Since(time.UnixMilli(e.AtMs)).Abs() > time.Hour || e.Gone) {
					t.Errorf("event %+v", e)
				}
			}
			b.exact(3)

			// What one listener was told stays for the other.
			seqs := make([]int64, len(events))
			for i, e := range events {
				seqs[i] = e.Seq
			}
			if err := b.Told(t.Context(), Webhook, seqs); err != nil {
				t.Fatal(err)
			}
			if n, _, err := b.Backlog(t.Context(), Webhook); n != 0 || err != nil {
				t.Errorf("%d events left for the webhook, %v", n, err)
			}
			if n, oldest, err := b.Backlog(t.Context(), Results); n != 6 || oldest < 0 || err != nil {
				t.Errorf("%d events left for the results topic, the oldest of %d ms, %v", n, oldest, err)
			}
			if n, err := b.Unsubscribe(t.Context(), Results); n != 6 || err != nil {
				t.Errorf("%d events dropped, %v", n, err)
			}
			if got, err := b.Subscribed(t.Context()); !slices.Equal(got, []Sink{Webhook}) || err != nil {
				t.Errorf("%v listen, %v", got, err)
			}
		})
	}
}

// TestOutboxGoesWithItsTransaction: what is rolled back is not told, and a deleted order's event says so.
func TestOutboxGoesWithItsTransaction(t *testing.T) {
	t.Parallel()
	b := setup(t, 10)
	b.subscribe(Results)
	tx, err := b.db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	o := b.order("u1", 1)
	b.land(o)
	if _, err := tx.Exec("UPDATE orders SET status = 'CANCELLED' WHERE order_id = ?", o.ID); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if got := b.told(Results); !slices.Equal(got, []string{o.ID + " CONFIRMED"}) {
		t.Errorf("to be told: %v", got)
	}
	bad := b.order("u2", 1)
	b.exec("CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW BEGIN IF NEW.user_id = 'u2' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'; END IF; END")
	var row *ErrRowRefused
	if _, err := b.Land(t.Context(), b.item, []*order.Order{b.order("u3", 1), bad}); !errors.As(err, &row) {
		t.Fatal(err)
	}
	if n := len(b.told(Results)); n != 1 {
		t.Errorf("%d events after a batch that was undone", n)
	}
	b.exec("DELETE FROM orders WHERE order_id = ?", o.ID)
	if e, err := b.Events(t.Context(), Results, 0, 10); err != nil || len(e) != 1 || !e[0].Gone || e[0].Status != order.Confirmed {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestOneLeads: of two processes one tells a listener, another listener is another matter, and the lead goes with its connection.
func TestOneLeads(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	other := openStore(t, b.dsn)
	ctx := t.Context()
	lead := func(s *Store, k Sink) *Lead {
		t.Helper()
		l, err := s.Lead(ctx, k)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	mine := lead(b.Store, Results)
	if mine == nil || mine.Held(ctx) != nil {
		t.Fatal("no lead where nobody else has it")
	}
	if lead(other, Results) != nil {
		t.Fatal("two lead")
	}
	second := lead(other, Webhook)
	if second == nil {
		t.Fatal("the other listener has no lead")
	}
	second.Close()
	b.exec("KILL CONNECTION " + b.idOf(mine))
	testenv.Eventually(t, 10*time.Second, "the loss is noticed", func() bool { return mine.Held(ctx) != nil })
	var next *Lead
	testenv.Eventually(t, 10*time.Second, "another one leads", func() bool {
		next = lead(other, Results)
		return next != nil
	})
	mine.Close()
	if err := next.Held(ctx); err != nil {
		t.Errorf("closing a lead that is lost took the next one: %v", err)
	}
	next.Close()
	var again *Lead
	testenv.Eventually(t, 10*time.Second, "a lead that was given back is to be had, once the server has seen the connection end", func() bool {
		again = lead(b.Store, Results)
		return again != nil
	})
	again.Close()
}

func (b *bench) idOf(l *Lead) string {
	b.t.Helper()
	var id string
	if err := b.db.QueryRowContext(context.Background(), "SELECT IS_USED_LOCK(?)", l.name).Scan(&id); err != nil {
		b.t.Fatal(err)
	}
	return id
}

// TestMigrateOutboxRefusesWhatItDoesNotKnow: a table of that name that is not ours, and one of ours that is gone.
func TestMigrateOutboxRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	b := fresh(t)
	b.exec("CREATE TABLE seckill_outbox (id INT PRIMARY KEY)")
	if err := b.Migrate(t.Context(), MigrateOptions{}); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "seckill_outbox") {
		t.Errorf("a foreign outbox: %v", err)
	}
	b.exec("DROP TABLE seckill_outbox")
	if err := b.Migrate(t.Context(), MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.exec("DROP TABLE seckill_outbox_sinks")
	if err := b.Migrate(t.Context(), MigrateOptions{}); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "seckill_outbox_sinks") {
		t.Errorf("a missing one: %v", err)
	}
	if got := b.check(); got != "schema" {
		t.Errorf("the check says %q of it", got)
	}
}

// TestMigrateUpgradesToTheOutbox: a schema of the release before it, with orders in it, gets the tables and the new trigger.
func TestMigrateUpgradesToTheOutbox(t *testing.T) {
	t.Parallel()
	b := setup(t, 5)
	o := b.order("u1", 2)
	b.land(o)
	b.exec("DROP TABLE seckill_outbox")
	b.exec("DROP TABLE seckill_outbox_sinks")
	b.exec("UPDATE seckill_schema_migrations SET version = 3")
	b.exec("DROP TRIGGER orders_seckill_au")
	b.exec("CREATE TRIGGER orders_seckill_au AFTER UPDATE ON orders FOR EACH ROW BEGIN END")
	if got := b.check(); got != "schema" {
		t.Errorf("the check says %q", got)
	}
	var out strings.Builder
	if err := b.Migrate(t.Context(), MigrateOptions{DryRun: true, Out: &out}); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"-- 4 outbox\nCREATE TABLE `seckill_outbox`", "-- 5 outbox_sinks\nCREATE TABLE `seckill_outbox_sinks`", "-- trigger orders_seckill_au"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("the dry run does not show %q:\n%s", part, out.String())
		}
	}
	if err := b.Migrate(t.Context(), MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := b.check(); got != "" {
		t.Errorf("the check says %q", got)
	}
	b.subscribe(Webhook)
	b.exec("UPDATE orders SET status = 'CANCELLED' WHERE order_id = ?", o.ID)
	if got := b.told(Webhook); !slices.Equal(got, []string{o.ID + " CANCELLED"}) {
		t.Errorf("to be told: %v", got)
	}
	b.exact(5)
}
