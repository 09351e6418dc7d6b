package caddymodule

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

// `caddy seckill` shows what the admin endpoint of the running gateway says.
func TestCommand(t *testing.T) {
	f := newFake()
	f.activities = []activityJSON{
		{
			Activity: 1, Item: 11, Title: "a \x1b[2Jphone", State: "open", SoldOut: true, AgeMs: 120, Stock: 3, Pending: 3, Version: 1764479640000000,
		},
		{Activity: 2, Item: 12, State: "recovering", AgeMs: -1, Stock: 0, Problem: ""},
		{Activity: 3, Item: 13, Title: "a desk", State: "paused", AgeMs: 80, Stock: 9, Available: -1, Version: 5, Problem: "stock is missing"},
	}
	run(t, f, "seckill {\n user {header.X-User}\n}")
	admin := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	withAdmin := func(address, rest string) string {
		return "{\nadmin " + address + "\n" + strings.TrimPrefix(rest, "{\n")
	}
	load(t, withAdmin(admin, global))
	// While a reload hands the port on, the old server resets connections.
	show := func(asJSON bool) (out string, err error) {
		testenv.Eventually(t, 10*time.Second, "an answer, or none", func() bool {
			var b strings.Builder
			err = showSales(&b, admin, asJSON)
			out = b.String()
			return err == nil || !strings.Contains(err.Error(), "reset by peer") && !strings.Contains(err.Error(), "EOF")
		})
		return out, err
	}
	got, err := show(false)
	if err != nil {
		t.Fatal(err)
	}
	const want = "" +
		"ACTIVITY  ITEM  STATE       SOLD OUT  STOCK  PENDING  AVAILABLE  VERSION           LOOKED     TITLE\n" +
		"1         11    open        yes       3      3        0          1764479640000000  120ms ago  a ?[2Jphone\n" +
		"2         12    recovering  no        -      -        -          -                 never      \n" +
		"3         13    paused      no        9      0        -          5                 80ms ago   a desk (stock is missing)\n" +
		"kafka: does not take orders: no leader; the oldest unacknowledged message is 1.500 s old\n" +
		"orders: 3 in work, 1 of them undecided; 12 buyers wait for an outcome\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got, err = show(true); err != nil {
		t.Fatal(err)
	}
	var o overview
	if err := json.Unmarshal([]byte(got), &o); err != nil || len(o.Activities) != 3 || o.Activities[0].Version != 1764479640000000 {
		t.Errorf("as JSON: got %s, %v", got, err)
	}

	load(t, withAdmin(admin, "{\n}\n:0 {\nbind 127.0.0.1\nrespond x\n}\n"))
	if _, err := show(false); err == nil || !strings.Contains(err.Error(), "has no seckill app") || strings.Contains(err.Error(), "--address") {
		t.Errorf("without the app: got %v", err)
	}
	load(t, withAdmin("off", global))
	if _, err := show(false); err == nil || !strings.Contains(err.Error(), "no admin endpoint answers at "+admin+": is Caddy running") {
		t.Errorf("without an admin endpoint: got %v", err)
	}
}

// Nothing to show is said, not left empty.
func TestCommandWithoutSales(t *testing.T) {
	for want, o := range map[string]overview{
		"sales: none\nkafka: takes orders;": {Producer: healthJSON{Healthy: true}},
		"sales: unavailable,":               {Unavailable: true},
	} {
		var b strings.Builder
		if err := o.print(&b); err != nil || !strings.HasPrefix(b.String(), want) {
			t.Errorf("got %s, %v", b.String(), err)
		}
	}
}
