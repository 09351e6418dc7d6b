package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// windowVar is the request variable that hands the window on to seckill_reserve.
const windowVar = "seckill_user_window"

// UserLimit lets a buyer try once per window, in an activity or in a named scope, across all gateways. Where a
// seckill_reserve for the same activity and user is sure to follow, it only hands its window on, and the reservation opens
// it in the same Redis call; a repeat of one's own order then never meets the window. Anywhere else it costs a Redis call
// of its own.
type UserLimit struct {
	// How long a buyer has to wait between two tries. Required.
	Window caddy.Duration `json:"window"`

	// Where the activity id comes from. Default: the path of the contract's own purchase call; all other requests pass.
	Activity *Value `json:"activity,omitempty"`

	// A name in place of an activity, for routes that belong to none. Every method but OPTIONS counts.
	Scope string `json:"scope,omitempty"`

	// Who the buyer is, by a placeholder that authentication has set. Required, unless a seckill_reserve that follows says so.
	User *Value `json:"user,omitempty"`

	// The path prefix of the contract's calls. Default: that of the seckill app.
	Prefix string `json:"prefix,omitempty"`

	// The largest body, in bytes, that is read to find activity or user in a field. Default: 4096.
	MaxBody int64 `json:"max_body,omitempty"`

	Refusals
	shared *shared
	folded bool
}

// CaddyModule returns the Caddy module information.
func (UserLimit) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.seckill_user_limit", New: func() caddy.Module { return new(UserLimit) }}
}

// Provision finds the app, and the reservation that follows.
func (u *UserLimit) Provision(ctx caddy.Context) error {
	app, err := appOf(ctx)
	if err != nil {
		return err
	}
	u.shared = app.shared
	if err := u.provision(ctx); err != nil {
		return err
	}
	if err := provisionSale(ctx, app, &u.Prefix, u.Activity, u.MaxBody); err != nil {
		return err
	}
	switch {
	case time.Duration(u.Window) < time.Millisecond:
		return fmt.Errorf("window %s is too short: use at least 1ms", time.Duration(u.Window))
	case u.Scope != "" && u.Activity != nil:
		return fmt.Errorf("scope %q stands in place of an activity: give one of the two", u.Scope)
	case strings.ContainsAny(u.Scope, "{}"):
		return fmt.Errorf("scope %q has a brace: it is a fixed name", u.Scope)
	}
	u.folded = u.foldsInto(ctx)
	if u.folded && u.User == nil {
		return nil
	}
	return provisionUser(ctx, u.User)
}

// foldsInto says whether a reservation for the same activity and user is sure to follow.
func (u *UserLimit) foldsInto(ctx caddy.Context) bool {
	if u.Scope != "" {
		return false
	}
	next, ok := reserveAfter(ctx)
	if !ok || next.UserWindow != 0 || !u.Activity.equal(next.Activity) {
		return false
	}
	if next.Prefix == "" {
		next.Prefix = u.Prefix
	}
	return (u.User == nil || u.User.equal(next.User)) && (u.Activity != nil || u.Prefix == next.Prefix)
}

// provisionUser checks where a user comes from. A constant would make all buyers one.
func provisionUser(ctx caddy.Context, user *Value) error {
	if user == nil {
		return errors.New("user: none given: name the placeholder that authentication sets, such as {http.auth.user.id}")
	}
	if err := user.provision("user", ctx.Logger()); err != nil {
		return err
	}
	if !user.fromBody() && user.text.constant() {
		return fmt.Errorf("user %q has no placeholder: all buyers would be one", user.Value)
	}
	return nil
}

// buyer resolves the user: nobody is 401, and what cannot be a user is 400.
func buyer(r *http.Request, user *Value, b *body) (string, fault) {
	id, err := user.get(r, b)
	switch {
	case err != nil:
		return "", malformed(detail(err))
	case id == "":
		return "", fault{reason: edge.NoUser}
	case order.ValidUser(id) != nil:
		return "", malformed(edge.DetailUser)
	}
	return id, fault{}
}

// ServeHTTP lets the request pass or refuses it.
func (u *UserLimit) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if u.folded {
		caddyhttp.SetVar(r.Context(), windowVar, time.Duration(u.Window))
		return next.ServeHTTP(w, r)
	}
	var activity int64
	if u.Scope == "" {
		id, is, bad := purchase(w, r, u.Prefix, u.Activity, u.MaxBody)
		if !is {
			return next.ServeHTTP(w, r)
		}
		if bad.reason != edge.Accepted {
			return u.refuse(w, r, bad)
		}
		activity = id
	} else if r.Method == http.MethodOptions {
		return next.ServeHTTP(w, r)
	}
	if isEarly(r) && !isSafe(r.Method) {
		return u.refuse(w, r, tooEarly)
	}
	var b *body
	if u.User.fromBody() {
		var bad fault
		if b, bad = readBody(w, r, u.MaxBody); bad.reason != edge.Accepted {
			return u.refuse(w, r, bad)
		}
	}
	user, bad := buyer(r, u.User, b)
	if bad.reason != edge.Accepted {
		return u.refuse(w, r, bad)
	}
	free, rest, err := u.take(r, activity, user)
	if err != nil {
		// Whether the window was free is not known. Wrongly refusing is better than letting through.
		return u.refuse(w, r, unavailable)
	}
	if !free {
		return u.write(w, r, refusal{reason: edge.TooFrequent, retryAfter: rest})
	}
	return next.ServeHTTP(w, r)
}

func (u *UserLimit) take(r *http.Request, activity int64, user string) (bool, time.Duration, error) {
	back, err := u.shared.enter(&u.shared.buying)
	if err != nil {
		return false, 0, err
	}
	defer u.shared.buying.leave()
	key := ledger.UserWindowKey(activity, user)
	if u.Scope != "" {
		key = ledger.ScopeWindowKey(u.Scope, user)
	}
	return back.takeWindow(r.Context(), key, time.Duration(u.Window))
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	seckill_user_limit [<matcher>] <window> {
//	    user     <placeholder>
//	    user     field <path>
//	    activity <placeholder>
//	    activity field <path>
//	    scope    <name>
//	    prefix   <path>
//	    max_body <size>
//	    handle_errors
//	}
//
// The window is a duration such as 5s. Without `activity` and `scope` it guards the contract's own purchase call below the
// prefix. `scope` stands in place of an activity.
func (u *UserLimit) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	o := options{d: d}
	if err := o.duration(&u.Window); err != nil {
		return err
	}
	if err := o.done(); err != nil {
		return err
	}
	return o.each(0, func(name string) (bool, error) {
		switch name {
		case "user":
			return true, o.value(&u.User)
		case "activity":
			if u.Scope != "" {
				return true, d.Err("scope stands in place of an activity: give one of the two")
			}
			return true, o.value(&u.Activity)
		case "scope":
			if u.Activity != nil {
				return true, d.Err("scope stands in place of an activity: give one of the two")
			}
			return true, o.text(&u.Scope)
		case "prefix":
			return true, o.prefix(&u.Prefix)
		case "max_body":
			return true, o.size(&u.MaxBody)
		case "handle_errors":
			return true, o.flag(&u.HandleErrors)
		}
		return false, nil
	})
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*UserLimit)(nil)
	_ caddyhttp.MiddlewareHandler = (*UserLimit)(nil)
	_ caddyfile.Unmarshaler       = (*UserLimit)(nil)
)
