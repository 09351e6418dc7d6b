package edge

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/faultproxy/redisfault"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// crowd has buyers order without pause, each once, until it is stopped. While Redis changes hands they may hear "unavailable" or
// "processing", and nothing else.
func crowd(t *testing.T, g *gateway, activity int64) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if o := g.Order(context.Background(), buy(activity, fmt.Sprint("crowd-", w, "-", i))); o.HTTP != 202 && o.HTTP != 503 {
					t.Errorf("a buyer hears %+v", o)
				}
				select { // as many as a test needs, not as many as the machine can
				case <-time.After(2 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// closes waits until buyers hear that the sale is unavailable, since Redis is not the one that it was loaded on.
func closes(t *testing.T, g *gateway, activity int64) {
	t.Helper()
	testenv.Eventually(t, 20*time.Second, "the change of hands is noticed", func() bool {
		return g.Admit(activity, "").Reason == Unavailable
	})
}

// opens loads the sale as the syncer would, and checks that it goes on by itself, without a unit lost or sold twice.
func opens(t *testing.T, op *operator, g *gateway, a ledger.Activity, stock int64) {
	t.Helper()
	op.reload(a, stock, g.topic.published()...)
	n := 0
	testenv.Eventually(t, 10*time.Second, "somebody can buy again", func() bool {
		n++
		return g.Order(t.Context(), buy(a.ID, fmt.Sprint("after-", n))).Status == order.Queued
	})
	testenv.Eventually(t, time.Minute, "everything is decided", func() bool { return g.Stats().Open == 0 })
	units, distinct := g.topic.units()
	if int(units) != distinct {
		t.Errorf("kafka has %d orders of %d units", distinct, units)
	}
	op.pending(a.ID, units)
}

// TestE03ClusterRepliesWithheld: no reserve call is answered for two seconds. A cluster client repeats such calls by itself,
// whatever its settings; still each buyer has at most one unit, and what is reserved is published or given back.
func TestE03ClusterRepliesWithheld(t *testing.T) {
	t.Parallel()
	r := redisfault.Cluster(t, 3)
	op := newOperator(t, r.Direct()...)
	op.ms = ledger.Timings{ReserveDeadlineMs: 30_000, PublishBudgetMs: 60_000, HorizonMs: 120_000} // however slow the machine
	const buyers = 20
	a := op.sale(2 * buyers)
	g := newGateway(t, redisconn.Config{Addrs: r.Addrs(), ReadTimeout: 200 * time.Millisecond, PoolTimeout: long}, Options{RequestBudget: 2 * long})
	g.onSale(t, a.ID)
	if o := g.Order(t.Context(), buy(a.ID, "first")); o.Status != order.Queued {
		t.Fatalf("before: %+v", o)
	}
	rules := r.Rule(func(p *faultproxy.Proxy) *faultproxy.Rule {
		return p.WithholdReply(faultproxy.Contains("evalsha", "unlucky"), 1_000)
	})
	heal := time.AfterFunc(2*time.Second, r.Heal)
	defer heal.Stop()
	each(buyers, func(i int) {
		if o := g.Order(t.Context(), buy(a.ID, fmt.Sprint("unlucky-", i))); o.HTTP != 202 {
			t.Errorf("buyer %d hears %+v", i, o)
		}
	})
	if rules.Fired() < 3 {
		t.Errorf("%d replies were withheld: nothing was repeated", rules.Fired())
	}
	testenv.Eventually(t, time.Minute, "everything is decided", func() bool { return g.Stats().Open == 0 })
	units, distinct := g.topic.units()
	op.pending(a.ID, units)
	if distinct != int(units) || units > buyers+1 {
		t.Errorf("kafka has %d orders of %d units for %d buyers", distinct, units, buyers+1)
	}
}

// TestE04ScriptsForgottenUnderLoad: the server forgets its scripts again and again. Nobody notices.
func TestE04ScriptsForgottenUnderLoad(t *testing.T) {
	t.Parallel()
	redisfault.Every(t, func(t *testing.T, r *redisfault.Servers) {
		op := newOperator(t, r.Direct()...)
		const buyers = 1000
		a := op.sale(buyers)
		g := newPatient(t, r.Direct())
		g.onSale(t, a.ID)
		var bought atomic.Int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			each(20, func(w int) {
				for i := range buyers / 20 {
					if o := g.Order(t.Context(), buy(a.ID, fmt.Sprint("u", w, "-", i))); o.Status != order.Queued {
						t.Errorf("a buyer hears %+v", o)
					}
					bought.Add(1)
				}
			})
		}()
		flushes := 0
		for forgetting := true; forgetting; flushes++ {
			r.ForgetScripts(t)
			select {
			case <-done:
				forgetting = false
			case <-time.After(5 * time.Millisecond):
			}
		}
		t.Logf("%d flushes", flushes)
		op.pending(a.ID, buyers)
		if units, distinct := g.topic.units(); units != buyers || distinct != buyers {
			t.Errorf("kafka has %d orders of %d units, want %d", distinct, units, buyers)
		}
	})
}

// TestE10PrimaryTurnsReplica: the server is made a replica under traffic, and a primary again. Buyers hear "unavailable", nobody
// "sold out", and the sale goes on once it is loaded.
func TestE10PrimaryTurnsReplica(t *testing.T) {
	t.Parallel()
	r := redisfault.Single(t)
	op := newOperator(t, r.Direct()...)
	a := op.sale(100_000)
	g := newGateway(t, redisconn.Config{Addrs: r.Direct()}, Options{})
	g.onSale(t, a.ID)
	stop := crowd(t, g, a.ID)
	testenv.Eventually(t, 10*time.Second, "orders flow", func() bool { n, _ := g.topic.units(); return n > 100 })
	gone := net.JoinHostPort("127.0.0.1", fmt.Sprint(testenv.FreePort(t)))
	host, port, _ := net.SplitHostPort(gone)
	if err := r.Client(0).Do(t.Context(), "REPLICAOF", host, port).Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, "orders stop", func() bool {
		o := g.Order(t.Context(), buy(a.ID, "during"))
		return o.HTTP == 503 && (o.Cause == CauseNotReserved || o.Cause == CauseScript || o.Cause == CauseGate)
	})
	if err := r.Client(0).Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	closes(t, g, a.ID)
	stop()
	opens(t, op, g, a, 100_000)
}

