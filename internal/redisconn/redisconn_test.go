package redisconn

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config Config
		want   string // part of the error; empty: valid
	}{
		"single":            {Config{Addrs: []string{"127.0.0.1:6379"}}, ""},
		"cluster":           {Config{Addrs: []string{"a:1", "b:2"}}, ""},
		"cluster of one":    {Config{Addrs: []string{"a:1"}, Cluster: true}, ""},
		"sentinel":          {Config{Addrs: []string{"a:1", "b:2"}, Sentinel: "m", DB: 3}, ""},
		"no address":        {Config{}, "addrs"},
		"no port":           {Config{Addrs: []string{"localhost"}}, `"localhost"`},
		"no host":           {Config{Addrs: []string{":6379"}}, `":6379"`},
		"bad port":          {Config{Addrs: []string{"a:0"}}, `"0"`},
		"twice":             {Config{Addrs: []string{"a:1", "a:1"}}, "twice"},
		"both kinds":        {Config{Addrs: []string{"a:1"}, Sentinel: "m", Cluster: true}, "exclude"},
		"cluster with db":   {Config{Addrs: []string{"a:1", "b:1"}, DB: 1}, "only database 0"},
		"negative db":       {Config{Addrs: []string{"a:1"}, DB: -1}, "negative"},
		"user without word": {Config{Addrs: []string{"a:1"}, Username: "u"}, "password"},
		"ca without tls":    {Config{Addrs: []string{"a:1"}, CAFile: "x"}, "tls"},
		"negative pool":     {Config{Addrs: []string{"a:1"}, PoolSize: -1}, "pool_size"},
		"idle over pool":    {Config{Addrs: []string{"a:1"}, PoolSize: 2, MinIdle: 3}, "min_idle"},
		"no read bound":     {Config{Addrs: []string{"a:1"}, ReadTimeout: -1}, "read_timeout"},
		"negative wait":     {Config{Addrs: []string{"a:1"}, PoolTimeout: -time.Second}, "pool_timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.config.Validate()
			if c.want == "" && err != nil {
				t.Fatalf("want valid, got %v", err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Fatalf("want an error with %q, got %v", c.want, err)
			}
			if err != nil && !regexp.MustCompile(`^[a-z_]+: `).MatchString(err.Error()) {
				t.Errorf("%v: want the key first, so that its origin can be found", err)
			}
			if rdb, nerr := New(c.config); (nerr == nil) != (err == nil) {
				t.Fatalf("New: %v, Validate: %v", nerr, err)
			} else if rdb != nil {
				_ = rdb.Close()
			}
		})
	}
}

func TestCAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.pem")
	c := Config{Addrs: []string{"a:1"}, TLS: true, CAFile: file}
	if _, err := New(c); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("want not exist, got %v", err)
	}
	if err := os.WriteFile(file, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "PEM") {
		t.Fatalf("want an error about PEM, got %v", err)
	}
}

