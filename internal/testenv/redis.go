package testenv

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis is a private redis-server. Kill it, restart it, pause it: it is the test's own.
type Redis struct {
	*process

	// Addr is host:port, the same over restarts.
	Addr string
	// Dir is where it keeps its files; it goes with the test.
	Dir string
}

// StartRedis starts a private redis-server with noeviction and without persistence, so that a restart finds it empty;
// args are options as on its command line, e.g. "--appendonly", "yes", and override these. It is gone when the test ends.
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	r := &Redis{Dir: t.TempDir()}
	var port int
	r.process = &process{
		t: t, name: "redis-server", log: filepath.Join(r.Dir, "log"),
		command: func() *exec.Cmd {
			options := append([]string{
				"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", r.Dir, "--daemonize", "no",
				"--maxmemory-policy", "noeviction", "--save", "", "--appendonly", "no",
			}, args...)
			return exec.Command("redis-server", options...)
		},
		answers: func() error { return pingRedis(r.Addr) },
	}
	startOnFreePort(t, r.process, func(p int) { port, r.Addr = p, loopback(p) })
	return r
}

// pingRedis speaks the protocol by hand: a client library would retry, log and pool where one exchange is wanted.
// Any answer will do: a server that asks for a password or still loads its data is told apart by its words.
func pingRedis(addr string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprint(c, "PING\r\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	switch {
	case err != nil:
		return err
	case strings.HasPrefix(line, "+PONG"), strings.HasPrefix(line, "-NOAUTH"), strings.HasPrefix(line, "-MASTERDOWN"):
		return nil
	default:
		return fmt.Errorf("PING is answered by %q", strings.TrimSpace(line))
	}
}

const clusterSlots = 16384

// StartRedisCluster starts a private Redis Cluster of that many masters, all slots served, and returns their addresses.
func StartRedisCluster(t testing.TB, masters int) []string {
	t.Helper()
	nodes := StartRedisClusterNodes(t, masters)
	addrs := make([]string, len(nodes))
	for i, n := range nodes {
		addrs[i] = n.Addr
	}
	return addrs
}

// StartRedisClusterNodes is StartRedisCluster for tests that kill or pause single nodes; args are options of each as with
// StartRedis.
func StartRedisClusterNodes(t testing.TB, masters int, args ...string) []*Redis {
	t.Helper()
	return StartPreparedRedisCluster(t, masters, func(*Redis) {}, args...)
}

// StartPreparedRedisCluster is StartRedisClusterNodes with each node prepared before the others hear of it.
func StartPreparedRedisCluster(t testing.TB, masters int, prepare func(*Redis), args ...string) []*Redis {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()

	nodes := make([]*Redis, masters)
	clients := make([]*redis.Client, masters)
	for i := range nodes {
		nodes[i] = startClusterNode(t, prepare, args)
		clients[i] = redis.NewClient(&redis.Options{Addr: nodes[i].Addr})
		defer clients[i].Close()
	}
	for i, c := range clients {
		first, last := clusterSlots*i/masters, clusterSlots*(i+1)/masters-1
		if err := c.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", first, last).Err(); err != nil {
			t.Fatalf("give slots %d to %d to %s: %v", first, last, nodes[i].Addr, err)
		}
		if err := c.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			t.Fatalf("set config epoch of %s: %v", nodes[i].Addr, err)
		}
	}
	for _, n := range nodes[1:] {
		host, port, _ := net.SplitHostPort(n.Addr)
		bus := busPort(ctx, t, n.Addr)
		if err := clients[0].Do(ctx, "CLUSTER", "MEET", host, port, bus).Err(); err != nil {
			t.Fatalf("introduce %s to the cluster: %v", n.Addr, err)
		}
	}
	for i, c := range clients {
		Eventually(t, startWithin, "cluster state ok on "+nodes[i].Addr, func() bool {
			info, err := c.ClusterInfo(ctx).Result()
			return err == nil && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r", masters)) && clusterOK(ctx, c)
		})
	}
	return nodes
}

func startClusterNode(t testing.TB, prepare func(*Redis), args []string) *Redis {
	t.Helper()
	n := StartRedis(t, append([]string{
		"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(freePort(t)),
		"--cluster-node-timeout", "2000", "--cluster-config-file", "nodes.conf",
	}, args...)...)
	prepare(n)
	return n
}

// JoinRedisCluster starts one more node and introduces it to the cluster of the given one. It serves no slots: make it a
// replica, or move slots to it. It is prepared before the others hear of it.
func JoinRedisCluster(t testing.TB, member *Redis, prepare func(*Redis)) *Redis {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startWithin)
	defer cancel()
	n := startClusterNode(t, prepare, nil)
	c, old := redis.NewClient(&redis.Options{Addr: n.Addr}), redis.NewClient(&redis.Options{Addr: member.Addr})
	defer c.Close()
	defer old.Close()
	host, port, _ := net.SplitHostPort(n.Addr)
	if err := old.Do(ctx, "CLUSTER", "MEET", host, port, busPort(ctx, t, n.Addr)).Err(); err != nil {
		t.Fatalf("introduce %s to the cluster: %v", n.Addr, err)
	}
	Eventually(t, startWithin, "cluster state ok on "+n.Addr, func() bool { return clusterOK(ctx, c) })
	return n
}

func clusterOK(ctx context.Context, c *redis.Client) bool {
	info, err := c.ClusterInfo(ctx).Result()
	return err == nil && strings.Contains(info, "cluster_state:ok") &&
		strings.Contains(info, fmt.Sprintf("cluster_slots_ok:%d\r", clusterSlots))
}

func busPort(ctx context.Context, t testing.TB, addr string) string {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer c.Close()
	got, err := c.ConfigGet(ctx, "cluster-port").Result()
	if err != nil {
		t.Fatalf("read cluster-port of %s: %v", addr, err)
	}
	return got["cluster-port"]
}
