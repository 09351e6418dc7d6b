package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

// TestRateLimitOverGateways: three gateways at limit N let N pass in total in any window. With Redis gone each lets its
// share pass and says so; with Redis back the limit is one again.
func TestRateLimitOverGateways(t *testing.T) {
	t.Parallel()
	redis := testenv.StartRedis(t)
	sites := make([]string, 3)
	metrics := make([]string, 3)
	for i := range sites {
		sites[i], metrics[i] = startLimited(t, redis.Addr)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	t.Cleanup(client.CloseIdleConnections)
	get := func(url string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(r)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Error(err)
		}
		return res.StatusCode, string(body)
	}
	// fallbacks gives how many requests the gateway has answered from its own share.
	fallbacks := func(metrics string) int {
		_, text := get(metrics)
		_, text, found := strings.Cut(text, "\nseckill_rate_limit_fallbacks_total ")
		if !found {
			return 0
		}
		text, _, _ = strings.Cut(text, "\n")
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	// flood asks all gateways at once and gives how many requests passed.
	flood := func(path string) int64 {
		var passed atomic.Int64
		var wg sync.WaitGroup
		for _, site := range sites {
			for range 4 {
				wg.Go(func() {
					for range 25 {
						if status, _ := get(site + path); status == http.StatusOK {
							passed.Add(1)
						} else if status != http.StatusTooManyRequests {
							t.Errorf("%s: got %d", path, status)
						}
					}
				})
			}
		}
		wg.Wait()
		return passed.Load()
	}
	if n := flood("/one"); n != 60 {
		t.Errorf("%d passed, want 60", n)
	}
	if n := flood("/two"); n != 60 {
		t.Errorf("%d passed through the named limit, want 60", n)
	}
	redis.Kill()
	if n := flood("/three"); n != 60 {
		t.Errorf("%d passed with Redis gone, want 3 shares of 20", n)
	}
	for _, m := range metrics {
		if fallbacks(m) == 0 {
			t.Error("a gateway does not say that it fell back")
		}
	}
	redis.Restart()
	// Each limiter finds out for itself that Redis is back, so the one that is tried below is asked here.
	testenv.Eventually(t, 20*time.Second, "all gateways to ask Redis again", func() bool {
		for i, site := range sites {
			before := fallbacks(metrics[i])
			get(site + "/back")
			if fallbacks(metrics[i]) != before {
				return false
			}
		}
		return true
	})
	if n := flood("/four"); n != 60 {
		t.Errorf("%d passed with Redis back, want 60", n)
	}
}

// startLimited runs a gateway with limits over all gateways. No Kafka is there: limits need none.
func startLimited(t *testing.T, redis string) (site, metrics string) {
	t.Helper()
	dir := t.TempDir()
	site = fmt.Sprintf("http://127.0.0.1:%d", testenv.FreePort(t))
	admin := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	caddyfile := fmt.Sprintf(`{
	admin %s
	metrics
	seckill {
		redis %s
		kafka 127.0.0.1:%d
	}
}
%s {
	seckill_rate_limit /two sliding_window 60/h scope cluster timeout 10s name shop
	@paths path /one /three /back /four
	seckill_rate_limit @paths sliding_window 60/h scope cluster timeout 10s {
		key {path}
	}
	respond ok
}
`, admin, redis, testenv.FreePort(t), site)
	if err := os.WriteFile(filepath.Join(dir, "Caddyfile"), []byte(caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.StartProgram(t, "caddy", func() *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, "caddy"), "run")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir)
		return cmd
	}, func() error {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, site+"/", nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer http.DefaultClient.CloseIdleConnections()
		return res.Body.Close()
	})
	return site, "http://" + admin + "/metrics"
}
