package caddymodule

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/order"
)

const shortcutLines = "seckill {\n user {header.X-User}\n user_window 5s\n}\nrespond \"the shop\" 299"

// Every answer of the contract, as a client sees it.
func TestContract(t *testing.T) {
	f := newFake()
	f.outcome = func(r edge.Request) edge.Outcome {
		switch r.User {
		case "again":
			return edge.Outcome{HTTP: 409, Reason: edge.AlreadyOrdered, OrderID: anOrder}
		case "hasty":
			return edge.Outcome{HTTP: 429, Reason: edge.TooFrequent, RetryAfter: 4200 * time.Millisecond}
		case "late":
			return edge.Outcome{HTTP: 409, Reason: edge.SoldOut}
		case "unknown":
			return edge.Outcome{HTTP: 202, OrderID: anOrder, Status: order.Processing}
		case "failed":
			return edge.Outcome{HTTP: 202, OrderID: anOrder, Status: order.Failed, StatusReason: "sold_out"}
		case "greedy":
			return edge.Outcome{HTTP: 400, Reason: edge.BadRequest, Detail: "the quantity is 9, but one order of this sale may have 1 to 3"}
		}
		return edge.Outcome{HTTP: 202, OrderID: anOrder, Status: order.Queued}
	}
	at := run(t, f, shortcutLines)
	url := "/seckill/1/orders/" + anOrder

	type want struct {
		status int
		body   string
		header string // Name: value
	}
	for name, c := range map[string]struct {
		method, path, body string
		headers            []string
		want               want
	}{
		"accepted":             {"POST", "/seckill/1/orders", "", []string{"X-User", "bob"}, want{202, `{"code":202,"order_id":"` + anOrder + `","status":"queued","status_url":"` + url + `"}`, "Cache-Control: no-store"}},
		"processing":           {"POST", "/seckill/1/orders", "{}", []string{"X-User", "unknown"}, want{202, `{"code":202,"order_id":"` + anOrder + `","status":"processing","status_url":"` + url + `"}`, "Content-Type: application/json"}},
		"a repeat, failed":     {"POST", "/seckill/1/orders", "", []string{"X-User", "failed"}, want{202, `{"code":202,"order_id":"` + anOrder + `","status":"failed","reason":"sold_out","status_url":"` + url + `"}`, ""}},
		"already ordered":      {"POST", "/seckill/1/orders", "", []string{"X-User", "again"}, want{409, `{"code":409,"reason":"already_ordered","msg":"您已参与本次活动","order_id":"` + anOrder + `","status_url":"` + url + `"}`, ""}},
		"too frequent":         {"POST", "/seckill/1/orders", "", []string{"X-User", "hasty"}, want{429, `{"code":429,"reason":"too_frequent","msg":"请勿重复提交"}`, "Retry-After: 5"}},
		"sold out in script":   {"POST", "/seckill/1/orders", "", []string{"X-User", "late"}, want{409, `{"code":409,"reason":"sold_out","msg":"已售罄"}`, "Retry-After: "}},
		"too many":             {"POST", "/seckill/1/orders", `{"quantity":9}`, []string{"X-User", "greedy"}, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"the quantity is 9, but one order of this sale may have 1 to 3"}`, ""}},
		"nobody":               {"POST", "/seckill/1/orders", "", nil, want{401, `{"code":401,"reason":"no_user","msg":"请先登录"}`, "Cache-Control: no-store"}},
		"sold out":             {"POST", "/seckill/2/orders", "", nil, want{409, `{"code":409,"reason":"sold_out","msg":"已售罄"}`, "Content-Type: application/json"}},
		"sold out, English":    {"POST", "/seckill/2/orders", "", []string{"Accept-Language", "en-US,en;q=0.9,zh;q=0.1"}, want{409, `{"code":409,"reason":"sold_out","msg":"Sold out"}`, ""}},
		"not started":          {"POST", "/seckill/3/orders", "", nil, want{403, `{"code":403,"reason":"not_started","msg":"活动尚未开始","starts_at":1234567890123}`, ""}},
		"ended":                {"POST", "/seckill/4/orders", "", nil, want{410, `{"code":410,"reason":"ended","msg":"活动已结束"}`, ""}},
		"paused":               {"POST", "/seckill/5/orders", "", nil, want{503, `{"code":503,"reason":"unavailable","msg":"系统繁忙，请稍后再试"}`, "Retry-After: 2 3 4"}}, // a crowd is spread
		"no such activity":     {"POST", "/seckill/6/orders", "", nil, want{404, `{"code":404,"reason":"not_found","msg":"活动不存在"}`, ""}},
		"activity 0":           {"POST", "/seckill/0/orders", "", nil, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"the activity id is not a positive decimal integer"}`, ""}},
		"activity abc":         {"POST", "/seckill/abc/orders", "", nil, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"the activity id is not a positive decimal integer"}`, ""}},
		"activity too large":   {"POST", "/seckill/9999999999999999999999/orders", "", nil, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"the activity id is not a positive decimal integer"}`, ""}},
		"user with a blank":    {"POST", "/seckill/1/orders", "", []string{"X-User", "b\tb"}, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"the user id is not 1 to 128 bytes of UTF-8 without control characters and without blanks at either end"}`, ""}},
		"user too long":        {"POST", "/seckill/1/orders", "", []string{"X-User", strings.Repeat("u", 129)}, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"the user id is not 1 to 128 bytes of UTF-8 without control characters and without blanks at either end"}`, ""}},
		"key too long":         {"POST", "/seckill/1/orders", "", []string{"X-User", "bob", "Idempotency-Key", strings.Repeat("k", 65)}, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"the Idempotency-Key is not at most 64 printable characters"}`, ""}},
		"key not printable":    {"POST", "/seckill/1/orders", "", []string{"X-User", "bob", "Idempotency-Key", "schlüssel"}, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"the Idempotency-Key is not at most 64 printable characters"}`, ""}},
		"quantity 0":           {"POST", "/seckill/1/orders", `{"quantity":0}`, []string{"X-User", "bob"}, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"the quantity is not an integer from 1 to 1000000"}`, ""}},
		"named twice":          {"POST", "/seckill/1/orders", `{"quantity":1,"quantity":2}`, []string{"X-User", "bob"}, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"a field stands twice in the body"}`, ""}},
		"coded body":           {"POST", "/seckill/1/orders", "{}", []string{"X-User", "bob", "Content-Encoding", "gzip"}, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"the body has a Content-Encoding: send it without"}`, ""}},
		"activity 01":          {"POST", "/seckill/01/orders", "", []string{"X-User", "bob"}, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"the activity id is not a positive decimal integer"}`, ""}},
		"activity +1":          {"POST", "/seckill/+1/orders", "", []string{"X-User", "bob"}, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"the activity id is not a positive decimal integer"}`, ""}},
		"activity with a NUL":  {"POST", "/seckill/1%00/orders", "", []string{"X-User", "bob"}, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"the activity id is not a positive decimal integer"}`, ""}},
		"two slashes":          {"POST", "/seckill//1/orders", "", []string{"X-User", "bob"}, want{404, `{"code":404,"reason":"not_found","msg":"活动不存在"}`, ""}},
		"two more slashes":     {"POST", "/seckill/1//orders", "", []string{"X-User", "bob"}, want{404, `{"code":404,"reason":"not_found","msg":"活动不存在"}`, ""}},
		"broken JSON":          {"POST", "/seckill/1/orders", `{"quantity":`, []string{"X-User", "bob"}, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"the body is not JSON: unexpected end of JSON input"}`, ""}},
		"body too large":       {"POST", "/seckill/1/orders", strings.Repeat(" ", 4097), []string{"X-User", "bob"}, want{413, `{"code":413,"reason":"too_large","msg":"请求体过大"}`, ""}},
		"status":               {"GET", url, "", []string{"X-User", "bob"}, want{200, `{"order_id":"` + anOrder + `","activity_id":1,"item_id":11,"quantity":2,"status":"queued","reason":"","position":7}`, "Cache-Control: no-store"}},
		"status, head":         {"HEAD", url, "", []string{"X-User", "bob"}, want{200, "", "Content-Type: application/json"}},
		"status of another":    {"GET", url, "", []string{"X-User", "eve"}, want{404, `{"code":404,"reason":"not_found","msg":"活动不存在"}`, ""}},
		"status of nobody":     {"GET", url, "", nil, want{401, `{"code":401,"reason":"no_user","msg":"请先登录"}`, ""}},
		"status of no id":      {"GET", "/seckill/1/orders/1", "", []string{"X-User", "bob"}, want{404, `{"code":404,"reason":"not_found","msg":"活动不存在"}`, ""}},
		"status, bad wait":     {"GET", url + "?wait=long", "", []string{"X-User", "bob"}, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"wait is not a duration such as 20s, or a number of seconds"}`, ""}},
		"status, neg. wait":    {"GET", url + "?wait=-1s", "", []string{"X-User", "bob"}, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"wait is not a duration such as 20s, or a number of seconds"}`, ""}},
		"mine":                 {"GET", "/seckill/1/orders/mine", "", []string{"X-User", "bob"}, want{200, `{"order_id":"` + anOrder + `","activity_id":1,"item_id":11,"quantity":2,"status":"queued","reason":"","position":7}`, ""}},
		"mine, none":           {"GET", "/seckill/1/orders/mine", "", []string{"X-User", "eve"}, want{404, `{"code":404,"reason":"not_found","msg":"活动不存在"}`, ""}},
		"mine, bad wait":       {"GET", "/seckill/1/orders/mine?wait=abc", "", []string{"X-User", "bob"}, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"wait is not a duration such as 20s, or a number of seconds"}`, ""}},
		"mine of nobody":       {"GET", "/seckill/1/orders/mine", "", nil, want{401, `{"code":401,"reason":"no_user","msg":"请先登录"}`, ""}},
		"view":                 {"GET", "/seckill/1", "", nil, want{200, `{"activity_id":1,"item_id":11,"state":"open","starts_at":1000,"ends_at":2000,"server_time":1500,"sold_out":true}`, "Cache-Control: no-store"}},
		"view of none":         {"GET", "/seckill/6", "", nil, want{404, `{"code":404,"reason":"not_found","msg":"活动不存在"}`, ""}},
		"view of abc":          {"GET", "/seckill/abc", "", nil, want{400, `{"code":400,"reason":"bad_request","msg":"请求参数错误","detail":"the activity id is not a positive decimal integer"}`, ""}},
		"orders cannot be GET": {"GET", "/seckill/1/orders", "", nil, want{405, `{"code":405,"reason":"method_not_allowed","msg":"不支持该请求方法"}`, "Allow: POST, OPTIONS"}},
		"status is read only":  {"DELETE", url, "", []string{"Accept-Language", "en"}, want{405, `{"code":405,"reason":"method_not_allowed","msg":"Method not allowed"}`, "Allow: GET, HEAD, OPTIONS"}},
		"no such call":         {"GET", "/seckill/1/stock", "", nil, want{404, `{"code":404,"reason":"not_found","msg":"活动不存在"}`, ""}},
		"too deep":             {"GET", url + "/x", "", nil, want{404, `{"code":404,"reason":"not_found","msg":"活动不存在"}`, ""}},
		"percent, a slash":     {"POST", "/seckill/1%2Forders", "", []string{"X-User", "bob"}, want{404, `{"code":404,"reason":"not_found","msg":"活动不存在"}`, ""}},
		"percent, a letter":    {"POST", "/%73eckill/1/orders", "", []string{"X-User", "bob"}, want{404, `{"code":404,"reason":"not_found","msg":"活动不存在"}`, ""}},
		"percent, mine":        {"GET", "/seckill/1/orders%2Fmine", "", []string{"X-User", "bob"}, want{404, `{"code":404,"reason":"not_found","msg":"活动不存在"}`, ""}},
		"slash at the end":     {"POST", "/seckill/1/orders/", "", nil, want{404, `{"code":404,"reason":"not_found","msg":"活动不存在"}`, ""}},
		"preflight":            {"OPTIONS", "/seckill/1/orders", "", nil, want{299, "the shop", ""}},
		"the shop":             {"POST", "/seckills/1/orders", "", nil, want{299, "the shop", ""}},
		"the prefix alone":     {"GET", "/seckill", "", nil, want{299, "the shop", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			got := request(t, c.method, at+c.path, c.body, c.headers...)
			if got.status != c.want.status || strings.TrimSuffix(got.body, "\n") != c.want.body {
				t.Errorf("got  %d %s\nwant %d %s", got.status, got.body, c.want.status, c.want.body)
			}
			if key, value, ok := strings.Cut(c.want.header, ": "); ok && !oneOf(got.header.Get(key), value) {
				t.Errorf("header %s is %q, want %q", key, got.header.Get(key), value)
			}
			orders, _ := f.calls()
			if reachedEdge := len(orders) > 0; reachedEdge && got.status >= 400 && c.headers == nil {
				t.Errorf("a refused request reached the edge: %+v", orders)
			}
		})
	}
}

