package caddymodule

import (
	"net/url"
	"strings"
	"testing"
)

// A path is a call of the contract in exactly one spelling.
func FuzzPath(f *testing.F) {
	for _, p := range []string{
		"/seckill/7/orders", "/seckill/7/orders/", "/seckill//orders", "/seckill/7/orders/mine", "/seckill/7/orders/a/b",
		"/seckill/7", "/seckill", "/seckillx/7/orders", "/seckill/7/ORDERS", "/seckill/%37/orders", "/seckill/7/../8/orders", "//seckill/7",
	} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, target string) {
		u, err := url.ParseRequestURI(target) // as the server does
		if err != nil {
			return
		}
		path, got := u.Path, locate(DefaultPrefix, u)
		want := map[call]string{
			view: "/" + got.activity, orders: "/" + got.activity + "/orders", mine: "/" + got.activity + "/orders/mine",
			oneOrder: "/" + got.activity + "/orders/" + got.order,
		}
		if spelled, is := want[got.call]; is && (path != DefaultPrefix+spelled || strings.Contains(got.activity+got.order, "/")) {
			t.Fatalf("%q is taken as call %d of activity %q, order %q", path, got.call, got.activity, got.order)
		}
		if _, is := want[got.call]; is && u.EscapedPath() != (&url.URL{Path: path}).EscapedPath() {
			t.Fatalf("%q is taken as call %d in a second spelling", target, got.call)
		}
		if got.call == elsewhere && strings.HasPrefix(path, DefaultPrefix+"/") {
			t.Fatalf("%q below the prefix is taken as the shop's", path)
		}
	})
}

// Whatever stands in the shortcut's block: an error that says where, or a configuration that adapts to the same JSON again.
func FuzzCaddyfile(f *testing.F) {
	for _, block := range []string{
		"user {http.auth.user.id}", "user {http.auth.user.id}\nuser_window 5s", "rate_limit token_bucket 10/s burst 3 {\nkey {client_ip}\n}",
		"authenticate {\nheader X a\n}\nuser {x}", "user {x}\nrate_limit", "user_window -1s", "rate_limit leaky_bucket 1/s queue 9 wait 1s", "}", "{",
		"user {x}\nuser {x}", "\"", "user `\n`", "# x",
	} {
		f.Add(block)
	}
	f.Fuzz(func(t *testing.T, block string) {
		if strings.Contains(block, "import") || strings.Contains(block, "{$") { // these read files and the environment
			return
		}
		site := "{\n\tseckill {\n\t\tredis 127.0.0.1:1\n\t\tkafka 127.0.0.1:1\n\t}\n}\n:80 {\n\tseckill {\n" + block + "\n\t}\n}\n"
		one, err := adapt(site)
		if err != nil {
			return
		}
		if two, err := adapt(site); err != nil || one != two {
			t.Fatalf("adapts to\n%s\nand then to\n%s, %v", one, two, err)
		}
	})
}
