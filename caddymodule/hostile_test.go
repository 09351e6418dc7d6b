package caddymodule

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

// E79: behind a proxy that is trusted and appends, the client is the last address that it did not add itself. Whatever a client
// writes in front mints no bucket and uses up nobody else's; and one IPv6 network is one client.
func TestE79BehindATrustedProxy(t *testing.T) {
	f := newFake()
	at := runWith(t, f, "servers {\ntrusted_proxies static 127.0.0.1/32\ntrusted_proxies_strict\n}\n",
		"seckill_rate_limit token_bucket 2/h key {client_ip}", "respond shop 299")
	through := func(forwarded ...string) int {
		return request(t, "GET", at, "", "X-Forwarded-For", strings.Join(forwarded, ", ")).status
	}
	var got []int
	const bot, victim = "192.0.2.66", "198.51.100.7"
	for i := range 5 {
		got = append(got, through(fmt.Sprint("203.0.113.", i), bot)) // rotates what it claims
	}
	for range 3 {
		got = append(got, through(victim, bot)) // claims to be somebody else
	}
	if want := []int{299, 299, 429, 429, 429, 429, 429, 429}; !slices.Equal(got, want) {
		t.Errorf("the bot got %v, want %v", got, want)
	}
	if got := through(victim); got != 299 {
		t.Errorf("somebody else used up the victim's bucket: got %d", got)
	}
	got = nil
	for i := range 4 {
		got = append(got, through(fmt.Sprintf("2001:db8:1:2:%x::%x", i, i))) // rotates within its network
	}
	got = append(got, through("2001:db8:1:3::1"))
	if want := []int{299, 299, 429, 429, 299}; !slices.Equal(got, want) {
		t.Errorf("one IPv6 network and another got %v, want %v", got, want)
	}
}

// E82: a chunked body without end is refused after a few kilobytes, and its connection with it.
func TestE82ChunkedWithoutEnd(t *testing.T) {
	f := newFake()
	at := run(t, f, shortcutLines)
	addr := strings.TrimPrefix(at, "http://")
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(c, "POST /seckill/1/orders HTTP/1.1\r\nHost: "+addr+"\r\nX-User: bob\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	sent := make(chan int, 1)
	go func() { // a GiB, if it is let
		chunk := fmt.Sprintf("%x\r\n%s\r\n", 64<<10, strings.Repeat(" ", 64<<10))
		n := 0
		for n < 1<<30 {
			k, err := io.WriteString(c, chunk)
			if n += k; err != nil {
				break
			}
		}
		sent <- n
	}()
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.Contains(line, " 413 ") {
		t.Errorf("got %q, %v", line, err)
	}
	// What is on the way fills the socket's buffers; the server takes no more.
	if n := <-sent; n > 64<<20 {
		t.Errorf("the server let %d bytes in", n)
	}
	if orders, _ := f.calls(); len(orders) > 0 {
		t.Errorf("the edge was asked for %+v", orders)
	}
}

// E82: bodies that are not as long as they say. Too short is 400; what is too long belongs to the next request, if it is one.
func TestE82LyingContentLength(t *testing.T) {
	f := newFake()
	at := run(t, f, shortcutLines)
	addr := strings.TrimPrefix(at, "http://")
	talk := func(lines string) (statuses []string) {
		t.Helper()
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.WriteString(c, lines); err != nil {
			t.Fatal(err)
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
		for in := bufio.NewReader(c); ; {
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				return statuses
			}
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			statuses = append(statuses, fmt.Sprint(res.StatusCode))
		}
	}
	const order = `{"quantity":1}`
	post := func(headers, body string) string {
		return "POST /seckill/1/orders HTTP/1.1\r\nHost: " + addr + "\r\nX-User: bob\r\n" + headers + "\r\n" + body
	}
	for name, c := range map[string]struct {
		request string
		want    []string
		orders  int
	}{
		"says more":        {post("Content-Length: 4096\r\n", order), []string{"400"}, 0},
		"says less":        {post("Content-Length: 5\r\n", order), []string{"400", "400"}, 0},
		"says two things":  {post("Content-Length: 14\r\nContent-Length: 15\r\n", order), []string{"400"}, 0},
		"says it is below": {post("Content-Length: -1\r\n", order), []string{"400"}, 0},
		"hides a second":   {post("Content-Length: 14\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+post("Content-Length: 14\r\n", order)), nil, -1},
		"two in a row":     {post("Content-Length: 14\r\n", order) + post("Content-Length: 14\r\n", order), []string{"202", "202"}, 2},
	} {
		got := talk(c.request)
		orders, _ := f.calls()
		if c.want != nil && !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
		if c.orders >= 0 && len(orders) != c.orders {
			t.Errorf("%s: the edge was asked for %+v", name, orders)
		}
		// Whatever the server makes of two lengths, it must not take one order for two answers.
		if accepted := strings.Count(strings.Join(got, " "), "202"); accepted != len(orders) {
			t.Errorf("%s: %d accepted, the edge was asked for %d", name, accepted, len(orders))
		}
	}
}

// E82: clients that reset their streams at once, and clients that never end their bodies, leave no goroutine behind.
func TestE82RapidReset(t *testing.T) {
	f := newFake()
	boundBodies(t, 500*time.Millisecond)
	addr, trust := secure(t, f, shortcutLines)
	clients := eachHTTP(t, trust)
	delete(clients, "HTTP/1.1")
	for version, client := range clients {
		call := func(ctx context.Context, body io.Reader) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+addr+"/seckill/1/orders", body)
			if err != nil {
				return err
			}
			r.Header.Set("X-User", "bob")
			res, err := client.Do(r)
			if err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
			return err
		}
		if err := call(t.Context(), nil); err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		base := runtime.NumGoroutine()
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				ctx, reset := context.WithTimeout(t.Context(), time.Duration(i%20)*100*time.Microsecond)
				defer reset()
				pipe, feed := io.Pipe() // a body that never comes
				defer feed.Close()
				_ = call(ctx, pipe)
			})
		}
		wg.Wait()
		testenv.Eventually(t, 30*time.Second, version+": goroutines to go back to base", func() bool {
			return runtime.NumGoroutine() <= base+base/20+5
		})
		if err := call(t.Context(), nil); err != nil {
			t.Errorf("%s: afterwards: %v", version, err)
		}
	}
	if orders, _ := f.calls(); len(orders) != 2*len(clients) { // a body that was cut off is no order
		t.Errorf("the edge was asked for %d orders, want the %d whole ones", len(orders), 2*len(clients))
	}
}

