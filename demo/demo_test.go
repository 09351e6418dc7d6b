package main

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/demo/internal/browser"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/loadgen"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// One goroutine for the life of the process, which sarama's metrics library never ends.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// bench is a running demo.
type bench struct {
	*demo
	t *testing.T
}

func setup(t *testing.T) *bench {
	t.Helper()
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	ui := newUI(os.Stdout)
	// The binaries are kept between runs; everything else is the test's own.
	bin, err := build(t.Context(), root, filepath.Join(root, ".demo", "bin"), ui)
	if err != nil {
		t.Fatal(err)
	}
	d, err := start(t.Context(), options{base: t.TempDir(), port: 8080}, bin, ui)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.stop)
	return &bench{demo: d, t: t}
}

// TestDemo plays the demo as a newcomer sees it, then buys in a browser, and at last breaks the end state on purpose.
func TestDemo(t *testing.T) {
	b := setup(t)
	report, err := b.playSale(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := report.Err(); err != nil {
		t.Fatal(err)
	}
	if report.Totals.SoldUnits != units+restock {
		t.Errorf("sold %d units, want %d", report.Totals.SoldUnits, units+restock)
	}
	t.Run("a buyer in a browser", b.buyInABrowser)
	t.Run("check names what broke", b.breakOnPurpose)
}

func (b *bench) buyInABrowser(t *testing.T) {
	const activity = 2001
	chrome := browser.Start(t)
	if err := b.open(t.Context(), activity, 3, 12*time.Second, 60*time.Second); err != nil {
		t.Fatal(err)
	}
	anna := chrome.Tab(browser.Phone, "zh-CN")
	anna.Open(b.url)
	anna.Login("安娜")
	anna.See(`main[data-state=not_started]`, 10*time.Second)
	anna.Shot("live-1-countdown")
	// The countdown ends and the button opens by itself.
	anna.Click("#buy:enabled", 30*time.Second)
	anna.See(`#result[data-status=confirmed]`, 20*time.Second)
	anna.Shot("live-2-confirmed")
	anna.Click("#pay", 5*time.Second)
	anna.See(`#result[data-status=paid]`, 10*time.Second)
	anna.Shot("live-3-paid")

	// The order is still there after a reload.
	anna.Open(b.url)
	anna.See(`#result[data-status=paid]`, 10*time.Second)

	// Cancelled, the unit comes back and the buyer may try again.
	bert := chrome.Tab(browser.Desktop, "en")
	bert.Open(b.url)
	bert.Login("Bert")
	bert.Click("#buy:enabled", 20*time.Second)
	bert.See(`#result[data-status=confirmed]`, 20*time.Second)
	bert.Click("#cancel", 5*time.Second)
	bert.See(`#result[data-status=cancelled]`, 10*time.Second)
	bert.Shot("live-4-cancelled")
	// A browser is quick: the first tries may still be in the user window of a second.
	for i := 0; ; i++ {
		bert.Click("#buy:enabled", 20*time.Second)
		if bert.Shows(`#result[data-status=confirmed]`, 3*time.Second) {
			break
		}
		if i == 5 {
			t.Fatal("a buyer whose order was cancelled cannot buy again: ", bert.Text("main"))
		}
	}

	// Somebody takes the last unit; who has none sees it sold out.
	cora := chrome.Tab(browser.Phone, "en")
	cora.Open(b.url)
	cora.Login("Cora")
	stats := loadgen.NewStats()
	err := loadgen.Run(t.Context(), loadgen.Config{
		Target: b.url, Activity: activity, Identify: b.buyer, Requests: 3, Concurrency: 1, Follow: 10 * time.Second,
	}, stats)
	if err != nil {
		t.Fatal(err)
	}
	if f := stats.Figures(); f.Answers["sold_out"] != 2 {
		t.Errorf("answers %v, want one accepted and two sold_out", f.Answers)
	}
	cora.See(`main[data-state=sold_out]`, 10*time.Second)
	cora.Shot("live-5-sold-out")

	// The end.
	if err := b.await(t.Context(), activity, 90*time.Second, "the sale ends", func(v saleView) bool { return v.State == "ended" }); err != nil {
		t.Fatal(err)
	}
	cora.See(`main[data-state=ended]`, 10*time.Second)
	cora.Shot("live-6-ended")
}

// breakOnPurpose spoils the played sale's end state in each system, and wants `seckill-drill check` to end with 1 and say
// what broke. Nothing may mend it meanwhile, so the syncer is stopped.
func (b *bench) breakOnPurpose(t *testing.T) {
	b.procs.End(b.children["syncer"], grace)
	rdb := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(b.env[0], "SECKILL_REDIS_ADDRS=")})
	defer rdb.Close()
	keys := ledger.KeysOf(firstActivity)
	if out, code := b.check(t); code != 0 || !strings.Contains(out, "ok      I4") {
		t.Fatalf("before anything is broken: exit %d\n%s", code, out)
	}
	var lost string
	if err := b.db.QueryRowContext(t.Context(), "SELECT MIN(order_id) FROM orders WHERE activity_id = ?", firstActivity).Scan(&lost); err != nil {
		t.Fatal(err)
	}
	exec := func(query string, args ...any) {
		t.Helper()
		if _, err := b.db.ExecContext(t.Context(), query, args...); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name           string
		spoil, restore func()
		want           []string
	}{
		{
			"stock in redis lowered",
			func() { must(rdb.Set(t.Context(), keys.Stock, -1, 0).Err()) },
			func() { must(rdb.Set(t.Context(), keys.Stock, 0, 0).Err()) },
			[]string{"BROKEN  I2", "ok      I1", "ok      I3", "ok      I4"},
		},
		{
			"a unit leaked",
			func() { must(rdb.Set(t.Context(), keys.Pending, 1, 0).Err()) },
			func() { must(rdb.Set(t.Context(), keys.Pending, 0, 0).Err()) },
			[]string{"BROKEN  I2", "ok      I1", "ok      I3", "ok      I4"},
		},
		{
			"an order row removed",
			func() { exec("DELETE FROM orders WHERE order_id = ?", lost) },
			func() {},
			[]string{"BROKEN  I4", "1 orders that kafka acknowledged have no row in mysql: " + lost, "BROKEN  I1"},
		},
	} {
		c.spoil()
		out, code := b.check(t)
		if code != 1 {
			t.Errorf("%s: check ends with %d, want 1\n%s", c.name, code, out)
		}
		for _, w := range c.want {
			if !strings.Contains(out, w) {
				t.Errorf("%s: the check does not say %q\n%s", c.name, w, out)
			}
		}
		c.restore()
	}
}

