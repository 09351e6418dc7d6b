package caddymodule

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// Caddy does not tell a handler where in the configuration it stands, but while a route list is provisioned the routes
// that still have their raw handlers are the one being worked on and those after it. That is enough to know which site a
// handler belongs to and what follows it.

// site is where a handler stands, as far as can be told.
type site struct {
	// The site's listeners and hosts. It stays the same whatever other sites come and go.
	here string
	// The name of the site's server, and its hosts: what gateways with the same sites have in common, on whatever ports. The
	// Caddyfile numbers servers, so that it may change when a listener is added.
	everywhere string
}

// siteOf finds the site of the handler being provisioned.
func siteOf(ctx caddy.Context) site {
	srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok {
		return site{}
	}
	at := site{here: strings.Join(slices.Sorted(slices.Values(srv.Listen)), ","), everywhere: serverName(ctx, srv)}
	here := pending(srv.Routes)
	if len(here) == 0 {
		return at // a named or an error route
	}
	var hosts []string
	for _, set := range here[0].MatcherSets {
		for _, m := range set {
			switch h := m.(type) {
			case *caddyhttp.MatchHost:
				hosts = append(hosts, *h...)
			case caddyhttp.MatchHost:
				hosts = append(hosts, h...)
			}
		}
	}
	slices.Sort(hosts)
	suffix := " " + strings.Join(hosts, ",")
	return site{at.here + suffix, at.everywhere + suffix}
}

func serverName(ctx caddy.Context, srv *caddyhttp.Server) string {
	for _, m := range ctx.Modules() {
		if app, ok := m.(*caddyhttp.App); ok {
			for name, s := range app.Servers {
				if s == srv {
					return name
				}
			}
		}
	}
	return ""
}

// siblings gives the route that the handler being provisioned stands in, and those after it in the same list.
func siblings(ctx caddy.Context) caddyhttp.RouteList {
	modules := ctx.Modules()
	if len(modules) < 2 {
		return nil
	}
	switch parent := modules[len(modules)-2].(type) { // the last is the handler itself
	case *caddyhttp.Subroute:
		return pending(parent.Routes)
	case *caddyhttp.App:
		if srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
			return pending(srv.Routes)
		}
	}
	return nil
}

// provision refuses to hand refusals to error routes where there are none: every client would get an empty answer.
func (o Refusals) provision(ctx caddy.Context) error {
	if !o.HandleErrors {
		return nil
	}
	srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok || srv.Errors != nil && len(srv.Errors.Routes) > 0 {
		return nil
	}
	for _, m := range ctx.Modules() {
		if sub, ok := m.(*caddyhttp.Subroute); ok && sub.Errors != nil && len(sub.Errors.Routes) > 0 {
			return nil
		}
	}
	return errors.New("handle_errors is set, but this server has no error routes: add a handle_errors block to the site")
}

func pending(routes caddyhttp.RouteList) caddyhttp.RouteList {
	for i, r := range routes {
		if r.HandlersRaw != nil {
			return routes[i:]
		}
	}
	return nil
}

// bystanders never answer a request on their own, or only refuse it, so a request that they let pass is sure to get from a
// handler before them to the one after them.
var bystanders = []string{
	"seckill_rate_limit", "seckill_gate", "seckill_user_limit", "authentication", "vars", "headers", "request_body", "encode",
	"log_append", "map", "tracing",
}

// reserveAfter finds the seckill_reserve that every request gets to after the seckill_user_limit being provisioned, unless
// something refuses it: in the same route or in a following one with the same or no matchers, with nothing but bystanders
// in between.
func reserveAfter(ctx caddy.Context) (Reserve, bool) {
	routes := siblings(ctx)
	if len(routes) == 0 {
		return Reserve{}, false
	}
	own, passed := routes[0], false
	for i, r := range routes {
		if i > 0 && len(r.MatcherSets) > 0 && !reflect.DeepEqual(r.MatcherSets, own.MatcherSets) {
			if !onlyBystanders(r) {
				return Reserve{}, false
			}
			continue
		}
		for _, raw := range r.HandlersRaw {
			name := handlerName(raw)
			switch {
			case name == "seckill_user_limit":
				passed = true
			case !passed:
			case name == "seckill_reserve":
				var next Reserve
				if json.Unmarshal(raw, &next) != nil {
					return Reserve{}, false
				}
				return next, true
			case !slices.Contains(bystanders, name):
				return Reserve{}, false
			}
		}
	}
	return Reserve{}, false
}

func onlyBystanders(r caddyhttp.Route) bool {
	return !slices.ContainsFunc(r.HandlersRaw, func(raw json.RawMessage) bool {
		return !slices.Contains(bystanders, handlerName(raw))
	})
}

// uselessAfter names a handler that stands behind a seckill_reserve in its own route and so would never see what it is there
// to limit.
func uselessAfter(ctx caddy.Context) string {
	routes := siblings(ctx)
	if len(routes) == 0 {
		return ""
	}
	passed := false
	for _, raw := range routes[0].HandlersRaw {
		switch name := handlerName(raw); name {
		case "seckill_reserve":
			passed = true
		case "seckill_rate_limit", "seckill_gate", "seckill_user_limit":
			if passed {
				return name
			}
		}
	}
	for _, r := range routes[1:] {
		if !reflect.DeepEqual(r.MatcherSets, routes[0].MatcherSets) || len(r.HandlersRaw) == 0 {
			continue
		}
		switch name := handlerName(r.HandlersRaw[0]); name {
		case "seckill_rate_limit", "seckill_gate", "seckill_user_limit":
			return name
		}
	}
	return ""
}

func handlerName(raw json.RawMessage) string {
	var h struct {
		Handler string `json:"handler"`
	}
	if json.Unmarshal(raw, &h) != nil {
		return ""
	}
	return h.Handler
}

// place tells handlers of the same site and configuration apart by their order, so that they never share state by accident
// and yet find their own again after a reload.
type place struct {
	load     *caddyhttp.App // one configuration has one
	identity string
	ordinal  int
}

func (p place) String() string { return p.identity + " #" + strconv.Itoa(p.ordinal) }

// placeBook counts the places of each configuration that is loaded.
type placeBook struct {
	mu    sync.Mutex
	loads map[*caddyhttp.App]*placeCount
}

type placeCount struct {
	taken map[string]int
	live  int
}

var places placeBook

func (b *placeBook) take(ctx caddy.Context, identity string) place {
	p := place{identity: identity}
	for _, m := range ctx.Modules() {
		if app, ok := m.(*caddyhttp.App); ok {
			p.load = app
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.loads == nil {
		b.loads = make(map[*caddyhttp.App]*placeCount)
	}
	c := b.loads[p.load]
	if c == nil {
		c = &placeCount{taken: make(map[string]int)}
		b.loads[p.load] = c
	}
	p.ordinal = c.taken[identity]
	c.taken[identity]++
	c.live++
	return p
}

// leave is the end of a place. Places are not used again in the same configuration.
func (b *placeBook) leave(p place) {
	if p.identity == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.loads[p.load]; c != nil {
		if c.live--; c.live <= 0 {
			delete(b.loads, p.load)
		}
	}
}
