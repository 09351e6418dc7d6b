// Package redisfault puts a fault proxy in front of every Redis server that a test starts, of a cluster too: its nodes
// announce their proxies, so that whatever way a client takes leads through one.
package redisfault

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// Servers are one Redis or the nodes of one cluster, each behind a proxy of its own. They are the test's own.
type Servers struct {
	Nodes   []*testenv.Redis
	Proxies []*faultproxy.Proxy // by node
	// Clustered says that the nodes are a cluster.
	Clustered bool

	owner   testing.TB
	mu      sync.Mutex
	clients []*redis.Client // by node
}

// Every runs a test on a single server and on a cluster of three masters.
func Every(t *testing.T, test func(t *testing.T, s *Servers)) {
	t.Helper()
	for name, start := range map[string]func(testing.TB) *Servers{
		"single":  func(t testing.TB) *Servers { return Single(t) },
		"cluster": func(t testing.TB) *Servers { return Cluster(t, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start(t))
		})
	}
}

// Single starts one server; args are as for testenv.StartRedis.
func Single(t testing.TB, args ...string) *Servers {
	t.Helper()
	r := testenv.StartRedis(t, args...)
	return &Servers{owner: t, Nodes: []*testenv.Redis{r}, Proxies: []*faultproxy.Proxy{faultproxy.New(t, r.Addr)}}
}

// Cluster starts a cluster of that many masters.
func Cluster(t testing.TB, masters int) *Servers {
	t.Helper()
	s := &Servers{owner: t, Clustered: true}
	testenv.StartPreparedRedisCluster(t, masters, func(r *testenv.Redis) { s.announce(t, r) })
	s.agree(t)
	return s
}

// Join starts one more node and has it join the cluster, without slots.
func (s *Servers) Join(t testing.TB) *testenv.Redis {
	t.Helper()
	r := testenv.JoinRedisCluster(t, s.Nodes[0], func(r *testenv.Redis) { s.announce(t, r) })
	s.agree(t)
	return r
}

// Addrs is where clients begin: the proxies' addresses.
func (s *Servers) Addrs() []string {
	addrs := make([]string, len(s.Proxies))
	for i, p := range s.Proxies {
		addrs[i] = p.Addr()
	}
	return addrs
}

// Direct is where a client begins that is to see no fault: past the proxy of a single server. In a cluster no way leads past
// them: heal them first.
func (s *Servers) Direct() []string {
	if s.Clustered {
		return s.Addrs()
	}
	return []string{s.Nodes[0].Addr}
}

// Each does something with every proxy.
func (s *Servers) Each(f func(p *faultproxy.Proxy)) {
	for _, p := range s.Proxies {
		f(p)
	}
}

// Heal heals every proxy.
func (s *Servers) Heal() { s.Each((*faultproxy.Proxy).Heal) }

// Rules are one rule on each of the proxies.
type Rules []*faultproxy.Rule

// Rule makes a rule on every proxy; a key lives behind one of them.
func (s *Servers) Rule(f func(p *faultproxy.Proxy) *faultproxy.Rule) Rules {
	var rules Rules
	s.Each(func(p *faultproxy.Proxy) { rules = append(rules, f(p)) })
	return rules
}

// Fired is how many requests they have caught in all.
func (r Rules) Fired() (n int) {
	for _, one := range r {
		n += one.Fired()
	}
	return n
}

// Release releases all of them.
func (r Rules) Release() {
	for _, one := range r {
		one.Release()
	}
}

// Client is a client of the i-th node alone, past its proxy. It lives as long as the servers do.
func (s *Servers) Client(i int) *redis.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.clients) <= i {
		c := redis.NewClient(&redis.Options{Addr: s.Nodes[len(s.clients)].Addr, MaxRetries: -1})
		s.owner.Cleanup(func() { _ = c.Close() })
		s.clients = append(s.clients, c)
	}
	return s.clients[i]
}

// Owner is the index of the node that serves a key.
func (s *Servers) Owner(t testing.TB, key string) int {
	t.Helper()
	if !s.Clustered {
		return 0
	}
	c := s.Client(0)
	slot, err := c.ClusterKeySlot(t.Context(), key).Result()
	if err != nil {
		t.Fatalf("slot of %s: %v", key, err)
	}
	slots, err := c.ClusterSlots(t.Context()).Result() //nolint:staticcheck // CLUSTER SHARDS came with Redis 7
	if err != nil {
		t.Fatalf("slots: %v", err)
	}
	for _, r := range slots {
		if slot < int64(r.Start) || slot > int64(r.End) {
			continue
		}
		for i, p := range s.Proxies {
			if r.Nodes[0].Addr == p.Addr() {
				return i
			}
		}
	}
	t.Fatalf("no node serves slot %d of %s", slot, key)
	return -1
}

