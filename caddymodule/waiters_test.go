package caddymodule

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// Clients that wait over HTTP share one subscription of their gateway, cost it little memory, and all hear the outcome. The log
// has the figures that docs/caddyfile.md tells.
func TestWaitingClients(t *testing.T) {
	const each = 1000
	s := newSale(t, 5)
	// However slow the machine, nobody's wait ends by itself, and no heartbeat stands among the lines.
	load(t, strings.Replace(s.caddyfile(""), "user {", "max_wait 10m\nheartbeat 10m\nuser {", 1))
	_, v := s.call("POST", s.path(s.id), "", "bob")
	id, _ := v["order_id"].(string)
	if !order.ValidID(id) {
		t.Fatalf("got %v", v)
	}
	waiting := func() int {
		all := gathered(t)
		return int(all["seckill_waiting_buyers"])
	}
	memory := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse) // less than before too, where others' garbage went meanwhile
	}
	var conns []net.Conn
	open := func(what, path, headers string) {
		before, n := memory(), len(conns)
		for range each {
			c, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			conns = append(conns, c)
			if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nX-User: bob\r\n%s\r\n", path, s.addr, headers); err != nil {
				t.Fatal(err)
			}
		}
		testenv.Eventually(t, 3*time.Minute, "all to wait", func() bool { return waiting() == n+each })
		took := (memory() - before) / each
		t.Logf("%s: %d bytes for each client that waits", what, took)
		if took > 100<<10 {
			t.Errorf("%s: %d bytes for each client that waits, want at most 100 KiB", what, took)
		}
	}
	open("long-poll", s.path(s.id)+"/"+id+"?wait=10m", "")
	open("stream", s.path(s.id)+"/"+id, "Accept: text/event-stream\r\n")

	rdb, err := redisconn.New(redisconn.Config{Addrs: s.redis.Direct()})
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	list, err := rdb.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
	if err != nil || strings.Count(list, "\n") != 1 {
		t.Errorf("%d clients that wait hold these subscriptions, want one: %s, %v", len(conns), list, err)
	}
	if _, err := s.led.Settle(t.Context(), ledger.Settlement{
		Activity: s.id, Version: 2, Stock: 4, Source: ledger.FromWorker,
		Orders: []ledger.Outcome{{Order: id, User: "bob", Item: s.id + 100, Quantity: 1, Status: order.Confirmed}},
	}); err != nil {
		t.Fatal(err)
	}
	for i, c := range conns {
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for r := bufio.NewReader(c); !strings.Contains(got.String(), `"status":"confirmed"`); {
			line, err := r.ReadString('\n')
			got.WriteString(line)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("client %d got %q: %v", i, got.String(), err)
			}
		}
		if !strings.HasPrefix(got.String(), "HTTP/1.1 200 ") || !strings.Contains(got.String(), `"status":"confirmed"`) {
			t.Fatalf("client %d got %q", i, got.String())
		}
	}
	testenv.Eventually(t, 10*time.Second, "nobody to wait", func() bool { return waiting() == 0 })
}
