package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/config"
	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/landing"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// TestHelpIsWorthReading: every command says what it does, in lines that fit a terminal.
func TestHelpIsWorthReading(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" || c.HasSubCommands() && c.Long == "" {
			t.Errorf("%s has no description", c.CommandPath())
		}
		for line := range strings.Lines(c.Long) {
			if len([]rune(line)) > 101 {
				t.Errorf("%s: help line of %d characters: %s", c.CommandPath(), len(line), line)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	root := newRoot()
	walk(root)
	out := mustCommand(t, "--help")
	for _, word := range []string{"run", "migrate", "replay", "dlq", "config", "SECKILL_MYSQL_DSN", "--config FILE"} {
		if !strings.Contains(out, word) {
			t.Errorf("help does not mention %s:\n%s", word, out)
		}
	}
	if out := mustCommand(t, "--version"); !strings.HasPrefix(out, "seckill-worker ") {
		t.Errorf("version %q", out)
	}
}

// TestThreeVariablesAreEnough, and each missing one is named.
func TestThreeVariablesAreEnough(t *testing.T) {
	all := map[string]string{
		"SECKILL_REDIS_ADDRS": "a:1,b:2", "SECKILL_KAFKA_BROKERS": "c:3,d:4", "SECKILL_MYSQL_DSN": "u:p@tcp(e:5)/f",
	}
	for k, v := range all {
		t.Setenv(k, v)
	}
	s, err := loadSettings("", needRedis, needKafka, needMySQL)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Redis.Addrs) != 2 || len(s.Kafka.Brokers) != 2 || s.MySQL.DSN != all["SECKILL_MYSQL_DSN"] || s.HTTP.Listen != "127.0.0.1:9301" ||
		s.Kafka.Topics.Orders != "seckill.orders" || s.Landing.MaxOrders != 500 {
		t.Errorf("settings %+v", s)
	}
	for k := range all {
		t.Run(k, func(t *testing.T) {
			t.Setenv(k, "")
			os.Unsetenv(k)
			word := strings.ToLower(strings.Split(k, "_")[1])
			if _, err := loadSettings("", needRedis, needKafka, needMySQL); err == nil || !errors.Is(err, errRefused) || !strings.Contains(err.Error(), word) {
				t.Errorf("without %s: %v; want it refused and %s named", k, err, word)
			}
		})
	}
}

// TestSampleConfiguration: the sample loads as it is, and with every commented key put in it still loads and says what holds anyway.
func TestSampleConfiguration(t *testing.T) {
	sample, err := os.ReadFile("seckill-worker.yaml")
	if err != nil {
		t.Fatal(err)
	}
	asItIs, err := loadSettings("seckill-worker.yaml", needRedis, needKafka, needMySQL)
	if err != nil {
		t.Fatal(err)
	}
	full := filepath.Join(t.TempDir(), "full.yaml")
	text := regexp.MustCompile(`(?m)^( *)#([a-z_]+:)`).ReplaceAllString(string(sample), "$1$2")
	if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := loadSettings(full, needRedis, needKafka, needMySQL)
	if err != nil {
		t.Fatal(err)
	}
	asItIs.Redis, all.Redis = withRedisDefaults(asItIs.Redis), withRedisDefaults(all.Redis)
	a, b := strings.Split(explained(t, asItIs), "\n"), strings.Split(explained(t, all), "\n")
	if len(a) != len(b) {
		t.Fatalf("%d keys as it is, %d with all put in", len(a), len(b))
	}
	for i := range a {
		if a[i] != b[i] {
			t.Errorf("the sample says %q, the default is %q", b[i], a[i])
		}
	}
}

