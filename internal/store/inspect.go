package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// found is what the database holds of the schema.
type found struct {
	version   int // of the last migration; 0: none
	dirty     bool
	hidden    bool   // this user may not read the version
	grant     string // what would show it, where it is hidden
	orders    bool
	activity  bool
	outbox    bool
	sinks     bool
	inventory struct {
		exists        bool
		kind, engine  string
		item, stock   string // data types; "": no such column
		version       string
		nullable      bool // the version column
		stockNullable bool
		generated     []string // of stock and version
		itemUnique    bool
		needsDefaults []string // columns of the shop that an INSERT must name
	}
	deadInSchema []string // from the expression of orders.live
	triggers     map[string]foundTrigger
}

type foundTrigger struct {
	table, body, definer string
	hidden               bool // this user may not see the body
}

// inspect reads the schema and changes nothing.
func (s *Store) inspect(ctx context.Context) (f found, err error) {
	t := s.cfg.Tables
	names := []string{t.Orders, t.Activity, t.Inventory, t.Outbox, t.Outbox + sinksSuffix}
	tables := make(map[string][2]string)
	err = s.query(ctx, func(r *sql.Rows) error {
		var name, kind string
		var engine sql.NullString
		var lower bool // the server keeps names in lower case, and takes them in any
		err := r.Scan(&name, &kind, &engine, &lower)
		for _, ours := range names {
			if name == ours || lower && strings.EqualFold(name, ours) {
				tables[ours] = [2]string{kind, engine.String}
			}
		}
		return err
	}, "SELECT table_name, table_type, engine, @@GLOBAL.lower_case_table_names <> 0 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN "+list(len(names)),
		anys(names)...)
	if err != nil {
		return f, fmt.Errorf("look at the tables: %w", err)
	}
	err = s.query(ctx, func(r *sql.Rows) error { return r.Scan(&f.version, &f.dirty) },
		"SELECT version, dirty FROM "+quote(t.Migrations)+" LIMIT 1")
	switch {
	case number(err) == errNoTable:
	case number(err) == errTableDenied: // which also stands for "no such table" to a user without any right to it
		f.hidden, f.grant = true, s.grants(ctx, "SELECT", t.Migrations)
	case err != nil:
		return f, fmt.Errorf("read the schema's version: %w", err)
	}
	_, f.orders = tables[t.Orders]
	_, f.activity = tables[t.Activity]
	_, f.outbox = tables[t.Outbox]
	_, f.sinks = tables[t.Outbox+sinksSuffix]
	if inv, ok := tables[t.Inventory]; ok {
		f.inventory.exists, f.inventory.kind, f.inventory.engine = true, inv[0], inv[1]
		if err := s.inspectInventory(ctx, &f); err != nil {
			return f, fmt.Errorf("look at table %s: %w", t.Inventory, err)
		}
	}
	if f.orders {
		expr, err := s.value(ctx, "SELECT generation_expression FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ? AND column_name = 'live'", t.Orders)
		if err != nil {
			return f, fmt.Errorf("look at table %s: %w", t.Orders, err)
		}
		f.deadInSchema = statusesIn(expr)
	}
	f.triggers = make(map[string]foundTrigger)
	err = s.query(ctx, func(r *sql.Rows) error {
		var name string
		var g foundTrigger
		var body, definer sql.NullString // NULL to some users without the TRIGGER privilege; others are shown no row
		err := r.Scan(&name, &g.table, &body, &definer)
		g.body, g.definer, g.hidden = squeeze(body.String), definer.String, !body.Valid
		f.triggers[name] = g
		return err
	}, "SELECT trigger_name, event_object_table, action_statement, definer FROM information_schema.triggers WHERE trigger_schema = DATABASE() AND event_object_table IN (?, ?)",
		t.Orders, t.Inventory)
	if err != nil {
		return f, fmt.Errorf("look at the triggers: %w", err)
	}
	return f, nil
}

