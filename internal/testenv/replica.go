package testenv

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// ReplicaOf makes r follow the server at an address, which may be a proxy before it, and waits until it is in sync.
func (r *Redis) ReplicaOf(addr string) {
	r.t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		r.t.Fatalf("address of a master: %v", err)
	}
	r.ask("REPLICAOF", host, port)
	Eventually(r.t, startWithin, r.Addr+" to be in sync with "+addr, func() bool {
		return strings.Contains(fmt.Sprint(r.ask("INFO", "replication")), "master_link_status:up")
	})
}

// Promote makes a replica a master, with what it has.
func (r *Redis) Promote() {
	r.t.Helper()
	r.ask("REPLICAOF", "NO", "ONE")
}

// ReplicatedTo waits until a replica has everything that r, a master, was told before the call.
func (r *Redis) ReplicatedTo(replica *Redis) {
	r.t.Helper()
	word := unique()
	r.ask("SET", "testenv:"+word, "1", "EX", "60")
	Eventually(r.t, startWithin, "a write of "+r.Addr+" to reach "+replica.Addr, func() bool {
		return replica.ask("EXISTS", "testenv:"+word) == int64(1)
	})
}

// ask runs one command on a connection of its own.
func (r *Redis) ask(args ...any) any {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	c := redis.NewClient(&redis.Options{Addr: r.Addr, MaxRetries: -1})
	defer c.Close()
	got, err := c.Do(ctx, args...).Result()
	if err != nil {
		r.t.Fatalf("%v on %s: %v", args, r.Addr, err)
	}
	return got
}

// StartSentinels starts n sentinels that watch a master under a name, and waits until they know of each other and of so
// many replicas. They take a server for down after half a second.
func StartSentinels(t testing.TB, n int, name string, master *Redis, replicas int) []*Redis {
	t.Helper()
	host, port, err := net.SplitHostPort(master.Addr)
	if err != nil {
		t.Fatalf("address of the master: %v", err)
	}
	out := make([]*Redis, n)
	for i := range out {
		out[i] = startSentinel(t, fmt.Sprintf(`sentinel monitor %[1]s %[2]s %[3]s %[4]d
sentinel down-after-milliseconds %[1]s 500
sentinel failover-timeout %[1]s 5000
`, name, host, port, n/2+1))
	}
	for _, s := range out {
		Eventually(t, startWithin, "sentinel "+s.Addr+" to know the others", func() bool {
			info := fmt.Sprint(s.ask("INFO", "sentinel"))
			return strings.Contains(info, fmt.Sprintf("slaves=%d,sentinels=%d", replicas, n)) && strings.Contains(info, "status=ok")
		})
	}
	return out
}

func startSentinel(t testing.TB, config string) *Redis {
	t.Helper()
	s := &Redis{Dir: t.TempDir()}
	file := filepath.Join(s.Dir, "sentinel.conf")
	s.process = &process{
		t: t, name: "redis-sentinel", log: filepath.Join(s.Dir, "log"),
		// A sentinel writes what it learns into its configuration: a restart finds it there.
		command: func() *exec.Cmd { return exec.Command("redis-server", file, "--sentinel") },
		answers: func() error { return pingRedis(s.Addr) },
	}
	startOnFreePort(t, s.process, func(p int) {
		s.Addr = loopback(p)
		text := "bind 127.0.0.1\nport " + strconv.Itoa(p) + "\ndir " + s.Dir + "\n" + config
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatalf("write the configuration of a sentinel: %v", err)
		}
	})
	return s
}
