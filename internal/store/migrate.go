package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/mysql"
	"github.com/golang-migrate/migrate/v4/source"
)

// MigrateOptions say how Migrate works.
type MigrateOptions struct {
	DryRun     bool      // print the statements and change nothing
	NoTriggers bool      // leave the triggers out; Config.NoTriggers does the same
	Out        io.Writer // where to report; default: nowhere
}

// migrateLockWait is how long a schema change waits for transactions that use the table.
const migrateLockWait = time.Minute

// Migrate creates or upgrades the schema: tables by golang-migrate, then the triggers that are missing or differ. An inventory
// table that exists gets the version column and triggers and is otherwise left alone. It may be run any number of times, also while
// a sale runs, and refuses (ErrSchema) what it does not fully know.
func (s *Store) Migrate(ctx context.Context, opt MigrateOptions) error {
	if opt.Out == nil {
		opt.Out = io.Discard
	}
	opt.NoTriggers = opt.NoTriggers || s.cfg.NoTriggers
	db, err := s.migrationPool()
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if !opt.DryRun {
		unlock, err := s.lockSchema(ctx, db)
		if err != nil {
			return err
		}
		defer unlock()
	}
	f, err := s.inspect(ctx)
	if err != nil {
		return err
	}
	all, err := s.cfg.migrations(f)
	if err != nil {
		return err
	}
	if err := s.judge(f, all[len(all)-1].version); err != nil {
		return err
	}
	if err := s.judgeOutbox(f); err != nil {
		return err
	}
	if f.orders {
		if err := s.deadDiffers(f); err != nil {
			return err
		}
	}
	triggers, err := s.cfg.triggers()
	if err != nil {
		return err
	}
	if opt.NoTriggers {
		for _, t := range triggers {
			if _, ok := f.triggers[t.name]; ok {
				return fmt.Errorf("%w: trigger %s exists: with the documented SQL beside it stock would be returned twice; DROP TRIGGER %s first", ErrSchema, t.name, t.name)
			}
		}
		triggers = nil
	}
	todo := all[:0:0]
	for _, m := range all {
		if m.version > f.version {
			todo = append(todo, m)
		}
	}
	if f.inventory.version != "" && f.version < 3 {
		say(opt.Out, "-- column %s.%s exists already and is used as it is: nothing else may write it", s.cfg.Tables.Inventory, s.cfg.Tables.Version)
	}
	if opt.DryRun {
		for _, m := range todo {
			say(opt.Out, "-- %d %s\n%s;\n", m.version, m.name, m.text)
		}
		for _, t := range triggers {
			if f.triggers[t.name].body != t.body {
				say(opt.Out, "-- trigger %s\nDELIMITER //\n%s //\nDELIMITER ;\n", t.name, t.text)
			}
		}
		return nil
	}
	if len(todo) > 0 {
		if err := s.up(ctx, db, all, f.version); err != nil {
			return err
		}
		for _, m := range todo {
			say(opt.Out, "migrated to version %d (%s)", m.version, m.name)
		}
	}
	return s.putTriggers(ctx, db, f, triggers, opt.Out)
}

// lockSchema lets one Migrate at a time work on a schema, from its first look on: several workers may be deployed at once, each
// with a migrate before it, and one must not take the other's half for an accident.
func (s *Store) lockSchema(ctx context.Context, db *sql.DB) (unlock func(), err error) {
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	var got sql.NullInt64
	// A lock's name has at most 64 bytes. MySQL 9.6 has no MD5() any more.
	err = c.QueryRowContext(ctx, "SELECT GET_LOCK(CONCAT('seckill_migrate_', LEFT(SHA2(CONCAT(DATABASE(), '.', ?), 256), 32)), ?)",
		s.cfg.Tables.Migrations, int(migrateLockWait/time.Second)).Scan(&got)
	if err == nil && got.Int64 != 1 {
		err = fmt.Errorf("another migrate has been at work for %s: see SHOW PROCESSLIST", migrateLockWait)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the schema: %w", err), c.Close())
	}
	return func() {
		// The lock goes with its session.
		_ = c.Raw(func(any) error { return driver.ErrBadConn })
		_ = c.Close()
	}, nil
}

func say(out io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }

// migrationPool has no limit on the time of a statement: an ALTER TABLE takes what it takes.
func (s *Store) migrationPool() (*sql.DB, error) {
	d, err := s.cfg.driver()
	if err != nil {
		return nil, err
	}
	d.ReadTimeout, d.WriteTimeout = 0, 0
	c, err := newConnector(d, append(sessionSettings(migrateLockWait), "SET SESSION wait_timeout = 28800"))
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(c), nil
}

