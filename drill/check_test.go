package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/store"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// deployment points the command at the shared servers, with a database and a topic of the test's own.
func deployment(t *testing.T) *store.Store {
	t.Helper()
	dsn, topic := testenv.MySQL(t), testenv.Topic(t, "drill", 1)
	t.Setenv("SECKILL_REDIS_ADDRS", testenv.RedisAddr(t))
	t.Setenv("SECKILL_KAFKA_BROKERS", strings.Join(testenv.Brokers(t), ","))
	t.Setenv("SECKILL_KAFKA_TOPICS_ORDERS", topic)
	t.Setenv("SECKILL_KAFKA_GROUP", topic)
	t.Setenv("SECKILL_MYSQL_DSN", dsn)
	s, err := store.Open(t.Context(), store.Config{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Migrate(t.Context(), store.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCheckTellsBrokenFromUnknown: a sale that Redis does not have is broken (1); one that MySQL does not have, or servers
// that cannot be reached, give no verdict (2).
func TestCheckTellsBrokenFromUnknown(t *testing.T) {
	s := deployment(t)
	stock := int64(5)
	a := ledger.Activity{
		ID: testenv.ID(), Item: testenv.ID(), StartsAtMs: 1, EndsAtMs: time.Now().Add(time.Hour).UnixMilli(), MaxPerUser: 1, State: ledger.Open,
	}
	if err := s.CreateActivity(t.Context(), a, &stock); err != nil {
		t.Fatal(err)
	}
	id := ledger.KeysOf(a.ID).Stock
	id = id[strings.IndexByte(id, '{')+1 : len(id)-1]

	out, err := drill(t, "check", "--activity", id, "--units", "5", "--wait", "0s")
	if !errors.Is(err, errBroken) || !strings.Contains(out, "BROKEN  I2") || !strings.Contains(out, "ok      I1") {
		t.Errorf("not loaded: %v\n%s", err, out)
	}
	out, err = drill(t, "check", "--activity", id, "--units", "6", "--wait", "0s", "--json")
	if !errors.Is(err, errBroken) || !strings.Contains(out, `"left": 5`) || !strings.Contains(err.Error(), "-1 in mysql") {
		t.Errorf("one unit less than was put on sale: %v\n%s", err, out)
	}
	if out, err := drill(t, "check", "--activity", "404", "--wait", "0s"); err == nil || errors.Is(err, errBroken) || !strings.Contains(err.Error(), "no such activity: 404") {
		t.Errorf("no such activity: %v\n%s", err, out)
	}
	t.Setenv("SECKILL_MYSQL_DSN", "nobody@tcp(127.0.0.1:1)/none")
	if out, err := drill(t, "check", "--activity", id, "--wait", "0s"); err == nil || errors.Is(err, errBroken) {
		t.Errorf("no mysql: %v\n%s", err, out)
	}
}

func TestCheckSaysWhatItNeeds(t *testing.T) {
	for _, name := range []string{"SECKILL_REDIS_ADDRS", "SECKILL_KAFKA_BROKERS", "SECKILL_MYSQL_DSN"} {
		t.Setenv(name, "")
	}
	if out, err := drill(t, "check", "--activity", "1"); err == nil || !strings.Contains(err.Error(), "configuration") {
		t.Errorf("%v\n%s", err, out)
	}
	for want, args := range map[string][]string{
		"want the number of units":  {"--activity", "1", "--units", "-1"},
		"want its id, a positive":   {"--activity", "0"},
		"--activity int is missing": {},
	} {
		if out, err := drill(t, append([]string{"check"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	t.Setenv("SECKILL_REDIS_ADDRS", "127.0.0.1:1")
	t.Setenv("SECKILL_KAFKA_BROKERS", "127.0.0.1:1")
	t.Setenv("SECKILL_MYSQL_DSN", "u@tcp(127.0.0.1:1)/d")
	if out, err := drill(t, "check", "--activity", "1", "--told", "/nowhere"); err == nil || !strings.Contains(err.Error(), "--told") {
		t.Errorf("%v\n%s", err, out)
	}
	other := write(t, "other", "not a record\n")
	if out, err := drill(t, "check", "--activity", "1", "--told", other); err == nil || !strings.Contains(err.Error(), "--told "+other+": ") ||
		!strings.Contains(err.Error(), "want what run --told has written") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err := drill(t, "check", "--activity", "1", "--wait", "1s")
	if err == nil || errors.Is(err, errBroken) || !strings.Contains(out, "waiting for kafka, for up to 3s: ") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, system := range []string{"redis", "mysql", "kafka"} {
		if !strings.Contains(fmt.Sprint(err), system+" cannot be checked: ") {
			t.Errorf("%s is not named: %v", system, err)
		}
	}
}