// TestE04E10ClusterFailover: a replica that never saw the scripts takes over a shard under traffic.
func TestE04E10ClusterFailover(t *testing.T) {
	t.Parallel()
	r := redisfault.Cluster(t, 3)
	r.Join(t)
	op := newOperator(t, r.Direct()...)
	const activity = 3 // lives in one of the three shards, like any other
	owner, replica := r.Owner(t, ledger.KeysOf(activity).Stock), 3
	id, err := r.Client(owner).ClusterMyID(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, "the new node is a replica", func() bool {
		return r.Client(replica).ClusterReplicate(t.Context(), id).Err() == nil
	})
	testenv.Eventually(t, 20*time.Second, "the replica is in sync", func() bool {
		info, err := r.Client(replica).Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
	a := op.saleOf(activity, 100_000) // only now: a primary's first replica changes its identity
	g := newGateway(t, redisconn.Config{Addrs: r.Addrs()}, Options{})
	g.onSale(t, a.ID)
	stop := crowd(t, g, a.ID)
	testenv.Eventually(t, 10*time.Second, "orders flow", func() bool { n, _ := g.topic.units(); return n > 100 })
	if err := r.Client(replica).ClusterFailover(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, "the replica is the primary", func() bool {
		info, err := r.Client(replica).Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "role:master")
	})
	closes(t, g, a.ID)
	stop()
	opens(t, op, g, a, 100_000)
}

// TestE04E21SlotMovesToANewNode: the slot of the sale moves to a node that never saw the scripts, key by key and under traffic,
// so that its calls meet TRYAGAIN, ASK and MOVED.
func TestE04E21SlotMovesToANewNode(t *testing.T) {
	t.Parallel()
	r := redisfault.Cluster(t, 3)
	r.Join(t)
	op := newOperator(t, r.Direct()...)
	a := op.sale(100_000)
	g := newGateway(t, redisconn.Config{Addrs: r.Addrs()}, Options{})
	g.onSale(t, a.ID)
	stop := crowd(t, g, a.ID)
	testenv.Eventually(t, 10*time.Second, "orders flow", func() bool { n, _ := g.topic.units(); return n > 100 })

	ctx := t.Context()
	from, to := r.Owner(t, ledger.KeysOf(a.ID).Stock), 3
	slot, err := r.Client(0).ClusterKeySlot(ctx, ledger.KeysOf(a.ID).Stock).Result()
	if err != nil {
		t.Fatal(err)
	}
	id := make([]string, len(r.Nodes))
	for i := range r.Nodes {
		if id[i], err = r.Client(i).ClusterMyID(ctx).Result(); err != nil {
			t.Fatal(err)
		}
	}
	set := func(node int, args ...any) {
		t.Helper()
		if err := r.Client(node).Do(ctx, append([]any{"CLUSTER", "SETSLOT", slot}, args...)...).Err(); err != nil {
			t.Fatalf("slot %d of node %d: %v: %v", slot, node, args, err)
		}
	}
	set(to, "IMPORTING", id[from])
	set(from, "MIGRATING", id[to])
	host, port, _ := net.SplitHostPort(r.Nodes[to].Addr)
	move := func(most int) (moved int) {
		t.Helper()
		keys, err := r.Client(from).ClusterGetKeysInSlot(ctx, int(slot), most).Result()
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) == 0 {
			return 0
		}
		args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
		for _, k := range keys {
			args = append(args, k)
		}
		if err := r.Client(from).Do(ctx, args...).Err(); err != nil {
			t.Fatal(err)
		}
		return len(keys)
	}
	move(3) // some here and some there: no script can run on either side
	testenv.Eventually(t, 10*time.Second, "orders stop", func() bool {
		return g.Order(ctx, buy(a.ID, fmt.Sprint("between-", testenv.ID()))).Status != order.Queued
	})
	for move(500) > 0 {
	}
	for _, node := range []int{to, from, (from + 1) % 3, (from + 2) % 3} {
		set(node, "NODE", id[to])
	}
	closes(t, g, a.ID)
	stop()
	opens(t, op, g, a, 100_000)
}

