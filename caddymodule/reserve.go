package caddymodule

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/payload"
)

// Reserve reserves stock for a purchase, puts the order on Kafka and answers. Everything about the request is read and
// checked before the first Redis call. Reads (GET, HEAD, OPTIONS) are never purchases: they pass.
type Reserve struct {
	// Where the activity id comes from. Default: the path of the contract's own purchase call,
	// `{prefix}/{activity}/orders`; all other requests pass. With an activity of its own, every request that gets here and
	// is not a read is a purchase, so a shop's existing purchase URL can be guarded.
	Activity *Value `json:"activity,omitempty"`

	// Who the buyer is, by a placeholder that authentication has set; never a header that buyers can set themselves. A
	// request for which it is empty is refused with 401. Required.
	User *Value `json:"user"`

	// Where the quantity comes from; nothing there means 1. Default: `quantity` in the body of the contract's own purchase
	// call, else always 1.
	Quantity *Value `json:"quantity,omitempty"`

	// Where the buyer's own data for the order (at most 1 KiB of JSON) comes from: a field of the body. Default: `extra` in
	// the body of the contract's own purchase call, else none.
	Extra *Value `json:"extra,omitempty"`

	// How long a buyer has to wait between two tries. Default: 0, no window.
	UserWindow caddy.Duration `json:"user_window,omitempty"`

	// Hand accepted requests on to the next handler instead of answering, with X-Seckill-Order-Id, X-Seckill-Activity,
	// X-Seckill-Item, X-Seckill-Quantity, X-Seckill-User and X-Seckill-Status; a client's own headers of these names are
	// removed, and its Connection header cannot name them. The order is published first, and what the next handler answers does not change it. An order that Kafka has
	// not confirmed is not handed on: its buyer hears 202 `processing`. Default: false.
	Pass bool `json:"pass,omitempty"`

	// The path prefix of the contract's calls, for `status_url` too. Default: that of the seckill app.
	Prefix string `json:"prefix,omitempty"`

	// The largest body, in bytes. Default: 4096.
	MaxBody int64 `json:"max_body,omitempty"`

	Refusals
	shared *shared
}

// CaddyModule returns the Caddy module information.
func (Reserve) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.seckill_reserve", New: func() caddy.Module { return new(Reserve) }}
}

// Provision finds the app and refuses a chain that could not work.
func (h *Reserve) Provision(ctx caddy.Context) error {
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	h.shared = app.shared
	if err := h.provision(ctx); err != nil {
		return err
	}
	if err := provisionSale(ctx, app, &h.Prefix, h.Activity, h.MaxBody); err != nil {
		return err
	}
	if err := provisionUser(ctx, h.User); err != nil {
		return err
	}
	if h.Quantity != nil {
		if err := h.Quantity.provisionNumber("quantity", payload.Quantity, ctx.Logger()); err != nil {
			return err
		}
	}
	if h.Extra != nil && (h.Extra.Field == "" || h.Extra.Value != "") {
		return errors.New("extra: want a field of the body")
	}
	if h.UserWindow != 0 && time.Duration(h.UserWindow) < time.Millisecond {
		return fmt.Errorf("user_window %s is too short: use at least 1ms", time.Duration(h.UserWindow))
	}
	if name := uselessAfter(ctx); name != "" {
		return fmt.Errorf("%s stands behind seckill_reserve and would never see a purchase: put it in front; where a site has two chains, leave one out", name)
	}
	return nil
}

