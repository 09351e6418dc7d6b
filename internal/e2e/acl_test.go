package e2e

import (
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/loadgen"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/testenv"
	"github.com/seckillgate/seckillgate/internal/told"
)

var aclDir = filepath.Join("..", "..", "docs", "acl")

func password(role string) string { return "of-" + strings.ToLower(role) + "-1a2b3c" }

// aclFile reads a file of docs/acl and puts passwords in the place of its words.
func aclFile(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(aclDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`([A-Z]+)_PASSWORD\b`).ReplaceAllStringFunc(string(b), func(word string) string {
		return password(strings.TrimSuffix(word, "_PASSWORD"))
	})
}

// fenced is a stack on servers of its own whose users have the rights of docs/acl and no others.
type fenced struct {
	*stack
	mysql *testenv.MariaDB
	root  *sql.DB // MySQL as its administrator
	hooks atomic.Int64
}

func newFenced(t *testing.T) *fenced {
	t.Helper()
	acl := filepath.Join(t.TempDir(), "redis.acl")
	if err := os.WriteFile(acl, []byte(aclFile(t, "redis.acl")), 0o600); err != nil {
		t.Fatal(err)
	}
	users := ""
	for _, name := range []string{"admin", "gateway", "worker", "syncer", "migrate"} {
		users += fmt.Sprintf(" user_%s=%q", name, password(name))
	}
	brokers := testenv.StartKafka(t, 1,
		"listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
		"sasl.enabled.mechanisms=PLAIN",
		"sasl.mechanism.inter.broker.protocol=PLAIN",
		"listener.name.plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "+
			fmt.Sprintf("username=%q password=%q", "admin", password("admin"))+users+";",
		"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users=User:admin;User:ANONYMOUS", // the latter is the broker itself, as a controller's client
	)
	f := &fenced{mysql: testenv.StartMySQL(t, "--log-bin-trust-function-creators=1")}
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		f.hooks.Add(1)
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(hook.Close)
	f.stack = &stack{
		T: t, dir: t.TempDir(), redis: testenv.StartRedis(t, "--aclfile", acl), dsn: f.mysql.DSN("shop"),
		kafka: kafka.Config{Brokers: testenv.Addrs(brokers)},
		admin: login{"admin", password("admin"), f.mysql.DSN("shop")},
		logins: map[string]login{
			"caddy":  {"gateway", password("gateway"), ""},
			"worker": {"worker", password("worker"), f.dsnOf("worker")},
			"syncer": {"syncer", password("syncer"), f.dsnOf("syncer")},
		},
		more: map[string]string{
			"worker": "unpaid: {window: 4s, every: 200ms}\nwebhook: {url: " + hook.URL + ", secrets: [whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=]}\n",
			"caddy":  "\n\t\trate_limit sliding_window 100000/s scope cluster\n\t\tuser_window 100ms",
		},
	}
	f.kafka.SASL = kafka.SASL{Mechanism: "PLAIN", User: "admin", Password: password("admin")}
	f.kafka.SetDefaults()
	root, err := sql.Open("mysql", f.dsn+"?multiStatements=true")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	f.root = root

	f.configure()
	f.open()
	f.sql(aclFile(t, "mysql-1-accounts.sql"))
	f.kafkaRights()
	f.migrate()
	f.sql(aclFile(t, "mysql-2-tables.sql"))
	return f
}

// dsnOf is MySQL's DSN for one of the accounts.
func (f *fenced) dsnOf(role string) string {
	d, err := mysql.ParseDSN(f.mysql.DSN("shop"))
	if err != nil {
		f.Fatal(err)
	}
	d.User, d.Passwd = "seckill_"+role, password(role)
	return d.FormatDSN()
}

func (f *fenced) sql(text string) {
	f.Helper()
	if _, err := f.root.ExecContext(f.Context(), text); err != nil {
		f.Fatalf("%v:\n%s", err, text)
	}
}

