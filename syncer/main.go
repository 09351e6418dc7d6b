// Command seckill-syncer keeps Redis equal to MySQL: it follows the binlog, loads what Redis does not have, and compares.
package main

import (
	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/cli"
	"github.com/seckillgate/seckillgate/internal/startup"
)

// errRefused marks errors that end with exitRefused.
var errRefused = startup.ErrRefused

func main() { cli.Main(newRoot(), startup.Code) }

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

The MySQL user needs SELECT on orders and on the table of migrations, SELECT, INSERT and UPDATE on
activity and inventory, and REPLICATION SLAVE and REPLICATION CLIENT (MariaDB: BINLOG MONITOR).
"seckill-syncer config check" names what is missing, with the GRANT that gives it.`,
		Example: `  seckill-syncer run
  seckill-syncer activity create --item 42 --stock 500 --starts +10m --ends +1h
  seckill-syncer status`,
		Version: version(),
	}
	root.PersistentFlags().StringVarP(&path, "config", "c", "", "YAML `FILE` with the configuration; the environment overrides it")
	load := func(need ...system) (*settings, error) { return loadSettings(path, need...) }
	root.AddCommand(newRun(load), newActivity(load), newLoad(load), newCompare(load), newForce(load), newStatus(load), newConfig(load))
	return cli.Root(root)
}

// release is set by the release build (-ldflags "-X main.release=v1.2.3").
var release string

// version names what is running.
func version() string { return cli.Version(release) }
