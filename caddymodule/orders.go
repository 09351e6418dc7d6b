package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/gate"
	"github.com/seckillgate/seckillgate/internal/order"
)

const (
	defaultHeartbeat = 15 * time.Second
	defaultMaxWait   = 30 * time.Second
)

// Orders answers the contract's reads below the prefix: an order's status (at once, by long-poll or as a stream), the
// buyer's own order, and the public view of a sale. What is below the prefix but no call of the contract gets 404 or 405;
// everything else, purchases and OPTIONS pass.
type Orders struct {
	// Who the buyer is, by a placeholder that authentication has set. Required, unless `view_only` is set.
	User *Value `json:"user,omitempty"`

	// Answer only the public view, 404 and 405, and pass orders on: for a place in front of authentication. Default: false.
	ViewOnly bool `json:"view_only,omitempty"`

	// How often a stream without news sends a comment, so that proxies keep it open. Default: 15s.
	Heartbeat caddy.Duration `json:"heartbeat,omitempty"`

	// The longest that `?wait=` waits; more is cut to this. Default: 30s.
	MaxWait caddy.Duration `json:"max_wait,omitempty"`

	// The path prefix of the contract's calls. Default: that of the seckill app.
	Prefix string `json:"prefix,omitempty"`

	Refusals
	shared *shared
	end    context.CancelFunc                  // ends streams and long-polls
	atEnd  func(f func()) (forget func() bool) // has f called then
}

// CaddyModule returns the Caddy module information.
func (Orders) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.seckill_orders", New: func() caddy.Module { return new(Orders) }}
}

// Provision finds the app.
func (h *Orders) Provision(ctx caddy.Context) error {
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	h.shared = app.shared
	if err := h.provision(ctx); err != nil {
		return err
	}
	if h.Prefix == "" {
		h.Prefix = app.Prefix
	}
	if err := checkPrefix(h.Prefix); err != nil {
		return err
	}
	if h.Heartbeat == 0 {
		h.Heartbeat = caddy.Duration(defaultHeartbeat)
	}
	if h.MaxWait == 0 {
		h.MaxWait = caddy.Duration(defaultMaxWait)
	}
	if h.Heartbeat < 0 || h.MaxWait < 0 {
		return errors.New("heartbeat and max_wait must not be negative")
	}
	ending, end := context.WithCancel(context.Background())
	h.end, h.atEnd = end, func(f func()) func() bool { return context.AfterFunc(ending, f) }
	// A server that shuts down waits for its requests. Without this a stream would hold it until the grace period ends, or
	// for ever where there is none.
	if srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		srv.RegisterOnShutdown(h.end)
	}
	if h.ViewOnly {
		if h.User != nil {
			return errors.New("view_only has no use for a user: leave one of the two out")
		}
		return nil
	}
	if err := provisionUser(ctx, h.User); err != nil {
		return err
	}
	if h.User.fromBody() {
		return fmt.Errorf("user: field %s: a read has no body: name a placeholder", h.User.Field)
	}
	return nil
}

// Cleanup ends the streams.
func (h *Orders) Cleanup() error {
	if h.end != nil {
		h.end()
	}
	return nil
}

// ServeHTTP answers reads.
func (h *Orders) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	t := locate(h.Prefix, r.URL)
	if t.call == elsewhere || r.Method == http.MethodOptions {
		return next.ServeHTTP(w, r)
	}
	if t.call == unknown {
		return h.refuse(w, r, fault{reason: edge.NotFound})
	}
	if !t.call.takes(r.Method) {
		return h.write(w, r, refusal{reason: methodNotAllowed, allow: t.call.allows()})
	}
	if t.call == orders {
		return next.ServeHTTP(w, r)
	}
	activity := parseActivity(t.activity)
	if activity == 0 {
		return h.refuse(w, r, noActivity)
	}
	if t.call == view {
		return h.view(w, r, activity)
	}
	if h.ViewOnly {
		return next.ServeHTTP(w, r)
	}
	user, bad := buyer(r, h.User, nil)
	if bad.reason != edge.Accepted {
		return h.refuse(w, r, bad)
	}
	if t.call == oneOrder && !order.ValidID(t.order) {
		return h.refuse(w, r, fault{reason: edge.NotFound})
	}
	b, err := h.shared.enter(&h.shared.waiting)
	if err != nil {
		return h.refuse(w, r, unavailable)
	}
	defer h.shared.waiting.leave()
	q := edge.Query{Activity: activity, User: user, OrderID: t.order}
	if t.call == mine {
		if _, ok := h.wait(r); !ok { // it does not wait, but a value that the other call refuses is a mistake here too
			return h.refuse(w, r, badWait)
		}
		v, reason := b.Mine(r.Context(), activity, user)
		return h.status(w, r, v, reason)
	}
	if wantsStream(r) {
		return h.stream(w, r, b, q)
	}
	wait, ok := h.wait(r)
	if !ok {
		return h.refuse(w, r, badWait)
	}
	if wait == 0 {
		v, reason := b.Status(r.Context(), q)
		return h.status(w, r, v, reason)
	}
	ctx, cancel := h.untilShutdown(r.Context())
	defer cancel()
	v, reason := b.Wait(ctx, q, wait)
	return h.status(w, r, v, reason)
}

