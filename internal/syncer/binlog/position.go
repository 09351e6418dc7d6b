package binlog

import (
	"encoding/json"
	"fmt"

	"github.com/go-mysql-org/go-mysql/mysql"
)

// Position is a place in the binary log between two transactions, and what has to be unchanged for it to mean anything.
// To everybody but this package it is opaque.
type Position struct {
	// Flavor is "mysql" or "mariadb".
	Flavor string `json:"flavor"`
	// GTID is the set (MySQL) or position (MariaDB) of everything that has been seen. Empty where the server has none.
	GTID string `json:"gtid,omitempty"`
	// File and Offset say the same in the terms of one server. They start a stream only where there is no GTID, and are empty
	// where they are not known.
	File   string `json:"file,omitempty"`
	Offset uint32 `json:"offset,omitempty"`
	// Server names the server that File and Offset belong to.
	Server string `json:"server,omitempty"`
	// Schema is the fingerprint of the watched tables' columns.
	Schema string `json:"schema,omitempty"`
	// CommittedAtMs is the commit time of the last transaction before the position, in epoch ms by MySQL's clock (whole
	// seconds). 0: not known.
	CommittedAtMs int64 `json:"committed_at_ms,omitempty"`
}

// IsZero says that there is no position.
func (p Position) IsZero() bool { return p.GTID == "" && p.File == "" }

// Encode gives the text that ParsePosition reads.
func (p Position) Encode() string {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and integers always encode
	}
	return string(b)
}

// String is the position for people.
func (p Position) String() string {
	switch {
	case p.IsZero():
		return "none"
	case p.File == "": // on another server than the one that it was noted on
		return p.GTID
	case p.GTID != "":
		return fmt.Sprintf("%s (%s:%d)", p.GTID, p.File, p.Offset)
	}
	return fmt.Sprintf("%s:%d", p.File, p.Offset)
}

// ParsePosition reads what Encode wrote. Empty text is the zero Position.
func ParsePosition(text string) (Position, error) {
	var p Position
	if text == "" {
		return p, nil
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return Position{}, fmt.Errorf("binlog position %q is not readable: %w", text, err)
	}
	if p.Flavor != mysql.MySQLFlavor && p.Flavor != mysql.MariaDBFlavor {
		return Position{}, fmt.Errorf("binlog position %q has flavor %q: want mysql or mariadb", text, p.Flavor)
	}
	if p.GTID != "" {
		if _, err := mysql.ParseGTIDSet(p.Flavor, p.GTID); err != nil {
			return Position{}, fmt.Errorf("binlog position %q has an unreadable gtid: %w", text, err)
		}
	}
	return p, nil
}

// Reached says whether p is at or past other, for positions of one server or one GTID history. ok is false where the two
// cannot be compared.
func (p Position) Reached(other Position) (reached, ok bool) {
	if p.GTID != "" && other.GTID != "" && p.Flavor == other.Flavor {
		a, errA := mysql.ParseGTIDSet(p.Flavor, p.GTID)
		b, errB := mysql.ParseGTIDSet(other.Flavor, other.GTID)
		if errA != nil || errB != nil {
			return false, false
		}
		return a.Contain(b), true
	}
	if p.File == "" || other.File == "" || p.Server != other.Server {
		return false, false
	}
	a, b := mysql.Position{Name: p.File, Pos: p.Offset}, mysql.Position{Name: other.File, Pos: other.Offset}
	return a.Compare(b) >= 0, true
}
