package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Level says how bad a Finding is.
type Level string

// Levels of findings.
const (
	Info    Level = "info"
	Warning Level = "warning" // works, but not as safe as it should be
	Unsafe  Level = "unsafe"  // may lose, oversell or stop: refuse to start unless overridden by name
)

// Finding is one line about the server or the schema: what is, and what to do about it.
type Finding struct {
	Level Level
	Name  string // short stable word, such as "binlog_format", by which it may be overridden
	Text  string
}

// findings gathers findings.
type findings []Finding

func (f *findings) add(level Level, name, format string, args ...any) {
	*f = append(*f, Finding{level, name, fmt.Sprintf(format, args...)})
}

// addOnce is for what several questions come upon.
func (f *findings) addOnce(level Level, name, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.ContainsFunc(*f, func(had Finding) bool { return had.Name == name && had.Text == text }) {
		f.add(level, name, "%s", text)
	}
}

// Check looks at the server and the schema before a sale meets them. Its names: schema, dead_statuses, triggers, trigger_definer,
// triggers_unused, log_bin, binlog_format, binlog_row_image, read_only, durability, clock, stock_nullable, privilege_land,
// privilege_sync and privilege_binlog; the first of these matters to the worker alone and the other two to the syncer. An error means that the check could not be made.
func (s *Store) Check(ctx context.Context) ([]Finding, error) {
	var all findings
	if err := s.checkServer(ctx, &all); err != nil {
		return nil, fmt.Errorf("check mysql: %w", err)
	}
	f, err := s.inspect(ctx)
	if err != nil {
		return nil, err
	}
	migrations, err := s.cfg.migrations(f)
	if err != nil {
		return nil, err
	}
	newest := migrations[len(migrations)-1].version
	switch err := s.judge(f, newest); {
	case err != nil:
		all.add(Unsafe, "schema", "%v", err)
		if f.hidden || f.version > 0 { // a table that this user has no right to looks like one that is missing
			var more findings
			s.checkPrivileges(ctx, &more)
			all = append(all, slices.DeleteFunc(more, func(f Finding) bool { return f.Name == "schema" })...)
		}
		return all, nil
	case f.version < newest:
		all.add(Unsafe, "schema", "the schema has version %d and this build needs %d: run seckill-worker migrate", f.version, newest)
		return all, nil
	}
	if err := s.deadDiffers(f); err != nil {
		all.add(Unsafe, "dead_statuses", "%v", err)
	}
	if err := s.checkTriggers(ctx, f, &all); err != nil {
		return nil, fmt.Errorf("check the triggers: %w", err)
	}
	if t := s.cfg.Tables; f.inventory.stockNullable {
		all.add(Warning, "stock_nullable", "column %s.%s may be NULL: an item on sale is closed while its stock is NULL; make the column NOT NULL", t.Inventory, t.Stock)
	}
	s.checkPrivileges(ctx, &all)
	return all, nil
}