// kafkaRights runs docs/acl/kafka.sh, with this program in the place of Kafka's own tool, which takes a virtual machine's start for
// each line.
func (f *fenced) kafkaRights() {
	f.Helper()
	self, err := os.Executable()
	if err != nil {
		f.Fatal(err)
	}
	conf := filepath.Join(f.dir, "admin.properties")
	text := fmt.Sprintf("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config=…PlainLoginModule required username=%q password=%q;\n",
		"admin", password("admin"))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
	cmd := exec.CommandContext(f.Context(), filepath.Join(aclDir, "kafka.sh"), "--bootstrap-server", f.kafka.Brokers[0], "--command-config", conf)
	cmd.Env = append(os.Environ(), "KAFKA_ACLS="+self, actAsKafkaACLs+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		f.Fatalf("kafka.sh: %v\n%s", err, out)
	}
}

func (f *fenced) migrate() {
	f.Helper()
	cmd := f.cmd("worker", "migrate", "--create-topics", "--partitions", "3")
	cmd.Env = append(cmd.Env, "SECKILL_MYSQL_DSN="+f.dsnOf("migrate"), "SECKILL_KAFKA_SASL_USER=migrate", "SECKILL_KAFKA_SASL_PASSWORD="+password("migrate"))
	if out, err := cmd.CombinedOutput(); err != nil {
		f.Fatalf("migrate: %v\n%s", err, out)
	}
}

// redisAs is a client as one of the users; "": without signing in.
func (f *fenced) redisAs(user string) redis.UniversalClient {
	f.Helper()
	cfg := redisconn.Config{Addrs: []string{f.redis.Addr}}
	if user != "" {
		cfg.Username, cfg.Password = user, password(user)
	}
	rdb, err := redisconn.New(cfg)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// nothingDenied looks for what the servers refused to the programs so far.
func (f *fenced) nothingDenied() {
	f.Helper()
	log, err := f.redisAs("admin").ACLLog(f.Context(), 100).Result()
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range log {
		f.Errorf("redis refused %s to %s: %s (%s)", e.Object, e.Username, e.Reason, e.Context)
	}
	for name, p := range map[string]*testenv.Program{"gateway": f.gateway, "worker": f.worker, "syncer": f.syncer} {
		for line := range strings.Lines(p.Log()) {
			if refusal.MatchString(line) {
				f.Errorf("the %s was refused something: %s", name, line)
			}
		}
	}
}

var refusal = regexp.MustCompile(`(?i)NOPERM|NOAUTH|ACL failure|user executing the script|command denied|access denied|not authorized|authorization failed`)

// A whole sale under the rights of docs/acl: what is granted there is enough, for everything that the product does.
func TestLeastPrivilege(t *testing.T) {
	f := newFenced(t)
	for _, program := range []string{"worker", "syncer"} {
		if out := f.command(program, "config", "check"); refusal.MatchString(out) || strings.Contains(out, "privilege_") {
			t.Errorf("%s config check:\n%s", program, out)
		}
	}
	f.startWorker()
	f.startSyncer()
	f.startGateway()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("gateway:\n%s\nworker:\n%s\nsyncer:\n%s", last(f.gateway), last(f.worker), last(f.syncer))
		}
	})

	const units, buyers = 100, 200
	id := f.sell(units)
	records := f.rush(id, buyers, loadgen.NewStats())
	f.buyersMayAsk(id, records)
	f.shopWorks(id)
	f.poison(id)
	f.swept(id)

	f.nothingDenied()
	f.redis.Kill() // it keeps nothing
	f.redis.Restart()
	f.open4Sale(id)
	f.operate(id)
	f.check(id, units+10, nil) // the shop has restocked 10
	if len(records) != buyers || f.hooks.Load() == 0 {
		t.Errorf("%d buyers heard something, and the shop %d calls", len(records), f.hooks.Load())
	}
	f.nothingDenied()
	f.refused()
	f.missing()
}

