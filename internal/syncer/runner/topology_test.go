package runner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/syncer/compare"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

const clusterSlots = 16384

// On Redis Cluster each activity lives on one of the masters, and what the syncer keeps of itself on another: loading,
// following, comparing, forcing and taking over work all the same. So does each master's being lost.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisClusterNodes(t, 3)
	b := synctest.New(t, synctest.OnRedis("", nodes[0].Addr, nodes[1].Addr, nodes[2].Addr))
	_, h := b.Syncer()
	b.Ready(h)
	sales := make([]ledger.Activity, len(nodes)) // one on each master
	for found := 0; found < len(sales); {
		id := testenv.ID()
		slot, err := b.Redis.(*redis.ClusterClient).ClusterKeySlot(t.Context(), ledger.KeysOf(id).Stock).Result()
		if err != nil {
			t.Fatal(err)
		}
		if n := int(slot) * len(nodes) / clusterSlots; sales[n].ID == 0 {
			now := time.Now().UnixMilli()
			sales[n] = ledger.Activity{
				ID: id, Item: testenv.ID(), Title: "sale", StartsAtMs: now - 1000, EndsAtMs: now + 3_600_000, MaxPerUser: 10, State: ledger.Open,
			}
			found++
		}
	}
	for _, a := range sales {
		b.Create(a, 20)
	}
	for _, a := range sales {
		b.Loaded(a, "")
	}
	b.Ready(h)
	for _, a := range sales {
		b.Buy(a, "u1", 2)
		o := b.Buy(a, "u2", 3)
		b.Land(false)
		b.Equal(a)
		b.Exec("UPDATE orders SET status = 'CANCELLED' WHERE order_id = ?", o.ID)
		b.Equal(a)
	}
	caughtUp(b)
	r, err := b.Comparer.Run(t.Context(), sales, compare.Options{})
	if err != nil || r.Err() != nil || r.Repaired() != 0 {
		t.Errorf("compare: %+v, %v, %v", r, err, r.Err())
	}
	if _, err := b.Loader.Force(t.Context(), sales[0].ID, 0); err != nil {
		t.Errorf("force: %v", err)
	}
	for i, node := range nodes {
		epoch := b.Look(sales[i]).Epoch
		b.Buy(sales[i], fmt.Sprintf("queued%d", i), 4)
		node.Restart() // and is empty
		b.Loaded(sales[i], epoch)
		testenv.Eventually(t, 20*time.Second, "all to be loaded again", func() bool { return h.Of("loaded") == nil && allLoaded(b, sales) })
		if s := b.Look(sales[i]); s.Pending != 4 || s.Available != 14 {
			t.Errorf("after master %d was lost: %+v, want 4 pending and 14 available", i, s)
		}
		b.Land(true)
		for _, a := range sales {
			b.Equal(a)
		}
	}
	b.Ready(h)
	b.Restock(sales[0], 1)
	b.Equal(sales[0])
}

func allLoaded(b *synctest.Bench, sales []ledger.Activity) bool {
	for _, a := range sales {
		s, err := b.Ledger.Inspect(b.Context(), a.ID)
		if err != nil || !s[0].Loaded || !s[0].SameServer {
			return false
		}
	}
	return true
}

// Behind Sentinel: the master dies, a replica is promoted, the sale is rebuilt on it, and the position and the lease went along.
func TestSentinelFailOver(t *testing.T) {
	t.Parallel()
	master, replica := testenv.StartRedis(t), testenv.StartRedis(t)
	replica.ReplicaOf(master.Addr)
	var addrs []string
	for _, s := range testenv.StartSentinels(t, 3, "shop", master, 1) {
		addrs = append(addrs, s.Addr)
	}
	b := synctest.New(t, synctest.Quiet, synctest.OnRedis("shop", addrs...))
	a, _, h := following(t, b, 20)
	inTheMiddle(b, a)
	caughtUp(b)
	master.ReplicatedTo(replica)
	epoch := b.Look(a).Epoch
	master.Kill()
	b.Restock(a, 1) // while there is no master at all
	b.Loaded(a, epoch)
	b.Ready(h)
	rebuilt(b, a, 21)
	if _, err := b.Loader.Force(t.Context(), a.ID, 0); err != nil {
		t.Errorf("force: %v", err)
	}
	caughtUp(b)
	b.Equal(a)
}

// pair is a primary and its replica behind one address, with a wire between the two that can be cut.
type pair struct {
	primary, replica *testenv.Redis
	front, wire      *faultproxy.Proxy
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{primary: testenv.StartRedis(t), replica: testenv.StartRedis(t)}
	p.front, p.wire = faultproxy.New(t, p.primary.Addr), faultproxy.New(t, p.primary.Addr)
	p.replica.ReplicaOf(p.wire.Addr())
	return p
}

// promote makes the replica the server behind the address.
func (p *pair) promote() {
	p.replica.Promote()
	p.front.Redirect(p.replica.Addr)
}