// oneOf says whether a header is as wanted. Where a crowd is spread, several seconds are.
func oneOf(got, want string) bool {
	return got == want || (got != "" && strings.Trim(want, "0123456789 ") == "" && slices.Contains(strings.Fields(want), got))
}

// What the edge is asked for is what the request said.
func TestReserveReadsTheRequest(t *testing.T) {
	f := newFake()
	at := run(t, f, shortcutLines)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	res := request(t, "POST", at+"/seckill/1/orders", `{"quantity":3,"extra":{"address": 7},"other":1}`,
		"X-User", "bob", "Idempotency-Key", "key 1", "Traceparent", trace)
	orders, _ := f.calls()
	if res.status != 202 || len(orders) != 1 {
		t.Fatalf("got %d %s, %d calls", res.status, res.body, len(orders))
	}
	r := orders[0]
	if r.Activity != 1 || r.User != "bob" || r.Quantity != 3 || string(r.Extra) != `{"address":7}` || r.IdempotencyKey != "key 1" ||
		r.Window != 5*time.Second || r.Headers["traceparent"] != trace {
		t.Errorf("got %+v", r)
	}
}

// E77: nobody never becomes somebody: 401, and nothing is asked of Redis.
func TestE77UnsetUserReachesNothing(t *testing.T) {
	f := newFake()
	at := run(t, f,
		"seckill_user_limit /window 5s {\n scope x\n user {http.auth.user.id}\n}",
		"seckill_user_limit /header 5s {\n scope x\n user {header.X-User}\n}",
		"seckill_user_limit /half 5s {\n scope x\n user shop-{header.X-User}\n}",
		"seckill_user_limit /field 5s {\n scope x\n user field user\n}",
		"seckill_reserve /buy {\n activity 1\n user {http.auth.user.id}\n}",
		"seckill_reserve /cookie {\n activity 1\n user {cookie.uid}\n}",
		"seckill {\n user {http.auth.user.id}\n}",
		"respond shop")
	for _, path := range []string{"/window", "/header", "/half", "/field", "/buy", "/cookie", "/seckill/1/orders"} {
		for _, headers := range [][]string{nil, {"X-User", ""}, {"Cookie", "uid="}} {
			got := request(t, "POST", at+path, "{}", headers...)
			if got.status != 401 || !strings.Contains(got.body, `"no_user"`) {
				t.Errorf("%s with %q: got %d %s", path, headers, got.status, got.body)
			}
		}
	}
	if orders, windows := f.calls(); len(orders) > 0 || len(windows) > 0 {
		t.Errorf("the edge was asked for %+v, Redis for %q", orders, windows)
	}
}