// untilShutdown ends with the request or with the server, whichever is first.
func (h *Orders) untilShutdown(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	forget := h.atEnd(cancel)
	return ctx, func() {
		forget()
		cancel()
	}
}

func (h *Orders) status(w http.ResponseWriter, r *http.Request, v edge.OrderView, reason edge.Reason) error {
	if reason != edge.Accepted {
		return h.refuse(w, r, fault{reason: reason})
	}
	note(r, v.Activity, "status", "status")
	replacer(r).Set("seckill.order_id", v.OrderID)
	writeJSON(w, r, http.StatusOK, append(viewJSON(v), '\n'))
	return nil
}

var badWait = malformed("wait is not a duration such as 20s, or a number of seconds")

// wait reads ?wait=20s, or =20 for seconds.
func (h *Orders) wait(r *http.Request) (time.Duration, bool) {
	if !strings.Contains(r.URL.RawQuery, "wait=") {
		return 0, true
	}
	text := r.URL.Query().Get("wait")
	if text == "" {
		return 0, true
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		seconds, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return 0, false
		}
		d = time.Duration(seconds) * time.Second
	}
	if d < 0 {
		return 0, false
	}
	return min(d, time.Duration(h.MaxWait)), true
}

// view answers for countdowns, from memory.
func (h *Orders) view(w http.ResponseWriter, r *http.Request, activity int64) error {
	b, err := h.shared.get()
	if err != nil {
		return h.refuse(w, r, unavailable)
	}
	v, reason := b.View(activity, time.Now())
	if reason != gate.Pass {
		return h.refuse(w, r, fault{reason: reason})
	}
	note(r, activity, "view", "view")
	j := make([]byte, 0, 192)
	j = strconv.AppendInt(append(j, `{"activity_id":`...), activity, 10)
	j = strconv.AppendInt(append(j, `,"item_id":`...), v.Activity.Item, 10)
	j = appendQuoted(append(j, `,"state":`...), v.State)
	j = strconv.AppendInt(append(j, `,"starts_at":`...), v.Activity.StartsAtMs, 10)
	j = strconv.AppendInt(append(j, `,"ends_at":`...), v.Activity.EndsAtMs, 10)
	j = strconv.AppendInt(append(j, `,"server_time":`...), v.ServerTimeMs, 10)
	j = strconv.AppendBool(append(j, `,"sold_out":`...), v.SoldOut)
	writeJSON(w, r, http.StatusOK, append(j, "}\n"...))
	return nil
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	seckill_orders [<matcher>] {
//	    user      <placeholder>
//	    view_only
//	    heartbeat <duration>
//	    max_wait  <duration>
//	    prefix    <path>
//	    handle_errors
//	}
//
// `user` is required, unless `view_only` is set.
func (h *Orders) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	o := options{d: d}
	if err := o.done(); err != nil {
		return err
	}
	line := d.Line()
	err := o.each(0, func(name string) (bool, error) {
		switch name {
		case "user":
			if err := o.value(&h.User); err != nil {
				return true, err
			}
			if h.User.Field != "" {
				return true, d.Err("a read has no body: name a placeholder")
			}
			return true, nil
		case "view_only":
			return true, o.flag(&h.ViewOnly)
		case "heartbeat":
			return true, o.duration(&h.Heartbeat)
		case "max_wait":
			return true, o.duration(&h.MaxWait)
		case "prefix":
			return true, o.prefix(&h.Prefix)
		case "handle_errors":
			return true, o.flag(&h.HandleErrors)
		}
		return false, nil
	})
	switch {
	case err != nil:
		return err
	case h.ViewOnly && h.User != nil:
		return d.Err("view_only has no use for a user: leave one of the two out")
	case !h.ViewOnly && h.User == nil:
		return fmt.Errorf("%s:%d: user is missing: name the placeholder that authentication sets, such as {http.auth.user.id}",
			d.File(), line)
	}
	return nil
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Orders)(nil)
	_ caddy.CleanerUpper          = (*Orders)(nil)
	_ caddyhttp.MiddlewareHandler = (*Orders)(nil)
	_ caddyfile.Unmarshaler       = (*Orders)(nil)
)