// check runs the drill as a person does.
func (b *bench) check(t *testing.T) (out string, code int) {
	t.Helper()
	out, err := b.command(t.Context(), b.bin.drill, "check", "--activity", strconv.Itoa(firstActivity), "--units", strconv.Itoa(units+restock),
		"--told", filepath.Join(b.dir, "told.jsonl"), "--wait", "500ms")
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return out, exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err, out)
	}
	return out, 0
}

// TestCtrlCEndsEverything runs the demo as `make demo` does, until it serves the page, and interrupts it.
func TestCtrlCEndsEverything(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "demo")
	if err := compile(t.Context(), ".", ".", program, func(string) {}); err != nil {
		t.Fatal(err)
	}
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	// The binaries that other tests have built.
	if err := os.Symlink(filepath.Join(root, ".demo", "bin"), filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "DEMO_DIR="+dir, "DEMO_EXIT=")
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	bound := time.AfterFunc(5*time.Minute, func() { _ = cmd.Process.Kill() })
	defer bound.Stop()
	url, addrs := "", []string(nil)
	addr := regexp.MustCompile(`127\.0\.0\.1:\d+`)
	in := bufio.NewScanner(pipe)
	for url == "" && in.Scan() {
		line := in.Text()
		if found := addr.FindString(line); found != "" {
			addrs = append(addrs, found)
		}
		if _, after, ok := strings.Cut(line, "Now you: "); ok {
			url = strings.Fields(after)[0]
		}
	}
	if url == "" {
		t.Fatal("the demo ended before it served its page")
	}
	if err := get(t.Context(), url+"/"); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for in.Scan() { // to the end of its output
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	if len(addrs) < 4 {
		t.Errorf("addresses %v, want those of redis, mariadb, kafka and the page", addrs)
	}
	for _, a := range addrs {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a, nil)
		if err == nil {
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
				t.Errorf("%s still answers", a)
			} else if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: %v, want nobody there", a, err)
			}
		}
		cancel()
	}
}

func TestASecondDemoIsRefused(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(dir); !errors.Is(err, errRunning) {
		t.Fatalf("second lock: %v", err)
	}
	unlock()
	again, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	again()
}
