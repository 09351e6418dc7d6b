package telemetry

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Notify tells systemd a state such as "READY=1", "STOPPING=1" or "STATUS=…". Outside of systemd it does nothing.
func Notify(state string) error {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return nil
	}
	if strings.HasPrefix(socket, "@") { // in the abstract name space
		socket = "\x00" + socket[1:]
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return nil
}

// Watchdog pings systemd's watchdog at half its interval while ctx lasts and alive returns nil. Outside of systemd, or without
// WatchdogSec, it returns at once. alive should prove that the process moves, not that its surroundings are well: a restart
// mends a deadlock, not a database that is down.
func Watchdog(ctx context.Context, alive func() error) {
	interval := watchdogInterval()
	if interval == 0 {
		return
	}
	tick := time.NewTicker(interval / 2)
	defer tick.Stop()
	for {
		if alive() == nil {
			_ = Notify("WATCHDOG=1") // the next one may work; if none does, systemd acts
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func watchdogInterval() time.Duration {
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0 // meant for another process
	}
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || usec <= 0 || os.Getenv("NOTIFY_SOCKET") == "" {
		return 0
	}
	return time.Duration(usec) * time.Microsecond
}
