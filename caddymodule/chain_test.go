package caddymodule

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/order"
)

// A shop's own purchase URL, guarded without changing its client.
func TestPassHandsTheOrderToTheShop(t *testing.T) {
	f := newFake()
	var seen *http.Request
	var seenBody string
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r
		b := make([]byte, 4096)
		n, _ := r.Body.Read(b)
		seenBody = string(b[:n])
		w.WriteHeader(http.StatusCreated)
	}))
	defer shop.Close()
	at := run(t, f,
		"@buy path /api/order",
		"seckill_gate @buy {\n activity field skuId\n}",
		"seckill_reserve @buy {\n activity field skuId\n user {cookie.uid}\n quantity field items.0.num\n extra field address\n pass\n}",
		"reverse_proxy "+shop.Listener.Addr().String())

	const body = `{"skuId":1,"items":[{"num":2}],"address":{"id":5}}`
	forged := []string{"Cookie", "uid=bob", "X-Seckill-Order-Id", "forged", "X-Seckill-Whatever", "forged", "X_Seckill_User", "forged"}
	res := request(t, "POST", at+"/api/order", body, forged...)
	if res.status != 201 || seenBody != body {
		t.Fatalf("got %d %s, the shop saw %q", res.status, res.body, seenBody)
	}
	for name, want := range map[string]string{
		"X-Seckill-Order-Id": anOrder, "X-Seckill-Activity": "1", "X-Seckill-Item": "11", "X-Seckill-Quantity": "2",
		"X-Seckill-User": "bob", "X-Seckill-Status": "queued", "X-Seckill-Whatever": "", "X_Seckill_User": "",
	} {
		if got := seen.Header.Get(name); got != want {
			t.Errorf("the shop saw %s: %q, want %q", name, got, want)
		}
	}
	orders, _ := f.calls()
	if len(orders) != 1 || orders[0].Activity != 1 || orders[0].User != "bob" || orders[0].Quantity != 2 || string(orders[0].Extra) != `{"id":5}` {
		t.Errorf("the edge was asked for %+v", orders)
	}

	// A form does as well.
	seen = nil
	form := url.Values{"skuId": {"1"}, "items.0.num": {"3"}}.Encode()
	if res := request(t, "POST", at+"/api/order", form, "Cookie", "uid=bob", "Content-Type", "application/x-www-form-urlencoded"); res.status != 201 {
		t.Errorf("form: got %d %s", res.status, res.body)
	}
	if orders, _ := f.calls(); len(orders) != 1 || orders[0].Quantity != 3 {
		t.Errorf("form: the edge was asked for %+v", orders)
	}

	// A read is no purchase, and carries no forged headers on either.
	seen = nil
	if res := request(t, "GET", at+"/api/order", "", forged...); res.status != 201 || seen.Header.Get("X-Seckill-Order-Id") != "" {
		t.Errorf("read: got %d, the shop saw %v", res.status, seen.Header)
	}

	// Refusals, and what is not certain, do not reach the shop.
	for name, c := range map[string]struct {
		body   string
		out    edge.Outcome
		status int
	}{
		"sold out in memory": {`{"skuId":2}`, edge.Outcome{}, 409},
		"no activity":        {`{}`, edge.Outcome{}, 400},
		"activity object":    {`{"skuId":{}}`, edge.Outcome{}, 400},
		"broken":             {`{`, edge.Outcome{}, 400},
		"too large":          {`{"skuId":1,"x":"` + strings.Repeat("x", 5000) + `"}`, edge.Outcome{}, 413},
		"quantity text":      {`{"skuId":1,"items":[{"num":"two"}]}`, edge.Outcome{}, 400},
		"quantity 0":         {`{"skuId":1,"items":[{"num":0}]}`, edge.Outcome{}, 400},
		"extra too large":    {`{"skuId":1,"address":"` + strings.Repeat("x", 1100) + `"}`, edge.Outcome{}, 400},
		"sold out":           {`{"skuId":1}`, edge.Outcome{HTTP: 409, Reason: edge.SoldOut}, 409},
		"not confirmed":      {`{"skuId":1}`, edge.Outcome{HTTP: 202, OrderID: anOrder, Status: order.Processing}, 202},
		"failed before":      {`{"skuId":1}`, edge.Outcome{HTTP: 202, OrderID: anOrder, Status: order.Failed}, 202},
	} {
		seen = nil
		f.outcome = func(edge.Request) edge.Outcome { return c.out }
		if res := request(t, "POST", at+"/api/order", c.body, "Cookie", "uid=bob"); res.status != c.status || seen != nil {
			t.Errorf("%s: got %d %s; the shop was reached: %v", name, res.status, res.body, seen != nil)
		}
	}
}

