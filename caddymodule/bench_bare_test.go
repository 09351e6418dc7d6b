package caddymodule

import (
	"net/http"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// bareReserve is a reservation with nothing around it: no limit, no gate, no checks, no budget, no metrics. It shows what the
// script and the group commit leave to gain.
type bareReserve struct {
	Redis    string `json:"redis"`
	Activity int64  `json:"activity"`

	client  *redis.Client
	batcher *ledger.Batcher
}

func init() {
	caddy.RegisterModule((*bareReserve)(nil))
	httpcaddyfile.RegisterHandlerDirective("bench_reserve", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		b := new(bareReserve)
		return b, b.UnmarshalCaddyfile(h.Dispenser)
	})
}

func (*bareReserve) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.bench_reserve", New: func() caddy.Module { return new(bareReserve) }}
}

func (b *bareReserve) UnmarshalCaddyfile(d *caddyfile.Dispenser) (err error) {
	var activity string
	if d.Next(); !d.Args(&b.Redis, &activity) {
		return d.ArgErr()
	}
	b.Activity, err = strconv.ParseInt(activity, 10, 64)
	return err
}

func (b *bareReserve) Provision(caddy.Context) error {
	b.client = redis.NewClient(&redis.Options{Addr: b.Redis, MaxRetries: -1})
	b.batcher = ledger.NewBatcher(ledger.New(b.client, ledger.Options{}), ledger.BatcherOptions{})
	return nil
}

func (b *bareReserve) Cleanup() error {
	b.batcher.Close()
	return b.client.Close()
}

func (b *bareReserve) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	done := make(chan struct{}, 1)
	m := &ledger.Member{Answered: func() { done <- struct{}{} }}
	m.Reservation = ledger.Reservation{
		Order: id.String(), Nonce: "bench", User: r.Header.Get("X-User"), Quantity: 1, Window: 5 * time.Second,
		NotAfterMs: time.Now().Add(time.Minute).UnixMilli(),
	}
	if err := b.batcher.Join(b.Activity, m); err != nil {
		return err
	}
	<-done
	d, err := m.Answer()
	if err != nil {
		return err
	}
	if d.Code != ledger.Reserved {
		w.WriteHeader(http.StatusConflict)
		return nil
	}
	writeJSON(w, r, http.StatusAccepted, []byte(`{"code":202,"order_id":"`+m.Order+`","status":"processing"}`))
	return nil
}
