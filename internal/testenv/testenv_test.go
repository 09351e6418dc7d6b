package testenv

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, KnownLeaks()...)
}

func TestSharedServersAnswer(t *testing.T) {
	if err := pingRedis(RedisAddr(t)); err != nil {
		t.Errorf("ping shared Redis: %v", err)
	}
	if len(Brokers(t)) == 0 {
		t.Error("no brokers")
	}
}

func TestRedisIsForgetfulAndKeepsItsAddress(t *testing.T) {
	t.Parallel()
	began := time.Now()
	r := StartRedis(t)
	t.Logf("started in %v", time.Since(began))
	c := redis.NewClient(&redis.Options{Addr: r.Addr})
	defer c.Close()
	ctx := t.Context()
	if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got, err := c.ConfigGet(ctx, "maxmemory-policy").Result(); err != nil || got["maxmemory-policy"] != "noeviction" {
		t.Errorf("maxmemory-policy is %v, %v", got, err)
	}
	addr, pid := r.Addr, r.Pid()
	r.Kill()
	if r.Pid() != 0 || pingRedis(addr) == nil {
		t.Fatal("a killed server still answers")
	}
	r.Kill() // twice is once
	r.Restart()
	if r.Addr != addr || r.Pid() == pid {
		t.Fatalf("restarted at %s with pid %d, was %s with pid %d", r.Addr, r.Pid(), addr, pid)
	}
	if err := c.Get(ctx, "k").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("after the restart: %v, want redis.Nil", err)
	}
}

func TestRedisArgumentsOverride(t *testing.T) {
	t.Parallel()
	r := StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	c := redis.NewClient(&redis.Options{Addr: r.Addr})
	defer c.Close()
	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	r.Kill()
	r.Restart()
	if v, err := c.Get(t.Context(), "k").Result(); err != nil || v != "v" {
		t.Errorf("after the restart: %q, %v", v, err)
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	r := StartRedis(t)
	r.Pause()
	if err := pingRedis(r.Addr); err == nil {
		t.Error("a paused server answers")
	}
	r.Resume()
	Eventually(t, 5*time.Second, "the resumed server answers", func() bool { return pingRedis(r.Addr) == nil })
	r.Pause() // clean-up must end a paused server too
}

func TestRedisCluster(t *testing.T) {
	t.Parallel()
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: StartRedisCluster(t, 3)})
	defer c.Close()
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		if err := c.Set(t.Context(), key, 1, 0).Err(); err != nil {
			t.Errorf("set %s: %v", key, err)
		}
	}
	var masters atomic.Int32
	err := c.ForEachMaster(t.Context(), func(context.Context, *redis.Client) error { masters.Add(1); return nil })
	if err != nil || masters.Load() != 3 {
		t.Errorf("%d masters, %v", masters.Load(), err)
	}
}

func TestSentinelsPromoteTheReplica(t *testing.T) {
	t.Parallel()
	master, replica := StartRedis(t), StartRedis(t)
	replica.ReplicaOf(master.Addr)
	master.ask("SET", "k", "v")
	master.ReplicatedTo(replica)
	var addrs []string
	for _, s := range StartSentinels(t, 3, "shop", master, 1) {
		addrs = append(addrs, s.Addr)
	}
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "shop", SentinelAddrs: addrs})
	defer c.Close()
	if err := c.Set(t.Context(), "k", "w", 0).Err(); err != nil {
		t.Fatal(err)
	}
	master.ReplicatedTo(replica)
	master.Kill()
	Eventually(t, 30*time.Second, "the replica to take writes", func() bool { return c.Set(t.Context(), "j", "x", 0).Err() == nil })
	if got := replica.ask("GET", "k"); got != "w" {
		t.Errorf("the promoted replica has %v", got)
	}
}

func TestMySQLGivesADatabaseThatIsDropped(t *testing.T) {
	t.Parallel()
	var dsn string
	t.Run("use", func(t *testing.T) {
		dsn = MySQL(t)
		if _, err := query(t, dsn, "CREATE TABLE x (a INT) SELECT 1 AS a"); err != nil {
			t.Fatal(err)
		}
		if other := MySQL(t); other == dsn {
			t.Errorf("the same database twice: %s", dsn)
		}
	})
	if _, err := query(t, dsn, "SELECT 1"); err == nil || !strings.Contains(err.Error(), "Unknown database") {
		t.Errorf("after the test the database is still there (%v)", err)
	}
}

