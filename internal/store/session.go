package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"
)

// tidyTime bounds what has to be done after a context has ended: ROLLBACK, and ending a session from outside.
const tidyTime = time.Second

// session is one connection with explicit transactions. database/sql's own Tx hides when COMMIT was sent, and that is what
// decides between "failed" and "unknown".
type session struct {
	s    *Store
	c    *sql.Conn
	who  identity
	open bool // a transaction may be open
	gone bool
}

func (s *Store) session(ctx context.Context) (*session, error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	c, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	x := &session{s: s, c: c}
	err = c.Raw(func(dc any) error {
		if k, ok := dc.(*conn); ok {
			x.who = k.who
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return x, nil
}

func (x *session) exec(ctx context.Context, text string, args ...any) (affected int64, err error) {
	ctx, cancel := x.s.bound(ctx)
	defer cancel()
	res, err := x.c.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (x *session) query(ctx context.Context, scan func(*sql.Rows) error, text string, args ...any) error {
	return query(ctx, x.c, x.s.cfg.StatementTimeout, scan, text, args...)
}

func (x *session) begin(ctx context.Context) error {
	x.open = true
	_, err := x.exec(ctx, "START TRANSACTION")
	return err
}

// errCommitUnknown marks a COMMIT whose outcome is not known.
var errCommitUnknown = errors.New("the outcome of COMMIT is unknown")

// commit does not heed the end of ctx: from here on breaking off would only turn a known outcome into an unknown one.
func (x *session) commit(ctx context.Context) error {
	if _, err := x.exec(context.WithoutCancel(ctx), "COMMIT"); err != nil {
		return fmt.Errorf("%w: %w", errCommitUnknown, err)
	}
	x.open = false
	return nil
}

// close rolls back what is open and gives the connection back to the pool. A session that does not answer is ended from another
// connection, so that its locks go now and not when the server notices. It reports whether the ROLLBACK was confirmed.
func (x *session) close(ctx context.Context) error {
	if x.gone {
		return nil
	}
	x.gone = true
	if !x.open {
		return x.c.Close()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer cancel()
	_, err := x.c.ExecContext(ctx, "ROLLBACK")
	if err == nil {
		return x.c.Close()
	}
	x.drop()
	return errors.Join(err, x.s.kill(ctx, x.who))
}

// drop closes the connection without giving it back to the pool.
func (x *session) drop() {
	x.gone = true
	_ = x.c.Raw(func(any) error { return driver.ErrBadConn })
	_ = x.c.Close()
}

// kill ends a session from another connection to the same server. That it is gone already is success.
func (s *Store) kill(ctx context.Context, who identity) error {
	x, err := s.session(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = x.c.Close() }()
	if x.who.server != who.server || who.id == 0 {
		return nil // another server answers now; there the number is somebody else's
	}
	if _, err := x.exec(ctx, fmt.Sprintf("KILL CONNECTION %d", who.id)); err != nil && number(err) != errNoSuchThread {
		return fmt.Errorf("end session %d: %w", who.id, err)
	}
	return nil
}
