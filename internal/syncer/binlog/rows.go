package binlog

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-mysql-org/go-mysql/canal"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// image is one row of an event, read by the names of its columns.
type image struct {
	event *canal.RowsEvent
	row   []any
}

func (i image) at(column string) any {
	n := i.event.Table.FindColumn(column)
	if n < 0 || n >= len(i.row) {
		return nil
	}
	return i.row[n]
}

// fields reads columns one after the other and keeps the first doubt.
type fields struct {
	image
	err error
}

func (f *fields) integer(column string) int64 {
	n, err := integer(f.at(column))
	f.note(column, err)
	return n
}

func (f *fields) key(column string) int64 {
	n, err := key(f.at(column))
	f.note(column, err)
	return n
}

func (f *fields) text(column string) string {
	s, err := text(f.at(column))
	f.note(column, err)
	return s
}

// word reads what MySQL compares without blanks at its end.
func (f *fields) word(column string) string { return strings.TrimRight(f.text(column), " ") }

func (f *fields) optional(column string) string {
	s, err := optionalText(f.at(column))
	f.note(column, err)
	return s
}

func (f *fields) note(column string, err error) {
	if err != nil && f.err == nil {
		f.err = fmt.Errorf("column %s: %w", column, err)
	}
}

// rows adds the rows of an event to the transaction.
func (h *handler) rows(e *canal.RowsEvent) error {
	for _, r := range e.Rows {
		if len(r) != len(e.Table.Columns) {
			h.sink.Doubt(e.Table.Name, errDoubt)
			return fmt.Errorf("%w: a row of table %s has %d columns in the binlog and the table has %d",
				ErrLoadAgain, e.Table.Name, len(r), len(e.Table.Columns))
		}
	}
	step, last := 1, 0
	if e.Action == canal.UpdateAction { // before, after, before, after
		step, last = 2, 1
	}
	for i := 0; i+last < len(e.Rows); i += step {
		before, after := image{e, e.Rows[i]}, image{e, e.Rows[i+last]}
		var err error
		switch e.Table.Name {
		case h.stream.tables.Inventory:
			err = h.inventory(before, after)
		case h.stream.tables.Orders:
			err = h.order(before, after)
		case h.stream.tables.Activity:
			err = h.activity(before, after)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func deleted(e *canal.RowsEvent) bool { return e.Action == canal.DeleteAction }

func (h *handler) inventory(before, after image) error {
	t := h.stream.tables
	f := fields{image: after}
	item, version, stock := f.key(t.Item), f.integer(t.Version), f.integer(t.Stock)
	if f.err == nil {
		if h.tx.Items == nil {
			h.tx.Items = map[int64]Stock{}
		}
		h.tx.Items[item] = Stock{Version: version, Stock: stock, Deleted: deleted(after.event)}
		if old, err := key(before.at(t.Item)); err == nil && old != item {
			h.tx.Items[old] = Stock{Version: version, Deleted: true}
		}
		return nil
	}
	keys, there := keysOf(t.Item, before, after)
	if !there {
		h.doubt(t.Inventory, f.err)
		return fmt.Errorf("%w: a row of table %s without its key: %w", ErrLoadAgain, t.Inventory, f.err)
	}
	if slices.ContainsFunc(keys, h.sink.Sells) { // else it is the shop's own affair what stands in its row
		h.doubt(t.Inventory, f.err)
	}
	for _, k := range keys {
		delete(h.tx.Items, k)
	}
	h.tx.DoubtItems = append(h.tx.DoubtItems, keys...)
	return nil
}

func (h *handler) order(before, after image) error {
	f := fields{image: after}
	o := Order{Activity: f.key("activity_id"), Outcome: ledger.Outcome{
		Order: f.text("order_id"), User: f.text("user_id"), Item: f.key("item_id"), Quantity: f.integer("quantity"),
		Status: order.Status(f.word("status")), Reason: f.optional("reason"),
	}}
	table := h.stream.tables.Orders
	if f.err == nil {
		o.Dead = o.Status.In(h.stream.dead)
		if deleted(after.event) {
			h.tx.Deleted = append(h.tx.Deleted, o)
			return nil
		}
		h.tx.Orders = append(h.tx.Orders, o)
		old := fields{image: before}
		was := Order{Activity: old.key("activity_id"), Outcome: ledger.Outcome{Order: old.text("order_id"), User: old.text("user_id")}}
		if old.err == nil && (was.Activity != o.Activity || was.Order != o.Order || was.User != o.User) {
			h.tx.Deleted = append(h.tx.Deleted, was)
		}
		return nil
	}
	h.doubt(table, f.err)
	var keys []string
	for _, i := range []image{before, after} {
		if id, err := text(i.at("order_id")); err == nil {
			keys = append(keys, id)
		}
	}
	if len(keys) == 0 {
		return fmt.Errorf("%w: a row of table %s without its key: %w", ErrLoadAgain, table, f.err)
	}
	h.tx.DoubtOrders = append(h.tx.DoubtOrders, keys...)
	return nil
}

func (h *handler) activity(before, after image) error {
	f := fields{image: after}
	a := ledger.Activity{
		ID: f.key("activity_id"), Item: f.key("item_id"), Title: f.optional("title"),
		StartsAtMs: f.integer("starts_at_ms"), EndsAtMs: f.integer("ends_at_ms"), MaxPerUser: f.integer("max_per_user"),
		State: ledger.State(f.word("state")),
	}
	table := h.stream.tables.Activity
	if f.err == nil && !deleted(after.event) && (a.State == ledger.Open || a.State == ledger.Paused || a.State == ledger.Closed) {
		h.tx.Activities = append(h.tx.Activities, a)
		if old, err := key(before.at("activity_id")); err == nil && old != a.ID {
			h.tx.DoubtActivities = append(h.tx.DoubtActivities, old)
		}
		return nil
	}
	if f.err != nil {
		h.doubt(table, f.err)
	}
	keys, there := keysOf("activity_id", before, after)
	if !there {
		return fmt.Errorf("%w: a row of table %s without its key: %w", ErrLoadAgain, table, f.err)
	}
	h.tx.DoubtActivities = append(h.tx.DoubtActivities, keys...)
	return nil
}

// keysOf reads a key from either image; a minimal one has it in the first. It may be there and be none that ours can have.
func keysOf(column string, before, after image) (keys []int64, there bool) {
	for _, i := range []image{before, after} {
		k, err := key(i.at(column))
		if err == nil {
			keys = append(keys, k)
		}
		there = there || err == nil || errors.Is(err, errForeign)
	}
	return keys, there
}
