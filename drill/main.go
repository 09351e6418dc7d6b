// Command seckill-drill rehearses a sale against a running deployment: `run` plays the buyers and measures what they see,
// `check` says whether the sale kept its promises.
package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/cli"
)

// Exit codes.
const (
	exitBroken = 1 // an invariant is broken
	exitFailed = 2 // no verdict: the command is wrong, or something could not be read
)

// errBroken marks the verdict that something is broken.
var errBroken = errors.New("the sale did not keep its promises")

func main() {
	cli.Main(newRoot(), func(err error) int {
		if errors.Is(err, errBroken) {
			return exitBroken
		}
		return exitFailed
	})
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "seckill-drill",
		Short: "Rehearse a flash sale and check that it kept its promises",
		Long: `seckill-drill rehearses a flash sale against a running deployment.

"run" plays the buyers: at a fixed rate, as in a real rush, or a fixed number of them at a time.
It shows live what they are told and how fast, and can keep a record of it.

"check" reads Redis, MySQL and Kafka afterwards, and that record, and judges:
  I1  no oversell      what was sold and what is left make what was put on sale
  I2  nothing leaks    Redis has MySQL's stock, and nothing is reserved any more
  I3  one per buyer    at most one live order each, and Redis knows exactly those buyers
  I4  nothing lost     each accepted order has one row in MySQL, no refused one has any`,
		Example: `  seckill-drill run --target http://127.0.0.1:8080 --activity 1001 --rate 2000 --buyers 50000 \
      --header 'Cookie: session={jwt}' --jwt-key-file jwt.key --told told.jsonl
  seckill-drill check --activity 1001 --units 500 --told told.jsonl`,
		Version: version(),
	}
	root.AddCommand(newRun(), newCheck())
	return cli.Root(root)
}

// release is set by the release build (-ldflags "-X main.release=v1.2.3").
var release string

// version names what is running.
func version() string { return cli.Version(release) }