func TestDatabaseSurvivesAKill(t *testing.T) {
	t.Parallel()
	began := time.Now()
	m := StartMySQL(t, "--log-bin-trust-function-creators=1")
	t.Logf("started in %v", time.Since(began))
	dsn := m.DSN("shop")
	for name, want := range map[string]string{
		"binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL", "sync_binlog": "on",
		"innodb_flush_log_at_trx_commit": "on", "log_bin": "on", "log_bin_trust_function_creators": "on",
	} {
		if got, err := query(t, dsn, "SELECT CASE WHEN @@"+name+" IN ('ON', '1') THEN 'on' ELSE CAST(@@"+name+" AS CHAR) END"); err != nil || got != want {
			t.Errorf("%s is %q, %v, want %q", name, got, err, want)
		}
	}
	if _, err := query(t, dsn, "CREATE TABLE x (a INT) SELECT 7 AS a"); err != nil {
		t.Fatal(err)
	}
	m.Kill()
	if _, err := query(t, dsn, "SELECT 1"); err == nil {
		t.Fatal("a killed server still answers")
	}
	m.Restart()
	if m.DSN("shop") != dsn {
		t.Errorf("the address changed from %s to %s", dsn, m.DSN("shop"))
	}
	if got, err := query(t, dsn, "SELECT a FROM x"); err != nil || got != "7" {
		t.Errorf("after the restart: %q, %v", got, err)
	}
}

func TestTopic(t *testing.T) {
	t.Parallel()
	var topic string
	t.Run("use", func(t *testing.T) {
		topic = Topic(t, "testenv", 3)
		if !strings.HasPrefix(topic, "testenv-") {
			t.Errorf("topic is named %s", topic)
		}
	})
	admin := kafkaAdmin(t)
	defer admin.Close()
	Eventually(t, 10*time.Second, "the topic is gone after the test", func() bool {
		found, err := admin.DescribeTopics([]string{topic})
		return err == nil && len(found) == 1 && errors.Is(found[0].Err, sarama.ErrUnknownTopicOrPartition)
	})
}

func TestID(t *testing.T) {
	t.Parallel()
	seen := map[int64]bool{}
	for range 1000 {
		id := ID()
		if id <= 0 || id > 1<<53 || seen[id] {
			t.Fatalf("id %d is not positive, below 2^53 and new", id)
		}
		seen[id] = true
	}
}

func TestEventuallyFailsWithItsReason(t *testing.T) {
	t.Parallel()
	f := &fatal{TB: t}
	done := make(chan struct{})
	go func() { // Fatalf leaves the goroutine
		defer close(done)
		Eventually(f, 10*time.Millisecond, "the moon is blue", func() bool { return false })
	}()
	<-done
	if !strings.Contains(f.said, "the moon is blue") {
		t.Errorf("said %q", f.said)
	}
}

func TestLookupReadsTheFileAboveWhenTheVariableIsUnset(t *testing.T) {
	top := t.TempDir()
	deep := filepath.Join(top, "a", "b")
	for _, dir := range []string{deep, filepath.Join(top, ".services")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	env := "SECKILL_MYSQL_DSN=no\nMYSQL_DSN=u:p@tcp(h:1)/d?a=b\n"
	if err := os.WriteFile(filepath.Join(top, ".services", "env"), []byte(env), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(deep)
	t.Setenv("MYSQL_DSN", "")
	if got, err := lookup("MYSQL_DSN"); err != nil || got != "u:p@tcp(h:1)/d?a=b" {
		t.Errorf("from the file: %q, %v", got, err)
	}
	t.Setenv("MYSQL_DSN", "given")
	if got, err := lookup("MYSQL_DSN"); err != nil || got != "given" {
		t.Errorf("from the environment: %q, %v", got, err)
	}
	if got, err := lookup("NO_SUCH_SERVICE"); err == nil {
		t.Errorf("an unknown variable is %q", got)
	}
}

// fatal records what a test would have failed with.
type fatal struct {
	testing.TB
	said string
}

func (f *fatal) Helper() {}

func (f *fatal) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func query(t *testing.T, dsn, q string) (string, error) {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	var out string
	err = db.QueryRowContext(t.Context(), q).Scan(&out)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return out, err
}

func TestKafkaOfThreeSurvivesOneBroker(t *testing.T) {
	t.Parallel()
	brokers := StartKafka(t, 3)
	cfg := sarama.NewConfig()
	cfg.Producer.Return.Successes, cfg.Producer.RequiredAcks = true, sarama.WaitForAll
	addrs := []string{brokers[0].Addr, brokers[1].Addr, brokers[2].Addr}
	admin, err := sarama.NewClusterAdmin(addrs, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	Eventually(t, time.Minute, "three brokers have joined", func() bool {
		found, _, err := admin.DescribeCluster()
		return err == nil && len(found) == 3
	})
	if err := admin.CreateTopic("t", &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 3}, false); err != nil {
		t.Fatal(err)
	}
	send := func() error {
		p, err := sarama.NewSyncProducer(addrs, cfg)
		if err != nil {
			return err
		}
		defer p.Close()
		_, _, err = p.SendMessage(&sarama.ProducerMessage{Topic: "t", Value: sarama.StringEncoder("x")})
		return err
	}
	Eventually(t, time.Minute, "a record is acknowledged", func() bool { return send() == nil })
	brokers[0].Kill()
	Eventually(t, time.Minute, "a record is acknowledged with one broker gone", func() bool { return send() == nil })
	brokers[1].Kill()
	if err := send(); err == nil {
		t.Error("one broker of three acknowledges alone")
	}
	brokers[1].Restart()
	Eventually(t, time.Minute, "a record is acknowledged with the broker back", func() bool { return send() == nil })
}