// The gate stands before authentication: a flood on what is sold out costs no call to the shop.
func TestGateStandsBeforeAuthentication(t *testing.T) {
	var asked atomic.Int64
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Header.Get("Cookie") != "session=1" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("X-User", "bob")
	}))
	defer shop.Close()
	f := newFake()
	at := run(t, f, "seckill {\n authenticate {\n forward_auth "+shop.Listener.Addr().String()+
		" {\n uri /whoami\n copy_headers X-User\n}\n}\n user {header.X-User}\n}")

	for range 50 {
		for activity, want := range map[int]int{2: 409, 3: 403, 4: 410, 5: 503, 6: 404} { // the shop's session is no help either
			if got := request(t, "POST", fmt.Sprintf("%s/seckill/%d/orders", at, activity), "", "Cookie", "session=1"); got.status != want {
				t.Fatalf("activity %d: got %d %s", activity, got.status, got.body)
			}
		}
		if got := request(t, "GET", at+"/seckill/1", ""); got.status != 200 {
			t.Fatalf("view: got %d %s", got.status, got.body)
		}
		if got := request(t, "GET", at+"/seckill/1/nothing", ""); got.status != 404 {
			t.Fatalf("nothing: got %d %s", got.status, got.body)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Fatalf("the shop was asked %d times", n)
	}
	// Every spelling of a path that an order could be had by is authenticated.
	for _, path := range []string{"/seckill/1/orders", "/seckill/1/orders/" + anOrder, "/seckill/1/orders/mine"} {
		method := "GET"
		if path == "/seckill/1/orders" {
			method = "POST"
		}
		before := asked.Load()
		if got := request(t, method, at+path, "", "X-User", "bob"); got.status != 401 {
			t.Errorf("%s without a session but with a forged header: got %d %s", path, got.status, got.body)
		}
		if asked.Load() != before+1 {
			t.Errorf("%s was not authenticated", path)
		}
	}
	for _, path := range []string{"/seckill/1/Orders", "/SECKILL/1/orders", "//seckill/1/orders", "/x/../seckill/1/orders", "/seckill/1/orders/x/../mine"} {
		if got := request(t, "POST", at+path, "", "X-User", "bob"); got.status == 202 {
			t.Errorf("%s: got %d %s", path, got.status, got.body)
		}
	}
	if orders, _ := f.calls(); len(orders) > 0 {
		t.Errorf("orders without authentication: %+v", orders)
	}
	if got := request(t, "POST", at+"/seckill/1/orders", "", "Cookie", "session=1", "X-User", "eve"); got.status != 202 {
		t.Errorf("with a session: got %d %s", got.status, got.body)
	}
	if orders, _ := f.calls(); len(orders) != 1 || orders[0].User != "bob" {
		t.Errorf("with a session: got %+v", orders)
	}
}

