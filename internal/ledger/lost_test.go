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
			rdb := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true, ReadTimeout: 200 * time.Millisecond})
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
		Addrs: addrs, MaxRetries: -1, ContextTimeoutEnabled: true, ReadTimeout: 300 * time.Millisecond,
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

// E101 as the client library causes it: the reply of a refusal is lost, the library repeats, and the refusal says so.
func TestE101ARepeatedRefusalSaysSo(t *testing.T) {
	server := testenv.StartRedis(t)
	b := newBench(t, singleClient(t, server.Addr))
	b.load(1, 1)
	b.mustReserve(wish("other", 1))
	p := faultproxy.New(t, server.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: 2, ContextTimeoutEnabled: true, ReadTimeout: 200 * time.Millisecond})
	t.Cleanup(func() { _ = rdb.Close() })
	far := ledger.New(rdb, ledger.Options{})
	p.WithholdReply(faultproxy.Contains("evalsha"), 1)
	d, err := far.Reserve(b.ctx, b.id, []ledger.Reservation{wish("u1", 1)})
	if errors.Is(err, ledger.ErrUnknown) {
		return // nothing was hidden
	}
	if err != nil || d[0].Code != ledger.SoldOut || !d[0].Repeated {
		t.Fatalf("%+v, %v", d, err)
	}
}

// A settle whose reply was lost is repeated, and changes nothing more.
func TestE01LostReplyOfSettleAndRelease(t *testing.T) {
	server := testenv.StartRedis(t)
	b := newBench(t, singleClient(t, server.Addr))
	b.load(10, 1)
	p := faultproxy.New(t, server.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true, ReadTimeout: 200 * time.Millisecond})
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
