package caddymodule

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// Refusals of every handler go to handle_errors where that is asked for, with everything that the JSON would say.
func TestHandleErrors(t *testing.T) {
	f := newFake()
	f.outcome = func(r edge.Request) edge.Outcome {
		switch r.User {
		case "again":
			return edge.Outcome{HTTP: 409, Reason: edge.AlreadyOrdered, OrderID: anOrder}
		case "greedy":
			return edge.Outcome{HTTP: 400, Reason: edge.BadRequest, Detail: "too many"}
		}
		return edge.Outcome{HTTP: 202, OrderID: anOrder, Status: "queued"}
	}
	f.window["seckill:user_freq:{scope:x}:bob"] = true
	at := run(t, f,
		"seckill_rate_limit /limited sliding_window 1/h key {header.X-User} handle_errors",
		"seckill_user_limit /window 5s {\n scope x\n user {header.X-User}\n handle_errors\n}",
		"seckill_gate /gate {\n activity 4\n handle_errors\n}",
		"seckill_reserve /buy {\n activity 1\n user {header.X-User}\n handle_errors\n}",
		"seckill_gate /plain {\n activity 4\n}",
		"seckill {\n user {header.X-User}\n handle_errors\n}",
		"respond shop 299",
		`handle_errors {
			header X-From-Errors yes
			respond "{err.status_code} {err.message} {seckill.outcome} a={seckill.activity} o={seckill.order_id} u={seckill.status_url} s={seckill.starts_at} d={seckill.detail} {seckill.message}"
		}`)
	url := "/seckill/1/orders/" + anOrder
	request(t, "GET", at+"/limited", "", "X-User", "bob")
	for name, c := range map[string]struct {
		method, path, user, lang string
		status                   int
		want, header             string
	}{
		"rate limit":      {"GET", "/limited", "bob", "en", 429, "429 rate_limited rate_limited a= o= u= s= d= Too many requests, please try again later", "Retry-After"},
		"rate limit, key": {"GET", "/limited", "", "", 400, "400 bad_request bad_request a= o= u= s= d=the request lacks what its rate limit goes by 请求参数错误", ""},
		"user limit":      {"GET", "/window", "bob", "", 429, "429 too_frequent too_frequent a= o= u= s= d= 请勿重复提交", "Retry-After"},
		"user limit, 401": {"GET", "/window", "", "", 401, "401 no_user no_user a= o= u= s= d= 请先登录", ""},
		"gate":            {"POST", "/gate", "", "", 410, "410 ended ended a=4 o= u= s= d= 活动已结束", ""},
		"reserve":         {"POST", "/buy", "again", "", 409, "409 already_ordered already_ordered a=1 o=" + anOrder + " u=" + url + " s= d= 您已参与本次活动", ""},
		"reserve, 400":    {"POST", "/buy", "greedy", "", 400, "400 bad_request bad_request a=1 o= u= s= d=too many 请求参数错误", ""},

		"shortcut, not started": {"POST", "/seckill/3/orders", "", "", 403, "403 not_started not_started a=3 o= u= s=1234567890123 d= 活动尚未开始", ""},
		"shortcut, paused":      {"POST", "/seckill/5/orders", "", "", 503, "503 unavailable unavailable a=5 o= u= s= d= 系统繁忙，请稍后再试", "Retry-After"},
		"shortcut, reserve":     {"POST", "/seckill/1/orders", "again", "", 409, "409 already_ordered already_ordered a=1 o=" + anOrder + " u=" + url + " s= d= 您已参与本次活动", ""},
		"shortcut, no call":     {"GET", "/seckill/1/stock", "", "", 404, "404 not_found not_found a= o= u= s= d= 活动不存在", ""},
		"shortcut, method":      {"DELETE", url, "bob", "", 405, "405 method_not_allowed method_not_allowed a= o= u= s= d= 不支持该请求方法", "Allow"},
		"shortcut, status":      {"GET", url, "eve", "", 404, "404 not_found not_found a= o= u= s= d= 活动不存在", ""},
	} {
		t.Run(name, func(t *testing.T) {
			res := request(t, c.method, at+c.path, "", "X-User", c.user, "Accept-Language", c.lang)
			if res.status != c.status || res.body != c.want || res.header.Get("X-From-Errors") != "yes" {
				t.Errorf("got  %d %s %v\nwant %d %s", res.status, res.body, res.header, c.status, c.want)
			}
			if c.header != "" && res.header.Get(c.header) == "" {
				t.Errorf("%s is not set", c.header)
			}
			if ct := res.header.Get("Content-Type"); strings.Contains(ct, "json") || res.header.Get("Cache-Control") != "no-store" {
				t.Errorf("got Content-Type %q, Cache-Control %q", ct, res.header.Get("Cache-Control"))
			}
		})
	}
	if res := request(t, "POST", at+"/plain", ""); res.status != 410 || !strings.HasPrefix(res.body, `{"code":410`) {
		t.Errorf("where it is not asked for: got %d %s", res.status, res.body)
	}
	if res := request(t, "POST", at+"/seckill/1/orders", "", "X-User", "bob"); res.status != 202 || res.header.Get("X-From-Errors") != "" {
		t.Errorf("an accepted order: got %d %s", res.status, res.body)
	}
}

