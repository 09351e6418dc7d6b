//go:build crashpoints

package crashpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// Enabled says whether this binary was built with the tag `crashpoints`.
const Enabled = true

var (
	at, nth = parse(os.Getenv(Env))
	reached atomic.Int64
)

// Here kills this process without any clean-up when SECKILL_CRASH_AT names this step. It does not return then.
func Here(name string) {
	if name != at || reached.Add(1) != nth {
		return
	}
	fmt.Fprintf(os.Stderr, "crash point %s reached: killing this process\n", name)
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {} // the signal is on its way; nothing after this step may run
}

func parse(v string) (name string, nth int64) {
	name, count, found := strings.Cut(v, ":")
	if !found {
		return name, 1
	}
	nth, err := strconv.ParseInt(count, 10, 64)
	if err != nil || nth < 1 {
		panic(fmt.Sprintf("%s=%q: want NAME or NAME:N with N from 1", Env, v))
	}
	return name, nth
}
