package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
)

// need is what a process does with a table.
type need struct {
	table  string
	rights []right
}

// right is a privilege, and a statement that needs no other one.
type right struct{ name, statement string }

// checkPrivileges asks the server to explain statements, for which it wants the same privileges as for running them. What it finds
// names the commands that grant what is missing, and no more.
func (s *Store) checkPrivileges(ctx context.Context, all *findings) {
	t, x := s.cfg.Tables, &s.sql
	readOrders := right{"SELECT", x.orderColumns + " LIMIT 1"}
	readActivity := right{"SELECT", x.activities + " LIMIT 1"}
	readStock := right{"SELECT", fmt.Sprintf("SELECT %s, %s, %s FROM %s LIMIT 1", quote(t.Item), quote(t.Stock), quote(t.Version), x.inventory)}
	changeStock := right{"UPDATE", fmt.Sprintf("UPDATE %s SET %s = 0, %s = 0 WHERE 1 = 0", x.inventory, quote(t.Stock), quote(t.Version))}
	s.checkPrivilege(ctx, all, "privilege_land", "land orders", []need{
		{t.Orders, []right{
			readOrders,
			{"INSERT", x.insertHead + "('', 0, '', 0, 0, '', '', NULL, 0, 0)"},
			{"UPDATE", "UPDATE " + x.orders + " SET status = '' WHERE 1 = 0"}, // MySQL wants it for a locking read too
		}},
		{t.Activity, []right{readActivity}},
		{t.Inventory, []right{readStock, changeStock}},
		{t.Outbox, []right{
			{"SELECT", "SELECT sink, seq, order_id, status, reason, at_ms FROM " + x.outbox + " LIMIT 1"},
			{"INSERT", "INSERT INTO " + x.outbox + " (sink, order_id, status) VALUES (0, '', '')"},
			{"DELETE", "DELETE FROM " + x.outbox + " WHERE 1 = 0"},
		}},
		{t.Outbox + sinksSuffix, []right{
			{"SELECT", "SELECT sink, name FROM " + x.sinks + " LIMIT 1"},
			{"INSERT", "INSERT INTO " + x.sinks + " (sink, name) VALUES (0, '')"},
			{"DELETE", "DELETE FROM " + x.sinks + " WHERE 1 = 0"},
		}},
	})
	s.checkPrivilege(ctx, all, "privilege_sync", "keep redis equal to mysql, and create activities", []need{
		{t.Orders, []right{readOrders}},
		{t.Activity, []right{
			readActivity,
			{"INSERT", x.newActivity + "(0, 0, '', 0, 0, 0, '')"},
			{"UPDATE", "UPDATE " + x.activity + " SET state = '' WHERE 1 = 0"},
		}},
		{t.Inventory, []right{
			readStock,
			{"INSERT", x.newStock + "(0, 0, 0)"},
			changeStock,
		}},
	})
	if _, err := s.BinlogPosition(ctx); number(err) == 1227 || number(err) == errTableDenied {
		all.add(Unsafe, "privilege_binlog", "this user may not read the binary log's position: GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO %s (%v)", s.account(ctx), err)
	}
}

// rightsToExpire are those on orders.
func (s *Store) rightsToExpire() []right {
	return []right{
		{"SELECT", s.sql.orderColumns + " LIMIT 1"},
		{"UPDATE", "UPDATE " + s.sql.orders + " SET status = '', reason = '', updated_at_ms = 0 WHERE 1 = 0"},
	}
}

func (s *Store) checkPrivilege(ctx context.Context, all *findings, name, what string, needs []need) {
	if grants, why := s.missing(ctx, all, needs); why != nil {
		all.add(Unsafe, name, "this user may not %s: %s (%v)", what, strings.Join(grants, "; "), why)
	}
}

// denied says that an account lacks a privilege.
func denied(err error) bool {
	return slices.Contains([]uint16{errTableDenied, errColumnDenied, errDatabaseDenied}, number(err))
}

// missing gives the command for each table that grants what is missing, and the last refusal.
func (s *Store) missing(ctx context.Context, all *findings, needs []need) (grants []string, why error) {
	for _, n := range needs {
		var missing []string
		for _, r := range n.rights {
			err := s.query(ctx, func(*sql.Rows) error { return nil }, "EXPLAIN "+r.statement)
			switch {
			case denied(err):
				why = err
				missing = append(missing, r.name)
			case number(err) == errNoTable: // to a user who may see that
				all.addOnce(Unsafe, "schema", "%v: restore the table, or check mysql.tables in the configuration", err)
			}
		}
		if missing = slices.Compact(missing); len(missing) > 0 {
			grants = append(grants, s.grants(ctx, strings.Join(missing, ", "), n.table))
		}
	}
	return grants, why
}

// grants are the statements that give this session's account rights on tables, ready to be run by somebody who may.
func (s *Store) grants(ctx context.Context, rights string, tables ...string) string {
	var all []string
	for _, t := range tables {
		all = append(all, fmt.Sprintf("GRANT %s ON %s.%s TO %s", rights, quote(s.database()), quote(t), s.account(ctx)))
	}
	return strings.Join(all, "; ")
}

// database is the one that the DSN names.
func (s *Store) database() string {
	d, err := s.cfg.driver()
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(d.DBName, "`", "``")
}

// account is this session's, as a GRANT names it.
func (s *Store) account(ctx context.Context) string {
	var me string
	if err := s.query(ctx, func(r *sql.Rows) error { return r.Scan(&me) }, "SELECT CURRENT_USER()"); err != nil {
		return "this user"
	}
	me = strings.ReplaceAll(me, "'", "''")
	at := strings.LastIndexByte(me, '@')
	return fmt.Sprintf("'%s'@'%s'", me[:max(at, 0)], me[at+1:])
}
