package ledger_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// E01: the reply of the first call is lost; the call is repeated with the same id and finds its own reservation.
func TestE01LostReplyReservesOnce(t *testing.T) {
	for name, lose := range map[string]func(*faultproxy.Proxy){
		"reply withheld":          func(p *faultproxy.Proxy) { p.WithholdReply(faultproxy.Contains("evalsha"), 1) },
		"closed after execution":  func(p *faultproxy.Proxy) { p.CloseAfter(faultproxy.Contains("evalsha"), 1) },
		"closed before execution": func(p *faultproxy.Proxy) { p.CloseBefore(faultproxy.Contains("evalsha"), 1) },
	} {
		t.Run(name, func(t *testing.T) {
			server := testenv.StartRedis(t)
			b := newBench(t, singleClient(t, server.Addr))
			b.load(10, 1)
			p := faultproxy.New(t, server.Addr)
			rdb := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true, ReadTimeout: time.Second})
			t.Cleanup(func() { _ = rdb.Close() })
			far := ledger.New(rdb, ledger.Options{})
			r := wish("u1", 1)
			b.mustReserve(wish("warm", 1)) // the server knows the script
			lose(p)
			_, err := far.Reserve(b.ctx, b.id, []ledger.Reservation{r})
			if !errors.Is(err, ledger.ErrUnknown) {
				t.Fatalf("a lost reply is unknown, got %v", err)
			}
			d, err := far.Reserve(b.ctx, b.id, []ledger.Reservation{r})
			if err != nil || (d[0].Code != ledger.Again && d[0].Code != ledger.Reserved) {
				t.Fatalf("%+v, %v", d, err)
			}
			b.want(10, 2)
		})
	}
}

// E03: a cluster client repeats a timed-out call by itself, whatever its settings. The ledger counts the attempts, and the
// script gives the second one the first one's result.
func TestE03ClusterClientRepeatsByItself(t *testing.T) {
	addrs := testenv.StartRedisCluster(t, 3)
	var mu sync.Mutex
	proxies := map[string]*faultproxy.Proxy{}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addrs, MaxRetries: -1, ContextTimeoutEnabled: true, ReadTimeout: time.Second,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			mu.Lock()
			p := proxies[addr]
			if p == nil {
				p = faultproxy.New(t, addr)
				proxies[addr] = p
			}
			mu.Unlock()
			return new(net.Dialer).DialContext(ctx, network, p.Addr())
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	b := newBench(t, rdb)
	b.load(10, 1)
	b.mustReserve(wish("warm", 1))
	mu.Lock()
	for _, p := range proxies {
		p.WithholdReply(faultproxy.Contains("evalsha"), 1)
	}
	mu.Unlock()
	r := wish("u1", 1)
	d, err := b.Reserve(b.ctx, b.id, []ledger.Reservation{r})
	switch {
	case errors.Is(err, ledger.ErrUnknown):
		if d, err = b.Reserve(b.ctx, b.id, []ledger.Reservation{r}); err != nil || d[0].Code != ledger.Again {
			t.Fatalf("%+v, %v", d, err)
		}
	case err != nil:
		t.Fatal(err)
	case d[0].Code != ledger.Again || !d[0].Repeated:
		t.Fatalf("the client repeated the call in silence: %+v", d[0])
	}
	b.want(10, 2)
}

// E10: a server that is read-only says so before anything has run, and a fresh connection is no second attempt: the error
// proves that nothing was reserved, and a refusal needs no fence.
func TestE10OnAFreshConnection(t *testing.T) {
	everyRedis(t, func(t *bench) {
		t.load(1, 1)
		t.mustReserve(wish("other", 1))
		fresh := func() *ledger.Ledger {
			var rdb redis.UniversalClient
			switch c := t.rdb.(type) {
			case *redis.Client:
				o := *c.Options()
				rdb = redis.NewClient(&o)
			case *redis.ClusterClient:
				o := *c.Options()
				rdb = redis.NewClusterClient(&o)
			}
			t.Cleanup(func() { _ = rdb.Close() })
			return ledger.New(rdb, ledger.Options{})
		}
		d, err := fresh().Reserve(t.ctx, t.id, []ledger.Reservation{wish("u1", 1)})
		if err != nil || d[0].Code != ledger.SoldOut || d[0].Repeated {
			t.Fatalf("one attempt over a fresh connection: %+v, %v", d, err)
		}
		if _, cluster := t.rdb.(*redis.ClusterClient); cluster {
			return // a node of a cluster cannot be made a replica by hand
		}
		t.settle(ledger.Settlement{Version: 2, Stock: 2})
		t.redis("REPLICAOF", "127.0.0.1", "1")
		far := fresh()
		for range 3 {
			// The library leaves the connection after such an error, so that each of these has a fresh one.
			if _, err := far.Reserve(t.ctx, t.id, []ledger.Reservation{wish("u1", 1)}); !isNotExecuted(err) {
				t.Fatalf("a read-only server's refusal: %v", err)
			}
		}
		t.redis("REPLICAOF", "NO", "ONE")
		if s := t.look(); s.Pending != 1 {
			t.Fatalf("pending is %d", s.Pending)
		}
	})
}

