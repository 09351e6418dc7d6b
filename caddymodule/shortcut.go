package caddymodule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// shortcut is what the directive `seckill` says.
type shortcut struct {
	prefix  string
	limits  []*RateLimit
	auth    *caddyhttp.Subroute
	user    *Value
	window  caddy.Duration
	maxBody int64
	follow  Orders // heartbeat and max_wait
	refuse  Refusals
}

// parseShortcut sets up the whole chain below the prefix from Caddyfile tokens. Syntax:
//
//	seckill {
//	    rate_limit   <algorithm> <limit>/<time> [<option> <value>]...
//	    authenticate {
//	        <directives…>
//	    }
//	    user         <placeholder>
//	    user_window  <duration>
//	    prefix       <path>
//	    max_body     <size>
//	    heartbeat    <duration>
//	    max_wait     <duration>
//	    handle_errors
//	}
//
// `user` is required. `rate_limit` may be repeated; limits with a key are asked before those without, so that one client
// cannot use up everybody's allowance. Purchases and reads have separate allowances of the same size, unless `only` names one
// of them: a flood of purchases does not keep buyers from seeing their orders.
//
// The order of evaluation is fixed, whatever the order of the lines: rate limits, gate, public view, authenticate,
// reservation with the user window in it, orders.
func parseShortcut(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	s := shortcut{prefix: prefixOf(h)}
	if err := s.unmarshal(h); err != nil {
		return nil, err
	}
	chain, err := s.expand(h)
	if err != nil {
		return nil, err
	}
	below := caddy.ModuleMap{"path": h.JSON(caddyhttp.MatchPath{s.prefix + "/*"})}
	route := caddyhttp.Route{MatcherSetsRaw: caddyhttp.RawMatcherSets{below}, HandlersRaw: chain}
	return []httpcaddyfile.ConfigValue{{Class: "route", Value: route}}, nil
}

func (s *shortcut) unmarshal(h httpcaddyfile.Helper) error {
	d := h.Dispenser
	d.Next() // the directive's name
	line := d.Line()
	o := options{d: d}
	if err := o.done(); err != nil {
		return err
	}
	for d.NextBlock(0) {
		name := d.Val()
		if name != "rate_limit" {
			if err := o.once(name); err != nil {
				return err
			}
		}
		known, err := s.option(h, &o, name)
		if err != nil {
			return err
		}
		if !known {
			return d.Errf("unrecognized subdirective %s", name)
		}
		if name == "rate_limit" || name == "authenticate" {
			continue // read to the end of their blocks
		}
		if err := o.done(); err != nil {
			return err
		}
	}
	if s.user == nil {
		return fmt.Errorf("%s:%d: user is missing: name the placeholder that authentication sets, such as {http.auth.user.id}",
			d.File(), line)
	}
	return nil
}

func (s *shortcut) option(h httpcaddyfile.Helper, o *options, name string) (bool, error) {
	switch name {
	case "rate_limit":
		l := new(RateLimit)
		if err := l.UnmarshalCaddyfile(h.NewFromNextSegment()); err != nil {
			return true, err
		}
		s.limits = append(s.limits, l)
		return true, nil
	case "authenticate":
		segment := h.NewFromNextSegment()
		sub, err := httpcaddyfile.ParseSegmentAsSubroute(h.WithDispenser(segment))
		if err != nil {
			return true, err
		}
		auth, ok := sub.(*caddyhttp.Subroute)
		if !ok || len(auth.Routes) == 0 {
			return true, o.d.Err("authenticate is empty: put the directives into its block that authenticate buyers")
		}
		s.auth = auth
		return true, nil
	case "user":
		if err := o.value(&s.user); err != nil {
			return true, err
		}
		if s.user.Field != "" {
			return true, o.d.Err("the user must not come from the body: name the placeholder that authentication sets")
		}
		return true, nil
	case "user_window":
		return true, o.duration(&s.window)
	case "prefix":
		return true, o.prefix(&s.prefix)
	case "max_body":
		return true, o.size(&s.maxBody)
	case "heartbeat":
		return true, o.duration(&s.follow.Heartbeat)
	case "max_wait":
		return true, o.duration(&s.follow.MaxWait)
	case "handle_errors":
		return true, o.flag(&s.refuse.HandleErrors)
	}
	return false, nil
}

// expand makes the chain: handlers of one route, since each route of a subroute would be put together again for each request.
func (s *shortcut) expand(h httpcaddyfile.Helper) ([]json.RawMessage, error) {
	var warnings []caddyconfig.Warning
	handler := func(name string, v any) json.RawMessage {
		return caddyconfig.JSONModuleObject(v, "handler", name, &warnings)
	}
	chain, err := s.sortedLimits(h, handler)
	if err != nil {
		return nil, err
	}
	chain = append(chain,
		handler("seckill_gate", Gate{Prefix: s.prefix, Refusals: s.refuse}),
		handler("seckill_orders", Orders{Prefix: s.prefix, ViewOnly: true, Refusals: s.refuse}))
	if s.auth != nil {
		chain = append(chain, handler("subroute", s.auth))
	}
	chain = append(chain,
		handler("seckill_reserve", Reserve{
			Prefix: s.prefix, User: s.user, UserWindow: s.window, MaxBody: s.maxBody, Refusals: s.refuse,
		}),
		handler("seckill_orders", Orders{
			Prefix: s.prefix, User: s.user, Heartbeat: s.follow.Heartbeat, MaxWait: s.follow.MaxWait, Refusals: s.refuse,
		}))
	for _, w := range warnings {
		return nil, h.Errf("%s", w.Message)
	}
	return chain, nil
}

// sortedLimits brings the limits into one order, whatever the order of the lines: those with a key first.
func (s *shortcut) sortedLimits(h httpcaddyfile.Helper, handler func(string, any) json.RawMessage) ([]json.RawMessage, error) {
	type limit struct {
		keyed bool
		raw   json.RawMessage
	}
	var limits []limit
	for _, l := range s.limits {
		l.HandleErrors = l.HandleErrors || s.refuse.HandleErrors
		counted := []string{l.Only}
		if l.Only == "" {
			counted = []string{onlyPurchases, onlyReads}
		}
		for _, l.Only = range counted {
			limits = append(limits, limit{l.Key != "", handler("seckill_rate_limit", l)})
		}
	}
	slices.SortFunc(limits, func(a, b limit) int {
		if a.keyed != b.keyed {
			if a.keyed {
				return -1
			}
			return 1
		}
		return bytes.Compare(a.raw, b.raw)
	})
	out := make([]json.RawMessage, len(limits))
	for i, l := range limits {
		if i > 0 && bytes.Equal(l.raw, limits[i-1].raw) {
			return nil, h.Errf("the same rate_limit is given twice")
		}
		out[i] = l.raw
	}
	return out, nil
}
