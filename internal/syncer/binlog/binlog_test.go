package binlog

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/go-mysql-org/go-mysql/canal"
	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/go-mysql-org/go-mysql/schema"
)

// E48: every kind of integer, and nothing else.
func TestE48Integer(t *testing.T) {
	for _, c := range []struct {
		in   any
		want int64
	}{
		{int8(7), 7},
		{int16(7), 7},
		{int32(7), 7},
		{int64(7), 7},
		{int(7), 7},
		{uint8(200), 200},
		{uint16(7), 7},
		{uint32(3_000_000_000), 3_000_000_000},
		{uint64(7), 7},
		{uint(7), 7},
		{int64(0), 0},
		{int64(1<<53 - 1), 1<<53 - 1},
	} {
		if got, err := integer(c.in); err != nil || got != c.want {
			t.Errorf("%T %v is %d, %v", c.in, c.in, got, err)
		}
	}
	for _, in := range []any{
		nil, int8(-1), int64(-1), uint64(1<<63 + 1), uint64(math.MaxUint64), uint(math.MaxUint64), int64(1 << 53),
		"7", []byte("7"), 7.0, float32(7), true,
		struct{}{},
	} {
		if got, err := integer(in); !errors.Is(err, errDoubt) {
			t.Errorf("%T %v is taken for %d (%v)", in, in, got, err)
		}
	}
}

// The shop's ids are any that a BIGINT holds; what is larger is not ours, and no reason for doubt about the whole log.
func TestKeys(t *testing.T) {
	for _, n := range []int64{math.MinInt64, -1, 0, 1796011263608303617, math.MaxInt64} {
		if got, err := key(n); err != nil || got != n {
			t.Errorf("%d is %d, %v", n, got, err)
		}
	}
	for _, c := range []struct {
		before, after any
		keys          int
		there         bool
	}{
		{int64(-7), int64(-7), 2, true},
		{int64(7), nil, 1, true}, // a minimal image
		{uint64(math.MaxUint64), uint64(math.MaxUint64), 0, true},
		{int64(7), uint64(math.MaxUint64), 1, true},
		{nil, nil, 0, false},
		{"7", "7", 0, false},
	} {
		event := &canal.RowsEvent{Table: &schema.Table{Columns: []schema.TableColumn{{Name: "item_id"}}}}
		keys, there := keysOf("item_id", image{event, []any{c.before}}, image{event, []any{c.after}})
		if len(keys) != c.keys || there != c.there {
			t.Errorf("%v, %v: keys %v, there %v", c.before, c.after, keys, there)
		}
	}
}

func TestText(t *testing.T) {
	for _, in := range []any{"a", []byte("a")} {
		if got, err := text(in); err != nil || got != "a" {
			t.Errorf("%T: %q, %v", in, got, err)
		}
	}
	for _, in := range []any{nil, 7, 1.5} {
		if got, err := text(in); !errors.Is(err, errDoubt) {
			t.Errorf("%T is taken for %q (%v)", in, got, err)
		}
	}
	if got, err := optionalText(nil); err != nil || got != "" {
		t.Errorf("NULL: %q, %v", got, err)
	}
}