// missing takes one right away at a time: the start-up check names it, with the command that grants it.
func (f *fenced) missing() {
	f.Helper()
	admin := f.redisAs("admin")
	acl := func(user, rule string) func() {
		return func() {
			if err := admin.Do(f.Context(), "ACL", "SETUSER", user, rule).Err(); err != nil {
				f.Fatal(err)
			}
		}
	}
	mysql := func(text string) func() { return func() { f.sql(text) } }
	for _, c := range []struct {
		program      string
		take, giveIt func()
		want         string
	}{
		{"worker", acl("worker", "-ping"), acl("worker", "+ping"), "ACL SETUSER worker +ping"},
		{"worker", acl("worker", "-evalsha"), acl("worker", "+evalsha"), "ACL SETUSER worker +evalsha"},
		{"syncer", acl("syncer", "resetkeys"), acl("syncer", "~seckill:*"), "ACL SETUSER syncer ~seckill:*"},
		{"worker", mysql("REVOKE INSERT ON shop.orders FROM 'seckill_worker'@'%'"), mysql("GRANT INSERT ON shop.orders TO 'seckill_worker'@'%'"), "GRANT INSERT ON `shop`.`orders` TO 'seckill_worker'@'%'"},
		{"worker", mysql("REVOKE DELETE ON shop.seckill_outbox FROM 'seckill_worker'@'%'"), mysql("GRANT DELETE ON shop.seckill_outbox TO 'seckill_worker'@'%'"), "GRANT DELETE ON `shop`.`seckill_outbox` TO 'seckill_worker'@'%'"},
		{"worker", mysql("REVOKE SELECT ON shop.seckill_schema_migrations FROM 'seckill_worker'@'%'"), mysql("GRANT SELECT ON shop.seckill_schema_migrations TO 'seckill_worker'@'%'"), "GRANT SELECT ON `shop`.`seckill_schema_migrations` TO 'seckill_worker'@'%'"},
		{"syncer", mysql("REVOKE INSERT ON shop.activity FROM 'seckill_syncer'@'%'"), mysql("GRANT INSERT ON shop.activity TO 'seckill_syncer'@'%'"), "GRANT INSERT ON `shop`.`activity` TO 'seckill_syncer'@'%'"},
		{"syncer", mysql("REVOKE UPDATE ON shop.inventory FROM 'seckill_syncer'@'%'"), mysql("GRANT UPDATE ON shop.inventory TO 'seckill_syncer'@'%'"), "GRANT UPDATE ON `shop`.`inventory` TO 'seckill_syncer'@'%'"},
		{"worker", f.deny("worker", f.kafka.Topics.Orders, sarama.AclOperationDescribeConfigs), f.kafkaRights, "--allow-principal User:worker --operation DescribeConfigs --topic seckill.orders"},
		{"syncer", f.deny("syncer", f.kafka.Topics.Results, sarama.AclOperationDescribe), f.kafkaRights, "--allow-principal User:syncer --operation Describe --topic seckill.results"},
	} {
		c.take()
		if out, err := f.cmd(c.program, "config", "check").CombinedOutput(); err == nil || !strings.Contains(string(out), c.want) {
			f.Errorf("%s without a right: want %q, have %v:\n%s", c.program, c.want, err, out)
		}
		c.giveIt()
	}
	for _, program := range []string{"worker", "syncer"} {
		f.command(program, "config", "check")
	}
}

// deny takes a right on a topic away.
func (f *fenced) deny(user, topic string, right sarama.AclOperation) func() {
	return func() {
		cfg := f.kafkaAs("admin")
		a, err := sarama.NewClusterAdmin(f.kafka.Brokers, cfg)
		if err != nil {
			f.Fatal(err)
		}
		defer a.Close()
		principal := "User:" + user
		gone, err := a.DeleteACL(sarama.AclFilter{
			ResourceType: sarama.AclResourceTopic, ResourceName: &topic, ResourcePatternTypeFilter: sarama.AclPatternLiteral,
			Principal: &principal, Operation: right, PermissionType: sarama.AclPermissionAllow,
		}, false)
		if err != nil || len(gone) != 1 {
			f.Fatalf("take %v on %s from %s: %v, %v", right, topic, user, gone, err)
		}
	}
}

