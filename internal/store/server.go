package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Flavors of servers, in go-mysql's words.
const (
	MySQL   = "mysql"
	MariaDB = "mariadb"
)

// Flavor says which kind of server it is.
func (s *Store) Flavor(ctx context.Context) (string, error) {
	s.mu.Lock()
	known := s.flavor
	s.mu.Unlock()
	if known != "" {
		return known, nil
	}
	version, err := s.value(ctx, "SELECT VERSION()")
	if err != nil {
		return "", fmt.Errorf("read the server's version: %w", err)
	}
	known = MySQL
	if strings.Contains(strings.ToLower(version), MariaDB) {
		known = MariaDB
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flavor = known
	return known, nil
}

// value reads one value; NULL and no row are "".
func (s *Store) value(ctx context.Context, text string, args ...any) (string, error) {
	var v sql.NullString
	err := s.query(ctx, func(r *sql.Rows) error { return r.Scan(&v) }, text, args...)
	return v.String, err
}

// Position is a place in the server's binary log.
type Position struct {
	Flavor string
	File   string
	Pos    uint32
	GTID   string // everything up to here; empty where the server does not use GTIDs
}

// BinlogPosition is where the binary log ended a moment ago: whatever commits after the call began stands behind it, both by
// file and by GTID. It needs REPLICATION CLIENT (MariaDB: BINLOG MONITOR).
func (s *Store) BinlogPosition(ctx context.Context) (Position, error) {
	flavor, err := s.Flavor(ctx)
	if err != nil {
		return Position{}, err
	}
	p := Position{Flavor: flavor}
	if flavor == MariaDB {
		// Read before the file position: it may only be the earlier of the two.
		if p.GTID, err = s.value(ctx, "SELECT @@GLOBAL.gtid_binlog_pos"); err != nil {
			return Position{}, fmt.Errorf("read the binary log's position: %w", err)
		}
	}
	row, err := s.binlogStatus(ctx, flavor)
	if err != nil {
		return Position{}, fmt.Errorf("read the binary log's position: %w", err)
	}
	if row == nil {
		return Position{}, errors.New("the server writes no binary log: start it with log_bin and binlog_format=ROW")
	}
	p.File = row["File"]
	pos, err := strconv.ParseUint(row["Position"], 10, 32)
	if err != nil {
		return Position{}, fmt.Errorf("binary log position %q: %w", row["Position"], err)
	}
	p.Pos = uint32(pos)
	if flavor == MySQL {
		p.GTID = strings.ReplaceAll(row["Executed_Gtid_Set"], "\n", "")
	}
	return p, nil
}

// binlogStatus knows both spellings: MySQL 8.4 dropped the old one, MariaDB 10.11 and MySQL 8.0 lack the new one.
func (s *Store) binlogStatus(ctx context.Context, flavor string) (row map[string]string, err error) {
	scan := func(r *sql.Rows) (err error) {
		row, err = rowOf(r)
		return err
	}
	if flavor == MySQL {
		if err := s.query(ctx, scan, "SHOW BINARY LOG STATUS"); number(err) != errSyntax {
			return row, err
		}
	}
	err = s.query(ctx, scan, "SHOW MASTER STATUS")
	return row, err
}

// rowOf reads a row of a SHOW statement by the names of its columns, which differ between versions.
func rowOf(r *sql.Rows) (map[string]string, error) {
	cols, err := r.Columns()
	if err != nil {
		return nil, err
	}
	vals := make([]sql.NullString, len(cols))
	ptrs := make([]any, len(cols))
	for i := range vals {
		ptrs[i] = &vals[i]
	}
	if err := r.Scan(ptrs...); err != nil {
		return nil, err
	}
	row := make(map[string]string, len(cols))
	for i, c := range cols {
		row[c] = vals[i].String
	}
	return row, nil
}
