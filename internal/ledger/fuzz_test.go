package ledger_test

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// Whatever the arguments are and whatever somebody has written into the keys: a script answers, what is not reserved
// changes nothing, and what is reserved is there as a whole.
func FuzzReserve(f *testing.F) {
	srv := testenv.StartRedis(f)
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr, MaxRetries: -1, DialTimeout: 30 * time.Second, ReadTimeout: 30 * time.Second, PoolTimeout: 30 * time.Second})
	f.Cleanup(func() { _ = rdb.Close() })

	f.Add("u", int64(1), int64(5000), "{}", "stock", "10")
	f.Add("u", int64(0), int64(-1), "", "pending", "abc")
	f.Add("张三", int64(1<<62), int64(0), `{"a":1}`, "version", "9007199254740993")
	f.Add("u", int64(-3), int64(1), "", "ledger", "1\x1f2\x1fn\x1f3\x1fu\x1f")
	f.Add("u v", int64(2), int64(1), "", "buyers", "x")
	f.Add("u", int64(2), int64(1), "", "window", "x")
	f.Add("u", int64(2), int64(1), "", "result", "FAILED\x1f\x1fu\x1f1\x1f1\x1f-1\x1f-1\x1f5")
	f.Add("u", int64(2), int64(1), "", "starts_at", "1e3")
	f.Add("u", int64(2), int64(1), "", "state", "OPEN")
	f.Add("u", int64(2), int64(1), "", "stock", " 1")

	f.Fuzz(func(t *testing.T, user string, quantity, windowMs int64, extra, field, value string) {
		if order.ValidUser(user) != nil || order.ValidExtra([]byte(extra)) != nil { // the edge refuses these before
			return
		}
		b := newBench(t, rdb)
		b.rdb.FlushAll(b.ctx) // the server is this process's own
		b.load(10, 7)
		w := wish(user, quantity)
		w.Extra, w.Window = []byte(extra), time.Duration(min(max(windowMs, 0), 1<<40))*time.Millisecond
		other := wish("other", 3)
		b.mustReserve(other)

		k := b.keys
		switch field {
		case "stock", "version", "pending":
			b.rdb.Set(b.ctx, map[string]string{"stock": k.Stock, "version": k.Version, "pending": k.Pending}[field], value, 0)
		case "ledger":
			b.rdb.HSet(b.ctx, k.Ledger, w.Order, value)
		case "buyers":
			b.rdb.HSet(b.ctx, k.Buyers, user, value)
		case "window":
			b.rdb.HSet(b.ctx, k.UserWindow(user), value, value)
		case "result":
			b.rdb.Set(b.ctx, k.Result(w.Order), value, 0)
		case "item_id", "starts_at", "ends_at", "max_per_user", "state", "server", "epoch", "has_buyers", "next":
			b.rdb.HSet(b.ctx, k.Activity, field, value)
		}
		before := b.content()
		d, err := b.Reserve(b.ctx, b.id, []ledger.Reservation{w})
		after := b.content()
		// The user's window may have been used up, and an entry met by a second request is marked as shared.
		delete(before, k.UserWindow(user))
		delete(after, k.UserWindow(user))
		if err != nil || d[0].Code != ledger.Reserved {
			if field == "ledger" {
				delete(before, k.Ledger)
				delete(after, k.Ledger)
			}
			if !maps.Equal(before, after) {
				t.Fatalf("%+v, %v: changed\n%q\nto\n%q", d, err, before, after)
			}
			return
		}
		if quantity < 1 || quantity > 10 {
			t.Fatalf("reserved %d units", quantity)
		}
		was, err := strconv.ParseInt(before[k.Pending], 10, 64)
		if err != nil || after[k.Pending] != strconv.FormatInt(was+quantity, 10) {
			t.Fatalf("pending went from %q to %q by %d", before[k.Pending], after[k.Pending], quantity)
		}
		stock, err := strconv.ParseInt(before[k.Stock], 10, 64)
		if err != nil || stock-was < quantity {
			t.Fatalf("reserved %d of stock %q with %d pending", quantity, before[k.Stock], was)
		}
		if !strings.Contains(after[k.Ledger], w.Order) || !strings.Contains(after[k.Buyers], w.Order) {
			t.Fatalf("the ledger is %q, the buyers are %q", after[k.Ledger], after[k.Buyers])
		}
	})
}

