package caddymodule

import (
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/gate"
	"github.com/seckillgate/seckillgate/internal/payload"
)

// Gate refuses, from memory, what cannot be sold now: activities that are unknown, not started, sold out, paused or ended.
// It costs no Redis call and knows no buyer, so it stands before authentication. It never admits: what it lets pass is
// decided by the reservation. Reads (GET, HEAD, OPTIONS) pass.
type Gate struct {
	// Where the activity id comes from. Default: the path of the contract's own purchase call,
	// `{prefix}/{activity}/orders`; all other requests pass.
	Activity *Value `json:"activity,omitempty"`

	// The path prefix of the contract's calls. Default: that of the seckill app.
	Prefix string `json:"prefix,omitempty"`

	// The largest body, in bytes, that is read to find the activity in a field. Default: 4096.
	MaxBody int64 `json:"max_body,omitempty"`

	Refusals
	shared *shared
}

// CaddyModule returns the Caddy module information.
func (Gate) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.seckill_gate", New: func() caddy.Module { return new(Gate) }}
}

// Provision finds the app.
func (g *Gate) Provision(ctx caddy.Context) error {
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	g.shared = app.shared
	if err := g.provision(ctx); err != nil {
		return err
	}
	return provisionSale(ctx, app, &g.Prefix, g.Activity, g.MaxBody)
}

// provisionSale does what the handlers of a purchase have in common.
func provisionSale(ctx caddy.Context, app *App, prefix *string, activity *Value, maxBody int64) error {
	if *prefix == "" {
		*prefix = app.Prefix
	}
	if err := checkPrefix(*prefix); err != nil {
		return err
	}
	if maxBody < 0 || maxBody > maxMaxBody {
		return fmt.Errorf("max_body %d is out of range: use 1 to %d bytes", maxBody, maxMaxBody)
	}
	if activity == nil {
		return nil
	}
	return activity.provisionNumber("activity", payload.Activity, ctx.Logger())
}

// purchase finds out whether a request is a purchase, and of which activity. Where the activity has no source of its own
// that is the contract's call, else every request that is not a read. The body is read only if the activity is in it.
func purchase(w http.ResponseWriter, r *http.Request, prefix string, activity *Value, maxBody int64) (id int64, is bool, f fault) {
	if activity == nil {
		t := locate(prefix, r.URL)
		if t.call != orders || r.Method != http.MethodPost {
			return 0, false, fault{}
		}
		if id = parseActivity(t.activity); id == 0 {
			return 0, true, noActivity
		}
		return id, true, fault{}
	}
	if isSafe(r.Method) {
		return 0, false, fault{}
	}
	var b *body
	if activity.fromBody() {
		if b, f = readBody(w, r, maxBody); f.reason != edge.Accepted {
			return 0, true, f
		}
	}
	text, err := activity.get(r, b)
	switch {
	case err != nil:
		return 0, true, malformed(detail(err))
	case text == "":
		return 0, true, malformed("the activity id is missing")
	}
	if id = parseActivity(text); id == 0 {
		return 0, true, noActivity
	}
	return id, true, fault{}
}

var noActivity = malformed("the activity id is not a positive decimal integer")

// ServeHTTP lets the request pass or refuses it.
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	id, is, bad := purchase(w, r, g.Prefix, g.Activity, g.MaxBody)
	if !is {
		return next.ServeHTTP(w, r)
	}
	if bad.reason != edge.Accepted {
		return g.refuse(w, r, bad)
	}
	b, err := g.shared.get()
	if err != nil {
		return g.refuse(w, r, unavailable)
	}
	v := b.Admit(id, r.Header.Get("Idempotency-Key"))
	if v.Reason == gate.Pass {
		return next.ServeHTTP(w, r)
	}
	f := refusal{reason: v.Reason, retryAfter: v.RetryAfter, startsAtMs: v.StartsAtMs}
	if v.Activity != nil {
		f.activity = id
	}
	return g.write(w, r, f)
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	seckill_gate [<matcher>] {
//	    activity <placeholder>
//	    activity field <path>
//	    prefix   <path>
//	    max_body <size>
//	    handle_errors
//	}
//
// Without `activity` it guards the contract's own purchase call below the prefix.
func (g *Gate) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	o := options{d: d}
	if err := o.done(); err != nil {
		return err
	}
	return o.each(0, func(name string) (bool, error) {
		switch name {
		case "activity":
			return true, o.value(&g.Activity)
		case "prefix":
			return true, o.prefix(&g.Prefix)
		case "max_body":
			return true, o.size(&g.MaxBody)
		case "handle_errors":
			return true, o.flag(&g.HandleErrors)
		}
		return false, nil
	})
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Gate)(nil)
	_ caddyhttp.MiddlewareHandler = (*Gate)(nil)
	_ caddyfile.Unmarshaler       = (*Gate)(nil)
)
