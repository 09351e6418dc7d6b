package caddymodule

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/seckillgate/seckillgate/internal/gate"
)

// adminAPI is the read-only part of Caddy's admin API below /seckill/: what this gateway sees of the sales, and how its
// producer is.
type adminAPI struct{ ctx caddy.Context }

// CaddyModule returns the Caddy module information.
func (adminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.seckill", New: func() caddy.Module { return new(adminAPI) }}
}

// Provision keeps the context: admin modules are provisioned before the apps, so the app is looked for at each request.
func (a *adminAPI) Provision(ctx caddy.Context) error {
	a.ctx = ctx
	return nil
}

// Routes implements caddy.AdminRouter.
func (a *adminAPI) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{{Pattern: adminPath, Handler: caddy.AdminHandlerFunc(a.serve)}}
}

const adminPath = "/seckill/"

// overview is the admin API's answer.
type overview struct {
	Activities  []activityJSON `json:"activities"`
	Unavailable bool           `json:"unavailable,omitempty"` // nothing is known of the sales now
	Producer    healthJSON     `json:"producer"`
	Orders      ordersJSON     `json:"orders"`
}

// ordersJSON is edge.Stats.
type ordersJSON struct {
	InWork         int   `json:"in_work"`
	Undecided      int   `json:"undecided"`
	Waiting        int   `json:"waiting"`
	AcksDropped    int64 `json:"acks_dropped"`
	Republished    int64 `json:"republished"`
	FencedRefusals int64 `json:"fenced_refusals"`
}

type healthJSON struct {
	Healthy          bool    `json:"healthy"`
	Error            string  `json:"error,omitempty"`
	OldestUnackedSec float64 `json:"oldest_unacked_seconds"`
}

type activityJSON struct {
	Activity     int64  `json:"activity_id"`
	Item         int64  `json:"item_id"`
	Title        string `json:"title,omitempty"`
	State        string `json:"state"`
	StartsAtMs   int64  `json:"starts_at"`
	EndsAtMs     int64  `json:"ends_at"`
	MaxPerUser   int64  `json:"max_per_user"`
	SoldOut      bool   `json:"sold_out"`
	ServerTimeMs int64  `json:"server_time"`
	AgeMs        int64  `json:"age_ms"` // of the figures below; -1: there are none
	Stock        int64  `json:"stock"`
	Pending      int64  `json:"pending"`
	Available    int64  `json:"available"`
	Version      int64  `json:"version"`
	Problem      string `json:"problem,omitempty"`
}

func activityOf(v gate.View) activityJSON {
	a := activityJSON{
		Activity: v.Activity.ID, Item: v.Activity.Item, Title: v.Activity.Title, State: v.State,
		StartsAtMs: v.Activity.StartsAtMs, EndsAtMs: v.Activity.EndsAtMs, MaxPerUser: v.Activity.MaxPerUser,
		SoldOut: v.SoldOut, ServerTimeMs: v.ServerTimeMs, AgeMs: v.AgeMs, Available: v.Available,
	}
	if s := v.Snapshot; s != nil {
		a.Stock, a.Pending, a.Version, a.Problem = s.Stock, s.Pending, s.Version, s.Problem
	}
	return a
}

func (c *core) overview(now time.Time) overview {
	s := c.Stats()
	o := overview{Activities: []activityJSON{}, Orders: ordersJSON{
		InWork: s.Open, Undecided: s.Undecided, Waiting: s.Waiters,
		AcksDropped: s.AcksDropped, Republished: s.Republished, FencedRefusals: s.FencedRefusals,
	}}
	views, reason := c.gate.Views(now)
	o.Unavailable = reason != gate.Pass
	for _, v := range views {
		o.Activities = append(o.Activities, activityOf(v))
	}
	o.Producer.OldestUnackedSec = c.producer.OldestUnacked().Seconds()
	if err := c.producer.Healthy(); err != nil {
		o.Producer.Error = err.Error()
	} else {
		o.Producer.Healthy = true
	}
	return o
}

func (a *adminAPI) serve(w http.ResponseWriter, r *http.Request) error {
	if !isRead(r.Method) {
		return caddy.APIError{HTTPStatus: http.StatusMethodNotAllowed, Err: errors.New("the seckill API is read only: use GET")}
	}
	v, err := a.ctx.AppIfConfigured("seckill")
	if err != nil {
		return caddy.APIError{HTTPStatus: http.StatusNotFound, Err: errors.New("this configuration has no seckill app")}
	}
	b, err := v.(*App).shared.get()
	if err != nil {
		return caddy.APIError{HTTPStatus: http.StatusServiceUnavailable, Err: err}
	}
	o := b.overview(time.Now())
	var answer any
	switch r.URL.Path {
	case adminPath:
		answer = o
	case adminPath + "activities":
		answer = o.Activities
	case adminPath + "producer":
		answer = o.Producer
	default:
		return caddy.APIError{HTTPStatus: http.StatusNotFound, Err: errors.New("want /seckill/, /seckill/activities or /seckill/producer")}
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(answer)
}

// Interface guards.
var (
	_ caddy.AdminRouter = (*adminAPI)(nil)
	_ caddy.Provisioner = (*adminAPI)(nil)
)
