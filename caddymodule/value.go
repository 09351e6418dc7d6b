package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

// Value says where a handler takes something from: text with placeholders, or a field of the request's JSON or form body.
// One of the two is set.
type Value struct {
	// Text with placeholders, such as `{http.auth.user.id}`, or a constant.
	Value string `json:"value,omitempty"`

	// The path of a field in the request's JSON or form body: object keys and array indexes joined by dots, such as
	// `skuId` or `order.items.0.sku`.
	Field string `json:"field,omitempty"`

	text template
}

func (v *Value) provision(what string, log *zap.Logger) error {
	switch {
	case v.Value != "" && v.Field != "":
		return fmt.Errorf("%s: has both a value and a field: give one", what)
	case v.Value == "" && v.Field == "":
		return fmt.Errorf("%s: has neither a value nor a field: give one", what)
	case v.Field != "":
		return nil
	}
	var err error
	if v.text, err = compile(v.Value, log); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// provisionNumber is provision for what has to be a number in the end: a constant is looked at now.
func (v *Value) provisionNumber(what string, read func(string) (int64, error), log *zap.Logger) error {
	if err := v.provision(what, log); err != nil {
		return err
	}
	if v.Field != "" || !v.text.constant() {
		return nil
	}
	if _, err := read(v.Value); err != nil {
		return fmt.Errorf("%s %q: %s: give one, or a placeholder, or `field <path>`", what, v.Value, detail(err))
	}
	return nil
}

// equal says whether two values always give the same text.
func (v *Value) equal(w *Value) bool {
	if v == nil || w == nil {
		return v == w
	}
	return v.Value == w.Value && v.Field == w.Field
}

// fromBody says whether the body has to be read for it.
func (v *Value) fromBody() bool { return v != nil && v.Field != "" }

// get resolves the value. It is empty when any part of it is unset: a half-set key would be shared by strangers.
func (v *Value) get(r *http.Request, b *body) (string, error) {
	if v.Field != "" {
		return b.text(v.Field)
	}
	return v.text.expand(replacer(r)), nil
}

// template is text with placeholders, taken apart once.
type template []part

type part struct {
	text        string // literal, or the name of a placeholder
	placeholder bool
	client      bool // the placeholder is the client's address
}

// compile takes text apart and refuses placeholders that can never be set.
func compile(text string, log *zap.Logger) (template, error) {
	var t template
	for rest := text; rest != ""; {
		before, after, found := strings.Cut(rest, "{")
		if !found {
			t = append(t, part{text: rest})
			break
		}
		name, tail, closed := strings.Cut(after, "}")
		if !closed {
			return nil, fmt.Errorf("%q has a brace that is not closed: write {%s}", text, name)
		}
		if before != "" {
			t = append(t, part{text: before})
		}
		if err := checkPlaceholder(name, log); err != nil {
			return nil, err
		}
		t = append(t, part{text: name, placeholder: true, client: isClientAddress(name)})
		rest = tail
	}
	return t, nil
}

// constant says whether the text is the same for every request.
func (t template) constant() bool {
	for _, p := range t {
		if p.placeholder {
			return false
		}
	}
	return true
}

// fleeting names a placeholder in the text that changes with every connection or request, if there is one.
func (t template) fleeting() string {
	for _, p := range t {
		switch {
		case !p.placeholder:
		case slices.Contains(fleeting, p.text), strings.HasPrefix(p.text, "time.now"):
			return p.text
		}
	}
	return ""
}

var fleeting = []string{
	"http.request.remote", "http.request.remote.port", "http.request.uuid", "http.request.duration", "http.request.duration_ms",
}

// expand gives the text for a request, or "" when a placeholder in it is unset or empty.
func (t template) expand(repl *caddy.Replacer) string {
	if len(t) == 1 {
		return t[0].expand(repl)
	}
	var b strings.Builder
	for _, p := range t {
		s := p.expand(repl)
		if s == "" {
			return ""
		}
		b.WriteString(s)
	}
	return b.String()
}

func (p part) expand(repl *caddy.Replacer) string {
	if !p.placeholder {
		return p.text
	}
	s, _ := repl.GetString(p.text)
	if p.client {
		return clientKey(s)
	}
	return s
}

func isClientAddress(name string) bool {
	return name == "http.vars."+caddyhttp.ClientIPVarKey || name == "http.request.remote.host"
}

// clientKey is an address as a key: an IPv6 client has at least a /64 to itself, and must not get a bucket for each of its
// addresses.
func clientKey(ip string) string {
	if !strings.Contains(ip, ":") {
		return ip
	}
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return ip
	}
	if addr.Is4In6() {
		return addr.Unmap().String()
	}
	p, err := addr.WithZone("").Prefix(64)
	if err != nil {
		return ip
	}
	return p.String()
}

// checkPlaceholder refuses a placeholder that no request can ever set, as far as that can be known: a typo would make
// every buyer nobody. The names below http.request and the like are a closed set; others may come from a map directive or
// another plugin, so a name that this build does not know is only logged.
func checkPlaceholder(name string, log *zap.Logger) error {
	err := fmt.Errorf("placeholder {%s} does not exist and would always be empty: check its spelling", name)
	first, rest, _ := strings.Cut(name, ".")
	switch {
	case name == "":
		return errors.New("placeholder {} has no name")
	case first == "seckill":
		if _, ok := unset(name); !ok && rest != "outcome" {
			return err
		}
	case first == "system" || first == "time":
		if _, ok := caddy.NewReplacer().Get(name); !ok {
			return err
		}
	case strings.HasPrefix(name, "http.request.tls."):
		// These depend on the connection.
	case strings.HasPrefix(name, "http.request."):
		if !requestHas(name) {
			return err
		}
	case strings.HasPrefix(name, "http.auth."):
		if !strings.HasPrefix(name, "http.auth.user.") && !strings.HasSuffix(name, ".error") {
			return err
		}
	case first == "http":
		section, last, _ := strings.Cut(rest, ".")
		switch section {
		case "vars", "regexp", "matchers", "error", "reverse_proxy", "intercept", "response":
			if last == "" {
				return err
			}
		default:
			log.Warn("unknown placeholder: unless another plugin sets it, it is always empty", zap.String("placeholder", name))
		}
	case first == "env" || first == "file":
		if rest == "" {
			return err
		}
	default:
		log.Warn("unknown placeholder: unless a map directive or another plugin sets it, it is always empty",
			zap.String("placeholder", name))
	}
	return nil
}

// requestHas asks Caddy itself whether a request has such a placeholder.
func requestHas(name string) bool {
	for _, indexed := range []string{"http.request.uri.path.", "http.request.orig_uri.path.", "http.request.host.labels."} {
		if index, ok := strings.CutPrefix(name, indexed); ok {
			if n, err := strconv.Atoi(index); err == nil {
				return n >= 0
			}
		}
	}
	ctx := context.WithValue(context.Background(), http.LocalAddrContextKey, &net.TCPAddr{})
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/", nil)
	if err != nil {
		return true
	}
	r.RemoteAddr = "127.0.0.1:1"
	repl := caddy.NewReplacer()
	caddyhttp.PrepareRequest(r, repl, nil, nil)
	_, ok := repl.Get(name)
	return ok
}

func replacer(r *http.Request) *caddy.Replacer {
	return r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
}
