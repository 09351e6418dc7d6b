package caddymodule

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/order"
)

func confirmed() edge.OrderView {
	return edge.OrderView{OrderID: anOrder, Activity: 1, Item: 11, Quantity: 2, Status: order.Confirmed, Position: -1, Final: true}
}

const confirmedJSON = `{"order_id":"` + anOrder + `","activity_id":1,"item_id":11,"quantity":2,"status":"confirmed","reason":""}`

// stream opens an event stream and gives its lines as they come; the channel closes at its end.
func stream(t *testing.T, url string, headers ...string) (*http.Response, <-chan string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("X-User", "bob")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		defer res.Body.Close()
		for s := bufio.NewScanner(res.Body); s.Scan(); {
			if s.Text() != "" {
				lines <- s.Text()
			}
		}
	}()
	return res, lines
}

func next(t *testing.T, lines <-chan string) string {
	t.Helper()
	select {
	case s, ok := <-lines:
		if !ok {
			return "(end)"
		}
		return s
	case <-time.After(5 * time.Second):
		t.Fatal("no line within 5 s")
		return ""
	}
}

func expect(t *testing.T, lines <-chan string, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := next(t, lines); got != w {
			t.Fatalf("got line %q, want %q", got, w)
		}
	}
}

const queuedJSON = `{"order_id":"` + anOrder + `","activity_id":1,"item_id":11,"quantity":2,"status":"queued","reason":"","position":7}`

func TestStream(t *testing.T) {
	f := newFake()
	at := run(t, f, "seckill {\n user {header.X-User}\n heartbeat 50ms\n}") + "/seckill/1/orders/"
	res, lines := stream(t, at+anOrder)
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" || res.Header.Get("Cache-Control") != "no-store" {
		t.Fatalf("got %d %v", res.StatusCode, res.Header)
	}
	expect(t, lines, "retry: 2000", "data: "+queuedJSON, ": no news")
	f.steps <- confirmed()
	for got := next(t, lines); got != "id: final"; got = next(t, lines) {
		if got != ": no news" {
			t.Fatalf("got line %q", got)
		}
	}
	expect(t, lines, "data: "+confirmedJSON, "(end)")

	// A browser reconnects after every end; 204 is what stops it.
	if res, _ := stream(t, at+anOrder, "Last-Event-ID", "final"); res.StatusCode != http.StatusNoContent {
		t.Errorf("after the final event: got %d", res.StatusCode)
	}
	// What is refused is refused as anywhere else.
	if res, lines := stream(t, at+anOrder, "X-User", "eve"); res.StatusCode != http.StatusNotFound || !strings.Contains(next(t, lines), "not_found") {
		t.Errorf("another's order: got %d", res.StatusCode)
	}
}

func TestLongPoll(t *testing.T) {
	f := newFake()
	at := run(t, f, "seckill {\n user {header.X-User}\n max_wait 300ms\n}") + "/seckill/1/orders/" + anOrder
	f.steps <- confirmed()
	if res := request(t, "GET", at+"?wait=20s", "", "X-User", "bob"); res.body != confirmedJSON+"\n" {
		t.Errorf("got %d %s", res.status, res.body)
	}
	for _, wait := range []string{"20s", "20", "250ms"} {
		began := time.Now()
		if res := request(t, "GET", at+"?wait="+wait, "", "X-User", "bob"); res.body != queuedJSON+"\n" {
			t.Errorf("got %d %s", res.status, res.body)
		}
		if took := time.Since(began); took < 200*time.Millisecond || took > 5*time.Second {
			t.Errorf("?wait=%s waited %v, want the bound of 300ms", wait, took)
		}
	}
}

// E83: neither a stream nor a long-poll holds up a shutdown, whose grace period is eternal by default.
func TestE83ShutdownEndsStreamsAndLongPolls(t *testing.T) {
	f := newFake()
	at := run(t, f, "seckill {\n user {header.X-User}\n}") + "/seckill/1/orders/" + anOrder
	_, lines := stream(t, at)
	expect(t, lines, "retry: 2000", "data: "+queuedJSON)
	polled := make(chan response, 1)
	go func() { polled <- request(t, "GET", at+"?wait=20s", "", "X-User", "bob") }()
	<-f.waits
	began := time.Now()
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	for line := range lines {
		if line != ": no news" {
			t.Errorf("got line %q", line)
		}
	}
	select {
	case res := <-polled:
		if res.body != queuedJSON+"\n" {
			t.Errorf("the long-poll got %d %s", res.status, res.body)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the long-poll is still waiting")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("stopping took %v", took)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.drained || !f.closed {
		t.Errorf("drained: %v, closed: %v", f.drained, f.closed)
	}
}
