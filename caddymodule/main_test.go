package caddymodule

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/internal/bench"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestMain(m *testing.M) {
	if how := os.Getenv(benchGateway); how != "" {
		beGateway(how)
		return
	}
	// Certificates that Caddy makes belong into no user's home.
	dir, err := os.MkdirTemp("", "caddymodule")
	if err != nil {
		panic(err)
	}
	caddy.DefaultStorage.Path = dir
	known := append(testenv.KnownLeaks(),
		goleak.Cleanup(func(code int) {
			bench.Print(os.Stdout)
			_ = os.RemoveAll(dir)
			os.Exit(code)
		}),
		// Caddy's own, one per process.
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*Cache).maintainAssets"),
		goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreAnyFunction("go.opencensus.io/stats/view.(*worker).start"),
	)
	goleak.VerifyTestMain(m, known...)
}

// quiet keeps Caddy's log out of the tests' output.
func quiet() *caddy.Logging {
	return &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {BaseLog: caddy.BaseLog{
		Level: "ERROR", WriterRaw: json.RawMessage(`{"output":"discard"}`),
	}}}}
}
