package caddymodule

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/seckillgate/seckillgate/internal/gate"
	"github.com/seckillgate/seckillgate/internal/ledger"
)

func init() { caddy.RegisterModule(eventProbe{}) }

// eventProbe is an event handler that tells the test what it heard.
type eventProbe struct {
	Name string `json:"name,omitempty"`
}

var probed = make(chan string, 100)

func (eventProbe) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.seckill_probe", New: func() caddy.Module { return new(eventProbe) }}
}

func (p *eventProbe) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if !d.Args(&p.Name) {
		return d.ArgErr()
	}
	return nil
}

func (p *eventProbe) Handle(_ context.Context, e caddy.Event) error {
	probed <- fmt.Sprintf("%s %s %v %v %v from %v to %v by %v", p.Name, e.Name(), e.Data["activity_id"], e.Data["item_id"],
		e.Data["title"], e.Data["from"], e.Data["to"], e.Origin().CaddyModule().ID)
	return nil
}

func heard(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-probed:
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("no event within 10 s, want %s", want)
	}
}

// Changes of a sale's state are events, told by the configuration that runs: not by one that has been replaced, and not by one
// that failed.
func TestEvents(t *testing.T) {
	made := fakes(t)
	c := newConfigs(t)
	with := func(name string, lines ...string) string {
		on := "{\nevents {\n"
		for _, event := range []string{"seckill_sold_out", "seckill_open", "seckill_paused"} {
			on += "on " + event + " seckill_probe " + name + "\n"
		}
		return strings.Replace(c.with("", append(lines, "seckill {\n user {header.X-User}\n}")...), "{\n", on+"}\n", 1)
	}
	load(t, with("first"))
	news := made()[0].news
	sale := ledger.Activity{ID: 7, Item: 70, Title: "a phone"}
	news <- gate.Change{Activity: sale, From: "open", To: "sold_out"}
	heard(t, "first seckill_sold_out 7 70 a phone from open to sold_out by seckill")
	news <- gate.Change{Activity: sale, From: "sold_out", To: "recovering"} // nobody listens
	news <- gate.Change{Activity: sale, From: "recovering", To: "open"}
	heard(t, "first seckill_open 7 70 a phone from recovering to open by seckill")

	load(t, with("second"))
	if err := tryLoad(t, with("third", "seckill_gate {\n activity {http.request.typo}\n}")); err == nil {
		t.Fatal("a wrong configuration was accepted")
	}
	if len(made()) != 1 {
		t.Fatal("the clients were made anew")
	}
	news <- gate.Change{Activity: sale, From: "open", To: "paused"}
	heard(t, "second seckill_paused 7 70 a phone from open to paused by seckill")
	if len(probed) != 0 {
		t.Errorf("another event: %s", <-probed)
	}
}