// Kill ends every server at once.
func (s *Servers) Kill() {
	for _, r := range s.Nodes {
		r.Kill()
	}
}

// Restart starts every server again; they keep nothing but their places in the cluster. It returns once they serve.
func (s *Servers) Restart(t testing.TB) {
	t.Helper()
	for i, r := range s.Nodes {
		r.Restart()
		if s.Clustered {
			s.setAnnounced(t, i)
		}
	}
	if s.Clustered {
		s.agree(t)
	}
}

// Commands is how many commands the servers have processed so far, those that scripts call included.
func (s *Servers) Commands(t testing.TB) int64 {
	t.Helper()
	return s.stat(t, "total_commands_processed")
}

// Connections is how many connections the servers have accepted so far.
func (s *Servers) Connections(t testing.TB) int64 {
	t.Helper()
	return s.stat(t, "total_connections_received")
}

func (s *Servers) stat(t testing.TB, field string) (sum int64) {
	t.Helper()
	for i := range s.Nodes {
		info, err := s.Client(i).InfoMap(t.Context(), "stats").Result()
		if err != nil {
			t.Fatalf("statistics of %s: %v", s.Nodes[i].Addr, err)
		}
		n, err := strconv.ParseInt(info["Stats"][field], 10, 64)
		if err != nil {
			t.Fatalf("%s of %s: %v", field, s.Nodes[i].Addr, err)
		}
		sum += n
	}
	return sum
}

// Keys is how many keys the servers have.
func (s *Servers) Keys(t testing.TB) (sum int64) {
	t.Helper()
	for i, r := range s.Nodes {
		n, err := s.Client(i).DBSize(t.Context()).Result()
		if err != nil {
			t.Fatalf("keys of %s: %v", r.Addr, err)
		}
		sum += n
	}
	return sum
}

// FlushAll has every server forget everything.
func (s *Servers) FlushAll(t testing.TB) {
	t.Helper()
	for i, r := range s.Nodes {
		if err := s.Client(i).FlushAll(t.Context()).Err(); err != nil {
			t.Fatalf("flush %s: %v", r.Addr, err)
		}
	}
}

// ForgetScripts has every server forget its scripts.
func (s *Servers) ForgetScripts(t testing.TB) {
	t.Helper()
	for i, r := range s.Nodes {
		if err := s.Client(i).ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatalf("flush the scripts of %s: %v", r.Addr, err)
		}
	}
}

func (s *Servers) announce(t testing.TB, r *testenv.Redis) {
	t.Helper()
	s.Nodes, s.Proxies = append(s.Nodes, r), append(s.Proxies, faultproxy.New(t, r.Addr))
	s.setAnnounced(t, len(s.Nodes)-1)
}

func (s *Servers) setAnnounced(t testing.TB, i int) {
	t.Helper()
	_, port, err := net.SplitHostPort(s.Proxies[i].Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Client(i).ConfigSet(t.Context(), "cluster-announce-port", port).Err(); err != nil {
		t.Fatalf("have %s announce its proxy: %v", s.Nodes[i].Addr, err)
	}
}

// agree waits until every node serves, and knows the proxies of all others.
func (s *Servers) agree(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for i := range s.Nodes {
		c := s.Client(i)
		testenv.Eventually(t, 30*time.Second, "the nodes announce their proxies", func() bool {
			info, err := c.ClusterInfo(ctx).Result()
			if err != nil || !strings.Contains(info, "cluster_state:ok") {
				return false
			}
			slots, err := c.ClusterSlots(ctx).Result() //nolint:staticcheck // likewise
			if err != nil {
				return false
			}
			for _, r := range slots {
				for _, n := range r.Nodes {
					if !s.known(n.Addr) {
						return false
					}
				}
			}
			return true
		})
	}
}

func (s *Servers) known(addr string) bool {
	for _, p := range s.Proxies {
		if p.Addr() == addr {
			return true
		}
	}
	return false
}
