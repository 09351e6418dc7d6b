package chaos

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Shop is what the shop's people do to their database meanwhile: they restock, correct the stock, cancel orders and note
// payments, all by plain SQL. Every change of the number of units on sale is noted in the same transaction, so that a
// COMMIT of which nobody heard is counted exactly when it happened.
type Shop struct {
	DB       *sql.DB
	Activity int64
	Item     int64

	mu     sync.Mutex // held while the shop writes, and by Watch while it looks
	takens []taken
}

// taken are units that the shop took away: the edge learns of them when it has that version.
type taken struct{ units, version int64 }

// Bounds of one visit to the database.
const shopTimeout = 5 * time.Second

// Open makes the shop's own table and notes what is on sale at the start.
func (s *Shop) Open(ctx context.Context, units int64) error {
	for _, q := range []string{
		"CREATE TABLE IF NOT EXISTS chaos_units (id BIGINT AUTO_INCREMENT PRIMARY KEY, item_id BIGINT NOT NULL, delta BIGINT NOT NULL, KEY (item_id))",
		fmt.Sprintf("INSERT INTO chaos_units (item_id, delta) VALUES (%d, %d)", s.Item, units),
	} {
		if _, err := s.DB.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("%s: %w", q, err)
		}
	}
	return nil
}

// Units is what was put on sale in all, by now.
func (s *Shop) Units(ctx context.Context) (n int64, err error) {
	err = s.DB.QueryRowContext(ctx, "SELECT SUM(delta) FROM chaos_units WHERE item_id = ?", s.Item).Scan(&n)
	return n, err
}

// errTooFew: there is not that much left to take away.
var errTooFew = errors.New("the stock is smaller than what was to be taken away")

// Change adds units to the stock, or takes them away.
func (s *Shop) Change(ctx context.Context, delta int64) error {
	return s.tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "UPDATE inventory SET stock = stock + ? WHERE item_id = ? AND stock >= ?", delta, s.Item, -delta)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n != 1 {
			return errors.Join(errTooFew, err)
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO chaos_units (item_id, delta) VALUES (?, ?)", s.Item, delta); err != nil || delta > 0 {
			return err
		}
		t := taken{units: -delta}
		if err := tx.QueryRowContext(ctx, "SELECT version FROM inventory WHERE item_id = ?", s.Item).Scan(&t.version); err != nil {
			return err
		}
		s.takens = append(s.takens, t) // before COMMIT, of which one may not hear; too many are forgotten with the next version
		return nil
	})
}

// Rewrite replaces the stock row by one with the same stock, as some importers do.
func (s *Shop) Rewrite(ctx context.Context) error {
	return s.tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var stock int64
		if err := tx.QueryRowContext(ctx, "SELECT stock FROM inventory WHERE item_id = ? FOR UPDATE", s.Item).Scan(&stock); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "REPLACE INTO inventory (item_id, stock) VALUES (?, ?)", s.Item, stock)
		return err
	})
}

// Move sets the status of up to n confirmed orders, an arbitrary choice of them, each in a transaction of its own.
func (s *Shop) Move(ctx context.Context, status string, n int) error {
	ctx, cancel := context.WithTimeout(ctx, shopTimeout)
	defer cancel()
	ids, err := s.some(ctx, n)
	if err != nil {
		return err
	}
	for _, id := range ids {
		s.mu.Lock()
		_, err := s.DB.ExecContext(ctx, "UPDATE orders SET status = ? WHERE order_id = ? AND status = 'CONFIRMED'", status, id)
		s.mu.Unlock()
		if err != nil {
			return fmt.Errorf("make order %s %s: %w", id, status, err)
		}
	}
	return nil
}

func (s *Shop) some(ctx context.Context, n int) ([]string, error) {
	// Ids begin with the time, so the last digits choose at random.
	ids, err := column(ctx, s.DB,
		"SELECT order_id FROM orders WHERE activity_id = ? AND status = 'CONFIRMED' ORDER BY RIGHT(order_id, 6) LIMIT ?", s.Activity, n)
	if err != nil {
		return nil, fmt.Errorf("choose orders: %w", err)
	}
	return ids, nil
}

func (s *Shop) tx(ctx context.Context, f func(context.Context, *sql.Tx) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, shopTimeout)
	defer cancel()
	tx, err := s.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(ctx, tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// unseen is how much the shop took away that a Redis of this version has not heard of. The caller holds mu.
func (s *Shop) unseen(version int64) int64 {
	n := int64(0)
	for _, t := range s.takens {
		if t.version > version {
			n += t.units
		}
	}
	return n
}