func (s *Store) inspectInventory(ctx context.Context, f *found) error {
	t := s.cfg.Tables
	err := s.query(ctx, func(r *sql.Rows) error {
		var name, kind, nullable, extra string
		var deflt sql.NullString
		if err := r.Scan(&name, &kind, &nullable, &deflt, &extra); err != nil {
			return err
		}
		if strings.Contains(strings.ToLower(extra), " generated") && (strings.EqualFold(name, t.Stock) || strings.EqualFold(name, t.Version)) {
			f.inventory.generated = append(f.inventory.generated, name)
		}
		switch {
		case strings.EqualFold(name, t.Item):
			f.inventory.item = kind
		case strings.EqualFold(name, t.Stock):
			f.inventory.stock, f.inventory.stockNullable = kind, nullable == "YES"
		case strings.EqualFold(name, t.Version):
			f.inventory.version, f.inventory.nullable = kind, nullable == "YES"
		case nullable == "NO" && !deflt.Valid && !strings.Contains(strings.ToLower(extra), "generated") && !strings.Contains(strings.ToLower(extra), "auto_increment"):
			f.inventory.needsDefaults = append(f.inventory.needsDefaults, name)
		}
		return nil
	}, "SELECT column_name, data_type, is_nullable, column_default, extra FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ?", t.Inventory)
	if err != nil {
		return err
	}
	// One row an item: a unique key whose only column is the item.
	n, err := s.value(ctx, "SELECT COUNT(*) FROM (SELECT index_name FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = ? AND non_unique = 0 "+
		"GROUP BY index_name HAVING COUNT(*) = 1 AND MAX(LOWER(column_name)) = LOWER(?)) AS k", t.Inventory, t.Item)
	f.inventory.itemUnique = n != "0"
	return err
}

var quotedWord = regexp.MustCompile(`'([A-Z0-9_]+)`)