func explained(t *testing.T, s *settings) string {
	t.Helper()
	if len(s.Accept) == 0 {
		s.Accept = []string{}
	}
	var b bytes.Buffer
	if err := config.Explain(s, &b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func withRedisDefaults(c redisconn.Config) redisconn.Config {
	if c.PoolSize == 0 {
		c.PoolSize = redisconn.DefaultPoolSize
	}
	for _, d := range []*time.Duration{&c.ReadTimeout, &c.WriteTimeout} {
		if *d == 0 {
			*d = redisconn.DefaultIOTimeout
		}
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = redisconn.DefaultDialTimeout
	}
	if c.PoolTimeout == 0 {
		c.PoolTimeout = redisconn.DefaultPoolTimeout
	}
	return c
}

func TestUnknownKeyIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.yaml")
	if err := os.WriteFile(path, []byte("redis: {addrs: ['a:1']}\nlanding: {max_order: 5}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := command(t, "config", "check", "--offline", "--config", path)
	if err == nil || !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "max_order") {
		t.Errorf("error %v: want it refused by name", err)
	}
}

func TestMigrateAndConfigCheck(t *testing.T) {
	t.Parallel()
	d := deploy(t, 1)
	if out := mustCommand(t, "config", "check", "--config", d.config); !strings.Contains(out, "run would start") || strings.Contains(out, "seckill:seckill@") {
		t.Errorf("config check:\n%s", out)
	}
	if _, err := d.store.DB().ExecContext(t.Context(), "DROP TABLE orders"); err != nil {
		t.Fatal(err)
	}
	out, err := command(t, "config", "check", "--config", d.config)
	if err == nil || !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "schema") {
		t.Errorf("config check without the orders table: %v\n%s", err, out)
	}
}

// TestUnpaidConfiguration: a window that would expire paid orders, or keep their stock, is refused; config check says what would happen.
func TestUnpaidConfiguration(t *testing.T) {
	for name, c := range map[string]struct{ mysql, unpaid, want string }{
		"orders land as paid": {"success_status: PAID", "window: 15m", "success_status"},
		"EXPIRED is not dead": {"dead_statuses: [FAILED, CANCELLED]", "window: 15m", "dead_statuses"},
		"too short":           {"tries: 5", "window: 1ms", "unpaid.window: 1ms"},
		"off":                 {"success_status: PAID", "batch: 100", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "w.yaml")
			yaml := "redis: {addrs: ['a:1']}\nkafka: {brokers: ['b:2']}\nmysql:\n  dsn: 'u@tcp(c:3)/d'\n  " + c.mysql + "\nunpaid:\n  " + c.unpaid + "\n"
			if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := command(t, "config", "check", "--offline", "--config", path)
			if c.want == "" {
				if err != nil || !strings.Contains(out, "leave unpaid orders as they are") {
					t.Errorf("%v\n%s", err, out)
				}
				return
			}
			if !errors.Is(err, errRefused) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v: want it refused, with %s and the place in the file named", err, c.want)
			}
		})
	}
	t.Setenv("SECKILL_UNPAID_WINDOW", "15m")
	out := mustCommand(t, "config", "check", "--offline", "--config", "seckill-worker.yaml")
	if want := "let orders that are still CONFIRMED 15m0s after their landing become EXPIRED"; !strings.Contains(out, want) {
		t.Errorf("config check does not say %q:\n%s", want, out)
	}
}