// E82: the body is read in full before anything is asked of the edge, and bounded.
func TestE82Bodies(t *testing.T) {
	f := newFake()
	at := run(t, f, shortcutLines)
	addr := strings.TrimPrefix(at, "http://")

	raw := func(request string) string {
		t.Helper()
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
		line, _ := bufio.NewReader(c).ReadString('\n')
		return line
	}
	head := "POST /seckill/1/orders HTTP/1.1\r\nHost: " + addr + "\r\nX-User: bob\r\n"
	for name, c := range map[string]struct{ request, want string }{
		"cut off":       {head + "Content-Length: 100\r\n\r\n{\"quantity\":1}", "400"},
		"chunked":       {head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"qua\r\n9\r\nntity\":1}\r\n0\r\n\r\n", "202"},
		"chunked, long": {head + "Transfer-Encoding: chunked\r\n\r\n1001\r\n" + strings.Repeat(" ", 0x1001) + "\r\n0\r\n\r\n", "413"},
		"chunked, bad":  {head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "400"},
		"length of GiB": {head + "Content-Length: 1073741824\r\n\r\n", "413"},
		"waits, long":   {head + "Content-Length: 4097\r\nExpect: 100-continue\r\n\r\n", "413"}, // and is told before it sends any
		"expects more":  {head + "Content-Length: 2\r\nExpect: 200-maybe\r\n\r\n{}", "417"},
		"packed twice":  {head + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "501"},
		"no host":       {"POST /seckill/1/orders HTTP/1.1\r\nX-User: bob\r\nContent-Length: 0\r\n\r\n", "400"},
		"NUL in user":   {"POST /seckill/1/orders HTTP/1.1\r\nHost: " + addr + "\r\nX-User: b\x00b\r\nContent-Length: 0\r\n\r\n", "400"},
		"long path":     {"POST /seckill/" + strings.Repeat("1", 8000) + "/orders HTTP/1.1\r\nHost: " + addr + "\r\nX-User: bob\r\nContent-Length: 0\r\n\r\n", "400"},
		"HTTP/1.0":      {"POST /seckill/2/orders HTTP/1.0\r\nHost: " + addr + "\r\nX-User: bob\r\nContent-Length: 2\r\n\r\n{}", "409"},
	} {
		if line := raw(c.request); !strings.Contains(line, " "+c.want+" ") {
			t.Errorf("%s: got %q, want %s", name, line, c.want)
		}
	}
	orders, _ := f.calls()
	if len(orders) != 1 {
		t.Errorf("%d orders, want the one complete request's", len(orders))
	}
}

