// Command seckill-worker lands accepted orders: it takes them from Kafka, writes them to MySQL in batches, and tells Redis.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/cli"
	"github.com/seckillgate/seckillgate/internal/startup"
)

// Exit codes. The unit file relies on exitRefused: restarting does not help there.
const (
	exitFailed  = 1
	exitRefused = 78 // EX_CONFIG: the configuration, or what it points at, must be mended by a person
)

// loader reads the configuration; the addresses of systems that are not named may be missing.
type loader func(need ...system) (*settings, error)

// errRefused marks errors that end with exitRefused.
var errRefused = startup.ErrRefused

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "seckill-worker:", err)
		stop()
		if errors.Is(err, errRefused) {
			os.Exit(exitRefused)
		}
		os.Exit(exitFailed)
	}
}

func newRoot() *cobra.Command {
	var path string
	root := &cobra.Command{
		Use:   "seckill-worker",
		Short: "Land accepted flash-sale orders in MySQL",
		Long: `seckill-worker takes the orders that the gateway accepted from Kafka, lands them in MySQL in
batches, and tells Redis what MySQL decided. An order takes effect exactly once, whatever is
killed and however often Kafka delivers it.

Configuration comes from --config FILE (YAML), and every key also from the environment, which
wins: mysql.dsn is SECKILL_MYSQL_DSN. These three are enough to run:

  SECKILL_REDIS_ADDRS     host:port, several separated by commas for a cluster
  SECKILL_KAFKA_BROKERS   host:port, several separated by commas
  SECKILL_MYSQL_DSN       user:password@tcp(host:3306)/database

"seckill-worker config check" shows what is in force and whether it would start.`,
		Example: `  seckill-worker migrate --create-topics   # once, and after each upgrade
  seckill-worker run`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.PersistentFlags().StringVarP(&path, "config", "c", "", "YAML `FILE` with the configuration; the environment overrides it")
	load := func(need ...system) (*settings, error) { return loadSettings(path, need...) }
	root.AddCommand(newRun(load), newMigrate(load), newReplay(load), newDLQ(load), newOutbox(load), newConfig(load))
	cli.Strict(root)
	return root
}

// release is set by the release build (-ldflags "-X main.release=v1.2.3").
var release string

// version names the release, else the module version or commit that the Go tool noted.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (v == "" || v == "(devel)") {
			v = "devel-" + s.Value[:min(12, len(s.Value))]
		}
	}
	return v + " " + info.GoVersion
}