// TestConnectionsForListeners: whoever tells a listener keeps a connection, so that with too few of them nothing would ever land.
func TestConnectionsForListeners(t *testing.T) {
	const shop = "webhook: {url: 'http://shop/', secrets: [whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=]}\n"
	for name, c := range map[string]struct {
		conns int
		rest  string
		want  string
	}{
		"results":         {2, "", "want at least 3"},
		"results, enough": {3, "", ""},
		"both":            {3, shop, "want at least 4"},
		"both, enough":    {4, shop, ""},
		"none":            {2, "outbox: {results: false}\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "w.yaml")
			yaml := fmt.Sprintf("redis: {addrs: ['a:1']}\nkafka: {brokers: ['b:2']}\nmysql: {dsn: 'u@tcp(c:3)/d', max_conns: %d}\n%s", c.conns, c.rest)
			if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := loadSettings(path, needRedis, needKafka, needMySQL)
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, errRefused) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestUnpaidOrdersExpire: the worker takes what nobody pays for back in MySQL, and leaves telling Redis to the binlog.
func TestUnpaidOrdersExpire(t *testing.T) {
	t.Parallel()
	d := deploy(t, 2).sale(100)
	d.configure("unpaid: {window: 3s, every: 200ms, batch: 7}")
	if out := mustCommand(t, "config", "check", "--config", d.config); !strings.Contains(out, "run would start") {
		t.Fatalf("config check:\n%s", out)
	}
	count := func(where string) (n int) {
		t.Helper()
		if err := d.store.DB().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM orders WHERE "+where).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	var workers []*child
	for range 2 {
		workers = append(workers, d.start("", "run"))
	}
	accepted := d.accept(30)
	d.done(30 * time.Second)
	if _, err := d.store.DB().ExecContext(t.Context(), "UPDATE orders SET status = 'PAID' WHERE order_id = ? AND status = 'CONFIRMED'", accepted[0].ID); err != nil {
		t.Fatal(err)
	}
	paid := count("status = 'PAID'") // 0 on a machine that took longer than the window to get here
	before, err := d.ledger.Inspect(t.Context(), d.activity)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, "what is not paid is expired", func() bool { return count("status = 'CONFIRMED'") == 0 })
	for _, w := range workers {
		w.stop()
	}
	if n := count("status = 'EXPIRED' AND reason = 'unpaid'"); n != 30-paid || count("status = 'PAID'") != paid {
		t.Errorf("%d expired and %d paid, want %d and %d", n, count("status = 'PAID'"), 30-paid, paid)
	}
	stock, version, _, err := d.store.Inventory(t.Context(), d.item)
	if want := 100 - int64(paid)*accepted[0].Quantity; err != nil || stock != want {
		t.Errorf("stock %d, %v, want %d", stock, err, want)
	}
	after, err := d.ledger.Inspect(t.Context(), d.activity)
	if err != nil {
		t.Fatal(err)
	}
	if b, a := before[0], after[0]; a.Version == version || a.Version != b.Version || a.Stock != b.Stock {
		t.Errorf("redis had %d at %d and has %d at %d without a syncer: the worker told it of the expiry", b.Stock, b.Version, a.Stock, a.Version)
	}
}

// TestMigrateCreatesTopics: only what is missing, and a dry run only names it.
func TestMigrateCreatesTopics(t *testing.T) {
	t.Parallel()
	d := deploy(t, 1)
	topic := testenv.Topic(t, "made", 1)
	if err := os.WriteFile(d.config, []byte(strings.ReplaceAll(readFile(t, d.config), d.kafka.Topics.Results, topic+"-new")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := mustCommand(t, "migrate", "--dry-run", "--create-topics", "--config", d.config); !strings.Contains(out, topic+"-new") {
		t.Errorf("dry run does not name the missing topic:\n%s", out)
	}
	if _, err := d.admin.HighWater(t.Context(), topic+"-new"); !errors.Is(err, kafka.ErrTopicMissing) {
		t.Errorf("after the dry run: %v, want the topic still missing", err)
	}
	mustCommand(t, "migrate", "--create-topics", "--config", d.config)
	defer deleteTopic(t, d, topic+"-new")
	testenv.Eventually(t, 15*time.Second, "the topic is there", func() bool {
		_, err := d.admin.HighWater(t.Context(), topic+"-new")
		return err == nil
	})
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestRunThroughItsLife: not ready without a schema, refused; then ready, landing, and an orderly end.
func TestRunThroughItsLife(t *testing.T) {
	t.Parallel()
	d := deploy(t, 1).sale(100)
	port := testenv.FreePort(t)
	listen := "127.0.0.1:" + itoa(port)
	if err := os.WriteFile(d.config, []byte(strings.ReplaceAll(readFile(t, d.config), "127.0.0.1:0", listen)), 0o600); err != nil {
		t.Fatal(err)
	}
	w := d.start("", "run")
	testenv.Eventually(t, 30*time.Second, "ready", func() bool { return status("http://"+listen+"/readyz") == 200 })
	if status("http://"+listen+"/livez") != 200 || status("http://"+listen+"/metrics") != 200 {
		t.Error("livez or metrics do not answer")
	}
	accepted := d.accept(30)
	d.done(30 * time.Second)
	d.exact(100, accepted)
	d.redis.Kill()
	d.producerRaw(accepted[0].ID, mustEncode(t, accepted[0])) // delivered again: settled again
	testenv.Eventually(t, 30*time.Second, "not ready while Redis is away", func() bool { return status("http://"+listen+"/readyz") == 503 })
	if status("http://"+listen+"/livez") != 200 {
		t.Error("not live while Redis is away")
	}
	d.redis.Restart()
	testenv.Eventually(t, 30*time.Second, "ready again", func() bool { return status("http://"+listen+"/readyz") == 200 })
	w.stop()
}

func TestRunRefusesUnsafeRedis(t *testing.T) {
	t.Parallel()
	d := deploy(t, 1)
	evicting := testenv.StartRedis(t, "--maxmemory-policy", "allkeys-lru")
	if err := os.WriteFile(d.config, []byte(strings.ReplaceAll(readFile(t, d.config), d.redis.Addr, evicting.Addr)), 0o600); err != nil {
		t.Fatal(err)
	}
	w := d.start("", "run")
	<-w.done
	if code := w.cmd.ProcessState.ExitCode(); code != exitRefused || !strings.Contains(w.log.String(), "noeviction") {
		t.Errorf("exit code %d, want %d and the remedy:\n%s", code, exitRefused, w.log)
	}
}

func TestReplayAndDeadLettersByCommand(t *testing.T) {
	t.Parallel()
	d := deploy(t, 1).sale(100)
	if out := mustCommand(t, "dlq", "list", "--config", d.config); !strings.Contains(out, "no dead letters") {
		t.Errorf("dlq list:\n%s", out)
	}
	accepted := d.accept(20)
	d.producerRaw("k", []byte("\x1b[31mpoison"))
	w := d.start("", "run")
	d.done(30 * time.Second)
	w.stop()

	out := mustCommand(t, "dlq", "list", "--config", d.config)
	if !strings.Contains(out, "0/0") || !strings.Contains(out, d.kafka.Topics.Orders) || strings.Contains(out, "\x1b") {
		t.Errorf("dlq list:\n%q", out)
	}
	out = mustCommand(t, "dlq", "show", "0/0", "--config", d.config)
	if !strings.Contains(out, "poison") || strings.Contains(out, "\x1b") {
		t.Errorf("dlq show:\n%q", out)
	}
	if _, err := command(t, "dlq", "show", "0/9", "--config", d.config); err == nil {
		t.Error("showed a dead letter that is not there")
	}
	if out = mustCommand(t, "dlq", "list", "--json", "--config", d.config); !strings.Contains(out, `"id":"0/0"`) {
		t.Errorf("dlq list --json:\n%s", out)
	}
	if out, err := command(t, "dlq", "replay", "--all", "--config", d.config); err == nil || !strings.Contains(out, "still refused 1") {
		t.Errorf("dlq replay: %v, want it to fail since nothing landed\n%s", err, out)
	}
	if _, err := command(t, "dlq", "replay", "--config", d.config); err == nil {
		t.Error("replayed without being told what")
	}

	if _, err := d.store.DB().ExecContext(t.Context(), "DELETE FROM orders WHERE order_id = ?", accepted[7].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := d.store.DB().ExecContext(t.Context(), "UPDATE inventory SET stock = stock + ? WHERE item_id = ?", accepted[7].Quantity, d.item); err != nil {
		t.Fatal(err)
	}
	if out = mustCommand(t, "replay", "--since", "1h", "--dry-run", "--config", d.config); !strings.Contains(out, "missing there 1,") {
		t.Errorf("replay --dry-run:\n%s", out)
	}
	if out = mustCommand(t, "replay", "--since", "1h", "--config", d.config); !strings.Contains(out, "live in mysql 20,") {
		t.Errorf("replay:\n%s", out)
	}
	d.exact(100, accepted)
}

// TestDeadLetterReplayTellsOfEachLetter: a script can rely on the end of the command, and a person sees which letter came to what.
func TestDeadLetterReplayTellsOfEachLetter(t *testing.T) {
	t.Parallel()
	d := deploy(t, 1).sale(100)
	if _, err := command(t, "dlq", "replay", "--all", "--config", d.config); err == nil || !strings.Contains(err.Error(), d.kafka.Topics.DeadLetters) {
		t.Errorf("replay of an empty topic: %v, want it to fail and name the topic", err)
	}
	letter := func(value []byte) {
		t.Helper()
		if _, err := d.producer.Send(t.Context(), d.kafka.Topics.DeadLetters, nil, value, nil); err != nil {
			t.Fatal(err)
		}
	}
	live := d.reserve(2)
	letter(mustEncode(t, live[0]))
	letter(mustEncode(t, live[1]))
	for range 2 { // it may be repeated, and then tells the same
		out := mustCommand(t, "dlq", "replay", "--all", "--config", d.config)
		for i, o := range live {
			if !regexp.MustCompile(fmt.Sprintf(`(?m)^0/%d +live +%s +CONFIRMED$`, i, o.ID)).MatchString(out) {
				t.Errorf("replay of letters that land does not say so:\n%s", out)
			}
		}
	}
	failed, stranger := d.reserve(1)[0], d.reserve(1)[0]
	if err := d.store.Record(t.Context(), *failed, order.Failed, order.ReasonInvalid); err != nil {
		t.Fatal(err)
	}
	stranger.Activity, stranger.Item = testenv.ID(), testenv.ID()
	letter(mustEncode(t, failed))
	letter(mustEncode(t, stranger))
	letter([]byte("poison"))
	out, err := command(t, "dlq", "replay", "--all", "--config", d.config)
	if err == nil || errors.Is(err, errRefused) || !strings.Contains(err.Error(), "3 of 5 dead letters have no live order") {
		t.Errorf("%v, want it to count those that are no live orders", err)
	}
	for _, line := range []string{
		"0/0 +live +" + live[0].ID + " +CONFIRMED", "0/2 +dead +" + failed.ID + " +FAILED, invalid",
		"0/3 +refused +" + stranger.ID + " +activity_id .*not in mysql", `0/4 +refused +\? +invalid order: .*`,
	} {
		if !regexp.MustCompile("(?m)^" + line + "$").MatchString(out) {
			t.Errorf("no line %q in\n%s", line, out)
		}
	}
	for _, says := range []string{"dead letters 5: live in mysql 2, dead 1, still refused 2", "may order again", "mend it and replay it again"} {
		if !strings.Contains(out+err.Error(), says) {
			t.Errorf("%q is not in\n%s%v", says, out, err)
		}
	}
	mustCommand(t, "dlq", "replay", "0/1", "--config", d.config)

	// What it refused it did not bury: the same letter lands once its cause is mended.
	now, stock := time.Now().UnixMilli(), int64(5)
	if err := d.store.CreateActivity(t.Context(), ledger.Activity{
		ID: stranger.Activity, Item: stranger.Item, StartsAtMs: now - 60_000, EndsAtMs: now + 3_600_000, MaxPerUser: 10, State: ledger.Open,
	}, &stock); err != nil {
		t.Fatal(err)
	}
	if out := mustCommand(t, "dlq", "replay", "0/3", "--config", d.config); !strings.Contains(out, stranger.ID) {
		t.Errorf("after the mending:\n%s", out)
	}
}

func TestParseSince(t *testing.T) {
	now := time.Date(2026, 11, 12, 20, 0, 0, 0, time.Local)
	for in, want := range map[string]time.Time{
		"90m":                       now.Add(-90 * time.Minute),
		"2026-11-11T20:00:00+08:00": time.Date(2026, 11, 11, 12, 0, 0, 0, time.UTC),
		"2026-11-11 19:00:00":       time.Date(2026, 11, 11, 19, 0, 0, 0, time.Local),
	} {
		if got, err := parseSince(in, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v; want %v", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"": "want a time such as", "yesterday": "want a time such as", "-5m": "want a time such as",
		"2026-11-12 20:00:01":       `"2026-11-12 20:00:01": that is in the future, for it is ` + now.Format(time.RFC3339) + " now: want a time before that",
		"2026-11-14T20:00:00+08:00": "that is in the future",
	} {
		if _, err := parseSince(in, now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

// A replay says at once that it waits for Kafka, and shows no counts when it comes to nothing.
func TestReplayWithoutKafka(t *testing.T) {
	t.Setenv("SECKILL_REDIS_ADDRS", "127.0.0.1:1")
	t.Setenv("SECKILL_KAFKA_BROKERS", "127.0.0.1:1")
	t.Setenv("SECKILL_MYSQL_DSN", "u@tcp(127.0.0.1:1)/d")
	for _, args := range [][]string{{"replay", "--since", "1h"}, {"replay", "--since", "1h", "--dry-run"}} {
		ctx, cancel := context.WithCancel(t.Context())
		var out bytes.Buffer
		told := &calls{f: cancel}
		root := newRoot()
		root.SetOut(&out)
		root.SetErr(told)
		root.SetArgs(args)
		err := root.ExecuteContext(ctx)
		if err == nil || !strings.HasPrefix(told.text, "waiting for kafka, for up to 30s: ") || out.Len() > 0 {
			t.Errorf("%v: %v, told %q, shown %q", args, err, told.text, &out)
		}
	}
}

// calls keeps what is written, and calls f then.
type calls struct {
	text string
	f    func()
}

func (c *calls) Write(p []byte) (int, error) {
	c.text += string(p)
	c.f()
	return len(p), nil
}

// A replay that stopped does not show what it has not looked for as if there were none of it.
func TestFiguresOfAReplay(t *testing.T) {
	some := landing.Replayed{Tally: landing.Tally{Records: 7}, Present: 5, Missing: 2}
	for _, c := range []struct {
		done          landing.Replayed
		dryRun, whole bool
		want          string
	}{
		{some, true, true, "records 7: in mysql 5, missing there 2,"},
		{some, false, true, "records 7: live in mysql 0,"},
		{landing.Replayed{Tally: landing.Tally{Records: 7, Landed: 5}, Undecided: 2}, false, true, "records 7: live in mysql 5, dead 0, repeated 0, not orders 0, undecided 2\n"},
		{some, true, false, "stopped after 7 records: in mysql 5,"},
		{some, false, false, "stopped after 7 records: live in mysql 0,"},
		{landing.Replayed{}, true, true, "records 0: in mysql 0,"},
		{landing.Replayed{}, true, false, ""},
		{landing.Replayed{}, false, false, ""},
	} {
		if got := figures(c.done, c.dryRun, c.whole); !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%+v, dry run %v, whole %v: %q, want %q", c.done, c.dryRun, c.whole, got, c.want)
		}
	}
}

// TestZeroIsRefusedWhereItIsNoValue: 0 does not quietly become the default. Where 0 is a value it is taken as one.
func TestZeroIsRefusedWhereItIsNoValue(t *testing.T) {
	for name, want := range map[string]string{
		"SECKILL_LANDING_STOCK_TRIES": "landing.stock_tries: 0 is no value of it: leave the key out for the default, 1,",
		"SECKILL_LANDING_MAX_WAIT":    "landing.max_wait: 0 is no value of it: leave the key out for the default, 1ms,",
		"SECKILL_UNPAID_BATCH":        "unpaid.batch: 0",
		"SECKILL_OUTBOX_KEEP":         "outbox.keep: 0",
		"SECKILL_MYSQL_MAX_CONNS":     "mysql.max_conns: 0",
		"SECKILL_REDIS_POOL_SIZE":     "redis.pool_size: 0",
		"SECKILL_UNPAID_WINDOW":       "",
		"SECKILL_REDIS_DB":            "",
		"SECKILL_REDIS_MIN_IDLE":      "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "0")
			if strings.HasSuffix(name, "_WAIT") || strings.HasSuffix(name, "_KEEP") || strings.HasSuffix(name, "_WINDOW") {
				t.Setenv(name, "0s")
			}
			_, err := loadSettings("seckill-worker.yaml", needRedis, needKafka, needMySQL)
			if want == "" && err != nil || want != "" && (!errors.Is(err, errRefused) || !strings.Contains(err.Error(), name+": "+want)) {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
	for flag, want := range map[string]string{"--partitions": "--partitions 0: want at least 1", "--replication": "--replication 0: want at least 1"} {
		if _, err := command(t, "migrate", "--create-topics", flag, "0", "--config", "seckill-worker.yaml"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("migrate %s 0: %v", flag, err)
		}
	}
}

// TestCollectorThatIsNone: neither a start nor config check takes any text for the address of a collector.
func TestCollectorThatIsNone(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "foo")
	for _, args := range [][]string{{"run"}, {"config", "check", "--offline"}} {
		_, err := command(t, append(args, "--config", "seckill-worker.yaml")...)
		if !errors.Is(err, errRefused) || !strings.Contains(err.Error(), `OTEL_EXPORTER_OTLP_ENDPOINT: "foo"`) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// TestSurplusArgument: a command that takes none says so, and does not call the argument a command.
func TestSurplusArgument(t *testing.T) {
	for _, args := range [][]string{{"outbox", "list", "foo"}, {"dlq", "list", "foo"}, {"config", "check", "foo"}, {"run", "foo"}} {
		want := fmt.Sprintf(`surplus argument "foo": seckill-worker %s takes none`, strings.Join(args[:len(args)-1], " "))
		if _, err := command(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

// A name that does not exist is an error, not a page of help.
func TestUnknownCommand(t *testing.T) {
	for _, args := range [][]string{{"foo"}, {"dlq", "lst"}, {"config", "chek", "--offline"}} {
		if out, err := command(t, args...); err == nil || !strings.Contains(err.Error(), "unknown command") || out != "" {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}