func (f *fenced) buyersMayAsk(id int64, records []told.Record) {
	f.Helper()
	i := slices.IndexFunc(records, func(r told.Record) bool { return r.Accepted() })
	if i < 0 {
		f.Fatal("nobody's order was accepted")
	}
	r, err := f.get(fmt.Sprintf("/seckill/%d/orders/mine", id), records[i].User)
	if err != nil || r.HTTP != http.StatusOK {
		f.Errorf("mine: %+v, %v", r, err)
	}
}

// shopWorks does what docs/sql.md has for the shop, as the shop, and waits for what is not paid.
func (f *fenced) shopWorks(id int64) {
	f.Helper()
	db, err := sql.Open("mysql", f.dsnOf("shop"))
	if err != nil {
		f.Fatal(err)
	}
	defer db.Close()
	for _, q := range []string{
		"UPDATE orders SET status = 'PAID' WHERE status = 'CONFIRMED' ORDER BY order_id LIMIT 5",
		"UPDATE orders SET status = 'CANCELLED', reason = 'by the buyer' WHERE status = 'CONFIRMED' ORDER BY order_id LIMIT 1",
		"UPDATE orders SET updated_at_ms = updated_at_ms + 1 WHERE status = 'CONFIRMED' LIMIT 1",
		fmt.Sprintf("UPDATE inventory SET stock = stock + 10 WHERE item_id = %d", id+1),
		fmt.Sprintf("UPDATE activity SET ends_at_ms = ends_at_ms + 1 WHERE activity_id = %d", id),
		"INSERT INTO inventory (item_id, stock) VALUES (1, 1)",
		"INSERT INTO activity (activity_id, item_id, title, starts_at_ms, ends_at_ms, max_per_user, state) VALUES (1, 1, 't', 1, 2, 1, 'open')",
	} {
		if _, err := db.ExecContext(f.Context(), q); err != nil {
			f.Errorf("the shop: %s: %v", q, err)
		}
	}
	testenv.Eventually(f, time.Minute, "what is not paid expires", func() bool {
		var open, expired int
		err := db.QueryRowContext(f.Context(), "SELECT COUNT(CASE WHEN status = 'CONFIRMED' THEN 1 END), COUNT(CASE WHEN status = 'EXPIRED' THEN 1 END) FROM orders").Scan(&open, &expired)
		return err == nil && open == 0 && expired > 0
	})
}

// poison is a record that can never be an order: it becomes a dead letter, which the commands show and replay.
func (f *fenced) poison(id int64) {
	f.Helper()
	cfg, err := f.kafka.Sarama()
	if err != nil {
		f.Fatal(err)
	}
	p, err := sarama.NewSyncProducer(f.kafka.Brokers, cfg)
	if err != nil {
		f.Fatal(err)
	}
	defer p.Close()
	key := sarama.StringEncoder(fmt.Sprint(id))
	if _, _, err := p.SendMessage(&sarama.ProducerMessage{Topic: f.kafka.Topics.Orders, Key: key, Value: sarama.StringEncoder("poison")}); err != nil {
		f.Fatal(err)
	}
	testenv.Eventually(f, time.Minute, "the dead letter is listed", func() bool {
		return !strings.Contains(f.command("worker", "dlq", "list"), "no dead letters")
	})
	f.command("worker", "dlq", "show", "0/0")
	// It goes through all it has to, and ends with 1 since this one can never be an order.
	if out, _ := f.cmd("worker", "dlq", "replay", "--all").CombinedOutput(); !strings.Contains(string(out), "still refused 1") {
		f.Errorf("dlq replay: %s", out)
	}
}