// TestE02NoRetriesMeansNone pins what the protocol relies on, for every kind of client: 0 retries must not become 3.
func TestE02NoRetriesMeansNone(t *testing.T) {
	t.Parallel()
	single, err := New(Config{Addrs: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer single.Close()
	so := single.(*redis.Client).Options()
	if so.MaxRetries != 0 || !so.ContextTimeoutEnabled || so.PoolTimeout != DefaultPoolTimeout || so.ReadTimeout != DefaultIOTimeout {
		t.Errorf("single: retries %d, obeys deadlines %v, pool %v, read %v", so.MaxRetries, so.ContextTimeoutEnabled, so.PoolTimeout, so.ReadTimeout)
	}
	sentinel, err := New(Config{Addrs: []string{"127.0.0.1:1"}, Sentinel: "m"})
	if err != nil {
		t.Fatal(err)
	}
	defer sentinel.Close()
	if o := sentinel.(*redis.Client).Options(); o.MaxRetries != 0 || !o.ContextTimeoutEnabled || o.PoolTimeout != DefaultPoolTimeout {
		t.Errorf("sentinel: retries %d, obeys deadlines %v, pool %v", o.MaxRetries, o.ContextTimeoutEnabled, o.PoolTimeout)
	}
	cluster, err := New(Config{Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	if o := cluster.(*redis.ClusterClient).Options(); o.MaxRetries != -1 && o.MaxRetries != 0 || !o.ContextTimeoutEnabled || o.MaxRedirects != 3 {
		t.Errorf("cluster: retries %d, obeys deadlines %v, redirects %d", o.MaxRetries, o.ContextTimeoutEnabled, o.MaxRedirects)
	}
}

// TestE09NewAddressBehindTheSameName: the server is gone and another one answers at a new address, which the name now stands for.
// The client finds it by itself.
func TestE09NewAddressBehindTheSameName(t *testing.T) {
	first, second := testenv.StartRedis(t), testenv.StartRedis(t)
	_, port, err := net.SplitHostPort(first.Addr)
	if err != nil {
		t.Fatal(err)
	}
	forward(t, net.JoinHostPort("127.0.0.2", port), second.Addr)
	var now atomic.Uint32 // the last byte of the address
	now.Store(1)
	dial := nameserver(t, &now)
	names.Store(&dial)
	t.Cleanup(func() { names.Store(nil) })

	rdb, err := New(Config{Addrs: []string{net.JoinHostPort("redis.test", port)}})
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	if err := rdb.Set(t.Context(), "which", "first", 0).Err(); err != nil {
		t.Fatal(err)
	}
	first.Kill()
	if err := rdb.Get(t.Context(), "which").Err(); err == nil {
		t.Fatal("a server that is gone answers")
	}
	now.Store(2)
	testenv.Eventually(t, 10*time.Second, "the second server answers", func() bool {
		return errors.Is(rdb.Get(t.Context(), "which").Err(), redis.Nil)
	})
}

// names is how to reach the name server of a test. It stands behind the process' own resolver from the start, since a dial that
// a client has given up may still look at that.
var names atomic.Pointer[func(context.Context, string, string) (net.Conn, error)]

func init() {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dial := names.Load(); dial != nil {
			return (*dial)(ctx, network, addr)
		}
		return nil, errors.New("no test serves names")
	}}
}

// nameserver answers every question for an address by 127.0.0.x.
func nameserver(t *testing.T, x *atomic.Uint32) func(context.Context, string, string) (net.Conn, error) {
	t.Helper()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := l.ReadFrom(b)
			if err != nil {
				return
			}
			end := 12 // behind the header: a name, then type and class in two bytes each
			for end < n && b[end] != 0 {
				end += int(b[end]) + 1
			}
			end += 5
			if end > n {
				continue
			}
			isA := b[end-4] == 0 && b[end-3] == 1
			out := append([]byte{b[0], b[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, b[12:end]...)
			if isA {
				out[7] = 1
				// The name by reference, A, IN, no time to live, four bytes.
				out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, byte(x.Load()))
			}
			_, _ = l.WriteTo(out, from)
		}
	}()
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", l.LocalAddr().String())
	}
}

// forward has an address of this machine stand for another one.
func forward(t *testing.T, at, to string) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				d, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer d.Close()
				conns.Go(func() { _, _ = io.Copy(d, c); _ = d.Close() })
				_, _ = io.Copy(c, d)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); conns.Wait() })
}

// TestDoesNotDial counts connections: none until the first command, and then one try that obeys the caller's deadline.
func TestDoesNotDial(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var dials atomic.Int32
	go func() {
		var held []net.Conn
		defer func() {
			for _, c := range held {
				_ = c.Close()
			}
		}()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			dials.Add(1)
			held = append(held, c) // never answers
		}
	}()
	rdb, err := New(Config{Addrs: []string{l.Addr().String()}, ReadTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	if n := dials.Load(); n != 0 {
		t.Fatalf("%d connections before the first command, want 0", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := rdb.Get(ctx, "k").Err(); err == nil {
		t.Fatal("want an error from a server that never answers")
	}
	took := time.Since(began)
	if took > 8*time.Second { // without it, the read timeout
		t.Fatalf("a deadline of 50 ms took %v", took)
	}
	t.Logf("a deadline of 50 ms took %v", took)
}
