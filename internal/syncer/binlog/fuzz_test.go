package binlog

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/go-mysql-org/go-mysql/canal"
	"github.com/go-mysql-org/go-mysql/schema"
	"go.uber.org/zap"
)

// ignore is a sink that only lists what it was not sure about.
type ignore struct{ doubts int }

func (*ignore) Apply(context.Context, *Transaction) error { return nil }
func (*ignore) Synced(Position)                           {}
func (*ignore) Sells(int64) bool                          { return true }
func (i *ignore) Doubt(string, error)                     { i.doubts++ }

// value is a column's value of one of the kinds that the binlog library delivers.
func value(kind uint8, n int64, s string) any {
	return [...]any{
		nil, int8(n), int16(n), int32(n), n, uint8(n), uint16(n), uint32(n), uint64(n),
		float32(n), float64(n), s, []byte(s), math.NaN(),
		[]any{n},
	}[kind%15]
}

// exact is what value means where a stock may be built on it.
func exact(v any) (int64, bool) {
	var n int64
	switch x := v.(type) {
	case int8:
		n = int64(x)
	case int16:
		n = int64(x)
	case int32:
		n = int64(x)
	case int64:
		n = x
	case uint8:
		n = int64(x)
	case uint16:
		n = int64(x)
	case uint32:
		n = int64(x)
	case uint64:
		if x > math.MaxInt64 {
			return 0, false
		}
		n = int64(x)
	default:
		return 0, false
	}
	return n, n >= 0 && n < 1<<53
}

// Whatever a row holds, of whatever kinds, in whatever order of columns and with whatever missing: the stock that comes out is
// the one in the row, or the row is read again from MySQL.
func FuzzRows(f *testing.F) {
	f.Add(uint8(4), int64(7), uint8(4), int64(100), uint8(4), int64(5), "x", uint8(0), uint8(0))
	f.Add(uint8(8), int64(-1), uint8(0), int64(100), uint8(3), int64(-5), "7", uint8(1), uint8(1))
	f.Add(uint8(8), int64(7), uint8(10), int64(1), uint8(11), int64(1), "12", uint8(2), uint8(2))
	f.Add(uint8(4), int64(7), uint8(8), int64(-2), uint8(0), int64(1), "", uint8(5), uint8(0))
	f.Add(uint8(14), int64(7), uint8(4), int64(1), uint8(4), int64(1), "", uint8(9), uint8(4))
	f.Fuzz(func(t *testing.T, ik uint8, in int64, vk uint8, vn int64, sk uint8, sn int64, s string, shape, action uint8) {
		columns := []schema.TableColumn{{Name: "item_id"}, {Name: "version"}, {Name: "stock"}, {Name: "note"}}
		row := []any{value(ik, in, s), value(vk, vn, s), value(sk, sn, s), s}
		by := int(shape) % len(columns) // the columns in another order
		columns = append(columns[by:], columns[:by]...)
		row = append(row[by:], row[:by]...)
		if shape&16 != 0 { // the table has one column less than we ask for
			columns, row = columns[1:], row[1:]
		}
		if shape&32 != 0 { // the image has one less than the table
			row = row[1:]
		}
		sink := &ignore{}
		h := &handler{
			stream: &Stream{log: zap.NewNop(), tables: Tables{Inventory: "inventory", Item: "item_id", Version: "version", Stock: "stock"}},
			sink:   sink, tx: &Transaction{},
		}
		event := &canal.RowsEvent{
			Table: &schema.Table{Name: "inventory", Columns: columns}, Rows: [][]any{row},
			Action: []string{canal.InsertAction, canal.DeleteAction, canal.UpdateAction}[action%3],
		}
		if event.Action == canal.UpdateAction {
			event.Rows = [][]any{row, row}
		}
		err := h.rows(event)
		if err != nil && !errors.Is(err, ErrLoadAgain) {
			t.Fatalf("%v is not ErrLoadAgain", err)
		}
		if err != nil && sink.doubts == 0 {
			t.Fatalf("%v, and no doubt is counted", err)
		}
		at := func(name string) (int64, bool) {
			for i, c := range columns {
				if c.Name == name && i < len(row) {
					return exact(row[i])
				}
			}
			return 0, false
		}
		for item, got := range h.tx.Items {
			version, okVersion := at("version")
			stock, okStock := at("stock")
			if !okVersion || !okStock || got.Version != version || got.Stock != stock {
				t.Fatalf("item %d becomes %+v out of %v %v", item, got, columns, row)
			}
		}
		if err == nil && len(h.tx.Items) == 0 && len(h.tx.DoubtItems) == 0 {
			if k, kerr := key(value(ik, in, s)); !errors.Is(kerr, errForeign) {
				t.Fatalf("a row of item %d (%v) left no trace: %v %v", k, kerr, columns, row)
			}
		}
	})
}

// What is read as a position says the same when it is written and read again.
func FuzzPosition(f *testing.F) {
	for _, s := range []string{
		"", "{", `{"flavor":"mariadb","gtid":"0-1-100","file":"b.1","offset":4}`, `{"flavor":"mysql","gtid":"3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5"}`,
		`{"flavor":"mysql","file":"b.1","offset":4294967296}`, `{"flavor":"mariadb","gtid":"0-1-"}`, `{"flavor":"mysql","gtid":":1"}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.Count(s, "-") > 50 { // the library expands intervals one by one
			return
		}
		p, err := ParsePosition(s)
		if err != nil {
			return
		}
		again, err := ParsePosition(p.Encode())
		if p.IsZero() && s == "" {
			return
		}
		if err != nil || again != p {
			t.Fatalf("%q is %+v, written %q, read as %+v, %v", s, p, p.Encode(), again, err)
		}
		if reached, ok := p.Reached(p); ok && !reached {
			t.Fatalf("%q has not reached itself", s)
		}
	})
}
