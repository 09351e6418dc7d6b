package testenv

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Broker is a private Apache Kafka broker, controller as well. Kill it, restart it, pause it: it is the test's own.
type Broker struct {
	*process

	// Addr is host:port, as it advertises itself, the same over restarts.
	Addr string
	// Dir is where it keeps its log; it goes with the test.
	Dir string
}

// A virtual machine takes its time on a machine that is busy with tests.
const brokerWithin = 2 * time.Minute

// StartKafka starts a private cluster of that many brokers. New topics have min(brokers, 3) replicas at most; with three
// brokers or more an acknowledged record is on two of them (min.insync.replicas). properties are lines of server.properties and
// override these. It is gone when the test ends.
func StartKafka(t testing.TB, brokers int, properties ...string) []*Broker {
	t.Helper()
	jars := kafkaJars(t)
	all := make([]*Broker, brokers)
	voters := make([]string, brokers)
	controls := make([]int, brokers)
	ports := make([]int, brokers)
	for i := range all {
		ports[i], controls[i] = freePort(t), freePort(t)
		voters[i] = fmt.Sprintf("%d@127.0.0.1:%d", i+1, controls[i])
	}
	replicas, insync := min(brokers, 3), 1
	if brokers >= 3 {
		insync = 2
	}
	for i := range all {
		b := &Broker{Addr: loopback(ports[i]), Dir: t.TempDir()}
		conf := filepath.Join(b.Dir, "server.properties")
		text := fmt.Sprintf(`process.roles=broker,controller
node.id=%[1]d
controller.quorum.voters=%[2]s
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://%[3]s,CONTROLLER://127.0.0.1:%[4]d
advertised.listeners=PLAINTEXT://%[3]s
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs=%[5]s
auto.create.topics.enable=false
default.replication.factor=%[6]d
min.insync.replicas=%[7]d
offsets.topic.num.partitions=4
offsets.topic.replication.factor=%[6]d
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=%[6]d
transaction.state.log.min.isr=%[7]d
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=%[6]d
share.coordinator.state.topic.min.isr=%[7]d
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
`, i+1, strings.Join(voters, ","), b.Addr, controls[i], filepath.Join(b.Dir, "log"), replicas, insync) + strings.Join(properties, "\n") + "\n"
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatalf("write the configuration of a Kafka broker: %v", err)
		}
		if out, err := java(jars, "kafka.tools.StorageTool", "format", "-t", "c2Vja2lsbGdhdGUtdGVzdA", "-c", conf).CombinedOutput(); err != nil {
			t.Fatalf("format the log folder of a Kafka broker: %v\n%s", err, out)
		}
		b.process = &process{
			t: t, name: fmt.Sprintf("kafka-%d", i+1), log: filepath.Join(b.Dir, "out"), within: brokerWithin,
			command: func() *exec.Cmd {
				cmd := java(jars, "kafka.Kafka", conf)
				cmd.Dir = b.Dir
				return cmd
			},
			answers: func() error { return greetKafka(b.Addr) },
		}
		all[i] = b
		t.Cleanup(b.Kill)
	}
	// Each waits for a majority of the controllers, so all are launched before any is waited for.
	for _, b := range all {
		if err := b.launch(); err != nil {
			t.Fatalf("start %s: %v", b.name, err)
		}
	}
	for _, b := range all {
		if err := b.await(); err != nil {
			t.Fatalf("start %s: %v%s", b.name, err, b.tail())
		}
	}
	return all
}

// Addrs are the addresses of brokers.
func Addrs(brokers []*Broker) []string {
	addrs := make([]string, len(brokers))
	for i, b := range brokers {
		addrs[i] = b.Addr
	}
	return addrs
}

// Move ends the broker as kill -9 does and starts it at another address, with the same data.
func (b *Broker) Move() {
	b.t.Helper()
	b.Kill()
	conf := filepath.Join(b.Dir, "server.properties")
	text, err := os.ReadFile(conf)
	if err != nil {
		b.t.Fatalf("read the configuration of a Kafka broker: %v", err)
	}
	was := b.Addr
	b.Addr = loopback(freePort(b.t))
	if err := os.WriteFile(conf, []byte(strings.ReplaceAll(string(text), was, b.Addr)), 0o600); err != nil {
		b.t.Fatalf("write the configuration of a Kafka broker: %v", err)
	}
	b.Restart()
}

func java(jars string, args ...string) *exec.Cmd {
	options := []string{
		"-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
		"-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
		"-cp", filepath.Join(jars, "*"),
	}
	return exec.Command("java", append(options, args...)...)
}

// kafkaJars is the folder with Apache Kafka's jars, which the script fetches once.
func kafkaJars(t testing.TB) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(filepath.Dir(databaseScript(t)), "install.sh"), "kafka")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("install Apache Kafka: %v\n%s", err, &stderr)
	}
	lines := strings.Fields(string(out))
	if len(lines) == 0 {
		t.Fatal("install Apache Kafka: the script names no folder")
	}
	return lines[len(lines)-1]
}

// greetKafka makes one exchange: ApiVersions, version 0.
func greetKafka(addr string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte{0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff}); err != nil {
		return err
	}
	var head [4]byte
	_, err = io.ReadFull(c, head[:])
	return err
}