// boundBodies sets how long a body may take. Call it before Caddy runs, so that it is undone once Caddy has stopped.
func boundBodies(t *testing.T, d time.Duration) {
	t.Helper()
	was := bodyTime
	bodyTime = d
	t.Cleanup(func() { bodyTime = was })
}

// E82: a body that trickles in is given up, whatever its length says.
func TestE82SlowBody(t *testing.T) {
	f := newFake()
	boundBodies(t, 300*time.Millisecond)
	at := run(t, f, shortcutLines)
	body, feed := io.Pipe()
	go func() {
		for { // a byte every 50 ms would take minutes
			if _, err := feed.Write([]byte(" ")); err != nil {
				return
			}
			<-time.After(50 * time.Millisecond)
		}
	}()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at+"/seckill/1/orders", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-User", "bob")
	res := do(t, r)
	body.Close()
	if res.status != http.StatusRequestTimeout || res.body != `{"code":408,"reason":"timeout","msg":"请求超时"}`+"\n" {
		t.Errorf("got %d %s", res.status, res.body)
	}
	if orders, _ := f.calls(); len(orders) > 0 {
		t.Errorf("the edge was asked for %+v", orders)
	}
}

// serve hands a request to the running server without a connection.
func serve(t *testing.T, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	app, err := caddy.ActiveContext().App("http")
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	for _, srv := range app.(*caddyhttp.App).Servers {
		srv.ServeHTTP(w, r)
	}
	return w
}