// statusesIn finds the literals in an expression as the server prints it: 'X', _utf8mb4'X' or _utf8mb4\'X\'.
func statusesIn(expr string) []string {
	var all []string
	for _, m := range quotedWord.FindAllStringSubmatch(expr, -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	return all
}

// judge refuses a database that migrate must not touch, or that this build must not run on. newest is the last migration of
// this build.
func (s *Store) judge(f found, newest int) error {
	t := s.cfg.Tables
	inv := f.inventory
	switch {
	case f.hidden && f.orders:
		return fmt.Errorf("%w: this user may not read its version: %s", ErrSchema, f.grant)
	case f.dirty:
		return fmt.Errorf("%w is dirty at version %d: that migration was interrupted; see by SHOW CREATE TABLE whether its one statement took effect, then UPDATE %s SET dirty = 0, version = %d if it did, or %d if it did not, and run migrate again (delete the row instead of version 0)",
			ErrSchema, f.version, t.Migrations, f.version, f.version-1)
	case f.version > newest:
		return fmt.Errorf("%w has version %d and this build knows up to %d: it was made by a newer build; use that one", ErrSchema, f.version, newest)
	case f.version < 1 && f.orders:
		return notOurs(t.Orders, "orders", t.Migrations)
	case f.version < 2 && f.activity:
		return notOurs(t.Activity, "activity", t.Migrations)
	case f.version < 4 && f.outbox:
		return notOurs(t.Outbox, "outbox", t.Migrations)
	case f.version < 5 && f.sinks:
		return notOurs(t.Outbox+sinksSuffix, "outbox", t.Migrations)
	case f.version >= 1 && !f.orders:
		return halfKnown(f.version, t.Orders, t.Migrations)
	case f.version >= 2 && !f.activity:
		return halfKnown(f.version, t.Activity, t.Migrations)
	case f.version >= 3 && (!inv.exists || inv.version == ""):
		return halfKnown(f.version, t.Inventory+"."+t.Version, t.Migrations)
	}
	if !inv.exists {
		return nil
	}
	switch {
	case inv.kind == "SYSTEM VERSIONED":
		return fmt.Errorf("%w: table %s keeps its history, in columns that the binlog has and the table does not show: ALTER TABLE %s DROP SYSTEM VERSIONING",
			ErrSchema, t.Inventory, t.Inventory)
	case inv.kind != "BASE TABLE":
		return fmt.Errorf("%w: %s is a %s: a table is needed, since triggers stand on it", ErrSchema, t.Inventory, strings.ToLower(inv.kind))
	case !strings.EqualFold(inv.engine, "InnoDB"):
		return fmt.Errorf("%w: table %s has engine %s: transactions need ALTER TABLE %s ENGINE=InnoDB", ErrSchema, t.Inventory, inv.engine, t.Inventory)
	case !integer(inv.item):
		return fmt.Errorf("%w: table %s needs an integer column %s, has %s: name the right one in mysql.tables.item_column", ErrSchema, t.Inventory, t.Item, orNone(inv.item))
	case !integer(inv.stock):
		return fmt.Errorf("%w: table %s needs an integer column %s, has %s: name the right one in mysql.tables.stock_column", ErrSchema, t.Inventory, t.Stock, orNone(inv.stock))
	case len(inv.generated) > 0:
		return fmt.Errorf("%w: table %s computes its column %s, which nobody can write: name a column that holds the number in mysql.tables",
			ErrSchema, t.Inventory, inv.generated[0])
	case !inv.itemUnique:
		return fmt.Errorf("%w: table %s may hold several rows of one item: it needs a primary or unique key on %s alone", ErrSchema, t.Inventory, t.Item)
	case inv.version != "" && (inv.version != "bigint" || inv.nullable):
		return fmt.Errorf("%w: column %s.%s exists and is not BIGINT NOT NULL: name a free one in mysql.tables.version_column", ErrSchema, t.Inventory, t.Version)
	}
	return nil
}

// judgeOutbox refuses a database that has lost the outbox. It is for those who need it: the syncer's account does not even see it.
func (s *Store) judgeOutbox(f found) error {
	t := s.cfg.Tables
	switch {
	case f.version >= 4 && !f.outbox:
		return halfKnown(f.version, t.Outbox, t.Migrations)
	case f.version >= 5 && !f.sinks:
		return halfKnown(f.version, t.Outbox+sinksSuffix, t.Migrations)
	}
	return nil
}

func notOurs(table, key, migrations string) error {
	return fmt.Errorf("%w: table %s exists and %s does not know it: it belongs to something else; choose another name in mysql.tables.%s", ErrSchema, table, migrations, key)
}

func halfKnown(version int, what, migrations string) error {
	return fmt.Errorf("%w: %s notes version %d but %s is missing: restore it from a backup, or check mysql.tables in the configuration", ErrSchema, migrations, version, what)
}

func integer(kind string) bool {
	return slices.Contains([]string{"bigint", "int", "mediumint", "smallint", "tinyint"}, kind)
}

func orNone(kind string) string {
	if kind == "" {
		return "none"
	}
	return kind
}

// deadDiffers compares the dead statuses of the schema with the configuration.
func (s *Store) deadDiffers(f found) error {
	want := make([]string, len(s.cfg.Dead))
	for i, d := range s.cfg.Dead {
		want[i] = string(d)
	}
	slices.Sort(want)
	if slices.Equal(want, f.deadInSchema) {
		return nil
	}
	if len(f.deadInSchema) == 0 {
		return errors.Join(ErrSchema, fmt.Errorf("table %s has no generated column live", s.cfg.Tables.Orders))
	}
	return fmt.Errorf("%w: column %s.live counts %s as dead and mysql.dead_statuses says %s: set the configuration to what the schema says, or change the column by ALTER TABLE while no sale runs",
		ErrSchema, s.cfg.Tables.Orders, strings.Join(f.deadInSchema, ","), strings.Join(want, ","))
}
