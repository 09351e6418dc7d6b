package store

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Store is the access to MySQL. Its methods are safe for concurrent use.
type Store struct {
	cfg Config
	db  *sql.DB
	sql texts

	stocks sync.Map // item → int64, the stock after its last landing here: a hint where to begin, never a decision

	mu     sync.Mutex
	flavor string
}

// Open checks the configuration and prepares a pool. It does not wait for the server: a process starts with MySQL down.
func Open(_ context.Context, cfg Config) (*Store, error) { return open(cfg, nil) }

func open(cfg Config, tamper func(*mysql.Config)) (*Store, error) {
	cfg.SetDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("mysql.%w", err)
	}
	d, err := cfg.driver()
	if err != nil {
		return nil, err
	}
	if tamper != nil {
		tamper(d)
	}
	c, err := newConnector(d, sessionSettings(cfg.LockWait))
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(cfg.MaxConns)
	db.SetMaxIdleConns(cfg.MaxConns)
	// Idle connections end before the server's wait_timeout, and none outlives a fail-over by much.
	db.SetConnMaxIdleTime(sessionIdle / 2)
	db.SetConnMaxLifetime(3 * time.Minute)
	return &Store{cfg: cfg, db: db, sql: newTexts(cfg)}, nil
}

// Close closes all connections. That the server could not be told so, over one that was broken already, is no error: a program that is
// stopped after a restart of the database ends well.
func (s *Store) Close() error {
	_ = s.db.Close()
	return nil
}

// DB is the pool, for tests and for what has no method.
func (s *Store) DB() *sql.DB { return s.db }

// Config is the configuration with its defaults filled in.
func (s *Store) Config() Config { return s.cfg }

// Addr is where the server is expected, for messages; "" where the DSN has no meaning.
func (s *Store) Addr() string {
	d, err := s.cfg.driver()
	if err != nil {
		return ""
	}
	return d.Addr
}

// Ping asks the server for a sign of life.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	if err := s.db.PingContext(ctx); err != nil {
		return fmt.Errorf("mysql does not answer: %w", err)
	}
	return nil
}

// bound gives one statement its time.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.cfg.StatementTimeout)
}

// query runs a statement in a session of its own and gives each row to scan.
func (s *Store) query(ctx context.Context, scan func(*sql.Rows) error, text string, args ...any) error {
	return query(ctx, s.db, s.cfg.StatementTimeout, scan, text, args...)
}

type querier interface {
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
}

func query(ctx context.Context, q querier, limit time.Duration, scan func(*sql.Rows) error, text string, args ...any) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer func() {
		if e := rows.Close(); err == nil {
			err = e
		}
	}()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
