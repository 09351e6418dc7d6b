package chaos

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// Sample is one look at both sides in the middle of the sale. The shop writes nothing while it is taken, so MySQL's stock
// can only go down meanwhile.
type Sample struct {
	At, Seen       time.Time // when it began, and when Redis had been read
	Units          int64     // put on sale so far
	Live           int64     // units of live orders in MySQL
	Stock, Version int64     // of MySQL
	Redis          ledger.Snapshot
	// Owed are units of orders that were acknowledged before Redis was read, and had not landed after it: they must be
	// reserved in it.
	Owed int64
	// Unseen are units that the shop took away in MySQL, and of which Redis cannot know yet: an accepted limit.
	Unseen int64
}

// Selling says whether the edge may reserve in this state.
func (s *Sample) Selling() bool {
	return s.Redis.Loaded && s.Redis.SameServer && s.Redis.State == ledger.Open
}

// Broken judges I1 and I5.
func (s *Sample) Broken() []string {
	var out []string
	if s.Live+s.Stock != s.Units {
		out = append(out, fmt.Sprintf("I1: %d units sold and %d left of %d", s.Live, s.Stock, s.Units))
	}
	if s.Stock < 0 {
		out = append(out, fmt.Sprintf("I1: stock is %d", s.Stock))
	}
	if strings.HasPrefix(s.Redis.Problem, "pending ") && !strings.HasPrefix(s.Redis.Problem, "pending is missing") {
		out = append(out, "I5: "+s.Redis.Problem)
	}
	if !s.Selling() {
		return out
	}
	r := &s.Redis
	if r.Pending < 0 || r.Pending < r.LedgerLen || r.Pending > 3*r.LedgerLen {
		out = append(out, fmt.Sprintf("I5: %d units pending in %d reservations", r.Pending, r.LedgerLen))
	}
	if r.Version == s.Version && r.Stock != s.Stock {
		out = append(out, fmt.Sprintf("I5: at version %d redis has stock %d and mysql %d", r.Version, r.Stock, s.Stock))
	}
	if r.Stock-r.Pending > s.Stock-s.Owed+s.Unseen {
		out = append(out, fmt.Sprintf("I5: redis offers %d (stock %d, pending %d), but mysql has %d, of which %d are owed to accepted orders",
			r.Stock-r.Pending, r.Stock, r.Pending, s.Stock, s.Owed))
	}
	return out
}

// stranger says that Redis is open, but not the server that the activity was loaded on: nobody may reserve there.
func (s *Sample) stranger() bool {
	return s.Redis.Exists && s.Redis.State == ledger.Open && !s.Redis.SameServer
}

// Amnesia judges two samples that follow each other: orders that were accepted between them on a server that may have forgotten
// reservations.
func (s *Sample) Amnesia(before *Sample, b *Book) string {
	if before == nil || !before.stranger() || !s.stranger() || before.Redis.Epoch != s.Redis.Epoch {
		return ""
	}
	if n := b.Fresh(before.Seen, s.At); n > 0 {
		return fmt.Sprintf("I5: %d orders were accepted on a redis that the activity was not loaded on", n)
	}
	return ""
}

// SoldInPause judges two samples that follow each other, both of a paused sale: orders that were accepted between them. Nobody
// resumes and pauses again so fast.
func (s *Sample) SoldInPause(before *Sample, b *Book) string {
	if before == nil || before.Redis.State != ledger.Paused || s.Redis.State != ledger.Paused || before.Redis.Epoch != s.Redis.Epoch {
		return ""
	}
	if n := b.Fresh(before.Seen, s.At); n > 0 {
		return fmt.Sprintf("I5: %d orders were accepted while the sale was paused", n)
	}
	return ""
}

// Watch takes samples.
type Watch struct {
	Shop   *Shop
	Ledger *ledger.Ledger
	Book   *Book
}

const sampleTimeout = 3 * time.Second

// Look takes one sample. An error means that something did not answer, which is no finding.
func (w *Watch) Look(ctx context.Context) (*Sample, error) {
	w.Shop.mu.Lock()
	defer w.Shop.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	s := &Sample{At: time.Now()}
	open := w.Book.Open()
	if err := w.mysql(ctx, s); err != nil {
		return nil, err
	}
	snaps, err := w.Ledger.Inspect(ctx, w.Shop.Activity)
	if err != nil {
		return nil, err
	}
	s.Redis, s.Seen = snaps[0], time.Now()
	landed, err := w.landed(ctx, open)
	if err != nil {
		return nil, err
	}
	w.Book.Landed(landed)
	for _, id := range landed {
		delete(open, id)
	}
	for _, n := range open {
		s.Owed += n
	}
	s.Unseen = w.Shop.unseen(s.Redis.Version)
	return s, nil
}

func (w *Watch) mysql(ctx context.Context, s *Sample) (err error) {
	tx, err := w.Shop.DB.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	err = tx.QueryRowContext(ctx, "SELECT stock, version FROM inventory WHERE item_id = ?", w.Shop.Item).Scan(&s.Stock, &s.Version)
	if err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, "SELECT SUM(delta) FROM chaos_units WHERE item_id = ?", w.Shop.Item).Scan(&s.Units); err != nil {
		return err
	}
	return tx.QueryRowContext(ctx, "SELECT COALESCE(SUM(quantity), 0) FROM orders WHERE activity_id = ? AND live = 1",
		w.Shop.Activity).Scan(&s.Live)
}

// landed gives those of the orders that MySQL has.
func (w *Watch) landed(ctx context.Context, open map[string]int64) ([]string, error) {
	var out []string
	ids := make([]any, 0, len(open))
	for id := range open {
		ids = append(ids, id)
	}
	for len(ids) > 0 {
		part := ids[:min(len(ids), 500)]
		ids = ids[len(part):]
		found, err := column(ctx, w.Shop.DB, "SELECT order_id FROM orders WHERE order_id IN (?"+strings.Repeat(",?", len(part)-1)+")", part...)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// column reads a query's only column.
func column(ctx context.Context, db *sql.DB, query string, args ...any) ([]string, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, rows.Err()
}
