package load_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
)

// buyersOf fills MySQL with the orders of n buyers of an activity, and Kafka with those of some that have not landed.
func buyersOf(b *synctest.Bench, a ledger.Activity, n, queued int) {
	b.Helper()
	for begin := 0; begin < n; {
		part := make([]*order.Order, 0, 1000)
		for ; len(part) < cap(part) && begin < n; begin++ {
			id, err := order.NewID()
			if err != nil {
				b.Fatal(err)
			}
			part = append(part, &order.Order{
				V: order.SchemaVersion, ID: id, Activity: a.ID, User: fmt.Sprintf("buyer-%d", begin), Item: a.Item, Quantity: 1,
				CreatedAtMs: a.StartsAtMs,
			})
		}
		if _, err := b.Store.Land(b.Context(), a.Item, part); err != nil {
			b.Fatal(err)
		}
	}
	for i := range queued {
		id, err := order.NewID()
		if err != nil {
			b.Fatal(err)
		}
		b.Publish(&order.Order{
			V: order.SchemaVersion, ID: id, Activity: a.ID, User: fmt.Sprintf("queued-%d", i), Item: a.Item, Quantity: 1, CreatedAtMs: a.StartsAtMs,
		})
	}
}

// BenchmarkLoad100000Buyers says how long a sale of 100,000 buyers is closed when Redis has lost it: the waiting for gateways
// that may have orders under way, which is configured, and the rebuilding, which is work.
//
//	make services
//	env $(grep -v ^SECKILL_ .services/env) go test -run '^$' -bench Load100000Buyers -benchtime 3x ./internal/syncer/load
func BenchmarkLoad100000Buyers(t *testing.B) {
	const buyers, queued = 100_000, 100
	b := synctest.New(t, synctest.Quiet)
	a := b.Activity(2 * buyers)
	buyersOf(b, a, buyers, queued)
	var wait, kafka, rows, closed, bytes int64
	c := b.Client()
	t.ResetTimer()
	for range t.N {
		c.FlushAll(b.Context())
		bytes -= usedMemory(b, c)
		r, err := b.Loader.Load(b.Context(), a.ID)
		if err != nil {
			t.Fatal(err)
		}
		if r.Orders != buyers || r.Restored != queued || r.Buyers != buyers+queued || r.Stock != buyers {
			t.Fatalf("%+v", r)
		}
		bytes += usedMemory(b, c)
		wait, kafka, rows, closed = wait+r.WaitMs, kafka+r.KafkaMs, rows+r.RowsMs, closed+r.ClosedMs
	}
	for name, sum := range map[string]int64{"ms-waiting": wait, "ms-kafka": kafka, "ms-rows": rows, "ms-closed": closed} {
		t.ReportMetric(float64(sum)/float64(t.N), name)
	}
	t.ReportMetric(float64(bytes)/float64(t.N)/buyers, "bytes-of-redis/buyer")
}

func usedMemory(b *synctest.Bench, c *redis.Client) int64 {
	b.Helper()
	info, err := c.InfoMap(b.Context(), "memory").Result()
	if err != nil {
		b.Fatal(err)
	}
	n, err := strconv.ParseInt(info["Memory"]["used_memory"], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}