func TestPosition(t *testing.T) {
	p := Position{Flavor: "mariadb", GTID: "0-1-100", File: "bin.000002", Offset: 4, Server: "a", Schema: "x", CommittedAtMs: 5}
	got, err := ParsePosition(p.Encode())
	if err != nil || got != p {
		t.Fatalf("%+v, %v", got, err)
	}
	if got, err := ParsePosition(""); err != nil || !got.IsZero() {
		t.Errorf("empty: %+v, %v", got, err)
	}
	for _, text := range []string{"{", "bin.000002:4", `{"flavor":"oracle","file":"x"}`, `{"flavor":"mariadb","gtid":"nonsense"}`} {
		if got, err := ParsePosition(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

// lastPlace is a sink that remembers the last place.
type lastPlace struct {
	Sink
	at Position
}

func (s *lastPlace) Synced(at Position) { s.at = at }

// After a crash the server goes on in the next file without a word in the log. Where there are no GTIDs that is the place to keep: the
// file before may be purged before anything commits. Where there are some, a place without a time is that of no transaction.
func TestPlaceInTheNextFile(t *testing.T) {
	for flavor, c := range map[string]struct{ gtid, file string }{
		mysql.MySQLFlavor:   {"", "bin.000002"},
		mysql.MariaDBFlavor: {"0-1-100", "bin.000001"},
	} {
		set, err := mysql.ParseGTIDSet(flavor, c.gtid)
		if err != nil {
			t.Fatal(err)
		}
		sink := &lastPlace{}
		h := &handler{flavor: flavor, gtid: set, sink: sink, tx: &Transaction{}, file: "bin.000001", offset: 900}
		if err := h.OnPosSynced(&replication.EventHeader{}, mysql.Position{Name: "bin.000002", Pos: 4}, nil, true); err != nil {
			t.Fatal(err)
		}
		if sink.at.File != c.file || sink.at.GTID != c.gtid {
			t.Errorf("%s: the place is %+v, want one in %s", flavor, sink.at, c.file)
		}
	}
}

// A position says nothing of a file that it does not know.
func TestPositionForPeople(t *testing.T) {
	for want, p := range map[string]Position{
		"none":                     {Flavor: "mysql"},
		"0-1-100 (bin.000002:400)": {Flavor: "mariadb", GTID: "0-1-100", File: "bin.000002", Offset: 400},
		"0-1-100":                  {Flavor: "mariadb", GTID: "0-1-100"},
		"bin.000002:400":           {Flavor: "mysql", File: "bin.000002", Offset: 400},
	} {
		if got := p.String(); got != want {
			t.Errorf("%+v is %q, want %q", p, got, want)
		}
	}
}

func TestReached(t *testing.T) {
	const uuid = "3E11FA47-71CA-11E1-9E33-C80AA9429562"
	for _, c := range []struct {
		a, b        Position
		reached, ok bool
	}{
		{Position{Flavor: "mariadb", GTID: "0-1-100"}, Position{Flavor: "mariadb", GTID: "0-1-99"}, true, true},
		{Position{Flavor: "mariadb", GTID: "0-1-100"}, Position{Flavor: "mariadb", GTID: "0-2-101"}, false, true},
		{Position{Flavor: "mysql", GTID: uuid + ":1-100"}, Position{Flavor: "mysql", GTID: uuid + ":1-100"}, true, true},
		{Position{Flavor: "mysql", GTID: uuid + ":1-99"}, Position{Flavor: "mysql", GTID: uuid + ":1-100"}, false, true},
		{Position{File: "bin.000010", Offset: 4, Server: "a"}, Position{File: "bin.000009", Offset: 900, Server: "a"}, true, true},
		{Position{File: "bin.000009", Offset: 4, Server: "a"}, Position{File: "bin.000009", Offset: 900, Server: "a"}, false, true},
		{Position{File: "bin.000009", Offset: 4, Server: "a"}, Position{File: "bin.000009", Offset: 900, Server: "b"}, false, false},
		{Position{Flavor: "mysql", GTID: uuid + ":1"}, Position{Flavor: "mariadb", GTID: "0-1-1"}, false, false},
		{Position{}, Position{File: "bin.000009"}, false, false},
	} {
		if reached, ok := c.a.Reached(c.b); reached != c.reached || ok != c.ok {
			t.Errorf("%s reached %s: %v, %v; want %v, %v", c.a, c.b, reached, ok, c.reached, c.ok)
		}
	}
}

func TestJudge(t *testing.T) {
	h := &handler{stream: &Stream{tables: Tables{Orders: "orders", Activity: "activity", Inventory: "inventory"}}}
	for query, want := range map[string]verdict{
		"ALTER ONLINE TABLE inventory ADD COLUMN x INT":                                columnsOnly,
		"/* shop */ ALTER TABLE `Inventory` WAIT 5 ADD x INT":                          columnsOnly,
		"TRUNCATE TABLE orders WAIT 5":                                                 emptying,
		"# note\nRENAME TABLE orders WAIT 5 TO o2":                                     emptying,
		"CREATE OR REPLACE TABLE activity (id UUID)":                                   emptying,
		"ALTER ONLINE TABLE orders DROP PARTITION p1":                                  emptying,
		"CREATE TABLE orders (id UUID, the_partition INT)":                             columnsOnly,
		"CREATE DEFINER=`a`@`b` TRIGGER t BEFORE UPDATE ON inventory FOR EACH ROW SET": unconcerned,
		"CREATE OR REPLACE TRIGGER t BEFORE UPDATE ON inventory FOR EACH ROW SET":      unconcerned,
		"GRANT SELECT ON inventory TO x":                                               unconcerned,
		"ALTER ONLINE TABLE customers ADD COLUMN x INT":                                unconcerned,
	} {
		if got := h.judge(query); got != want {
			t.Errorf("%q: %d, want %d", query, got, want)
		}
	}
}

func TestClassify(t *testing.T) {
	purged := &mysql.MyError{Code: mysql.ER_MASTER_FATAL_ERROR_READING_BINLOG, Message: "Could not find first log file name in binary log index file"}
	if err := classify(purged); !errors.Is(err, ErrLoadAgain) {
		t.Errorf("purged: %v", err)
	}
	clash := &mysql.MyError{Code: mysql.ER_MASTER_FATAL_ERROR_READING_BINLOG, Message: "A slave with the same server_uuid/server_id as this slave has connected to the master"}
	if err := classify(clash); errors.Is(err, ErrLoadAgain) || !errors.Is(err, errSameID) {
		t.Errorf("another reader with the same id: %v", err)
	}
	maria := &mysql.MyError{Code: 4052, Message: "A slave with the same server_uuid/server_id is already connected"}
	if err := classify(maria); !errors.Is(err, errSameID) {
		t.Errorf("another reader with the same id, by mariadb: %v", err)
	}
	if err := classify(errors.New("PartialUpdateRowsEvent not supported now")); !errors.Is(err, ErrLoadAgain) {
		t.Errorf("rows in parts: %v", err)
	}
	if err := classify(nil); err == nil || !strings.Contains(err.Error(), "without a reason") {
		t.Errorf("no error: %v", err)
	}
}
