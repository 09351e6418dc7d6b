// Command seckill-syncer keeps Redis equal to MySQL: it follows the binlog, loads what Redis does not have, and compares.
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

// errRefused marks errors that end with exitRefused.
var errRefused = startup.ErrRefused

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "seckill-syncer:", err)
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
		Use:   "seckill-syncer",
		Short: "Keep Redis equal to MySQL during flash sales",
		Long: `seckill-syncer keeps the copy of stock, buyers and activities in Redis equal to MySQL, in three
layers: it follows the binlog (milliseconds), compares both sides (every 30 s), and loads what
Redis does not have or may have missed. By hand there is force, for emergencies.

Any number may run; one leads and the others stand by. The other commands work beside a running
daemon, and without one.

Configuration comes from --config FILE (YAML), and every key also from the environment, which
wins: mysql.dsn is SECKILL_MYSQL_DSN. These three are enough to run:

  SECKILL_REDIS_ADDRS     host:port, several separated by commas for a cluster
  SECKILL_KAFKA_BROKERS   host:port, several separated by commas
  SECKILL_MYSQL_DSN       user:password@tcp(host:3306)/database

The MySQL user needs SELECT, INSERT and UPDATE on the tables, REPLICATION SLAVE and
REPLICATION CLIENT (MariaDB: BINLOG MONITOR). "seckill-syncer config check" tells what is missing.`,
		Example: `  seckill-syncer run
  seckill-syncer activity create --item 42 --stock 500 --starts +10m --ends +1h
  seckill-syncer status`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.PersistentFlags().StringVarP(&path, "config", "c", "", "YAML `FILE` with the configuration; the environment overrides it")
	load := func(need ...system) (*settings, error) { return loadSettings(path, need...) }
	root.AddCommand(newRun(load), newActivity(load), newLoad(load), newCompare(load), newForce(load), newStatus(load), newConfig(load))
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