// ServeHTTP reserves, or refuses, or hands on what is no purchase.
func (h *Reserve) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	activity, is, bad := purchase(w, r, h.Prefix, h.Activity, h.MaxBody)
	if !is {
		if h.Pass {
			stripHeaders(r)
		}
		return next.ServeHTTP(w, r)
	}
	if isEarly(r) {
		return h.refuse(w, r, tooEarly)
	}
	if bad.reason != edge.Accepted {
		return h.refuse(w, r, bad)
	}
	req, bad := h.request(w, r, activity)
	if bad.reason != edge.Accepted {
		replacer(r).Set("seckill.activity", strconv.FormatInt(activity, 10))
		return h.refuse(w, r, bad)
	}
	out := h.order(r, req)
	if out.OrderID != "" {
		replacer(r).Set("seckill.order_id", out.OrderID)
	}
	if out.Reason != edge.Accepted {
		f := refusal{reason: out.Reason, detail: out.Detail, retryAfter: out.RetryAfter, startsAtMs: out.StartsAtMs}
		if isKnown(out.Reason) {
			f.activity = activity
		} else {
			replacer(r).Set("seckill.activity", strconv.FormatInt(activity, 10))
		}
		if out.Reason == edge.AlreadyOrdered && out.OrderID != "" {
			f.orderID, f.statusURL = out.OrderID, h.statusURL(r, activity, out.OrderID)
		}
		return h.write(w, r, f)
	}
	out.Activity = activity
	if !h.Pass || !settled(out.Status) {
		return accept(w, r, h.statusURL(r, activity, out.OrderID), out)
	}
	note(r, activity, edge.Accepted, out.Status.Word())
	stripHeaders(r)
	r.Header["X-Seckill-Order-Id"] = []string{out.OrderID}
	r.Header["X-Seckill-Activity"] = []string{strconv.FormatInt(activity, 10)}
	r.Header["X-Seckill-Item"] = []string{strconv.FormatInt(out.Item, 10)}
	r.Header["X-Seckill-Quantity"] = []string{strconv.FormatInt(out.Quantity, 10)}
	r.Header["X-Seckill-User"] = []string{req.User}
	r.Header["X-Seckill-Status"] = []string{out.Status.Word()}
	return next.ServeHTTP(w, r)
}

// order asks for the reservation.
func (h *Reserve) order(r *http.Request, req edge.Request) edge.Outcome {
	b, err := h.shared.enter(&h.shared.buying)
	if err != nil {
		return edge.Outcome{Reason: edge.Unavailable}
	}
	defer h.shared.buying.leave()
	return b.Order(r.Context(), req)
}

// statusURL is where a client finds an order. Where the request asked by the contract's own path, and something in front has
// stripped a part of that, the client has to ask with it again.
func (h *Reserve) statusURL(r *http.Request, activity int64, orderID string) string {
	prefix := h.Prefix
	if h.Activity == nil {
		prefix = stripped(r) + prefix
	}
	if !isPlain(prefix) {
		prefix = (&url.URL{Path: prefix}).EscapedPath()
	}
	return prefix + "/" + strconv.FormatInt(activity, 10) + "/orders/" + orderID
}

// request reads and checks everything that a purchase consists of.
func (h *Reserve) request(w http.ResponseWriter, r *http.Request, activity int64) (edge.Request, fault) {
	req := edge.Request{Activity: activity, Quantity: 1, Window: time.Duration(h.UserWindow)}
	if d, ok := caddyhttp.GetVar(r.Context(), windowVar).(time.Duration); ok {
		req.Window = max(req.Window, d)
	}
	var b *body
	var bad fault
	if h.User.fromBody() {
		if b, bad = readBody(w, r, h.MaxBody); bad.reason != edge.Accepted {
			return req, bad
		}
	}
	if req.User, bad = buyer(r, h.User, b); bad.reason != edge.Accepted {
		return req, bad
	}
	if req.IdempotencyKey = r.Header.Get("Idempotency-Key"); !validKey(req.IdempotencyKey) {
		return req, malformed(edge.DetailKey)
	}
	// Also where nothing of the body is asked for: a buyer whose body is still on its way must not hold a reservation.
	if b, bad = readBody(w, r, h.MaxBody); bad.reason != edge.Accepted {
		return req, bad
	}
	if err := h.details(r, b, &req); err != nil {
		return req, malformed(detail(err))
	}
	req.Headers = traceContext(r.Header)
	return req, fault{}
}

// details reads quantity and extra.
func (h *Reserve) details(r *http.Request, b *body, req *edge.Request) error {
	if h.Activity == nil && h.Quantity == nil && h.Extra == nil {
		o, err := b.order()
		req.Quantity, req.Extra = o.Quantity, o.Extra
		return err
	}
	if h.Quantity != nil {
		text, err := h.Quantity.get(r, b)
		if err != nil {
			return err
		}
		if text != "" {
			if req.Quantity, err = payload.Quantity(text); err != nil {
				return err
			}
		}
	}
	if h.Extra != nil {
		extra, err := b.json(h.Extra.Field)
		if err != nil {
			return err
		}
		req.Extra = extra
	}
	return nil
}

// detail is what a body's error says to whoever writes the client.
func detail(err error) string {
	if e := new(payload.Error); errors.As(err, &e) {
		return e.Text
	}
	return err.Error()
}

// isKnown says whether a refusal proves that the activity exists, so that its id may become a metric's label.
func isKnown(reason edge.Reason) bool {
	switch reason {
	case edge.NotStarted, edge.SoldOut, edge.AlreadyOrdered, edge.Ended, edge.TooFrequent:
		return true
	default:
		return false
	}
}