// A proxy drops the headers that Connection names and hands trailers on: a buyer can use neither against this gateway's own.
func TestPassKeepsItsHeadersFromTheClient(t *testing.T) {
	f := newFake()
	got := make(chan *http.Request, 1)
	shop := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // trailers come after it
		got <- r
	}))
	defer shop.Close()
	at := run(t, f,
		"seckill_reserve /buy* {\n activity {query.id}\n user {header.X-User}\n pass\n}",
		"reverse_proxy "+shop.Listener.Addr().String())

	send := func(method string, lines ...string) *http.Request {
		t.Helper()
		addr := strings.TrimPrefix(at, "http://")
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		head := append([]string{method + " /buy?id=1 HTTP/1.1", "Host: " + addr, "X-User: bob"}, lines...)
		if _, err := io.WriteString(c, strings.Join(head, "\r\n")+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		line, _ := bufio.NewReader(c).ReadString('\n')
		if !strings.Contains(line, " 200 ") {
			t.Fatalf("%s %q: got %q", method, lines, line)
		}
		return <-got
	}
	own := map[string]string{
		"X-Seckill-Order-Id": anOrder, "X-Seckill-Activity": "1", "X-Seckill-Item": "11", "X-Seckill-Quantity": "1",
		"X-Seckill-User": "bob", "X-Seckill-Status": "queued",
	}
	for name, connection := range map[string][]string{
		"one list": {"Connection: close, X-Seckill-Order-Id, X-Seckill-User,x-seckill-quantity , X-SECKILL-Activity, X-Seckill-Item,X-Seckill-Status"},
		"alone":    {"Connection: X-Seckill-Order-Id"},
		"several":  {"Connection: x-seckill-user", "connection: X_Seckill_Item, X-Dropped", "Connection:\tX-Seckill-Order-Id\t,"},
	} {
		seen := send("POST", append(connection, "X-Dropped: 1", "Content-Length: 0")...)
		for header, want := range own {
			if got := seen.Header.Get(header); got != want {
				t.Errorf("%s: the shop saw %s: %q, want %q", name, header, got, want)
			}
		}
		if dropped := seen.Header.Get("X-Dropped") == ""; dropped != (name == "several") {
			t.Errorf("%s: another header that Connection names: dropped %v", name, dropped)
		}
	}

	for _, method := range []string{"POST", "GET"} { // a purchase, whose body is read, and what passes unread
		for _, announced := range []string{"X-Seckill-User, X-Sum", "X-Sum", "X_Seckill_User, X-Sum"} {
			seen := send(method, "Transfer-Encoding: chunked", "Trailer: "+announced, "",
				"2", "{}", "0", "X-Seckill-User: eve", "X_Seckill_User: eve", "X-Sum: 1")
			for header := range seen.Trailer {
				if isOwn(header) {
					t.Errorf("%s with trailers %s: the shop saw %v", method, announced, seen.Trailer)
				}
			}
			if seen.Trailer.Get("X-Sum") != "1" {
				t.Errorf("%s with trailers %s: the client's other trailers are gone: %v", method, announced, seen.Trailer)
			}
		}
	}
}

