package edge

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/gate"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func benchEdge(b *testing.B, w *world) *Edge {
	b.Helper()
	g := gate.New(w, gate.Options{})
	g.Start()
	e := New(w, w, w, g, Options{})
	e.Start()
	<-g.Ready()
	testenv.Eventually(b, 5*time.Second, "the first look", func() bool {
		v, reason := g.View(saleID, time.Now())
		return reason == Accepted && v.AgeMs >= 0
	})
	b.Cleanup(func() {
		_ = e.Close(context.Background())
		g.Stop()
	})
	return e
}

// BenchmarkRefusalFromMemory is what a buyer of a sold-out sale costs: at the gate, and by hand without one.
func BenchmarkRefusalFromMemory(b *testing.B) {
	w := newWorld()
	w.snap.Available = 0
	e := benchEdge(b, w)
	b.Run("admit", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if v := e.Admit(saleID, ""); v.Reason != SoldOut {
					b.Errorf("got %+v", v)
					return
				}
			}
		})
	})
	b.Run("order", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if o := e.Order(context.Background(), wish()); o.Reason != SoldOut {
					b.Errorf("got %+v", o)
					return
				}
			}
		})
	})
}

// BenchmarkOrder is the flow's own cost, with a ledger and a Kafka that answer at once.
func BenchmarkOrder(b *testing.B) {
	e := benchEdge(b, newWorld())
	b.ReportAllocs()
	for b.Loop() {
		if o := e.Order(context.Background(), wish()); o.Status != order.Queued {
			b.Fatalf("got %+v", o)
		}
	}
}

// BenchmarkOrderOnRedis is a reservation on a real Redis, in group commit, without Kafka.
func BenchmarkOrderOnRedis(b *testing.B) {
	r := testenv.StartRedis(b)
	rdb, err := redisconn.New(redisconn.Config{Addrs: []string{r.Addr}})
	if err != nil {
		b.Fatal(err)
	}
	l := ledger.New(rdb, ledger.Options{})
	now := time.Now().UnixMilli()
	a := ledger.Activity{ID: 1, Item: 1, StartsAtMs: now - 1000, EndsAtMs: now + 3_600_000, MaxPerUser: 1, State: ledger.Open}
	load, err := l.LoadBegin(b.Context(), a)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := l.LoadFinish(b.Context(), a.ID, load.Epoch, 1, 1_000_000_000, ledger.Open); err != nil {
		b.Fatal(err)
	}
	if err := l.PutCatalogue(b.Context(), &ledger.Catalogue{Activities: map[int64]ledger.Activity{1: a}}); err != nil {
		b.Fatal(err)
	}
	batcher := ledger.NewBatcher(l, ledger.BatcherOptions{})
	g := gate.New(l, gate.Options{})
	g.Start()
	e := New(l, batcher, &topic{}, g, Options{})
	e.Start()
	<-g.Ready()
	b.Cleanup(func() {
		_ = e.Close(context.Background())
		batcher.Close()
		g.Stop()
		_ = rdb.Close()
	})
	var n atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if o := e.Order(context.Background(), buy(1, fmt.Sprint("u", n.Add(1)))); o.Status != order.Queued {
				b.Errorf("got %+v", o)
				return
			}
		}
	})
}