// E99: one person with many names. Limits by client and by name are independent and exact, and the table of names has a bound
// beyond which a new one is refused rather than let through.
func TestE99OnePersonManyNames(t *testing.T) {
	const perClient, perName, names = 5, 3, 2000
	f := newFake()
	run(t, f,
		fmt.Sprintf("seckill_rate_limit sliding_window %d/1h key {client_ip}", perClient),
		fmt.Sprintf("seckill_rate_limit sliding_window %d/1h key {header.X-User} {\n max_keys %d\n}", perName, names),
		"seckill {\n user {header.X-User}\n}")
	buy := func(ip, user string) int {
		r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/seckill/1/orders", nil)
		r.RemoteAddr = net.JoinHostPort(ip, "1234")
		r.Header.Set("X-User", user)
		return serve(t, r).Code
	}
	passed := map[int]int{}
	for i := range names { // from one /24, each client in turn
		passed[buy(fmt.Sprint("192.0.2.", i%256), fmt.Sprint("bot-", i))]++
	}
	if passed[202] != 256*perClient || passed[202]+passed[429] != names {
		t.Errorf("%d names from 256 clients got %v, want %d through", names, passed, 256*perClient)
	}
	passed = map[int]int{}
	for i := range 100 { // one name in a loop, each time from another client
		passed[buy(fmt.Sprint("198.51.100.", i), "bot-1")]++
	}
	if passed[202] != perName-1 || passed[429] != 100-perName+1 { // it has bought once above
		t.Errorf("one name from 100 clients got %v", passed)
	}
	passed = map[int]int{}
	for i := range 2 * names { // fresh names from fresh clients
		passed[buy(fmt.Sprintf("10.0.%d.%d", i/256, i%256), fmt.Sprint("fresh-", i))]++
	}
	if room := names - 256*perClient; passed[202] != room || passed[202]+passed[429] != 2*names {
		t.Errorf("%d names more got %v, there was room for %d", 2*names, passed, room)
	}
}
