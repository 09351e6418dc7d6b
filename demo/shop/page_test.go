package shop

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/demo/internal/browser"
)

var testKey = []byte("0123456789abcdef0123456789abcdef")

var testSale = Sale{Activity: 1001, Product: Product{
	Name: "晨光不锈钢保温杯 500ml", NameEN: "Daybreak steel flask, 500 ml", About: "316 不锈钢内胆，保温 12 小时，一手可握。",
	AboutEN: "316 steel inside, keeps tea hot for twelve hours.", Price: 990, Before: 12900, Units: 100,
}}

// gate stands in for the gateway: it puts the page into any state.
type gate struct {
	mu    sync.Mutex
	view  string // the sale
	mine  string // the buyer's order
	buy   func(w http.ResponseWriter)
	event string
	shop  http.Handler
}

func (g *gate) set(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	view, mine, buy, event := g.view, g.mine, g.buy, g.event
	g.mu.Unlock()
	switch {
	case r.URL.Path == "/seckill/1001":
		fmt.Fprint(w, view)
	case r.URL.Path == "/seckill/1001/orders/mine":
		if mine == "" {
			w.WriteHeader(404)
			return
		}
		fmt.Fprint(w, mine)
	case r.URL.Path == "/seckill/1001/orders" && r.Method == http.MethodPost:
		buy(w)
	case strings.HasPrefix(r.URL.Path, "/seckill/1001/orders/"):
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "retry: 500\n\ndata: %s\n\n", event)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		g.shop.ServeHTTP(w, r)
	}
}

func saleView(state string, starts, ends time.Duration, soldOut bool) string {
	now := time.Now()
	return fmt.Sprintf(`{"activity_id":1001,"item_id":1,"state":%q,"starts_at":%d,"ends_at":%d,"server_time":%d,"sold_out":%v}`,
		state, now.Add(starts).UnixMilli(), now.Add(ends).UnixMilli(), now.UnixMilli(), soldOut)
}

const testOrder = "019acf3e-8d52-7c1a-9a54-0b6a2f1d7e10"

func orderView(status, reason string, position int) string {
	return fmt.Sprintf(`{"order_id":%q,"activity_id":1001,"item_id":1,"quantity":1,"status":%q,"reason":%q,"position":%d}`,
		testOrder, status, reason, position)
}

// TestThePageInEachState walks through everything that a buyer may see, on both screens. With SHOTS=<folder> it keeps
// pictures.
func TestThePageInEachState(t *testing.T) {
	b := browser.Start(t)
	g := &gate{shop: New(Config{Key: testKey, Sale: func() Sale { return testSale }})}
	srv := httptest.NewServer(g)
	t.Cleanup(srv.CloseClientConnections) // streams are open for as long as their pages
	refuse := func(status int, reason, msg string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "5")
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"code":%d,"reason":%q,"msg":%q,"order_id":%q}`, status, reason, msg, testOrder)
		}
	}
	for _, s := range []struct {
		screen   browser.Screen
		language string
	}{{browser.Phone, "zh-CN,zh;q=0.9"}, {browser.Desktop, "zh-CN"}, {browser.Phone, "en-US,en;q=0.9"}, {browser.Desktop, "en"}} {
		lang := s.language[:2]
		t.Run(s.screen.Name+"-"+lang, func(t *testing.T) {
			shot := func(tab *browser.Browser, name string) { tab.Shot(name + "-" + s.screen.Name + "-" + lang) }
			tab := b.Tab(s.screen, s.language)
			g.set(func() { g.view, g.mine = saleView("not_started", 42*time.Minute, 2*time.Hour, false), "" })
			tab.Open(srv.URL)
			tab.See(`main[data-state=not_started]`, 10*time.Second)
			shot(tab, "01-anonymous")
			tab.Login("小明")
			tab.See(`main[data-state=not_started]`, 10*time.Second)
			if got := tab.Text("#buy"); got != texts[lang]["not_started"] {
				t.Errorf("button says %q", got)
			}
			shot(tab, "02-not-started")

			g.set(func() { g.view = saleView("open", -time.Minute, 29*time.Minute, false) })
			tab.See("#buy:enabled", 10*time.Second)
			shot(tab, "03-on-sale")

			g.set(func() { g.buy = refuse(429, "too_frequent", "请勿重复提交") })
			tab.Click("#buy", 5*time.Second)
			tab.See("#message", 5*time.Second)
			tab.See("#buy:disabled", 5*time.Second)
			shot(tab, "04-too-frequent")

			g.set(func() {
				g.event = orderView("queued", "", 37)
				g.buy = func(w http.ResponseWriter) {
					w.WriteHeader(202)
					fmt.Fprintf(w, `{"code":202,"order_id":%q,"status":"queued","status_url":"/x"}`, testOrder)
				}
			})
			tab.Click("#buy", 10*time.Second)
			tab.See(`#result[data-status=queued]`, 5*time.Second)
			shot(tab, "05-queued")

			g.set(func() { g.event = orderView("confirmed", "", -1) })
			srv.CloseClientConnections() // the browser reconnects and sees the result
			tab.See(`#result[data-status=confirmed]`, 10*time.Second)
			if !strings.Contains(tab.Text("#result-order"), testOrder) {
				t.Errorf("order line says %q", tab.Text("#result-order"))
			}
			shot(tab, "06-confirmed")

			for _, c := range []struct{ name, view, mine, see string }{
				{"07-paid", saleView("open", -time.Minute, time.Hour, false), orderView("paid", "", -1), `#result[data-status=paid]`},
				{"08-cancelled", saleView("open", -time.Minute, time.Hour, false), orderView("cancelled", "", -1), `#result[data-status=cancelled]`},
				{"09-failed", saleView("open", -time.Minute, time.Hour, true), orderView("failed", "sold_out", -1), `#result[data-status=failed]`},
				{"10-sold-out", saleView("open", -time.Minute, time.Hour, true), "", `main[data-state=sold_out]`},
				{"11-paused", saleView("paused", -time.Minute, time.Hour, false), "", `main[data-state=paused]`},
				{"12-ended", saleView("ended", -2*time.Hour, -time.Hour, false), "", `main[data-state=ended]`},
			} {
				g.set(func() { g.view, g.mine = c.view, c.mine })
				tab.Open(srv.URL)
				tab.See(c.see, 10*time.Second)
				tab.See("main:not([data-state=loading])", 10*time.Second)
				shot(tab, c.name)
			}

			// Bought in another tab meanwhile.
			g.set(func() {
				g.view, g.mine, g.event = saleView("open", -time.Minute, time.Hour, false), "", orderView("confirmed", "", -1)
				g.buy = refuse(409, "already_ordered", "您已参与本次活动")
			})
			tab.Open(srv.URL)
			tab.Click("#buy", 10*time.Second)
			tab.See(`#result[data-status=confirmed]`, 10*time.Second)
			tab.See("#message", 5*time.Second)
			shot(tab, "13-already-ordered")

			if tab.Holds("document.documentElement.scrollWidth > window.innerWidth") {
				t.Error("the page is wider than the screen")
			}
		})
	}
}
