package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/crashpoint"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// build makes the program with its crash points in it.
func build(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "seckill-syncer")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-tags", "crashpoints", "-o", bin, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return bin
}

// E49: the process dies between applying a row and keeping the position, and between two positions. The next one repeats
// and never skips.
func TestE49KilledAtEveryStep(t *testing.T) {
	bin := build(t)
	for _, point := range []string{"after_row:1", "after_row:4", "before_save_position:2", "before_save_position:4"} {
		t.Run(strings.ReplaceAll(point, ":", "_"), func(t *testing.T) {
			t.Parallel()
			b := synctest.New(t, synctest.Quiet)
			a := b.Activity(100)
			crash := point
			url, command := daemon(b, bin, func() string { return crash })
			p := testenv.StartProgram(t, "seckill-syncer", command, func() error { return alive(url()) })
			defer func() {
				if t.Failed() {
					t.Log(p.Log())
				}
			}()
			// It may die while it comes up, or later.
			died := func() bool { return strings.Contains(p.Log(), "crash point") }
			for i := 0; !died() && i < 200; i++ {
				if b.Look(a).Loaded {
					o := b.Buy(a, fmt.Sprintf("u%d", i), 1)
					b.Land(false)
					if i%3 == 0 {
						b.Exec("UPDATE orders SET status = 'CANCELLED' WHERE order_id = ?", o.ID)
					}
					continue
				}
				b.Restock(a, 0)
			}
			testenv.Eventually(t, 20*time.Second, "the crash point to be reached", func() bool {
				b.Restock(a, 0) // a position is kept only where there is news
				return died()
			})
			crash = ""
			p.Kill() // reap it
			p.Restart()
			testenv.Eventually(t, 20*time.Second, "the program to be well", func() bool { return ready(url()) == nil })
			b.Equal(a)
		})
	}
}

// daemon gives the command that runs the program beside a bench, and where it says whether it is ready: at another port each
// time, since the former one may be somebody else's by then. crash names the step to die at.
func daemon(b *synctest.Bench, bin string, crash func() string, more ...string) (url func() string, command func() *exec.Cmd) {
	b.Helper()
	var port int
	topics := others(b)
	return func() string { return fmt.Sprintf("http://127.0.0.1:%d/readyz", port) }, func() *exec.Cmd {
		port = testenv.FreePort(b)
		cmd := exec.Command(bin, "run")
		cmd.Env = append(os.Environ(),
			"SECKILL_REDIS_ADDRS="+b.Server.Addr, "SECKILL_KAFKA_BROKERS="+strings.Join(b.Cfg.Kafka.Brokers, ","),
			"SECKILL_KAFKA_TOPICS_ORDERS="+b.Cfg.Kafka.Topics.Orders, "SECKILL_KAFKA_GROUP="+b.Cfg.Kafka.Group,
			"SECKILL_KAFKA_TOPICS_DEAD_LETTERS="+topics[0], "SECKILL_KAFKA_TOPICS_RESULTS="+topics[1],
			"SECKILL_MYSQL_DSN="+b.Cfg.MySQL.DSN, fmt.Sprintf("SECKILL_HTTP_LISTEN=127.0.0.1:%d", port),
			"SECKILL_RESERVE_DEADLINE=200ms", "SECKILL_PUBLISH_BUDGET=500ms", "SECKILL_HORIZON=1s", "SECKILL_COMPARE_INTERVAL=1h",
			"SECKILL_LEASE_TTL=1s", "SECKILL_ACCEPT=replication,min_insync_replicas,dlq,results,topic", crashpoint.Env+"="+crash())
		cmd.Env = append(cmd.Env, more...)
		return cmd
	}
}

// alive says whether anything answers.
func alive(url string) error {
	err := ready(url)
	if errors.Is(err, errNotReady) {
		return nil
	}
	return err
}

var errNotReady = errors.New("not ready")

func ready(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s", errNotReady, body)
	}
	return nil
}
