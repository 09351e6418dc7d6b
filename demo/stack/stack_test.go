package stack

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("STACK_TEST_PARENT"); dir != "" {
		parentThatIsKilled(dir)
		return
	}
	goleak.VerifyTestMain(m,
		// One goroutine for the life of the process, which sarama's metrics library never ends.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

func setup(t *testing.T) (*Procs, *Servers, string) {
	t.Helper()
	dir := t.TempDir()
	servers, err := Find(t.Context(), dir, false, func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewProcs(filepath.Join(dir, "logs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(10 * time.Second) })
	return p, servers, dir
}

func eventually(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", within, what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func TestRedisAnswersAndEnds(t *testing.T) {
	p, servers, dir := setup(t)
	r, err := StartRedis(t.Context(), p, servers.Redis, filepath.Join(dir, "redis"))
	if err != nil {
		t.Fatal(err)
	}
	if err := pingRedis(t.Context(), r.Addr); err != nil {
		t.Fatal(err)
	}
	p.Stop(5 * time.Second)
	if err := pingRedis(t.Context(), r.Addr); err == nil {
		t.Fatal("redis answers after Stop")
	}
	select {
	case err := <-p.Died():
		t.Fatalf("a child that was stopped is reported as dead: %v", err)
	default:
	}
}

func TestMariaDBHasWhatTheProductNeeds(t *testing.T) {
	p, servers, dir := setup(t)
	// A folder whose path is longer than that of a unix socket may be.
	deep := filepath.Join(dir, strings.Repeat("deep-folder/", 12))
	m, err := StartMariaDB(t.Context(), p, servers.MariaDB, deep)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", m.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, stmt := range []string{
		"CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT)",
		"CREATE TRIGGER up BEFORE UPDATE ON t FOR EACH ROW SET NEW.n = NEW.n + 1",
		"INSERT INTO t VALUES (1, 1)",
	} {
		if _, err := db.ExecContext(t.Context(), stmt); err != nil {
			t.Fatalf("%s: %v", stmt, err)
		}
	}
	var name, format string
	if err := db.QueryRowContext(t.Context(), "SHOW VARIABLES LIKE 'binlog_format'").Scan(&name, &format); err != nil || format != "ROW" {
		t.Fatalf("binlog_format %q, %v", format, err)
	}
	var tmp string
	if err := db.QueryRowContext(t.Context(), "SELECT @@tmpdir").Scan(&tmp); err != nil || tmp != filepath.Join(deep, "tmp") {
		t.Fatalf("tmpdir %q, %v: want one of its own", tmp, err)
	}
	rows, err := db.QueryContext(t.Context(), "SHOW MASTER STATUS")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if !rows.Next() || rows.Err() != nil {
		t.Fatal("no binlog position", rows.Err())
	}
}

func TestKafkaKeepsItsLogAndServesSarama(t *testing.T) {
	dir := t.TempDir()
	k, err := StartKafka(dir, 2, "orders")
	if err != nil {
		t.Fatal(err)
	}
	produce(t, k.Brokers, "first")
	k.Stop()
	if k, err = StartKafka(dir, 2, "orders"); err != nil {
		t.Fatal(err)
	}
	defer k.Stop()
	produce(t, k.Brokers, "second")

	cfg := sarama.NewConfig()
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	group, err := sarama.NewConsumerGroup(k.Brokers, "g", cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	h := &collect{cancel: cancel, want: 2}
	if err := group.Consume(ctx, []string{"orders"}, h); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if got := strings.Join(h.got, " "); got != "first second" {
		t.Fatalf("consumed %q", got)
	}
}

func produce(t *testing.T, brokers []string, value string) {
	t.Helper()
	cfg := sarama.NewConfig()
	cfg.Producer.Idempotent, cfg.Producer.RequiredAcks, cfg.Net.MaxOpenRequests = true, sarama.WaitForAll, 1
	cfg.Producer.Return.Successes = true
	producer, err := sarama.NewSyncProducer(brokers, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	msg := &sarama.ProducerMessage{Topic: "orders", Key: sarama.StringEncoder("1"), Value: sarama.StringEncoder(value)}
	if _, _, err := producer.SendMessage(msg); err != nil {
		t.Fatal(err)
	}
}

type collect struct {
	cancel context.CancelFunc
	want   int
	got    []string
}

func (*collect) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*collect) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim: the test's records share a key, so only one claim ever gets any.
func (c *collect) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for m := range claim.Messages() {
		c.got = append(c.got, string(m.Value))
		s.MarkMessage(m, "")
		if len(c.got) == c.want {
			c.cancel()
		}
	}
	return nil
}

func TestPortsInUseAreDodged(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	got, err := FreePort(taken)
	if err != nil || got == taken || got == 0 {
		t.Fatalf("FreePort(%d) = %d, %v", taken, got, err)
	}
}

func TestAChildThatDiesIsReportedWithItsLog(t *testing.T) {
	p, err := NewProcs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop(time.Second)
	if _, err := p.Start(Spec{Name: "worker", Path: "/bin/sh", Args: []string{"-c", "echo the reason; exit 3"}}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.Died():
		for _, want := range []string{"worker", "exit status 3", "the reason"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in %q", want, err)
			}
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nothing reported")
	}
}

func TestAStubbornChildIsKilled(t *testing.T) {
	p, err := NewProcs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.Start(Spec{Name: "stubborn", Path: "/bin/sh", Args: []string{"-c", "trap '' TERM; echo up; while :; do sleep 1; done"}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "the child is up", func() bool { return strings.Contains(tail(c.Log, 1), "up") })
	p.Stop(100 * time.Millisecond)
	if c.Running() {
		t.Fatal("still running")
	}
}

// TestChildrenEndWithAKilledParent kills a process that runs a stack, and sees its redis-server end.
func TestChildrenEndWithAKilledParent(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "STACK_TEST_PARENT="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addr = strings.TrimSpace(addr)
	if err := pingRedis(t.Context(), addr); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, 5*time.Second, "redis is gone", func() bool { return pingRedis(t.Context(), addr) != nil })
}

func parentThatIsKilled(dir string) {
	servers, err := Find(context.Background(), dir, false, func(string) {})
	if err != nil {
		panic(err)
	}
	p, err := NewProcs(dir)
	if err != nil {
		panic(err)
	}
	r, err := StartRedis(context.Background(), p, servers.Redis, dir)
	if err != nil {
		panic(err)
	}
	fmt.Println(r.Addr)
	select {}
}