// settled says whether an order may be handed on to the shop: Kafka has it, or it has landed alive.
func settled(s order.Status) bool {
	return s == order.Queued || (s != order.Processing && !s.In(order.DefaultDead))
}

// validKey accepts printable ASCII of at most 64 bytes, or nothing.
func validKey(key string) bool {
	return len(key) <= order.MaxKeyBytes && isPrintable(key)
}

// stripHeaders removes the headers that only this gateway may set, among trailers too. It also keeps Connection from naming
// them: a proxy drops what Connection names, so a buyer could hide what this gateway says from the shop.
func stripHeaders(r *http.Request) {
	stripOwn(r.Header)
	if values, ok := r.Header["Connection"]; ok {
		if values = withoutOwn(values); len(values) > 0 {
			r.Header["Connection"] = values
		} else {
			delete(r.Header, "Connection")
		}
	}
	if len(r.Trailer) == 0 {
		return
	}
	stripOwn(r.Trailer)
	if _, read := r.Body.(*body); !read && r.Body != nil {
		r.Body = &trailed{r.Body, r.Trailer}
	}
}

// trailed is a body that is still to be read. The server fills the trailers in at its end, announced or not.
type trailed struct {
	io.ReadCloser
	trailer http.Header
}

func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err != nil {
		stripOwn(t.trailer)
	}
	return n, err
}

func stripOwn(h http.Header) {
	for name := range h {
		if isOwn(name) {
			delete(h, name)
		}
	}
}

// withoutOwn gives the lists of header names without ours. Lists that name none of ours stay as they are.
func withoutOwn(lists []string) []string {
	kept := make([]string, 0, len(lists))
	for _, list := range lists {
		names := strings.Split(list, ",")
		others := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return isOwn(strings.TrimSpace(name)) })
		switch {
		case len(others) == len(names):
			kept = append(kept, list)
		case len(others) > 0:
			kept = append(kept, strings.TrimSpace(strings.Join(others, ",")))
		}
	}
	return kept
}

// isOwn says whether only this gateway may set a header, in the spelling with underscores too, which some shops cannot tell
// from the one with dashes.
func isOwn(name string) bool {
	const own = "X-Seckill-"
	return len(name) >= len(own) && strings.EqualFold(strings.ReplaceAll(name[:len(own)], "_", "-"), own)
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	seckill_reserve [<matcher>] {
//	    user        <placeholder>
//	    user        field <path>
//	    activity    <placeholder>
//	    activity    field <path>
//	    quantity    <placeholder>
//	    quantity    field <path>
//	    extra       field <path>
//	    user_window <duration>
//	    respond
//	    pass
//	    prefix      <path>
//	    max_body    <size>
//	    handle_errors
//	}
//
// `user` is required. Without `activity` it takes the contract's own purchase call below the prefix. `respond`, the
// default, answers by itself; `pass` hands accepted requests on.
func (h *Reserve) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	o := options{d: d}
	if err := o.done(); err != nil {
		return err
	}
	line := d.Line()
	respond := false
	err := o.each(0, func(name string) (bool, error) {
		switch name {
		case "user":
			return true, o.value(&h.User)
		case "activity":
			return true, o.value(&h.Activity)
		case "quantity":
			return true, o.value(&h.Quantity)
		case "extra":
			if err := o.value(&h.Extra); err != nil {
				return true, err
			}
			if h.Extra.Field == "" {
				return true, d.Err("extra comes from the body: write `extra field <path>`")
			}
			return true, nil
		case "user_window":
			return true, o.duration(&h.UserWindow)
		case "respond":
			return true, o.flag(&respond)
		case "pass":
			return true, o.flag(&h.Pass)
		case "prefix":
			return true, o.prefix(&h.Prefix)
		case "max_body":
			return true, o.size(&h.MaxBody)
		case "handle_errors":
			return true, o.flag(&h.HandleErrors)
		}
		return false, nil
	})
	switch {
	case err != nil:
		return err
	case respond && h.Pass:
		return d.Err("respond and pass exclude each other: give one of the two")
	case h.User == nil:
		return fmt.Errorf("%s:%d: user is missing: name the placeholder that authentication sets, such as {http.auth.user.id}",
			d.File(), line)
	}
	return nil
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Reserve)(nil)
	_ caddyhttp.MiddlewareHandler = (*Reserve)(nil)
	_ caddyfile.Unmarshaler       = (*Reserve)(nil)
)
