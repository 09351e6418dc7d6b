// Package browser drives a headless Chromium in tests of the shop's page.
package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// Screen is a device to look with.
type Screen struct {
	Name          string
	Width, Height int64
	Scale         float64
	Mobile        bool
}

// The two screens that the page is made for.
var (
	Phone   = Screen{Name: "phone", Width: 390, Height: 844, Scale: 2, Mobile: true}
	Desktop = Screen{Name: "desktop", Width: 1280, Height: 860, Scale: 1}
)

// Browser is a running Chromium.
type Browser struct {
	t   testing.TB
	ctx context.Context //nolint:containedctx // chromedp's handle on a tab is a context
}

// Start runs Chromium with a profile of its own, which ends with the test. A machine without it fails the test.
func Start(t testing.TB) *Browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		t.Fatal("chromium is not installed; the page is tested in it: apt-get install -y chromium fonts-noto-cjk")
	}
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(path), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(60 * time.Second),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true),
	}
	alloc, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(alloc)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits for the process, so that its profile can be removed
		end()
		cancel()
	})
	b := &Browser{t: t, ctx: ctx}
	b.run(60*time.Second, "start chromium")
	return b
}

// Tab is a fresh page with cookies of its own.
func (b *Browser) Tab(s Screen, language string) *Browser {
	b.t.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext())
	b.t.Cleanup(cancel)
	tab := &Browser{t: b.t, ctx: ctx}
	tab.run(30*time.Second, "open a tab", func(ctx context.Context, target *chromedp.Target) (none chromedp.Void, err error) {
		_, err = cdp.Call(ctx, target, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
			Width: s.Width, Height: s.Height, DeviceScaleFactor: s.Scale, Mobile: s.Mobile,
		})
		if err != nil {
			return none, err
		}
		_, err = cdp.Call(ctx, target, emulation.SetUserAgentOverride, emulation.SetUserAgentOverrideParams{
			UserAgent: "Mozilla/5.0 seckillgate-demo-test", AcceptLanguage: language,
		})
		return none, err
	})
	return tab
}

func (b *Browser) run(within time.Duration, what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := b.try(within, actions...); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

func (b *Browser) try(within time.Duration, actions ...chromedp.Action[chromedp.Void]) error {
	// The first run of a context must not be bounded: its end would end the browser.
	if err := chromedp.Do(b.ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(b.ctx, within)
	defer cancel()
	return chromedp.Do(ctx, actions...)
}

// Open goes to a page.
func (b *Browser) Open(url string) {
	b.t.Helper()
	b.run(30*time.Second, "open "+url, chromedp.Navigate(url))
}

// Login logs in on the page.
func (b *Browser) Login(name string) {
	b.t.Helper()
	b.run(20*time.Second, "log in", chromedp.SendKeys("#name", name), chromedp.Click(".login .buy"), chromedp.WaitVisible(".who"))
}

// See waits until an element is there and visible.
func (b *Browser) See(selector string, within time.Duration) {
	b.t.Helper()
	if err := b.try(within, chromedp.WaitVisible(selector)); err != nil {
		b.t.Fatalf("not on the page within %s: %s: %v; the page says: %s", within, selector, err, b.Text("main"))
	}
}

// Shows says whether an element becomes visible within a time.
func (b *Browser) Shows(selector string, within time.Duration) bool {
	return b.try(within, chromedp.WaitVisible(selector)) == nil
}

// Click clicks an element once it is visible and enabled.
func (b *Browser) Click(selector string, within time.Duration) {
	b.t.Helper()
	b.run(within, "click "+selector, chromedp.WaitEnabled(selector), chromedp.Click(selector))
}

// Text is what an element says.
func (b *Browser) Text(selector string) string {
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	s, err := chromedp.Run(ctx, chromedp.Text(selector))
	if err != nil {
		return fmt.Sprintf("(%s: %v)", selector, err)
	}
	return s
}

// Holds evaluates a condition in the page.
func (b *Browser) Holds(script string) bool {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
	defer cancel()
	ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](script))
	if err != nil {
		b.t.Fatalf("evaluate %s: %v", script, err)
	}
	return ok
}

// Shot keeps a picture in the folder that SHOTS names, if it does.
func (b *Browser) Shot(name string) {
	b.t.Helper()
	dir := os.Getenv("SHOTS")
	if dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, 20*time.Second)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatalf("take a picture: %v", err)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil { //nolint:gosec // the folder that the tester named
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil { //nolint:gosec // likewise
		b.t.Fatal(err)
	}
}