// TestE19ClientsHangUpOnACluster: a third of the clients hang up in the middle. That reaches no connection to Redis: hardly any is
// made anew, and no node is taken for a failing one.
func TestE19ClientsHangUpOnACluster(t *testing.T) {
	t.Parallel()
	r := redisfault.Cluster(t, 3)
	op := newOperator(t, r.Direct()...)
	const buyers, clients = 3000, 50
	a := op.sale(2 * buyers)
	g := newPatient(t, r.Addrs())
	g.onSale(t, a.ID)
	wave := func(name string, n int, hangUp bool) {
		each(clients, func(w int) {
			for i := range n / clients {
				ctx, cancel := context.WithCancel(t.Context())
				if hangUp && rand.IntN(10) < 3 {
					ctx, cancel = context.WithTimeout(t.Context(), rand.N(3*time.Millisecond))
				}
				if o := g.Order(ctx, buy(a.ID, fmt.Sprint(name, w, "-", i))); o.HTTP != 202 && o.Cause != CauseGone {
					t.Errorf("a buyer hears %+v", o)
				}
				cancel()
			}
		})
	}
	wave("warm", 1000, false)
	before := r.Connections(t)
	wave("u", buyers, true)
	if n := r.Connections(t) - before; n >= buyers/100 {
		t.Errorf("%d new connections for %d requests", n, buyers)
	}
	for i := range r.Nodes {
		if nodes, err := r.Client(i).ClusterNodes(t.Context()).Result(); err != nil || strings.Contains(nodes, "fail") {
			t.Errorf("node %d sees %s, %v", i, nodes, err)
		}
	}
	testenv.Eventually(t, time.Minute, "everything is decided", func() bool { return g.Stats().Open == 0 })
	units, _ := g.topic.units()
	op.pending(a.ID, units)
}
