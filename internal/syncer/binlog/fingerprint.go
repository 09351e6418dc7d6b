package binlog

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/schema"
)

// Tables names the watched tables and the columns of the shop's inventory. All are in the database of the DSN.
type Tables struct {
	Orders, Activity, Inventory string
	Item, Stock, Version        string // columns of the inventory
}

func (t Tables) names() []string { return []string{t.Inventory, t.Orders, t.Activity} }

// columns lists what must be there in each table.
func (t Tables) columns(table string) []string {
	switch table {
	case t.Inventory:
		return []string{t.Item, t.Stock, t.Version}
	case t.Orders:
		return []string{"order_id", "activity_id", "user_id", "item_id", "quantity", "status", "reason"}
	case t.Activity:
		return []string{"activity_id", "item_id", "title", "starts_at_ms", "ends_at_ms", "max_per_user", "state"}
	}
	return nil
}

// fingerprint condenses the columns of the tables: their names, types and order.
func fingerprint(tables []*schema.Table) string {
	h := sha256.New()
	for _, t := range tables {
		_, _ = io.WriteString(h, t.Name+"\x00")
		for _, c := range t.Columns {
			_, _ = io.WriteString(h, c.Name+"\x00"+c.RawType+"\x00")
		}
		_, _ = io.WriteString(h, "\x01")
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// errNoTable: a watched table does not exist.
var errNoTable = errors.New("no such table")

// readTables reads the columns of every watched table and checks that the ones needed are there.
func readTables(ctx context.Context, db *sql.DB, database string, names Tables) ([]*schema.Table, error) {
	var out []*schema.Table
	for _, name := range names.names() {
		t, err := readTable(ctx, db, database, name)
		if err != nil {
			return nil, fmt.Errorf("read the columns of table %s.%s: %w", database, name, err)
		}
		for _, c := range names.columns(name) {
			if !spell(t, c) {
				return nil, fmt.Errorf("table %s.%s has no column %q: run `seckill-worker migrate`, or name the right column "+
					"in the configuration", database, name, c)
			}
		}
		out = append(out, t)
	}
	return out, nil
}

// spell finds a column, and has it under the name of the configuration: to MySQL case is nothing in it.
func spell(t *schema.Table, column string) bool {
	if t.FindColumn(column) >= 0 {
		return true
	}
	for i := range t.Columns {
		if strings.EqualFold(t.Columns[i].Name, column) {
			t.Columns[i].Name = column
			return true
		}
	}
	return false
}

// readTable does what the library's own NewTableFromSqlDB does, which trips over a column that SHOW INDEX has on MariaDB.
func readTable(ctx context.Context, db *sql.DB, database, name string) (*schema.Table, error) {
	rows, err := db.QueryContext(ctx, `SELECT COLUMN_NAME, COLUMN_TYPE, COALESCE(COLLATION_NAME, ''), EXTRA
		FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION`, database, name)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	t := &schema.Table{Schema: database, Name: name}
	for rows.Next() {
		var column, kind, collation, extra string
		if err := rows.Scan(&column, &kind, &collation, &extra); err != nil {
			return nil, err
		}
		t.AddColumn(column, kind, collation, extra)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(t.Columns) == 0 {
		return nil, fmt.Errorf("%w: run `seckill-worker migrate`, and let the syncer's user read it", errNoTable)
	}
	return t, nil
}

// Flavor tells MySQL from MariaDB by the server's own version.
func Flavor(version string) string {
	if strings.Contains(strings.ToLower(version), "mariadb") {
		return mysql.MariaDBFlavor
	}
	return mysql.MySQLFlavor
}

// server is what a connection says about the server behind it.
type server struct {
	version, flavor, identity, gtid string
	rowValues                       string // binlog_row_value_options, of MySQL
	lower                           bool   // it keeps the names of tables in lower case, and takes them in any
}

// askServer reads the server's identity and the GTIDs in its binary log.
func askServer(ctx context.Context, db *sql.DB) (server, error) {
	var s server
	if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&s.version); err != nil {
		return s, fmt.Errorf("ask mysql for its version: %w", err)
	}
	s.flavor = Flavor(s.version)
	// MariaDB has no server uuid. Its positions are GTIDs, which need none, but for a server that never wrote.
	query := "SELECT @@GLOBAL.server_uuid, @@GLOBAL.gtid_executed, @@GLOBAL.binlog_row_value_options, @@GLOBAL.lower_case_table_names <> 0"
	if s.flavor == mysql.MariaDBFlavor {
		query = "SELECT CONCAT(@@GLOBAL.hostname, ':', @@GLOBAL.port, ':', @@GLOBAL.server_id), @@GLOBAL.gtid_binlog_pos, '', @@GLOBAL.lower_case_table_names <> 0"
	}
	if err := db.QueryRowContext(ctx, query).Scan(&s.identity, &s.gtid, &s.rowValues, &s.lower); err != nil {
		return s, fmt.Errorf("ask mysql for its identity and gtids: %w", err)
	}
	s.gtid = strings.ReplaceAll(s.gtid, "\n", "")
	return s, nil
}
