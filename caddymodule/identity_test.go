package caddymodule

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestBareHeaderIsBelieved: what docs/security.md warns of. Nothing but what stands in front of the handlers makes a header worth
// anything: without it a buyer is whoever the request says.
func TestBareHeaderIsBelieved(t *testing.T) {
	f := newFake()
	at := run(t, f, "seckill {\n user {header.X-User}\n}")
	for _, user := range []string{"bob", "eve", "bob"} {
		if got := request(t, http.MethodPost, at+"/seckill/1/orders", "", "X-User", user); got.status != http.StatusAccepted {
			t.Errorf("%s: got %d %s", user, got.status, got.body)
		}
	}
	orders, _ := f.calls()
	var names []string
	for _, o := range orders {
		names = append(names, o.User)
	}
	if got := strings.Join(names, " "); got != "bob eve bob" {
		t.Errorf("one client was taken for %q", got)
	}
}

// TestSlowHeadersAreCutOff: a request whose headers never end is over after Caddy's `timeouts read_header`, and everybody else is
// served meanwhile.
func TestSlowHeadersAreCutOff(t *testing.T) {
	f := newFake()
	at := runWith(t, f, "servers {\ntimeouts {\nread_header 500ms\n}\n}\n", shortcutLines)
	var slow []net.Conn
	for range 20 {
		c, err := net.Dial("tcp", strings.TrimPrefix(at, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprint(c, "POST /seckill/1/orders HTTP/1.1\r\nHost: shop\r\nX-User: bob\r\nX-Slow: "); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, c)
	}
	if got := request(t, http.MethodPost, at+"/seckill/1/orders", "", "X-User", "eve"); got.status != http.StatusAccepted {
		t.Errorf("somebody else: got %d %s", got.status, got.body)
	}
	for _, c := range slow {
		if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		for {
			if _, err := r.ReadString('\n'); err != nil {
				if e := net.Error(nil); errors.As(err, &e) && e.Timeout() {
					t.Fatal("a request without an end of its headers is still waited for")
				}
				break
			}
		}
	}
	orders, _ := f.calls()
	if len(orders) != 1 || orders[0].User != "eve" {
		t.Errorf("the edge was asked for %+v", orders)
	}
}
