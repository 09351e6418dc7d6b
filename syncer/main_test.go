package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/syncer/compare"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.KnownLeaks()...) }

// otherTopics are the topics of a bench that the syncer only checks, by the name of its orders topic.
var otherTopics sync.Map

// others makes them once for each bench: what other tests happen to have left on the shared broker must not matter.
func others(b *synctest.Bench) [2]string {
	b.Helper()
	make2 := sync.OnceValue(func() [2]string {
		return [2]string{testenv.Topic(b.TB, "dlq", 1), testenv.Topic(b.TB, "results", 1)}
	})
	once, _ := otherTopics.LoadOrStore(b.Cfg.Kafka.Topics.Orders, make2)
	return once.(func() [2]string)()
}

// command runs a command line as a user would, with a configuration file of the bench.
func command(t *testing.T, b *synctest.Bench, in string, args ...string) (string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "syncer.yaml")
	text := `
redis: {addrs: [` + b.Server.Addr + `]}
kafka: {brokers: [` + strings.Join(b.Cfg.Kafka.Brokers, ", ") + `], topics: {orders: ` + b.Cfg.Kafka.Topics.Orders + `, dead_letters: ` + others(b)[0] + `, results: ` + others(b)[1] + `}, group: ` + b.Cfg.Kafka.Group + `}
mysql: {dsn: "` + b.Cfg.MySQL.DSN + `"}
http: {listen: "off"}
reserve_deadline: 200ms
publish_budget: 500ms
horizon: 1s
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetIn(strings.NewReader(in))
	root.SetArgs(append([]string{"--config", path}, args...))
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func must(t *testing.T, b *synctest.Bench, args ...string) string {
	t.Helper()
	out, err := command(t, b, "", args...)
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

// The commands of a sale, beside a running daemon.
func TestCommandsBesideADaemon(t *testing.T) {
	b := synctest.New(t)
	_, h := b.Syncer()
	b.Ready(h)
	id := testenv.ID()
	num := strconv.FormatInt(id, 10)
	made := must(t, b, "activity", "create", "--id", num, "--item", num, "--title", "Moon cakes", "--stock", "20", "--starts", "now",
		"--ends", "+1h", "--max-per-user", "3")
	if !strings.Contains(made, "created in mysql;") || !strings.Contains(made, "created in mysql and at the edge\n") {
		t.Errorf("create:\n%s", made)
	}
	a, err := b.Store.Activity(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if out := must(t, b, "activity", "list"); !regexp.MustCompile(`\sopen .*Moon cakes`).MatchString(out) || !strings.Contains(out, clock(a.EndsAtMs)) {
		t.Errorf("list:\n%s", out)
	}
	b.Buy(a, "u1", 2)
	b.Land(true)
	b.Buy(a, "u2", 3)
	var out string
	testenv.Eventually(t, 10*time.Second, "the leader to say that all is well", func() bool { // it says so once a second
		out, err = command(t, b, "", "status")
		return err == nil
	})
	if !regexp.MustCompile(`open\s+`+regexp.QuoteMeta(clock(a.StartsAtMs))+`\s+`+regexp.QuoteMeta(clock(a.EndsAtMs))+`\s+18 / 18\s+equal\s+3\s+1\s`).MatchString(out) || !strings.Contains(out, b.Cfg.Name) {
		t.Errorf("status:\n%s", out)
	}
	var st runner.Status
	if err := json.Unmarshal([]byte(must(t, b, "status", "--json")), &st); err != nil || st.Activities[0].Pending != 3 || st.Leader != b.Cfg.Name {
		t.Errorf("status --json: %+v, %v", st, err)
	}
	if out := must(t, b, "activity", "pause", num); out != "activity "+num+": paused in mysql\nactivity "+num+": paused in mysql and at the edge\n" {
		t.Errorf("pause:\n%s", out)
	}
	if _, code := b.Reserve(a, "u3", 1); code != ledger.IsPaused {
		t.Errorf("code %d while paused", code)
	}
	must(t, b, "activity", "resume", num)
	if out := must(t, b, "compare", "--json"); !strings.Contains(out, `"activities"`) {
		t.Errorf("compare --json:\n%s", out)
	}
	if out := must(t, b, "load", num); !strings.Contains(out, "pending 3") {
		t.Errorf("load:\n%s", out)
	}
	if out, err := command(t, b, "no\n", "force", num); err == nil || !strings.Contains(out, "before:") {
		t.Errorf("force without a yes: %v\n%s", err, out)
	}
	out, err = command(t, b, "yes\n", "force", num)
	if err != nil || !strings.Contains(out, "after:") || !strings.Contains(out, "was locked for") {
		t.Errorf("force: %v\n%s", err, out)
	}
	if s := b.Look(a); !s.Loaded || s.Pending != 3 || s.Stock != 18 || s.BuyersLen != 2 {
		t.Errorf("after force: %+v", s)
	}
	b.Land(true)
	b.Equal(a)
	must(t, b, "activity", "close", num)
	if out := must(t, b, "compare", "--dry-run", num); !strings.Contains(out, "equal") {
		t.Errorf("compare:\n%s", out)
	}
	for _, verb := range []string{"resume", "pause"} {
		if out, err := command(t, b, "", "activity", verb, num); err == nil || !strings.Contains(err.Error(), "is closed") || out != "" {
			t.Errorf("%s of a closed sale: %v\n%s", verb, err, out)
		}
	}
	if s := b.Look(a); s.State != ledger.Closed {
		t.Errorf("%+v", s)
	}
	must(t, b, "activity", "resume", "--reopen", num)
	if s := b.Look(a); s.State != ledger.Open {
		t.Errorf("%+v", s)
	}
}

// A sale that is long over has left the edge: a change of it is MySQL's alone, and the command says so and waits for nothing.
func TestChangeOfASaleThatIsLongOver(t *testing.T) {
	b := synctest.New(t)
	a := b.Activity(5)
	num := strconv.FormatInt(a.ID, 10)
	b.Exec("UPDATE activity SET starts_at_ms = 1000, ends_at_ms = 2000 WHERE activity_id = ?", a.ID)
	want := "activity " + num + ": paused in mysql\nactivity " + num + ": it has been over for longer than end_grace (10m0s) and is not at the edge any more\n"
	if out := must(t, b, "activity", "pause", num); out != want {
		t.Errorf("pause:\n%s", out)
	}
}

// Without a syncer a change stays in MySQL: the commands say so, and what buyers see.
func TestChangesWithoutASyncer(t *testing.T) {
	b := synctest.New(t)
	a := b.Activity(5)
	num := strconv.FormatInt(a.ID, 10)
	must(t, b, "load", num)
	out, err := command(t, b, "", "activity", "pause", num, "--wait", "100ms")
	if err == nil || err.Error() != "activity "+num+": no syncer leads: buyers still see it open; start seckill-syncer run" || out != "activity "+num+": paused in mysql\n" {
		t.Errorf("pause: %v\n%s", err, out)
	}
	if row, err := b.Store.Activity(t.Context(), a.ID); err != nil || row.State != ledger.Paused {
		t.Errorf("%+v, %v", row, err)
	}
	if out := must(t, b, "activity", "resume", num, "--wait", "0"); out != "activity "+num+": open in mysql\n" {
		t.Errorf("resume without waiting:\n%s", out)
	}
	other := testenv.ID()
	args := []string{"activity", "create", "--id", strconv.FormatInt(other, 10), "--item", strconv.FormatInt(other, 10), "--stock", "1", "--ends", "+1h", "--wait", "100ms"}
	if out, err := command(t, b, "", args...); err == nil || !strings.Contains(err.Error(), "no syncer leads: buyers cannot see it") || !strings.Contains(out, "created in mysql") {
		t.Errorf("create: %v\n%s", err, out)
	}
	// One that leads and does not come to it, as far as the command can see.
	if _, err := b.Ledger.Lease(t.Context(), "somebody", time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := command(t, b, "", "activity", "close", num, "--wait", "100ms"); err == nil || !strings.Contains(err.Error(), "redis does not have it yet") {
		t.Errorf("close: %v", err)
	}
	third := testenv.ID()
	args[3], args[5] = strconv.FormatInt(third, 10), strconv.FormatInt(third, 10)
	if _, err := command(t, b, "", args...); err == nil || !strings.Contains(err.Error(), "it is being loaded: a sale that has already begun waits out the publish budget and the reserve deadline (700ms)") {
		t.Errorf("create: %v", err)
	}
	b.Server.Kill()
	if _, err := command(t, b, "", "activity", "close", num, "--wait", "100ms"); err == nil || !strings.Contains(err.Error(), "redis does not answer") {
		t.Errorf("close with redis down: %v", err)
	}
}

// A name that does not exist is an error, not a page of help.
func TestUnknownCommand(t *testing.T) {
	for _, args := range [][]string{{"statsu"}, {"activity", "crate", "--item", "1"}, {"config", "chek"}} {
		root := newRoot()
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs(args)
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "unknown command") || out.Len() > 0 {
			t.Errorf("%v: %v\n%s", args, err, &out)
		}
	}
}

// Before anything is asked, what a person gave by mistake is refused.
func TestMistakesAreRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"activity", "create", "--id", "0", "--item", "1", "--ends", "+1h"}, "--id 0: want a positive number"},
		{[]string{"activity", "create", "--item", "0", "--ends", "+1h"}, "--item 0: want its id, a positive number"},
		{[]string{"activity", "create", "--item", "x", "--ends", "+1h"}, `invalid argument "x" for "--item" flag: want a whole number`},
		{[]string{"activity", "create", "--item", "1"}, "--ends TIME is missing: TIME at which it closes"},
		{[]string{"activity", "create", "--item", "1", "--ends", "+1h", "--stock", "-1"}, "--stock -1: want 0 to 9007199254740991"},
		{[]string{"activity", "create", "--item", "1", "--ends", "+1h", "--max-per-user", "0"}, "--max-per-user 0: want 1 to 1000000"},
		{[]string{"activity", "create", "--item", "1", "--ends", "+1h", "--wait", "-5s"}, "--wait -5s: want how long to wait at most, or 0"},
		{
			[]string{"activity", "create", "--item", "1", "--starts", "2030-11-11T20:00:00Z", "--ends", "2030-11-11T19:00:00Z"},
			`--ends "2030-11-11T19:00:00Z": ` + clock(1920654000000) + " is not after the start, " + clock(1920657600000) + ": want a later time, or +DURATION",
		},
		{[]string{"activity", "create", "--item", "1", "--ends", "+0s"}, `--ends "+0s": `},
		{[]string{"activity", "pause", "1", "--wait", "-5s"}, "--wait -5s: want"},
		{[]string{"activity", "list", "foo"}, `surplus argument "foo": seckill-syncer activity list takes none`},
		{[]string{"run"}, "SECKILL_END_GRACE: end_grace: 0 is no value of it: leave the key out for the default, 10m0s"},
	} {
		if strings.HasPrefix(c.want, "SECKILL_") {
			t.Setenv("SECKILL_END_GRACE", "0s")
		}
		root := newRoot()
		root.SetOut(io.Discard)
		root.SetArgs(append(c.args, "--config", "seckill-syncer.yaml"))
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
}

func TestComparisonOfOne(t *testing.T) {
	var out bytes.Buffer
	printCompare(&out, &compare.Report{TookMs: 5, Activities: []compare.Activity{{ID: 7, Ledger: 1, Pending: 1}}})
	if got := out.String(); !strings.Contains(got, "1 reservation open (1 unit)") || !strings.Contains(got, "1 activity compared in 5 ms, 0 differences\n") {
		t.Error(got)
	}
}

func TestStateWords(t *testing.T) {
	for _, c := range []struct {
		mysql, redis string
		now          int64
		want         string
	}{
		{"open", "open", 5, "not started"},
		{"open", "open", 15, "open"},
		{"open", "open", 25, "ended"},
		{"paused", "paused", 5, "paused"},
		{"open", "", 5, "not started (not loaded)"},
		{"open", "recovering", 15, "recovering (mysql: open)"},
		{"closed", "open", 15, "open (mysql: closed)"},
	} {
		a := runner.ActivityStatus{StateMySQL: c.mysql, StateRedis: c.redis, StartsAtMs: 10, EndsAtMs: 20}
		if got := state(a, c.now); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// Behind no position there is no lag to speak of.
func TestBinlogNotKnown(t *testing.T) {
	var out bytes.Buffer
	if err := printStatus(&out, &runner.Status{Leader: "x", Binlog: runner.BinlogStatus{LagMs: 0}}); err != nil || !strings.Contains(out.String(), "binlog   none, not known\n") {
		t.Errorf("%v\n%s", err, &out)
	}
}

func TestCommandsWithoutADaemon(t *testing.T) {
	b := synctest.New(t)
	a := b.Activity(5)
	num := strconv.FormatInt(a.ID, 10)
	must(t, b, "load", num)
	c, err := b.Ledger.Catalogue(t.Context())
	if err != nil || c.Activities[a.ID] != a || c.Timings != b.Cfg.Timings() {
		t.Fatalf("catalogue %+v, %v", c, err)
	}
	if out, err := command(t, b, "", "status"); err == nil || !strings.Contains(out, "none") {
		t.Errorf("status without a leader: %v\n%s", err, out)
	}
	if out := must(t, b, "config", "check"); !strings.Contains(out, "run would start") || strings.Contains(out, "seckill:seckill") {
		t.Errorf("config check:\n%s", out)
	}
}

// E13: a Redis that may evict keys is refused, with the remedy.
func TestE13EvictionIsRefused(t *testing.T) {
	b := synctest.New(t)
	b.Client().ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru")
	if out, err := command(t, b, "", "config", "check"); !errors.Is(err, errRefused) || !strings.Contains(out, "set it to noeviction") || !strings.Contains(err.Error(), "redis/maxmemory_policy") {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := command(t, b, "", "run"); err == nil || !strings.Contains(err.Error(), "noeviction") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestParseTime(t *testing.T) {
	from := time.UnixMilli(1_900_000_000_000)
	for text, want := range map[string]int64{
		"+5s": 1_900_000_005_000, "1900000000123": 1_900_000_000_123, "2030-03-17T17:46:40Z": 1_900_000_000_000,
		"2030-03-18T01:46:40+08:00": 1_900_000_000_000,
	} {
		if got, err := parseTime("--starts", text, from); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "+", "+x", "-5s", "tomorrow", "2030-03-17 17:46:40", "1900000000"} {
		if got, err := parseTime("--starts", text, from); err == nil {
			t.Errorf("%q is taken for %d", text, got)
		}
	}
}

// The sample is valid, and what it shows as defaults are the defaults.
func TestSampleConfiguration(t *testing.T) {
	sample, err := os.ReadFile("seckill-syncer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	plain, err := loadSettings("seckill-syncer.yaml", needRedis, needKafka, needMySQL)
	if err != nil {
		t.Fatal(err)
	}
	full := filepath.Join(t.TempDir(), "full.yaml")
	if err := os.WriteFile(full, regexp.MustCompile(`(?m)^(\s*)#(\w+:)`).ReplaceAll(sample, []byte("$1$2")), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := loadSettings(full, needRedis, needKafka, needMySQL)
	if err != nil {
		t.Fatal(err)
	}
	// Redis' client fills in its own defaults; an empty list is none.
	plain.Redis, plain.Accept = all.Redis, all.Accept
	want, got := explained(t, plain), explained(t, all)
	if want != got {
		t.Errorf("with every default written out:\n%s\nwithout:\n%s", got, want)
	}
}

func explained(t *testing.T, s *settings) string {
	t.Helper()
	b, err := json.Marshal(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Before the schema is there, every command names the remedy.
func TestBeforeMigrate(t *testing.T) {
	b := synctest.New(t)
	b.Exec("DROP TABLE activity")
	for _, args := range [][]string{
		{"status"},
		{"activity", "list"},
		{"activity", "pause", "1"},
		{"activity", "create", "--item", "1", "--ends", "+1h"},
		{"activity", "create", "--id", "1", "--item", "1", "--ends", "+1h"},
	} {
		if _, err := command(t, b, "", args...); err == nil || !strings.HasSuffix(err.Error(), ": run seckill-worker migrate") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