// Whatever MySQL or Kafka is made to say of whichever order: what is pending stays the sum of the ledger, only a reservation that is
// named leaves it, and the stock only moves forward, together with its version. A release leaves all other orders alone, too.
func FuzzSettleAndRelease(f *testing.F) {
	srv := testenv.StartRedis(f)
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr, MaxRetries: -1, DialTimeout: 30 * time.Second, ReadTimeout: 30 * time.Second, PoolTimeout: 30 * time.Second})
	f.Cleanup(func() { _ = rdb.Close() })

	f.Add("", "u", "CONFIRMED", "", int64(2), int64(8), int64(1<<53-1), true, false)
	f.Add("", "u", "FAILED", "sold_out", int64(2), int64(0), int64(0), false, true)
	f.Add("", "someone else", "CANCELLED", "", int64(-1), int64(7), int64(5), true, true)
	f.Add("0190a3e0-0000-7000-8000-000000000000", "u", "\x1f", "\x1f\x1f", int64(1<<62), int64(1<<53-1), int64(0), true, true)
	f.Add("*", "}", "", "\x00", int64(0), int64(-1), int64(5), false, false)

	f.Fuzz(func(t *testing.T, id, user, status, reason string, quantity, version, stock int64, binlog, dead bool) {
		if version < 0 || version >= 1<<53 || stock < 0 || stock >= 1<<53 { // MySQL has no such version; a script cannot count such a stock
			return
		}
		b := newBench(t, rdb)
		b.rdb.FlushAll(b.ctx) // the server is this process's own
		b.load(10, 7)
		mine, other := wish("u", 2), wish("other", 3)
		b.mustReserve(mine)
		b.mustReserve(other)
		if id == "" {
			id = mine.Order
		}
		o := ledger.Outcome{Order: id, User: user, Item: b.item, Quantity: quantity, Status: order.Status(status), Dead: dead, Reason: reason}
		s := ledger.Settlement{Version: version, Stock: stock, Orders: []ledger.Outcome{o, o}, Source: ledger.FromWorker}
		if binlog {
			s.Source = ledger.FromBinlog
		}
		wantStock, wantPending := int64(10), int64(5)
		if version > 7 {
			wantStock = stock
		}
		if id == mine.Order {
			wantPending -= 2
		}
		for range 2 { // twice is once
			b.settle(s)
			b.want(wantStock, wantPending)
		}
		stranger := mine
		stranger.Order, stranger.User, stranger.Quantity, stranger.Nonce = id, user, quantity, reason
		if id != mine.Order {
			b.release(stranger, time.Minute)
			b.want(wantStock, wantPending)
		}
		if held, err := b.BuyersOf(b.ctx, b.id, []string{"other"}); err != nil || held[0] != other.Order {
			t.Fatalf("another buyer holds %q, %v", held, err)
		}
	})
}

// content gives every key of the activity in a form that compares, but for expiry times.
func (b *bench) content() map[string]string {
	b.Helper()
	keys, err := b.rdb.Keys(b.ctx, "*{"+strconv.FormatInt(b.id, 10)+"}*").Result()
	if err != nil {
		b.Fatal(err)
	}
	out := make(map[string]string, len(keys))
	for _, key := range keys {
		if s, err := b.rdb.Get(b.ctx, key).Result(); err == nil {
			out[key] = s
			continue
		}
		h, err := b.rdb.HGetAll(b.ctx, key).Result()
		if err != nil {
			b.Fatalf("%s: %v", key, err)
		}
		fields := make([]string, 0, len(h))
		for f, v := range h {
			fields = append(fields, strconv.Quote(f)+":"+strconv.Quote(v))
		}
		slices.Sort(fields)
		out[key] = strings.Join(fields, ",")
	}
	return out
}
