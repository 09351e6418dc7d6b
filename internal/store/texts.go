package store

import (
	"database/sql"
	"fmt"
	"strings"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// micros is UTC in microseconds since 1970 at the start of the statement. It is arithmetic on UTC, so that it does not depend on
// the session's time_zone; UNIX_TIMESTAMP(NOW(6)) goes through local time and jumps by an hour where summer time ends.
const micros = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

// Keys of the orders table.
const (
	keyLive     = "one_live_order"
	keyActivity = "activity_order"
	keyUpdated  = "status_updated"
)

// texts are the statements, with the configured names in them.
type texts struct {
	orders, activity, inventory string // quoted names
	outbox, sinks               string
	insertHead                  string
	take                        string // quantity, item, quantity
	stock                       string // item
	stockForUpdate              string // item
	touch                       string // past, item
	giveBack                    string // quantity, item
	unpaid                      string // status, since, window, since, order, limit
	activities                  string
	newActivity, newStock       string // heads of INSERT
	orderColumns                string
	events                      string // sink, seq, limit
	backlog                     string // sink, limit, sink
}

func quote(name string) string { return "`" + name + "`" }

func newTexts(c Config) texts {
	t := c.Tables
	x := texts{orders: quote(t.Orders), activity: quote(t.Activity), inventory: quote(t.Inventory), outbox: quote(t.Outbox), sinks: quote(t.Outbox + sinksSuffix)}
	item, stock, version := quote(t.Item), quote(t.Stock), quote(t.Version)
	x.insertHead = "INSERT INTO " + x.orders + " (order_id, activity_id, user_id, item_id, quantity, status, reason, extra, created_at_ms, updated_at_ms) VALUES "
	// `stock - n >= 0` would raise 1690 on an UNSIGNED column in place of matching no row (E65).
	x.take = fmt.Sprintf("UPDATE %s SET %s = %s - ?, %s = GREATEST(%s + 1, %s) WHERE %s = ? AND %s >= ?",
		x.inventory, stock, stock, version, version, micros, item, stock)
	x.stock = fmt.Sprintf("SELECT %s, %s FROM %s WHERE %s = ?", stock, version, x.inventory, item)
	x.stockForUpdate = x.stock + " FOR UPDATE"
	x.touch = fmt.Sprintf("UPDATE %s SET %s = GREATEST(%s + 1, %s, ? + 1) WHERE %s = ?", x.inventory, version, version, micros, item)
	x.giveBack = fmt.Sprintf("UPDATE %s SET %s = %s + ?, %s = GREATEST(%s + 1, %s) WHERE %s = ?", x.inventory, stock, stock, version, version, micros, item)
	// The index ends in the primary key, so this is one walk along it that can be taken up anywhere. Servers would otherwise prefer
	// a full scan whenever most orders look unpaid to them.
	x.unpaid = "SELECT order_id, item_id, updated_at_ms FROM " + x.orders + " FORCE INDEX (" + keyUpdated + ") WHERE status = ? AND updated_at_ms >= ?" +
		" AND updated_at_ms < " + micros + " DIV 1000 - ? AND (updated_at_ms > ? OR order_id > ?) ORDER BY updated_at_ms, order_id LIMIT ?"
	x.activities = "SELECT activity_id, item_id, title, starts_at_ms, ends_at_ms, max_per_user, state FROM " + x.activity
	x.newActivity = "INSERT INTO " + x.activity + " (activity_id, item_id, title, starts_at_ms, ends_at_ms, max_per_user, state) VALUES "
	x.newStock = fmt.Sprintf("INSERT INTO %s (%s, %s, %s) VALUES ", x.inventory, item, stock, version)
	x.events = "SELECT b.seq, b.order_id, b.status, b.reason, b.at_ms, o.activity_id, o.user_id, o.item_id, o.quantity, o.extra FROM " + x.outbox +
		" AS b LEFT JOIN " + x.orders + " AS o ON o.order_id = b.order_id WHERE b.sink = ? AND b.seq > ? ORDER BY b.seq LIMIT ?"
	x.backlog = "SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM " + x.outbox + " WHERE sink = ? LIMIT ?) AS n), " +
		"GREATEST(0, " + micros + " DIV 1000 - (SELECT at_ms FROM " + x.outbox + " WHERE sink = ? ORDER BY seq LIMIT 1))"
	x.orderColumns = "SELECT order_id, user_id, item_id, quantity, status, reason, live FROM " + x.orders
	return x
}

// row is one row of an INSERT; the last column is MySQL's own clock, so that all workers agree on it.
const row = "(?, ?, ?, ?, ?, ?, ?, ?, ?, " + micros + " DIV 1000)"

func (x *texts) insert(rows int) string {
	return x.insertHead + row + strings.Repeat(", "+row, rows-1)
}

// dueForUpdate locks those of some orders that are still unpaid, passing by what others have locked. Arguments: ids, status, window, item.
func (x *texts) dueForUpdate(ids int) string {
	return "SELECT order_id, quantity FROM " + x.orders + " FORCE INDEX (PRIMARY) WHERE order_id IN " + list(ids) +
		" AND status = ? AND updated_at_ms < " + micros + " DIV 1000 - ? AND item_id = ? FOR UPDATE SKIP LOCKED"
}

// expire is the one step from the success status. Arguments: new status, reason, ids, success status.
func (x *texts) expire(ids int) string {
	return "UPDATE " + x.orders + " SET status = ?, reason = ?, updated_at_ms = " + micros + " DIV 1000 WHERE order_id IN " + list(ids) + " AND status = ?"
}

// tell writes down for each listener what the orders with those ids have become. Arguments: ids.
func (x *texts) tell(ids int) string {
	return "INSERT INTO " + x.outbox + " (sink, order_id, status, reason) SELECT s.sink, o.order_id, o.status, o.reason FROM " +
		x.sinks + " AS s JOIN " + x.orders + " AS o WHERE o.order_id IN " + list(ids) + " ORDER BY o.order_id"
}

// list is "(?, ?, …)".
func list(n int) string { return "(?" + strings.Repeat(", ?", n-1) + ")" }

// scanOutcome reads orderColumns. Whether an order is dead is what MySQL says, not this process' configuration.
func scanOutcome(rows *sql.Rows) (o ledger.Outcome, err error) {
	var live sql.NullInt64
	err = rows.Scan(&o.Order, &o.User, &o.Item, &o.Quantity, &o.Status, &o.Reason, &live)
	o.Dead = !live.Valid
	return o, err
}