// swept is a reservation that no gateway publishes: the syncer does.
func (f *fenced) swept(id int64) {
	f.Helper()
	now, err := f.ledger.NotAfter(f.Context(), time.Minute)
	if err != nil {
		f.Fatal(err)
	}
	orderID := uuid.Must(uuid.NewV7()).String()
	got, err := f.ledger.Reserve(f.Context(), id, []ledger.Reservation{{Order: orderID, User: "left alone", Quantity: 1, NotAfterMs: now}})
	if err != nil || len(got) != 1 {
		f.Fatalf("reserve: %+v, %v", got, err)
	}
	testenv.Eventually(f, time.Minute, "the syncer publishes it", func() bool {
		var n int
		err := f.root.QueryRowContext(f.Context(), "SELECT COUNT(*) FROM orders WHERE order_id = ?", orderID).Scan(&n)
		return err == nil && n == 1
	})
}

// operate runs the commands of docs/operations.md.
func (f *fenced) operate(id int64) {
	f.Helper()
	activity := fmt.Sprint(id)
	for _, c := range []string{
		"syncer status", "syncer activity list", "syncer compare --dry-run", "syncer compare " + activity, "syncer activity pause " + activity,
		"syncer activity resume " + activity, "syncer load " + activity, "syncer force --yes " + activity, "worker replay --since 1h --dry-run", "worker replay --since 1h",
		"worker outbox list",
	} {
		words := strings.Fields(c)
		for end := time.Now().Add(time.Minute); ; <-time.After(200 * time.Millisecond) { // a load that is under way holds some up
			out, err := f.cmd(words[0], words[1:]...).CombinedOutput()
			if err == nil {
				break
			}
			if refusal.Match(out) || time.Now().After(end) {
				f.Fatalf("%s: %v\n%s", c, err, out)
			}
		}
	}
	f.open4Sale(id)
	f.command("syncer", "activity", "close", activity)
}

// refused tries what the users must not be able to do.
func (f *fenced) refused() {
	f.Helper()
	ctx := f.Context()
	if err := f.redisAs("admin").Set(ctx, "other", "1", 0).Err(); err != nil {
		f.Fatal(err)
	}
	for _, user := range []string{"", "gateway", "worker", "syncer"} {
		rdb := f.redisAs(user)
		for _, c := range []string{
			"FLUSHALL", "FLUSHDB", "KEYS *", "SCAN 0", "GET other", "SET other 2", "DEL other", "CONFIG SET maxmemory 1", "ACL LIST", "SHUTDOWN",
			"REPLICAOF NO ONE", "CLIENT KILL TYPE normal", "SCRIPT FLUSH", "EVAL redis.call('SET','other',2) 0", "PUBLISH other x", "MONITOR", "EXPIRE seckill:activities 1",
		} {
			var args []any
			for _, w := range strings.Fields(c) {
				args = append(args, w)
			}
			err := rdb.Do(ctx, args...).Err()
			if err == nil || !refusal.MatchString(err.Error()) {
				f.Errorf("redis user %q: %s: %v", user, c, err)
			}
		}
	}

	f.sql("CREATE DATABASE other; CREATE TABLE other.secret (a INT)")
	for role, statements := range map[string][]string{
		"worker":  {"DELETE FROM orders", "DROP TABLE orders", "UPDATE activity SET state = 'open'", "INSERT INTO inventory (item_id, stock) VALUES (2, 2)", "DELETE FROM inventory"},
		"syncer":  {"UPDATE orders SET status = 'PAID'", "INSERT INTO orders (order_id) VALUES ('x')", "DELETE FROM activity", "DELETE FROM inventory", "SELECT * FROM seckill_outbox"},
		"shop":    {"INSERT INTO orders (order_id) VALUES ('x')", "DELETE FROM orders", "UPDATE orders SET quantity = 2", "UPDATE orders SET user_id = 'me'", "SELECT * FROM seckill_outbox"},
		"migrate": {"DROP TABLE orders", "DROP DATABASE shop"},
	} {
		db, err := sql.Open("mysql", f.dsnOf(role))
		if err != nil {
			f.Fatal(err)
		}
		for _, q := range append(statements, "SELECT * FROM other.secret", "DROP DATABASE other", "CREATE DATABASE mine", "SELECT * FROM mysql.user",
			"TRUNCATE TABLE inventory", "CREATE USER x", "SET GLOBAL read_only = 0", "GRANT SELECT ON orders TO seckill_shop") {
			_, err := db.ExecContext(ctx, q)
			if my := (*mysql.MySQLError)(nil); !errors.As(err, &my) || !denied[my.Number] {
				f.Errorf("mysql account %s: %s: %v", role, q, err)
			}
		}
		_ = db.Close()
	}

	t := f.kafka.Topics
	for user, may := range map[string]struct{ read, write string }{
		"gateway": {"", t.Orders},
		"worker":  {t.Orders + " " + t.DeadLetters, t.DeadLetters + " " + t.Results},
		"syncer":  {t.Orders, t.Orders},
		"migrate": {"", ""},
	} {
		for _, topic := range t.All() {
			if err, want := f.read(user, topic), has(may.read, topic); want != (err == nil) || !want && !errors.Is(err, sarama.ErrTopicAuthorizationFailed) {
				f.Errorf("kafka user %s reads %s: %v", user, topic, err)
			}
			if has(may.write, topic) {
				continue // the sale has shown it; nothing else belongs there
			}
			if err := f.write(user, topic); !errors.Is(err, sarama.ErrTopicAuthorizationFailed) && !errors.Is(err, sarama.ErrClusterAuthorizationFailed) {
				f.Errorf("kafka user %s writes to %s: %v", user, topic, err)
			}
		}
		f.administers(user)
	}
}

