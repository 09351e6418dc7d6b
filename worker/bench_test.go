package main

import (
	"database/sql"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/bench"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// benchWorker set means that this test binary is to be the worker, as it is, in a process of its own.
const benchWorker = "BENCH_WORKER"

// BenchmarkLanding has the worker land orders of one hot item, in batches and one by one: from Kafka through a durable MySQL
// to Redis. The orders are there before it starts, and the clock runs from the first that has landed to the last that is
// settled.
func BenchmarkLanding(b *testing.B) {
	d := deploy(b, 1)
	durable(b, d.dsn)
	rdb := redis.NewClient(&redis.Options{Addr: d.redis.Addr})
	b.Cleanup(func() { _ = rdb.Close() })

	land := func(orders int, env ...string) func(time.Duration) (float64, error) {
		return func(turn time.Duration) (float64, error) {
			n := max(100, int(float64(orders)*turn.Seconds()))
			d.activity, d.item = testenv.ID(), testenv.ID()
			d.sale(int64(4 * n))
			accepted := d.accept(n)
			pending := func() int64 {
				left, err := rdb.Get(b.Context(), ledger.KeysOf(d.activity).Pending).Int64()
				if err != nil {
					b.Fatal(err)
				}
				return left
			}
			all := pending()
			worker := testenv.StartProgram(b, "worker", func() *exec.Cmd {
				cmd := exec.Command(os.Args[0], "run", "--config", d.config)
				cmd.Env = append(append(os.Environ(), benchWorker+"=yes"), env...)
				return cmd
			}, func() error { return nil })
			defer worker.Stop()
			var first int64
			testenv.Eventually(b, time.Minute, "the first order has landed", func() bool { first = pending(); return first < all })
			began := time.Now()
			testenv.Eventually(b, 2*time.Minute, "all orders have landed", func() bool { return pending() == 0 })
			took := time.Since(began)
			d.exact(int64(4*n), accepted)
			return float64(n) * float64(first) / float64(all) / took.Seconds(), nil
		}
	}
	bench.Contest{Title: "orders landed by the worker", Rounds: 7}.Run(b,
		bench.Contestant{Name: "one by one (max_orders: 1)", Run: land(500, "SECKILL_LANDING_MAX_ORDERS=1")},
		bench.Contestant{Name: "in batches (default)", Aim: 30, Run: land(20_000)},
	)
}

// durable refuses to measure a database that acknowledges what it may lose.
func durable(b *testing.B, dsn string) {
	b.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	var flush, sync int
	if err := db.QueryRowContext(b.Context(), "SELECT @@innodb_flush_log_at_trx_commit, @@sync_binlog").Scan(&flush, &sync); err != nil {
		b.Fatal(err)
	}
	if flush != 1 || sync != 1 {
		b.Fatalf("innodb_flush_log_at_trx_commit is %d and sync_binlog is %d: want 1 and 1", flush, sync)
	}
}