// The access log tells what became of each request, for refusals that are written directly and for those that go to
// handle_errors. Refusals write no lines of their own, and no log has the buyer's id.
func TestAccessLog(t *testing.T) {
	for name, handle := range map[string]string{"json": "", "errors": "handle_errors\n"} {
		t.Run(name, func(t *testing.T) {
			fakes(t)
			c := newConfigs(t)
			file := filepath.Join(t.TempDir(), "all.log")
			config := c.with("", "log {\noutput file "+file+" {\nroll_disabled\n}\n}", "seckill {\nuser {header.X-User}\n"+handle+"}",
				"log_append outcome {seckill.outcome}", "log_append activity {seckill.activity}", "log_append order {seckill.order_id}",
				"handle_errors {\nrespond sorry\n}")
			config = strings.Replace(config, "{\n", "{\nlog {\noutput file "+file+" {\nroll_disabled\n}\n}\n", 1)
			loadLogging(t, config)
			for _, activity := range []string{"1", "2", "5", "77"} {
				request(t, "POST", "http://"+c.addr+"/seckill/"+activity+"/orders", "", "X-Other", "", "X-User", "buyer-0815")
			}
			want := []string{"queued 1 " + anOrder, "sold_out 2 ", "unavailable 5 ", "not_found  "}
			var got []string
			testenv.Eventually(t, 10*time.Second, "four lines of access log", func() bool {
				raw, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				got = nil
				for line := range strings.Lines(string(raw)) {
					var l struct{ Logger, Level, Msg, Outcome, Activity, Order string }
					if err := json.Unmarshal([]byte(line), &l); err != nil {
						return false // half written
					}
					if strings.HasPrefix(l.Logger, "http.log.access") {
						got = append(got, l.Outcome+" "+l.Activity+" "+l.Order)
					} else if strings.Contains(line, "seckill") && l.Level != "debug" || strings.Contains(line, "buyer-0815") {
						t.Errorf("a request was logged: %s", line)
					}
				}
				return len(got) == len(want)
			})
			if !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// Behind handle_path the client has to ask with the whole path again.
func TestStatusURLBehindStrippedPaths(t *testing.T) {
	f := newFake()
	shop := "seckill_reserve /buy {\n activity 1\n user {header.X-User}\n}"
	at := run(t, f,
		"handle_path /shop/* {\n seckill {\n user {header.X-User}\n}\n"+shop+"\n}",
		"handle_path \"/a b/*\" {\n seckill {\n user {header.X-User}\n}\n}",
		"handle /plain {\n rewrite /seckill/1/orders\n seckill {\n user {header.X-User}\n}\n}",
		"handle {\n uri strip_prefix /api\n seckill {\n prefix /秒杀\n user {header.X-User}\n}\n}")
	for path, front := range map[string]string{
		"/shop/seckill/1/orders":                     "/shop/seckill",
		"/shop/buy":                                  "/seckill", // the shop's own URL says nothing of where the contract's are
		"/a%20b/seckill/1/orders":                    "/a%20b/seckill",
		"/plain":                                     "/seckill",
		"/api/%E7%A7%92%E6%9D%80/1/orders":           "/api/%E7%A7%92%E6%9D%80",
		"/%E7%A7%92%E6%9D%80/1/orders":               "/%E7%A7%92%E6%9D%80",
		"/s%68op/seckill/1/orders":                   "/shop/seckill",
		"//shop/seckill/1/orders":                    "/shop/seckill", // and no host by the name of shop
		"///shop/seckill/1/orders":                   "/shop/seckill",
		"/shop/seckill/1/orders?x=/seckill/2/orders": "/shop/seckill",
	} {
		res := request(t, "POST", at+path, "", "X-User", "bob")
		want := `"status_url":"` + front + "/1/orders/" + anOrder + `"`
		if res.status != 202 || !strings.Contains(res.body, want) {
			t.Errorf("%s: got %d %s, want %s", path, res.status, res.body, want)
			continue
		}
		if path == "/shop/buy" || path == "/plain" {
			continue
		}
		if res := request(t, "GET", at+front+"/1/orders/"+anOrder, "", "X-User", "bob"); res.status != 200 {
			t.Errorf("%s: the status at its own status_url: got %d %s", path, res.status, res.body)
		}
	}
	// No escape makes a second spelling of what stands behind the stripped part.
	for _, path := range []string{"/shop/seckill/1%2Forders", "/shop/%73eckill/1/orders", "/shop/seckill%2F1/orders"} {
		if res := request(t, "POST", at+path, "", "X-User", "bob"); res.status != 404 {
			t.Errorf("%s: got %d %s", path, res.status, res.body)
		}
	}
}