func has(list, word string) bool { return slices.Contains(strings.Fields(list), word) }

// What MySQL and MariaDB say to those who may not.
var denied = map[uint16]bool{1044: true, 1045: true, 1142: true, 1143: true, 1227: true, 1370: true, 1410: true}

func (f *fenced) kafkaAs(user string) *sarama.Config {
	f.Helper()
	c := f.kafka
	c.SASL.User, c.SASL.Password = user, password(user)
	cfg, err := c.Sarama()
	if err != nil {
		f.Fatal(err)
	}
	cfg.Metadata.Full = true // else the library administers nothing
	cfg.Producer.Idempotent = false
	cfg.Metadata.Retry.Max, cfg.Producer.Retry.Max, cfg.Consumer.Retry.Backoff = 0, 0, 50*time.Millisecond
	return cfg
}

// read reads the first record of a topic, or waits a moment for one where there is none.
func (f *fenced) read(user, topic string) error {
	f.Helper()
	c, err := sarama.NewConsumer(f.kafka.Brokers, f.kafkaAs(user))
	if err != nil {
		f.Fatal(err)
	}
	defer c.Close()
	p, err := c.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	defer p.AsyncClose()
	select {
	case <-p.Messages():
		return nil
	case err := <-p.Errors():
		return err.Err
	case <-time.After(10 * time.Second):
		return nil // allowed, and empty
	}
}

func (f *fenced) write(user, topic string) error {
	f.Helper()
	p, err := sarama.NewSyncProducer(f.kafka.Brokers, f.kafkaAs(user))
	if err != nil {
		f.Fatal(err)
	}
	defer p.Close()
	_, _, err = p.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("forged")})
	return err
}

