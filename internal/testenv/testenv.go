// Package testenv gives tests real servers: the shared ones of `make services`, and private ones that a test may kill.
//
// Addresses come from REDIS_ADDRS, KAFKA_BROKERS and MYSQL_DSN; where a variable is unset, from the .services/env that
// `make services` wrote in a folder above. A missing server fails the test with the remedy; nothing is ever skipped.
//
// The shared servers belong to all tests at once: take a fresh database (MySQL), a fresh topic (Topic) and fresh ids (ID),
// and never flush or reconfigure them. A test that needs to do so starts a server of its own (StartRedis, StartMySQL).
package testenv

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Brokers returns the bootstrap addresses of the shared Kafka.
func Brokers(t testing.TB) []string {
	t.Helper()
	brokers := split(address(t, "KAFKA_BROKERS"))
	reachable(t, "KAFKA_BROKERS", brokers[0])
	return brokers
}

// RedisAddr returns the address of the shared Redis, the first one of REDIS_ADDRS.
func RedisAddr(t testing.TB) string {
	t.Helper()
	addr := split(address(t, "REDIS_ADDRS"))[0]
	reachable(t, "REDIS_ADDRS", addr)
	return addr
}

// ID returns a positive number that no other test uses: for activities, items and the like. It is below 2^53, so that
// it survives JSON readers and Lua as it is.
func ID() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	return int64(binary.BigEndian.Uint64(b[:])>>12) + 1
}

// Eventually polls cond until it holds and fails the test, naming what was waited for, when it does not within the
// given time. The first look is immediate.
func Eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if cond() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		<-time.After(pause)
	}
}

const remedy = "run `make services` (or `make test`, which does), or set %[1]s to a running server"

func address(t testing.TB, name string) string {
	t.Helper()
	value, err := lookup(name)
	if err != nil {
		t.Fatalf("%s is not known: %v; "+remedy, name, err)
	}
	return value
}

// lookup returns the variable from the environment, else from the nearest .services/env above the working directory.
func lookup(name string) (string, error) {
	if v := strings.TrimSpace(os.Getenv(name)); v != "" {
		return v, nil
	}
	wd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("get working directory: %w", err)
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		v, err := readEnv(filepath.Join(dir, ".services", "env"), name)
		if err != nil {
			return "", err
		}
		if v != "" {
			return v, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("the variable is unset and no .services/env above %s has it", wd)
		}
	}
}

// readEnv returns the value of name in a file of KEY=value lines, "" when the file or the name is not there.
func readEnv(path, name string) (string, error) {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("open %s: %w", path, err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if key, value, ok := strings.Cut(lines.Text(), "="); ok && key == name {
			return strings.TrimSpace(value), nil
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return "", nil
}

var reached sync.Map // address → func() error

// reachable dials an address once per test binary, so that a server that is gone is told as such and not as a
// mysterious time-out of the code under test.
func reachable(t testing.TB, name, addr string) {
	t.Helper()
	once, _ := reached.LoadOrStore(addr, sync.OnceValue(func() error {
		c, err := net.DialTimeout("tcp", addr, 3*time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	}))
	if err := once.(func() error)(); err != nil {
		t.Fatalf("%s names %s, which does not answer: %v; "+remedy, name, addr, err)
	}
}

func split(list string) []string {
	var out []string
	for _, s := range strings.Split(list, ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	if out == nil {
		out = []string{""}
	}
	return out
}

// unique returns a short random word for names of databases and topics.
func unique() string {
	return strings.ToLower(rand.Text()[:10])
}