// up runs the numbered migrations through golang-migrate.
func (s *Store) up(ctx context.Context, db *sql.DB, all []migration, from int) error {
	c, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	target, err := mysql.WithConnection(ctx, c, &mysql.Config{MigrationsTable: s.cfg.Tables.Migrations})
	if err != nil {
		return errors.Join(fmt.Errorf("prepare table %s: %w", s.cfg.Tables.Migrations, reason(err)), c.Close())
	}
	m, err := migrate.NewWithInstance("embedded", newSource(all), "mysql", target)
	if err != nil {
		return errors.Join(err, target.Close())
	}
	stop := context.AfterFunc(ctx, func() { m.GracefulStop <- true }) // after the statement that is running
	defer stop()
	err = reason(m.Up())
	if errors.Is(err, migrate.ErrNoChange) { // another migrate was faster
		err = nil
	}
	if err != nil {
		version, dirty, e := m.Version()
		if e != nil {
			version = uint(from)
		}
		err = fmt.Errorf("migration to version %d: %w", version, err)
		if number(err) != 0 && e == nil && dirty {
			// The server refused the one statement, so that nothing is half done and a person has nothing to look into.
			before := int(version) - 1
			if before < 1 {
				before = -1 // golang-migrate's word for none
			}
			err = errors.Join(err, m.Force(before))
		}
	}
	_, closeErr := m.Close()
	return errors.Join(err, closeErr)
}

// reason finds MySQL's own error in golang-migrate's, which cannot be unwrapped and repeats the whole statement.
func reason(err error) error {
	var value database.Error
	if errors.As(err, &value) && value.OrigErr != nil {
		return value.OrigErr
	}
	var pointer *database.Error
	if errors.As(err, &pointer) && pointer.OrigErr != nil {
		return pointer.OrigErr
	}
	return err
}

// putTriggers writes the triggers that are missing or differ.
func (s *Store) putTriggers(ctx context.Context, db *sql.DB, f found, triggers []trigger, out io.Writer) error {
	flavor, err := s.Flavor(ctx)
	if err != nil {
		return err
	}
	for _, t := range triggers {
		was, ok := f.triggers[t.name]
		if ok && was.body == t.body && s.definerExists(ctx, was.definer) != no {
			continue
		}
		text := t.text
		switch {
		case ok && flavor == MariaDB: // at no moment without it
			text = strings.Replace(text, "CREATE TRIGGER", "CREATE OR REPLACE TRIGGER", 1)
		case ok:
			if _, err := db.ExecContext(ctx, "DROP TRIGGER IF EXISTS "+quote(t.name)); err != nil {
				return fmt.Errorf("replace trigger %s: %w", t.name, s.triggerTrouble(ctx, err))
			}
		}
		if _, err := db.ExecContext(ctx, text); err != nil {
			return fmt.Errorf("create trigger %s: %w", t.name, s.triggerTrouble(ctx, err))
		}
		say(out, "wrote trigger %s", t.name)
	}
	return nil
}

// triggerTrouble adds the remedy to the errors that triggers are known for (E114).
func (s *Store) triggerTrouble(ctx context.Context, err error) error {
	switch number(err) {
	case errNeedSuper:
		return fmt.Errorf("%w: with the binary log on, MySQL lets this user create triggers only after SET GLOBAL log_bin_trust_function_creators = 1 (or with SUPER); or run migrate --no-triggers and use docs/sql-without-triggers.md: %w", ErrSchema, err)
	case errDefiner:
		return fmt.Errorf("%w: the account that created a trigger was dropped, so every write to its table fails: run migrate again with an account that stays: %w", ErrSchema, err)
	case 1142, 1044, 1227:
		return fmt.Errorf("%w: this user may not create triggers: %s, or run migrate --no-triggers and use docs/sql-without-triggers.md: %w", ErrSchema,
			s.grants(ctx, "TRIGGER", s.cfg.Tables.Orders, s.cfg.Tables.Inventory), err)
	}
	return err
}

// memorySource gives golang-migrate the rendered files. It implements source.Driver.
type memorySource struct {
	index *source.Migrations
	texts map[uint]migration
}

func newSource(all []migration) *memorySource {
	m := &memorySource{source.NewMigrations(), make(map[uint]migration, len(all))}
	for _, f := range all {
		version := uint(f.version)
		m.index.Append(&source.Migration{Version: version, Identifier: f.name, Direction: source.Up})
		m.texts[version] = f
	}
	return m
}

// Open is not used: the source is made in memory.
func (m *memorySource) Open(string) (source.Driver, error) { return nil, errors.ErrUnsupported }

// Close has nothing to close.
func (m *memorySource) Close() error { return nil }

// First is the first version.
func (m *memorySource) First() (uint, error) { return exists(m.index.First()) }

// Prev is the version before.
func (m *memorySource) Prev(v uint) (uint, error) { return exists(m.index.Prev(v)) }

// Next is the version after.
func (m *memorySource) Next(v uint) (uint, error) { return exists(m.index.Next(v)) }

// ReadUp reads a migration.
func (m *memorySource) ReadUp(v uint) (io.ReadCloser, string, error) {
	f, ok := m.texts[v]
	if !ok {
		return nil, "", os.ErrNotExist
	}
	return io.NopCloser(strings.NewReader(f.text)), f.name, nil
}

// ReadDown finds nothing: going back would mean to drop orders.
func (m *memorySource) ReadDown(uint) (io.ReadCloser, string, error) {
	return nil, "", os.ErrNotExist
}

func exists(v uint, ok bool) (uint, error) {
	if !ok {
		return 0, os.ErrNotExist
	}
	return v, nil
}