// E81: a replayed flight of early data must not buy, nor use up anything of the buyer's.
func TestE81EarlyData(t *testing.T) {
	f := newFake()
	run(t, f,
		"seckill_rate_limit /seckill/* token_bucket 5/s key {remote_host}",
		"seckill_user_limit /window 5s {\n scope x\n user {header.X-User}\n}",
		"seckill_reserve /buy {\n activity 1\n user {header.X-User}\n}",
		"seckill {\n user {header.X-User}\n}")
	for _, path := range []string{"/seckill/1/orders", "/window", "/buy"} {
		for _, complete := range []bool{false, true} {
			r := httptest.NewRequest(http.MethodPost, "https://127.0.0.1"+path, strings.NewReader("{}"))
			r.Header.Set("X-User", "bob")
			r.TLS = &tls.ConnectionState{HandshakeComplete: complete}
			w := serve(t, r)
			if early := w.Code == http.StatusTooEarly; early == complete {
				t.Errorf("%s with a handshake that is complete: %v: got %d %s", path, complete, w.Code, w.Body)
			}
			orders, windows := f.calls()
			if !complete && len(orders)+len(windows) > 0 {
				t.Errorf("%s: early data had effects: %+v %q", path, orders, windows)
			}
		}
		for _, told := range []string{"1", "0", ""} { // by a proxy in front; the header has no value but yes
			r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1"+path, strings.NewReader("{}"))
			r.Header.Set("X-User", "bob")
			r.Header.Set("Early-Data", told)
			if w := serve(t, r); w.Code != http.StatusTooEarly {
				t.Errorf("%s with Early-Data %q: got %d %s", path, told, w.Code, w.Body)
			}
			if orders, windows := f.calls(); len(orders)+len(windows) > 0 {
				t.Errorf("%s: early data that a proxy passed on had effects: %+v %q", path, orders, windows)
			}
		}
	}
	if body := serve(t, func() *http.Request {
		r := httptest.NewRequest(http.MethodPost, "https://127.0.0.1/buy", nil)
		r.TLS = &tls.ConnectionState{}
		return r
	}()).Body.String(); body != `{"code":425,"reason":"too_early","msg":"请重试"}`+"\n" {
		t.Errorf("got %s", body)
	}
}

// A refusal from memory is written directly and costs next to nothing.
func TestRefusalAllocates(t *testing.T) {
	f := newFake()
	run(t, f, "handle /bare {\n respond x 409\n}", "seckill_rate_limit /limited sliding_window 1/h", "seckill {\n user {header.X-User}\n}")
	app, err := caddy.ActiveContext().App("http")
	if err != nil {
		t.Fatal(err)
	}
	var srv *caddyhttp.Server
	for _, s := range app.(*caddyhttp.App).Servers {
		srv = s
	}
	measure := func(method, path string) float64 {
		r := httptest.NewRequest(method, "http://127.0.0.1"+path, nil)
		return testing.AllocsPerRun(500, func() {
			srv.ServeHTTP(&discard{header: make(http.Header)}, r)
		})
	}
	bare := measure("POST", "/bare")
	for name, c := range map[string]struct{ method, path string }{
		"sold out":     {"POST", "/seckill/2/orders"},
		"not started":  {"POST", "/seckill/3/orders"},
		"ended":        {"POST", "/seckill/4/orders"},
		"paused":       {"POST", "/seckill/5/orders"},
		"no such sale": {"POST", "/seckill/9/orders"},
		"rate limit":   {"GET", "/limited"},
	} {
		refused := measure(c.method, c.path)
		t.Logf("allocations: %v for a bare respond, %v for %s", bare, refused, name)
		if refused > bare+2 {
			t.Errorf("%s: a refusal allocates %v times, a bare respond %v", name, refused, bare)
		}
	}
}

type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}
