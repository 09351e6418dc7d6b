package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is one Redis with a Ledger on it.
type bench struct {
	*testing.T
	ctx context.Context
	rdb redis.UniversalClient
	*ledger.Ledger
	id, item int64
	keys     ledger.Keys
}

// everyRedis runs a test on a single server and on a cluster of three masters: the scripts must declare every key.
func everyRedis(t *testing.T, test func(t *bench)) {
	t.Parallel()
	t.Run("single", func(t *testing.T) { test(newBench(t, singleClient(t, testenv.StartRedis(t).Addr))) })
	t.Run("cluster", func(t *testing.T) {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: testenv.StartRedisCluster(t, 3), MaxRetries: -1})
		t.Cleanup(func() { _ = rdb.Close() })
		test(newBench(t, rdb))
	})
}

func onRedis(t *testing.T) *bench {
	t.Helper()
	return newBench(t, singleClient(t, testenv.StartRedis(t).Addr))
}

func singleClient(t *testing.T, addr string) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true, ReadTimeout: 2 * time.Second})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func newBench(t *testing.T, rdb redis.UniversalClient) *bench {
	id := testenv.ID()
	return &bench{
		T: t, ctx: t.Context(), rdb: rdb, Ledger: ledger.New(rdb, ledger.Options{}), id: id, item: id + 1, keys: ledger.KeysOf(id),
	}
}

// activity is on sale, at most 10 units an order.
func (b *bench) activity() ledger.Activity {
	now := time.Now().UnixMilli()
	return ledger.Activity{ID: b.id, Item: b.item, StartsAtMs: now - 60_000, EndsAtMs: now + 3_600_000, MaxPerUser: 10, State: ledger.Open}
}

func (b *bench) load(stock, version int64) { b.loadAs(b.activity(), stock, version) }

func (b *bench) loadAs(a ledger.Activity, stock, version int64) {
	b.Helper()
	load, err := b.LoadBegin(b.ctx, a)
	if err != nil {
		b.Fatal(err)
	}
	s, err := b.LoadFinish(b.ctx, b.id, load.Epoch, version, stock, a.State)
	if err != nil {
		b.Fatal(err)
	}
	if !s.Loaded || s.Stock != stock || s.Version != version {
		b.Fatalf("after the load: %+v", s)
	}
}

func wish(user string, quantity int64) ledger.Reservation {
	id, err := order.NewID()
	if err != nil {
		panic(err)
	}
	return ledger.Reservation{
		Order: id, Nonce: id[24:], User: user, Quantity: quantity, NotAfterMs: time.Now().Add(time.Minute).UnixMilli(),
	}
}

func (b *bench) reserve(r ledger.Reservation) ledger.Decision {
	b.Helper()
	d, err := b.Reserve(b.ctx, b.id, []ledger.Reservation{r})
	if err != nil {
		b.Fatal(err)
	}
	return d[0]
}

func (b *bench) mustReserve(r ledger.Reservation) {
	b.Helper()
	if d := b.reserve(r); d.Code != ledger.Reserved {
		b.Fatalf("reserve %+v: %+v", r, d)
	}
}

func (b *bench) settle(s ledger.Settlement) ledger.Settled {
	b.Helper()
	s.Activity = b.id
	got, err := b.Settle(b.ctx, s)
	if err != nil {
		b.Fatal(err)
	}
	return got
}

func (b *bench) release(r ledger.Reservation, maxAge time.Duration) ledger.Released {
	b.Helper()
	got, err := b.Release(b.ctx, b.id, r, maxAge)
	if err != nil {
		b.Fatal(err)
	}
	return got
}

func (b *bench) look() ledger.Snapshot {
	b.Helper()
	s, err := b.Inspect(b.ctx, b.id)
	if err != nil {
		b.Fatal(err)
	}
	return s[0]
}

// want checks stock and pending, and that pending is the sum of the ledger.
func (b *bench) want(stock, pending int64) {
	b.Helper()
	s := b.look()
	if !s.Loaded || s.Stock != stock || s.Pending != pending {
		b.Fatalf("stock %d, pending %d, loaded %v (%s); want stock %d, pending %d", s.Stock, s.Pending, s.Loaded, s.Problem, stock, pending)
	}
	var sum int64
	for _, e := range b.entries() {
		sum += e.Quantity
	}
	if sum != pending {
		b.Fatalf("the ledger sums up to %d, pending is %d", sum, pending)
	}
}

func (b *bench) entries() []ledger.Entry {
	b.Helper()
	all := map[string]ledger.Entry{}
	for cursor := uint64(0); ; {
		part, next, err := b.ScanLedger(b.ctx, b.id, cursor, 100)
		if err != nil {
			b.Fatal(err)
		}
		for _, e := range part {
			all[e.Order] = e
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	out := make([]ledger.Entry, 0, len(all))
	for _, e := range all {
		out = append(out, e)
	}
	return out
}

// dump is the content of every key of the activity, to show that a call changed nothing.
func (b *bench) dump(more ...string) string {
	b.Helper()
	var out string
	for _, k := range append([]string{b.keys.Stock, b.keys.Version, b.keys.Pending, b.keys.Ledger, b.keys.Buyers, b.keys.Activity}, more...) {
		v, err := b.rdb.Dump(b.ctx, k).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			b.Fatal(err)
		}
		out += fmt.Sprintf("%s=%x\n", k, v)
	}
	return out
}

func (b *bench) redis(args ...any) {
	b.Helper()
	if err := b.rdb.Do(b.ctx, args...).Err(); err != nil && !errors.Is(err, redis.Nil) {
		b.Fatalf("%v: %v", args, err)
	}
}

func landed(r ledger.Reservation, item int64, status order.Status) ledger.Outcome {
	return ledger.Outcome{
		Order: r.Order, User: r.User, Item: item, Quantity: r.Quantity, Status: status, Dead: status.In(order.DefaultDead),
	}
}
