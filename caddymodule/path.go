package caddymodule

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/seckillgate/seckillgate/internal/payload"
)

// call is what the path of a request asks for.
type call uint8

const (
	elsewhere call = iota // not below the prefix
	unknown               // below the prefix, but no call of the contract
	view                  // {prefix}/{activity}
	orders                // {prefix}/{activity}/orders
	oneOrder              // {prefix}/{activity}/orders/{order_id}
	mine                  // {prefix}/{activity}/orders/mine
)

// target is a parsed path. Its parts are not validated.
type target struct {
	call     call
	activity string
	order    string
}

// locate parses a path literally: no cleaning, no case folding, no percent signs where there is no need of one. What is not
// spelled exactly as the contract has it is no call at all, so no second spelling of a path can slip past what stands in
// front of the first.
func locate(prefix string, u *url.URL) target {
	rest, ok := strings.CutPrefix(u.Path, prefix)
	if !ok || rest == "" || rest[0] != '/' {
		return target{}
	}
	if u.RawPath != "" && u.EscapedPath() != (&url.URL{Path: u.Path}).EscapedPath() {
		return target{call: unknown}
	}
	activity, rest, more := strings.Cut(rest[1:], "/")
	if activity == "" {
		return target{call: unknown}
	}
	t := target{call: view, activity: activity}
	if !more {
		return t
	}
	word, order, more := strings.Cut(rest, "/")
	switch {
	case word != "orders":
		t.call = unknown
	case !more:
		t.call = orders
	case order == "mine":
		t.call = mine
	case order == "" || strings.Contains(order, "/"):
		t.call = unknown
	default:
		t.call, t.order = oneOrder, order
	}
	return t
}

// stripped is what handle_path, uri strip_prefix and the like have taken from the front of the path that the client asked for. It begins
// with one slash: Caddy takes several for one, but to a client a URL with two names another host.
func stripped(r *http.Request) string {
	asked, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
	if !ok || asked.URL == nil {
		return ""
	}
	front, ok := strings.CutSuffix(asked.URL.Path, r.URL.Path)
	if !ok || front == "" {
		return ""
	}
	return "/" + strings.TrimLeft(front, "/")
}

// isPlain says whether a path needs no escaping for sure.
func isPlain(path string) bool {
	for i := range len(path) {
		switch c := path[i]; {
		case c == '/' || c == '-' || c == '_' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z':
		default:
			return false
		}
	}
	return true
}

// allows says which methods a call takes, for the Allow header.
func (c call) allows() string {
	if c == orders {
		return "POST, OPTIONS"
	}
	return "GET, HEAD, OPTIONS"
}

func (c call) takes(method string) bool {
	if c == orders {
		return method == http.MethodPost
	}
	return isRead(method)
}

func isRead(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// isSafe says whether a method must not buy anything: browsers and crawlers send these on their own.
func isSafe(method string) bool { return isRead(method) || method == http.MethodOptions }

// parseActivity is payload.Activity; 0 stands for everything that is not an activity id.
func parseActivity(s string) int64 {
	id, err := payload.Activity(s)
	if err != nil {
		return 0
	}
	return id
}

// checkPrefix accepts an absolute path without a slash at its end.
func checkPrefix(prefix string) error {
	if len(prefix) < 2 || prefix[0] != '/' || strings.HasSuffix(prefix, "/") || strings.Contains(prefix, "//") ||
		strings.ContainsAny(prefix, "*?#{} ") {
		return fmt.Errorf("prefix %q is not a path such as %s: it begins with a slash, does not end with one, and has no wildcard",
			prefix, DefaultPrefix)
	}
	return nil
}

// prefixOf is the prefix that the global option gives, or the default.
func prefixOf(h httpcaddyfile.Helper) string {
	if app, ok := h.Option("seckill").(httpcaddyfile.App); ok {
		if p := prefixInJSON(app.Value); p != "" {
			return p
		}
	}
	return DefaultPrefix
}
