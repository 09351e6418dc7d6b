package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
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
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	ctx, cancel := x.s.finishing(ctx)
	defer cancel()
	res, err := x.c.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (x *session) query(ctx context.Context, scan func(*sql.Rows) error, text string, args ...any) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := x.s.finishing(ctx)
	defer cancel()
	return query(ctx, x.c, x.s.cfg.StatementTimeout, scan, text, args...)
}

// finishTime is how long a statement of a session may go on after its context has ended.
const finishTime = 200 * time.Millisecond

// finishing bounds a statement, and lets one that has begun end by itself where it can: breaking it off costs the connection and a
// KILL, and a session that is killed while MariaDB reads a trigger can spoil the trigger for all others (error 1064) until FLUSH TABLES. One
// that waits for a lock is broken off after finishTime.
func (s *Store) finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	late, cancel := s.bound(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(finishTime)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-late.Done():
		}
	})
	return late, func() { stop(); cancel() }
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

// kill ends a session from another connection to the same server. That it is gone already is success. A session that may be reading a
// trigger is let go on until it has (see finishing): once it has its tables it reads none any more, and there is no next
// statement, since its client is gone.
func (s *Store) kill(ctx context.Context, who identity) error {
	x, err := s.session(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = x.c.Close() }()
	if x.who.server != who.server || who.id == 0 {
		return nil // another server answers now; there the number is somebody else's
	}
	for began := time.Now(); ; {
		opening, err := x.opening(ctx, who.id, time.Since(began) < unread)
		if err != nil {
			return fmt.Errorf("end session %d: %w", who.id, err)
		}
		if !opening {
			break
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("end session %d, which is opening tables: %w", who.id, ctx.Err())
		}
	}
	if _, err := x.exec(ctx, fmt.Sprintf("KILL CONNECTION %d", who.id)); err != nil && number(err) != errNoSuchThread {
		return fmt.Errorf("end session %d: %w", who.id, err)
	}
	return nil
}

// unread is how long a statement may lie unread in the server's socket, after which a session that does nothing has nothing to do.
const unread = 100 * time.Millisecond

// opening says whether a session may be reading a trigger just now, or be about to; soon says that it may have been sent a statement.
func (x *session) opening(ctx context.Context, id uint64, soon bool) (opening bool, err error) {
	err = x.query(ctx, func(r *sql.Rows) error {
		var command string
		var state sql.NullString
		err := r.Scan(&command, &state)
		switch strings.ToLower(state.String) {
		case "", "init", "starting", "checking permissions", "opening tables", "opening table":
			opening = command != "Sleep" || soon
		}
		return err
	}, "SELECT command, state FROM information_schema.processlist WHERE id = ?", id)
	return opening, err
}
