package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	contest "github.com/seckillgate/seckillgate/internal/bench"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// benchBatch is about what a batch of group commit holds under load.
const benchBatch = 32

// BenchmarkScripts tells what one order costs Redis, and the client, in each of the scripts that it goes through. An
// iteration is one order.
func BenchmarkScripts(b *testing.B) {
	srv := testenv.StartRedis(b)
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr, MaxRetries: -1})
	b.Cleanup(func() { _ = rdb.Close() })
	l := ledger.New(rdb, ledger.Options{})
	now := time.Now().UnixMilli()
	a := ledger.Activity{ID: testenv.ID(), Item: 7, StartsAtMs: now - 60_000, EndsAtMs: now + 3_600_000, MaxPerUser: 1, State: ledger.Open}
	load, err := l.LoadBegin(b.Context(), a)
	if err == nil {
		_, err = l.LoadFinish(b.Context(), a.ID, load.Epoch, 1, 1<<40, ledger.Open)
	}
	if err != nil {
		b.Fatal(err)
	}
	users := 0
	wishes := func(b *testing.B, window time.Duration) [][]ledger.Reservation {
		b.Helper()
		var all [][]ledger.Reservation
		for range (b.N + benchBatch - 1) / benchBatch {
			batch := make([]ledger.Reservation, benchBatch)
			for i := range batch {
				users++
				batch[i] = wish(fmt.Sprint("u", users), 1)
				batch[i].Window = window
			}
			all = append(all, batch)
		}
		return all
	}
	run := func(name string, prepare func(b *testing.B) [][]ledger.Reservation, call func(batch []ledger.Reservation) error) {
		b.Run(name, func(b *testing.B) {
			batches := prepare(b)
			before := contest.CPUOf(srv.Pid())
			b.ReportAllocs()
			b.ResetTimer()
			for _, batch := range batches {
				if err := call(batch); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64((contest.CPUOf(srv.Pid())-before).Nanoseconds())/float64(b.N), "redis-ns/op")
		})
	}
	reserve := func(batch []ledger.Reservation) error {
		ds, err := l.Reserve(b.Context(), a.ID, batch)
		if err == nil && ds[0].Code != ledger.Reserved {
			err = fmt.Errorf("got %+v", ds[0])
		}
		return err
	}
	run("reserve", func(b *testing.B) [][]ledger.Reservation { return wishes(b, 0) }, reserve)
	run("reserve with a user window", func(b *testing.B) [][]ledger.Reservation { return wishes(b, 5*time.Second) }, reserve)
	some := func(b *testing.B) [][]ledger.Reservation {
		all := wishes(b, 0)
		for _, batch := range all {
			if err := reserve(batch); err != nil {
				b.Fatal(err)
			}
		}
		return all
	}
	run("mark as queued", some, func(batch []ledger.Reservation) error {
		acks := make([]ledger.Ack, len(batch))
		for i, r := range batch {
			acks[i] = ledger.Ack{Order: r.Order, User: r.User, Item: 7, Quantity: 1, Offset: 1}
		}
		return l.MarkQueued(b.Context(), a.ID, acks)
	})
	run("settle", some, func(batch []ledger.Reservation) error {
		outcomes := make([]ledger.Outcome, len(batch))
		for i, r := range batch {
			outcomes[i] = ledger.Outcome{Order: r.Order, User: r.User, Item: 7, Quantity: 1, Status: "CONFIRMED"}
		}
		_, err := l.Settle(b.Context(), ledger.Settlement{Activity: a.ID, Version: 1, Stock: 1 << 40, Orders: outcomes})
		return err
	})
}