// administers tries to change the cluster.
func (f *fenced) administers(user string) {
	f.Helper()
	a, err := sarama.NewClusterAdmin(f.kafka.Brokers, f.kafkaAs(user))
	if err != nil {
		f.Fatal(err)
	}
	defer a.Close()
	for what, err := range map[string]error{
		"create a topic":   a.CreateTopic("other", &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false),
		"delete a topic":   a.DeleteTopic(f.kafka.Topics.Orders),
		"delete the group": a.DeleteConsumerGroup(f.kafka.Group),
		"grant":            grant(a, sarama.Resource{ResourceType: sarama.AclResourceTopic, ResourceName: "*", ResourcePatternType: sarama.AclPatternLiteral}, sarama.Acl{Principal: "User:" + user, Host: "*", Operation: sarama.AclOperationAll, PermissionType: sarama.AclPermissionAllow}),
	} {
		if err == nil || !refusal.MatchString(err.Error()) {
			f.Errorf("kafka user %s may %s: %v", user, what, err)
		}
	}
}

// actAsKafkaACLs makes this program act as Kafka's kafka-acls.sh.
const actAsKafkaACLs = "E2E_ACT_AS_KAFKA_ACLS"

// kafkaACLs is Kafka's kafka-acls.sh as far as docs/acl/kafka.sh uses it: the same arguments, the same requests to the broker.
func kafkaACLs(args []string) int {
	flags := flag.NewFlagSet("kafka-acls", flag.ContinueOnError)
	servers, conf, add := flags.String("bootstrap-server", "", ""), flags.String("command-config", "", ""), flags.Bool("add", false, "")
	var principals, operations []string
	var resources []sarama.Resource
	into := func(list *[]string) func(string) error {
		return func(v string) error { *list = append(*list, v); return nil }
	}
	resource := func(kind sarama.AclResourceType) func(string) error {
		return func(v string) error {
			resources = append(resources, sarama.Resource{ResourceType: kind, ResourceName: v, ResourcePatternType: sarama.AclPatternLiteral})
			return nil
		}
	}
	flags.Func("allow-principal", "", into(&principals))
	flags.Func("operation", "", into(&operations))
	flags.Func("topic", "", resource(sarama.AclResourceTopic))
	flags.Func("group", "", resource(sarama.AclResourceGroup))
	err := flags.Parse(args)
	if err == nil && (!*add || flags.NArg() > 0 || len(principals) == 0 || len(operations) == 0 || len(resources) == 0) {
		err = fmt.Errorf("%q: not what kafka-acls.sh understands", args)
	}
	if err == nil {
		err = addACLs(*servers, *conf, principals, operations, resources)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func addACLs(servers, conf string, principals, operations []string, resources []sarama.Resource) error {
	properties, err := os.ReadFile(conf)
	if err != nil {
		return err
	}
	who := regexp.MustCompile(`username="(.*)" password="(.*)";`).FindStringSubmatch(string(properties))
	if who == nil {
		return fmt.Errorf("%s has no user", conf)
	}
	cfg, err := kafka.Config{Brokers: strings.Split(servers, ","), SASL: kafka.SASL{Mechanism: "PLAIN", User: who[1], Password: who[2]}}.Sarama()
	if err != nil {
		return err
	}
	cfg.Metadata.Full = true // else the library administers nothing
	admin, err := sarama.NewClusterAdmin(strings.Split(servers, ","), cfg)
	if err != nil {
		return err
	}
	defer admin.Close()
	for _, r := range resources {
		for _, p := range principals {
			for _, name := range operations {
				var op sarama.AclOperation
				if err := op.UnmarshalText([]byte(name)); err != nil {
					return err
				}
				acl := sarama.Acl{Principal: p, Host: "*", Operation: op, PermissionType: sarama.AclPermissionAllow}
				if err := grant(admin, r, acl); err != nil {
					return fmt.Errorf("%s may %s %s: %w", p, name, r.ResourceName, err)
				}
			}
		}
	}
	return nil
}

// grant gives one right.
func grant(a sarama.ClusterAdmin, r sarama.Resource, acl sarama.Acl) error {
	return a.CreateACLs([]*sarama.ResourceAcls{{Resource: r, Acls: []*sarama.Acl{&acl}}})
}