// E11: replication is cut, a hundred reservations are accepted, the primary dies and the replica is promoted. Nobody who was
// told "queued" is forgotten, nobody may buy twice, what was released stays released, and not a unit is sold that is not there.
func TestE11FailOverLosesAcknowledgedWrites(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	b := synctest.New(t, synctest.Quiet, synctest.OnRedis("", p.front.Addr()))
	a, _, h := following(t, b, 130)
	for i := range 10 {
		b.Buy(a, fmt.Sprintf("before%d", i), 1)
	}
	b.Land(true)
	b.Equal(a)
	released := b.MustReserve(a, "released", 5)
	p.primary.ReplicatedTo(p.replica)
	p.wire.Cut()
	free(b, a, released)
	if code := tryAs(b, a, "released", 3); code != ledger.Reserved { // and its gateway dies
		t.Fatalf("whoever was refused may try again: code %d", code)
	}
	for i := range 100 {
		b.Buy(a, fmt.Sprintf("lost%d", i), 1)
	}
	epoch := b.Look(a).Epoch
	p.primary.Kill()
	p.promote()
	if code := tryAs(b, a, "late", 1); code != ledger.WrongServer && code != ledger.IsRecovering {
		t.Fatalf("code %d from a server that lost writes, want none of its own", code)
	}
	b.Loaded(a, epoch)
	if s := b.Look(a); s.Stock != 120 || s.Pending != 100 || s.LedgerLen != 100 || s.BuyersLen != 110 {
		t.Fatalf("%+v; want stock 120 of which 100 are pending, for the 100 orders in kafka", s)
	}
	for _, user := range []string{"before3", "lost0", "lost99"} {
		if code := tryAs(b, a, user, 1); code != ledger.AlreadyHas {
			t.Errorf("%s buys twice: code %d", user, code)
		}
	}
	b.Buy(a, "released", 10)
	if code := tryAs(b, a, "one too many", 11); code != ledger.SoldOut && code != ledger.TooMany {
		t.Errorf("code %d with 10 units left", code)
	}
	b.Land(true)
	b.Equal(a)
	b.Ready(h)
	if s := b.Stock(a); s != 10 {
		t.Errorf("stock %d, want 130 less 10, 100 and 10", s)
	}
	rows, err := b.Store.Orders(t.Context(), []string{released.ID})
	if err != nil || len(rows) != 0 {
		t.Errorf("an order that was refused landed: %v, %v", rows, err)
	}
}

// E105: fail-over and back, with the syncer at work: what the first server has of the sale is from before the second one's
// orders, under its old run id.
func TestE105FailOverAndBack(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	b := synctest.New(t, synctest.Quiet, synctest.OnRedis("", p.front.Addr()))
	a, _, h := following(t, b, 20)
	b.Buy(a, "on the first", 1)
	p.primary.ReplicatedTo(p.replica)
	epoch := b.Look(a).Epoch
	p.promote()
	epoch = b.Loaded(a, epoch).Epoch
	b.Ready(h)
	back := faultproxy.New(t, p.replica.Addr)
	p.primary.ReplicaOf(back.Addr())
	b.Buy(a, "on the second", 2)
	p.replica.ReplicatedTo(p.primary)
	back.Cut()
	b.Buy(a, "lost", 4)
	p.primary.Promote()
	p.front.Redirect(p.primary.Addr)
	if code := tryAs(b, a, "lost", 4); code != ledger.WrongServer && code != ledger.IsRecovering {
		t.Fatalf("code %d from a server that has forgotten an order, want none of its own", code)
	}
	b.Loaded(a, epoch)
	if s := b.Look(a); s.Pending != 7 || s.LedgerLen != 3 || s.BuyersLen != 3 {
		t.Fatalf("%+v; want 7 units of three orders pending", s)
	}
	if code := tryAs(b, a, "lost", 4); code != ledger.AlreadyHas {
		t.Errorf("code %d: bought twice", code)
	}
	b.Land(true)
	b.Equal(a)
	b.Ready(h)
}

// tryAs reserves as a gateway does whose connection may just have been reset.
func tryAs(b *synctest.Bench, a ledger.Activity, user string, quantity int64) ledger.Code {
	b.Helper()
	id, err := order.NewID()
	if err != nil {
		b.Fatal(err)
	}
	var code ledger.Code
	testenv.Eventually(b, 20*time.Second, "an answer for "+user, func() bool { // too late is nothing reserved, with this deadline
		ds, err := b.Ledger.Reserve(b.Context(), a.ID, []ledger.Reservation{{
			Order: id, Nonce: id, User: user, Quantity: quantity, NotAfterMs: time.Now().Add(b.Cfg.ReserveDeadline).UnixMilli(),
		}})
		if err == nil {
			code = ds[0].Code
		}
		return err == nil && code != ledger.TooLate
	})
	return code
}

// free releases a reservation as a gateway does that could not publish.
func free(b *synctest.Bench, a ledger.Activity, o *order.Order) {
	b.Helper()
	r, err := b.Ledger.Release(b.Context(), a.ID, ledger.Reservation{Order: o.ID, Nonce: o.ID, User: o.User, Quantity: o.Quantity}, b.Cfg.PublishBudget)
	if err != nil || r != ledger.ReleasedNow {
		b.Fatalf("release: %v, %v", r, err)
	}
}
