// Command seckill-worker lands accepted orders: it takes them from Kafka, writes them to MySQL in batches, and tells Redis.
package main

import (
	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/cli"
	"github.com/seckillgate/seckillgate/internal/startup"
)

// exitRefused is the exit code of what a person must mend.
const exitRefused = startup.ExitRefused

// loader reads the configuration; the addresses of systems that are not named may be missing.
type loader func(need ...system) (*settings, error)

// errRefused marks errors that end with exitRefused.
var errRefused = startup.ErrRefused

func main() { cli.Main(newRoot(), startup.Code) }

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
		Version: version(),
	}
	root.PersistentFlags().StringVarP(&path, "config", "c", "", "YAML `FILE` with the configuration; the environment overrides it")
	load := func(need ...system) (*settings, error) { return loadSettings(path, need...) }
	root.AddCommand(newRun(load), newMigrate(load), newReplay(load), newDLQ(load), newOutbox(load), newConfig(load))
	return cli.Root(root)
}

// release is set by the release build (-ldflags "-X main.release=v1.2.3").
var release string

// version names what is running.
func version() string { return cli.Version(release) }