// The user window is opened in the reservation's own call where that is sure to come, and by itself anywhere else.
func TestUserLimitFolds(t *testing.T) {
	const (
		limit   = "seckill_user_limit /api/* 5s {\n activity {path.1}\n user {header.X-User}\n}"
		reserve = "seckill_reserve /api/* {\n activity {path.1}\n user {header.X-User}\n}"
	)
	for name, c := range map[string]struct {
		lines  []string
		folded bool
	}{
		"side by side":       {[]string{limit, reserve}, true},
		"in the same route":  {[]string{"route /api/* {", limit, reserve, "}"}, true},
		"no user of its own": {[]string{"seckill_user_limit /api/* 5s {\n activity {path.1}\n}", reserve}, true},
		"with bystanders":    {[]string{"route {", limit, "seckill_gate {\n activity {path.1}\n}", "vars a b", "header X-A b", reserve, "}"}, true},
		"two windows":        {[]string{"route {", "seckill_user_limit /api/* 1s {\n activity {path.1}\n}", limit, reserve, "}"}, true},

		"reserve elsewhere": {[]string{limit, "seckill_reserve /other/* {\n activity {path.1}\n user {header.X-User}\n}", "respond shop"}, false},
		"another user":      {[]string{limit, "seckill_reserve /api/* {\n activity {path.1}\n user {header.X-Other}\n}"}, false},
		"another activity":  {[]string{limit, "seckill_reserve /api/* {\n activity {path.2}\n user {header.X-User}\n}"}, false},
		"an answer between": {[]string{"route {", limit, "respond /api/1/captcha ok", reserve, "}"}, false},
		"a proxy between":   {[]string{"route {", limit, "reverse_proxy /api/1/captcha 127.0.0.1:1", reserve, "}"}, false},
		"own window":        {[]string{limit, "seckill_reserve /api/* {\n activity {path.1}\n user {header.X-User}\n user_window 1s\n}"}, false},
		"in front":          {[]string{"route {", "route /api/1/y {", limit, "}", reserve, "}"}, false},
		"matches more":      {[]string{"route {", "seckill_user_limit * 5s {\n activity {path.1}\n user {header.X-User}\n}", reserve, "}"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			at := run(t, f, c.lines...)
			request(t, "POST", at+"/api/1/y", "", "X-User", "bob", "X-Other", "eve")
			orders, windows := f.calls()
			if (len(windows) == 0) != c.folded {
				t.Errorf("windows opened by themselves: %q", windows)
			}
			for _, o := range orders {
				if c.folded && o.Window != 5*time.Second {
					t.Errorf("the reservation carries a window of %v", o.Window)
				}
				if !c.folded && name != "own window" && o.Window != 0 {
					t.Errorf("the window is opened twice: %v", o.Window)
				}
			}
			if c.folded && len(orders) != 1 {
				t.Errorf("%d reservations", len(orders))
			}
		})
	}
}

func TestUserLimitAlone(t *testing.T) {
	f := newFake()
	at := run(t, f,
		"seckill_user_limit /captcha 5s {\n scope captcha\n user {header.X-User}\n}",
		"seckill_user_limit /sale/* 5s {\n activity {path.1}\n user {header.X-User}\n}",
		"seckill_user_limit /seckill/* 5s {\n user {header.X-User}\n}",
		"respond shop 299")
	for _, c := range []struct {
		method, path, user string
		status             int
		key                string
	}{
		{"GET", "/captcha", "bob", 299, "seckill:user_freq:{scope:captcha}:bob"},
		{"GET", "/captcha", "bob", 429, "seckill:user_freq:{scope:captcha}:bob"},
		{"GET", "/captcha", "eve", 299, "seckill:user_freq:{scope:captcha}:eve"},
		{"OPTIONS", "/captcha", "", 299, ""},
		{"POST", "/sale/7", "bob", 299, "seckill:user_freq:{7}:bob"},
		{"POST", "/sale/7", "bob", 429, "seckill:user_freq:{7}:bob"},
		{"GET", "/sale/7", "bob", 299, ""},
		{"POST", "/sale/x", "bob", 400, ""},
		{"POST", "/seckill/8/orders", "bob", 299, "seckill:user_freq:{8}:bob"},
		{"POST", "/seckill/8/orders", "bob", 429, "seckill:user_freq:{8}:bob"},
		{"GET", "/seckill/8/orders/mine", "bob", 299, ""},
		{"POST", "/elsewhere", "bob", 299, ""},
	} {
		res := request(t, c.method, at+c.path, "", "X-User", c.user)
		_, windows := f.calls()
		if res.status != c.status || strings.Join(windows, " ") != c.key {
			t.Errorf("%s %s of %q: got %d, windows %q; want %d, %q", c.method, c.path, c.user, res.status, windows, c.status, c.key)
		}
		if res.status == 429 && res.header.Get("Retry-After") != "3" {
			t.Errorf("Retry-After is %q", res.header.Get("Retry-After"))
		}
	}
	f.redis = errors.New("redis is down")
	if res := request(t, "GET", at+"/captcha", "", "X-User", "zoe"); res.status != 503 {
		t.Errorf("with Redis down: got %d %s", res.status, res.body)
	}
}

