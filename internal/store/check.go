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
		all.add(Unsafe, "trigger_definer", "%v", s.triggerTrouble(err))
		return nil
	case err != nil:
		return err
	}
	hidden := false // MySQL shows the triggers of a table only to users who may make some there
	if len(missing) > 0 && works != no {
		if hidden, err = s.triggersHidden(ctx); err != nil {
			return err
		}
	}
	switch {
	case hidden && works == yes:
	case hidden:
		all.add(Warning, "triggers", "this user is not shown triggers, and trying them is not possible just now: run the check as the user of migrate, or GRANT TRIGGER on tables %s and %s", s.cfg.Tables.Orders, s.cfg.Tables.Inventory)
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
// unclear where there is no row or no privilege, or where the row is busy.
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
	case number(err) != 0: // locked, or not allowed: what was seen until then counts
		return works, nil
	}
	return works, err
}

// checkPrivileges asks the server to explain statements, for which it wants the same privileges as for running them. What it finds
// names the command that grants what is missing.
func (s *Store) checkPrivileges(ctx context.Context, all *findings) {
	t := s.cfg.Tables
	updateInventory := fmt.Sprintf("EXPLAIN UPDATE %s SET %s = %s, %s = %s WHERE %s = 0", s.sql.inventory, quote(t.Stock), quote(t.Stock), quote(t.Version), quote(t.Version), quote(t.Item))
	selectOrders := "EXPLAIN SELECT live FROM " + s.sql.orders + " LIMIT 1"
	selectActivity := "EXPLAIN SELECT state FROM " + s.sql.activity + " LIMIT 1"
	s.checkPrivilege(ctx, all, "privilege_land", "land orders", []privilege{
		{"SELECT, INSERT, UPDATE", t.Orders, "EXPLAIN INSERT INTO " + s.sql.orders + " (order_id, activity_id, user_id, item_id, quantity, status, created_at_ms, updated_at_ms) VALUES ('', 0, '', 0, 0, '', 0, 0)"},
		{"SELECT, INSERT, UPDATE", t.Orders, selectOrders},
		{"SELECT", t.Activity, selectActivity},
		{"SELECT, UPDATE", t.Inventory, updateInventory},
		{"SELECT, INSERT, DELETE", t.Outbox, "EXPLAIN INSERT INTO " + s.sql.outbox + " (sink, order_id, status) VALUES (0, '', '')"},
		{"SELECT, INSERT, DELETE", t.Outbox, "EXPLAIN DELETE FROM " + s.sql.outbox + " WHERE sink = 0 AND seq = 0"},
		{"SELECT, INSERT, DELETE", t.Outbox + sinksSuffix, "EXPLAIN INSERT INTO " + s.sql.sinks + " (sink, name) SELECT sink, name FROM " + s.sql.sinks},
		{"SELECT, INSERT, DELETE", t.Outbox + sinksSuffix, "EXPLAIN DELETE FROM " + s.sql.sinks + " WHERE sink = 0"},
	})
	s.checkPrivilege(ctx, all, "privilege_sync", "keep redis equal to mysql", []privilege{
		{"SELECT", t.Orders, selectOrders},
		{"SELECT, INSERT, UPDATE", t.Activity, selectActivity},
		{"SELECT, INSERT, UPDATE", t.Activity, "EXPLAIN UPDATE " + s.sql.activity + " SET state = '' WHERE activity_id = 0"},
		{"SELECT, INSERT, UPDATE", t.Inventory, updateInventory},
	})
	if _, err := s.BinlogPosition(ctx); number(err) == 1227 || number(err) == errTableDenied {
		all.add(Unsafe, "privilege_binlog", "this user may not read the binary log's position: GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO %s (%v)", s.account(ctx), err)
	}
}

// privilege is what a statement needs on a table.
type privilege struct{ rights, table, statement string }

func (s *Store) checkPrivilege(ctx context.Context, all *findings, name, what string, needs []privilege) {
	var grants []string
	var denied error
	for _, p := range needs {
		err := s.query(ctx, func(*sql.Rows) error { return nil }, p.statement)
		switch number(err) {
		case errTableDenied, errColumnDenied, errDatabaseDenied:
			denied = err
			if grant := fmt.Sprintf("GRANT %s ON %s TO %s", p.rights, quote(p.table), s.account(ctx)); !slices.Contains(grants, grant) {
				grants = append(grants, grant)
			}
		case errNoTable: // to a user who may see that
			all.addOnce(Unsafe, "schema", "%v: restore the table, or check mysql.tables in the configuration", err)
		}
	}
	if len(grants) > 0 {
		all.add(Unsafe, name, "this user may not %s: %s (%v)", what, strings.Join(grants, "; "), denied)
	}
}

// account is this session's, as a GRANT names it.
func (s *Store) account(ctx context.Context) string {
	var me string
	if err := s.query(ctx, func(r *sql.Rows) error { return r.Scan(&me) }, "SELECT CURRENT_USER()"); err != nil {
		return "this user"
	}
	at := strings.LastIndexByte(me, '@')
	return fmt.Sprintf("'%s'@'%s'", me[:max(at, 0)], me[at+1:])
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