// mixUp has a client's connection give the answers of the first two members of a batch to each other.
type mixUp struct{}

func (mixUp) DialHook(next redis.DialHook) redis.DialHook { return next }

func (mixUp) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (mixUp) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if c, ok := cmd.(*redis.Cmd); ok && err == nil {
			if v, ok := c.Val().([]any); ok && len(v) == 10 {
				for i := 2; i < 6; i++ {
					v[i], v[i+4] = v[i+4], v[i]
				}
			}
		}
		return err
	}
}

// An answer that reaches the wrong request is unknown, and nobody's reservation or refusal.
func TestAnAnswerForAnotherOrderIsUnknown(t *testing.T) {
	b := onRedis(t)
	b.load(1, 1)
	b.rdb.AddHook(mixUp{})
	d, err := b.Reserve(b.ctx, b.id, []ledger.Reservation{wish("u1", 1), wish("u2", 1)})
	if !errors.Is(err, ledger.ErrUnknown) {
		t.Fatalf("%+v, %v", d, err)
	}
	b.want(1, 1)
}

// E101 as the client library causes it: the reply of a refusal is lost, the library repeats, and the refusal says so.
func TestE101ARepeatedRefusalSaysSo(t *testing.T) {
	server := testenv.StartRedis(t)
	b := newBench(t, singleClient(t, server.Addr))
	b.load(1, 1)
	b.mustReserve(wish("other", 1))
	p := faultproxy.New(t, server.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: 2, ContextTimeoutEnabled: true, ReadTimeout: time.Second})
	t.Cleanup(func() { _ = rdb.Close() })
	far := ledger.New(rdb, ledger.Options{})
	lost := p.WithholdReply(faultproxy.Contains("evalsha"), 1)
	d, err := far.Reserve(b.ctx, b.id, []ledger.Reservation{wish("u1", 1)})
	if err != nil || d[0].Code != ledger.SoldOut || !d[0].Repeated || lost.Fired() != 1 {
		t.Fatalf("%+v, %v; %d replies were lost", d, err, lost.Fired())
	}
	// It may have been repeated below the library too: an answer that took as long as a read may take counts as repeated.
	slow := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1, ReadTimeout: 2 * time.Second})
	t.Cleanup(func() { _ = slow.Close() })
	far = ledger.New(slow, ledger.Options{})
	if _, err := far.Now(b.ctx); err != nil { // its connection stands
		t.Fatal(err)
	}
	p.Delay(1200 * time.Millisecond) // of the request, and of the source after NOSCRIPT: each in time, together too late
	if err := b.rdb.ScriptFlush(b.ctx).Err(); err != nil {
		t.Fatal(err)
	}
	if d, err = far.Reserve(b.ctx, b.id, []ledger.Reservation{wish("u2", 1)}); err != nil || d[0].Code != ledger.SoldOut || !d[0].Repeated {
		t.Fatalf("slower than a read may be: %+v, %v", d, err)
	}
}

// A settle whose reply was lost is repeated, and changes nothing more.
func TestE01LostReplyOfSettleAndRelease(t *testing.T) {
	server := testenv.StartRedis(t)
	b := newBench(t, singleClient(t, server.Addr))
	b.load(10, 1)
	p := faultproxy.New(t, server.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true, ReadTimeout: time.Second})
	t.Cleanup(func() { _ = rdb.Close() })
	far := ledger.New(rdb, ledger.Options{})
	kept, gone := wish("u1", 2), wish("u2", 1)
	b.mustReserve(kept)
	b.mustReserve(gone)
	s := ledger.Settlement{Activity: b.id, Version: 2, Stock: 8, Orders: []ledger.Outcome{landed(kept, b.item, order.Confirmed)}}
	b.settle(ledger.Settlement{}) // the server knows the scripts
	b.release(wish("nobody", 1), time.Minute)
	rule := p.CloseAfter(faultproxy.Contains("evalsha"), 2)
	if _, err := far.Settle(b.ctx, s); err == nil {
		t.Fatal("the settle's reply was not lost")
	}
	if _, err := far.Release(b.ctx, b.id, gone, time.Minute); err == nil {
		t.Fatal("the release's reply was not lost")
	}
	if rule.Fired() != 2 {
		t.Fatalf("the fault fired %d times", rule.Fired())
	}
	if _, err := far.Settle(b.ctx, s); err != nil {
		t.Fatal(err)
	}
	if got, err := far.Release(b.ctx, b.id, gone, time.Minute); err != nil || got != ledger.ReleasedNow {
		t.Fatal(got, err)
	}
	b.want(8, 0)
}