func TestRateLimit(t *testing.T) {
	f := newFake()
	at := run(t, f,
		"seckill_rate_limit /all token_bucket 2/h",
		"seckill_rate_limit /key token_bucket 1/h key {header.X-Key}",
		"seckill_rate_limit /two token_bucket 1/h key {header.X-Key}-{header.X-Other}",
		"seckill_rate_limit /client token_bucket 1/h key {client_ip}",
		"respond shop 299")
	for _, c := range []struct {
		path, key, other string
		status           int
	}{
		{"/all", "a", "", 299},
		{"/all", "b", "", 299},
		{"/all", "c", "", 429},
		{"/key", "a", "", 299},
		{"/key", "a", "", 429},
		{"/key", "b", "", 299},
		{"/key", "", "", 400},
		{"/two", "a", "x", 299},
		{"/two", "a", "x", 429},
		{"/two", "a", "y", 299},
		{"/two", "a", "", 400},
		{"/two", "", "x", 400},
		{"/client", "", "", 299},
		{"/client", "a", "", 429},
	} {
		res := request(t, "GET", at+c.path, "", "X-Key", c.key, "X-Other", c.other)
		if res.status != c.status {
			t.Errorf("%s %s %s: got %d %s, want %d", c.path, c.key, c.other, res.status, res.body, c.status)
		}
		if res.status == 429 {
			if !strings.HasPrefix(res.body, `{"code":429,"reason":"rate_limited","msg":"请求过于频繁，请稍后再试"}`) || res.header.Get("Retry-After") == "" {
				t.Errorf("%s: got %s, Retry-After %q", c.path, res.body, res.header.Get("Retry-After"))
			}
		}
	}
}

// A flood of purchases does not keep buyers from seeing their orders.
func TestPurchasesAndReadsHaveTheirOwnAllowances(t *testing.T) {
	f := newFake()
	at := run(t, f, "seckill {\n rate_limit token_bucket 2/h\n user {header.X-User}\n}")
	var got []int
	for range 3 {
		got = append(got, request(t, "POST", at+"/seckill/2/orders", "").status)
	}
	for range 3 {
		got = append(got, request(t, "GET", at+"/seckill/1", "").status)
	}
	if want := []int{409, 409, 429, 200, 200, 429}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// E79: one client is one key.
func TestE79ClientKeys(t *testing.T) {
	for ip, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "2001:db8:1:2::": "2001:db8:1:2::/64",
		"::ffff:192.0.2.1": "192.0.2.1", "fe80::1%eth0": "fe80::/64", "": "", "@": "@", "a:b": "a:b",
	} {
		if got := clientKey(ip); got != want {
			t.Errorf("%s: got %s, want %s", ip, got, want)
		}
	}
}

func TestE79ForwardedFor(t *testing.T) {
	f := newFake()
	at := run(t, f, "seckill_rate_limit token_bucket 1/h key {client_ip}", "respond shop 299")
	// Nobody is trusted, so what a client says of itself mints no buckets.
	got := []int{
		request(t, "GET", at, "", "X-Forwarded-For", "192.0.2.1").status,
		request(t, "GET", at, "", "X-Forwarded-For", "192.0.2.2").status,
	}
	if !slices.Equal(got, []int{299, 429}) {
		t.Errorf("got %v", got)
	}
}

// The placeholders are there for logs and for what comes next.
func TestPlaceholders(t *testing.T) {
	f := newFake()
	at := run(t, f,
		"header >X-Seen \"{seckill.outcome} {seckill.activity} {seckill.order_id}\"",
		"seckill {\n user {header.X-User}\n}")
	for _, c := range []struct{ path, want string }{
		{"/seckill/1/orders", "queued 1 " + anOrder},
		{"/seckill/2/orders", "sold_out 2"},
		{"/seckill/77/orders", "not_found"}, // who asks must not choose what stands in the log
	} {
		res := request(t, "POST", at+c.path, "", "X-User", "bob")
		if got := res.header.Get("X-Seen"); strings.TrimSpace(got) != strings.TrimSpace(c.want) {
			t.Errorf("%s: got %q, want %q", c.path, got, c.want)
		}
	}
}