func (s *Store) checkServer(ctx context.Context, all *findings) error {
	vars := make(map[string]string)
	err := s.query(ctx, func(r *sql.Rows) error {
		var name, value string
		err := r.Scan(&name, &value)
		vars[strings.ToLower(name)] = strings.ToUpper(value)
		return err
	}, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format', 'binlog_row_image', 'read_only', 'innodb_flush_log_at_trx_commit', 'sync_binlog')")
	if err != nil {
		return err
	}
	if v := vars["log_bin"]; v != "ON" && v != "1" {
		all.add(Unsafe, "log_bin", "the server writes no binary log, so that the syncer cannot follow it: start it with log_bin")
	} else {
		if v, ok := vars["binlog_format"]; ok && v != "ROW" { // a server that no longer has the variable knows no other format
			all.add(Unsafe, "binlog_format", "binlog_format is %s: SET GLOBAL binlog_format = 'ROW', and in the server's configuration", v)
		}
		if v := vars["binlog_row_image"]; v != "FULL" {
			all.add(Warning, "binlog_row_image", "binlog_row_image is %s: the syncer reads every changed row again; SET GLOBAL binlog_row_image = 'FULL'", v)
		}
		if v := vars["sync_binlog"]; v != "1" {
			all.add(Warning, "durability", "sync_binlog is %s: a power cut may lose commits that buyers were told of; set it to 1", v)
		}
	}
	if v := vars["innodb_flush_log_at_trx_commit"]; v != "1" {
		all.add(Warning, "durability", "innodb_flush_log_at_trx_commit is %s: a crash may lose commits that buyers were told of; set it to 1", v)
	}
	if v := vars["read_only"]; v != "OFF" && v != "0" {
		all.add(Unsafe, "read_only", "the server is read-only (%s): it is a replica or a demoted primary; connect to the primary", v)
	}
	if err := s.checkSemiSync(ctx, all); err != nil {
		return err
	}
	began := time.Now()
	now, err := s.value(ctx, "SELECT "+micros)
	if err != nil {
		return err
	}
	us, err := strconv.ParseInt(now, 10, 64)
	if err != nil {
		return err
	}
	took := time.Since(began)
	if off := time.UnixMicro(us).Sub(began.Add(took/2)).Abs() - took; off > 5*time.Second {
		all.add(Warning, "clock", "MySQL's clock and this machine's differ by %s: run NTP on both", off.Round(time.Second))
	}
	return nil
}

// checkTriggers reads the triggers and tries them in a transaction that is rolled back: a trigger whose definer is gone looks
// as sound as any other until the first stock update of the shop fails.
func (s *Store) checkTriggers(ctx context.Context, f found, all *findings) error {
	want, err := s.cfg.triggers()
	if err != nil {
		return err
	}
	var missing, differ []string
	for _, t := range want {
		has, ok := f.triggers[t.name]
		switch {
		case !ok:
			missing = append(missing, t.name)
		case has.hidden:
		case has.body != t.body:
			differ = append(differ, t.name)
		default:
			if s.definerExists(ctx, has.definer) == no {
				all.add(Unsafe, "trigger_definer", "trigger %s belongs to %s, an account that does not exist: every write to table %s fails; run migrate again with an account that stays", t.name, has.definer, t.table)
			}
		}
	}
	if s.cfg.NoTriggers {
		if len(missing) < len(want) {
			all.add(Unsafe, "triggers_unused", "no_triggers is set and triggers of ours exist: with the documented SQL beside them stock would be returned twice; drop them or unset no_triggers")
		}
		return nil
	}
	works, err := s.tryTriggers(ctx)
	switch {
	case number(err) == errDefiner:
		all.add(Unsafe, "trigger_definer", "%v", s.triggerTrouble(ctx, err))
		return nil
	case err != nil && !denied(err):
		return err
	}
	untried := denied(err)
	hidden := false // MySQL shows the triggers of a table only to users who may make some there
	if len(missing) > 0 && works != no {
		if hidden, err = s.triggersHidden(ctx); err != nil {
			return err
		}
	}
	switch {
	case hidden && works == yes, hidden && untried: // the privileges are looked at by themselves
	case hidden:
		all.add(Warning, "triggers", "this user is not shown triggers, and trying them is not possible just now: run the check as the user of migrate, or %s", s.grants(ctx, "TRIGGER", s.cfg.Tables.Orders, s.cfg.Tables.Inventory))
	case len(missing) > 0:
		all.add(Unsafe, "triggers", "triggers %s are missing: run migrate (with the binary log on it needs log_bin_trust_function_creators = 1 or SUPER), or set no_triggers and use docs/sql-without-triggers.md",
			strings.Join(missing, ", "))
	case works == no:
		all.add(Unsafe, "triggers", "the triggers are there and do not do their work: run migrate again")
	}
	if len(differ) > 0 {
		all.add(Warning, "triggers", "triggers %s differ from what this build and configuration would write: run migrate", strings.Join(differ, ", "))
	}
	return nil
}

// triggersHidden says that this user has no TRIGGER privilege of its own.
func (s *Store) triggersHidden(ctx context.Context) (bool, error) {
	const mine = " WHERE privilege_type = 'TRIGGER' AND grantee = CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), '''')"
	n, err := s.value(ctx, "SELECT (SELECT COUNT(*) FROM information_schema.user_privileges"+mine+
		") + (SELECT COUNT(*) FROM information_schema.schema_privileges"+mine+") + (SELECT COUNT(*) FROM information_schema.table_privileges"+mine+")")
	return n == "0", err
}

// answer is yes, no or cannot tell.
type answer int

const (
	unclear answer = iota
	yes
	no
)

// definerExists looks an account up, which most users may not: then it is unclear.
func (s *Store) definerExists(ctx context.Context, definer string) answer {
	var me sql.NullString
	if err := s.query(ctx, func(r *sql.Rows) error { return r.Scan(&me) }, "SELECT CURRENT_USER()"); err != nil {
		return unclear
	}
	if me.String == definer {
		return yes
	}
	at := strings.LastIndexByte(definer, '@')
	if at < 0 {
		return unclear
	}
	n, err := s.value(ctx, "SELECT COUNT(*) FROM mysql.user WHERE user = ? AND host = ?", definer[:at], definer[at+1:])
	switch {
	case err != nil:
		return unclear
	case n == "0":
		return no
	}
	return yes
}

// errProbe ends a transaction that only tried something.
var errProbe = errors.New("probe")

// tryTriggers moves some row's version and revives a dead order, and undoes both. It takes the row's lock for a moment. It is
// unclear where there is no row or no privilege, which is an error too, or where the row is busy.
func (s *Store) tryTriggers(ctx context.Context) (works answer, err error) {
	t := s.cfg.Tables
	err = s.again(ctx, func(x *session) error {
		works = unclear
		var item, was, is int64
		err := x.query(ctx, func(r *sql.Rows) error { return r.Scan(&item, &was) },
			fmt.Sprintf("SELECT %s, %s FROM %s ORDER BY %s LIMIT 1", quote(t.Item), quote(t.Version), quote(t.Inventory), quote(t.Item)))
		if err != nil {
			return err
		}
		_, err = x.exec(ctx, fmt.Sprintf("UPDATE %s SET %s = %s WHERE %s = ?", quote(t.Inventory), quote(t.Stock), quote(t.Stock), quote(t.Item)), item)
		if err != nil {
			return err
		}
		err = x.query(ctx, func(r *sql.Rows) error { return r.Scan(&is) }, // not the stock, which may be NULL
			fmt.Sprintf("SELECT %s FROM %s WHERE %s = ?", quote(t.Version), quote(t.Inventory), quote(t.Item)), item)
		if err != nil {
			return err
		}
		switch {
		case is > was:
			works = yes
		case is > 0:
			works = no
			return errProbe
		}
		const id = "00000000-0000-7000-8000-000000000000"
		if _, err := x.exec(ctx, s.sql.insert(1), id, 0, "seckill-check", 0, 0, string(s.cfg.Dead[0]), "", nil, 0); err != nil {
			return err
		}
		_, err = x.exec(ctx, "UPDATE "+s.sql.orders+" SET status = ? WHERE order_id = ?", string(s.cfg.SuccessStatus), id)
		switch {
		case number(err) == errSignal:
		case err != nil:
			return err
		default:
			works = no
		}
		return errProbe
	})
	switch {
	case errors.Is(err, errProbe):
		return works, nil
	case number(err) == errDefiner:
		return no, err
	case denied(err):
		return works, err
	case number(err) != 0: // locked, or not allowed: what was seen until then counts
		return works, nil
	}
	return works, err
}

// Triggers says whether the triggers are there. Without them the caller must return stock itself when an order dies. It needs
// the TRIGGER privilege, without which MySQL shows none: then Config.NoTriggers decides.
func (s *Store) Triggers(ctx context.Context) (bool, error) {
	if s.cfg.NoTriggers {
		return false, nil
	}
	n, err := s.value(ctx, "SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = DATABASE() AND trigger_name = ?", s.cfg.Tables.Orders+"_seckill_au")
	if err != nil {
		return false, fmt.Errorf("look at the triggers: %w", err)
	}
	return n != "0", nil
}
