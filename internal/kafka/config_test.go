package kafka

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/IBM/sarama"
)

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Config){
		"":                          func(*Config) {},
		"brokers: none":             func(c *Config) { c.Brokers = nil },
		`brokers: "kafka" is not`:   func(c *Config) { c.Brokers = []string{"kafka"} },
		`brokers: ":9092" is not`:   func(c *Config) { c.Brokers = []string{":9092"} },
		`brokers: "k:99999" is not`: func(c *Config) { c.Brokers = []string{"k:99999"} },
		`version: "0.10.0.0": want 2.8.0 or a later`: func(c *Config) { c.Version = "0.10.0.0" },
		`version: "2.1.0": want 2.8.0 or a later`:    func(c *Config) { c.Version = "2.1.0" },
		`version: "2.7.2": want 2.8.0 or a later`:    func(c *Config) { c.Version = "2.7.2" },
		`version: "new": want 2.8.0 or a later`:      func(c *Config) { c.Version = "new" },
		`topics.results: "a b" is`:                   func(c *Config) { c.Topics.Results = "a b" },
		"topics.dead_letters: \"x\"":                 func(c *Config) { c.Topics.Orders, c.Topics.DeadLetters = "x", "x" },
		"max_message_bytes: 12":                      func(c *Config) { c.MaxMessageBytes = 12 },
		"tls: cert_file and key_file":                func(c *Config) { c.TLS = TLS{Enable: true, CertFile: "a"} },
		"tls: has settings but":                      func(c *Config) { c.TLS.CAFile = "a" },
		"sasl: has a user but":                       func(c *Config) { c.SASL.User = "u" },
		"sasl: PLAIN needs":                          func(c *Config) { c.SASL = SASL{Mechanism: "PLAIN", User: "u"} },
		`sasl.mechanism: "GSSAPI"`:                   func(c *Config) { c.SASL.Mechanism = "GSSAPI" },
	} {
		c := Config{Brokers: []string{"kafka-1:9092", "[::1]:9093"}}
		change(&c)
		c.SetDefaults()
		err := c.Validate()
		if (want == "") != (err == nil) || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("validate: %v, want %q", err, want)
		}
	}
}

// The documentation, the default and what is refused name one minimum.
func TestOneOldestVersion(t *testing.T) {
	t.Parallel()
	if DefaultVersion != oldestVersion.String() {
		t.Errorf("the default is %s and the oldest version %s", DefaultVersion, oldestVersion)
	}
	for _, readme := range []string{"../../README.md", "../../README.zh-CN.md"} {
		text, err := os.ReadFile(readme)
		if err != nil {
			t.Fatal(err)
		}
		if want := "Kafka " + strings.TrimSuffix(oldestVersion.String(), ".0") + " "; !strings.Contains(string(text), want) {
			t.Errorf("%s does not ask for %q", readme, want)
		}
	}
}

func TestE30E39SaramaSettings(t *testing.T) {
	t.Parallel()
	s, err := Config{Brokers: []string{"h:1"}}.Sarama()
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case s.Producer.RequiredAcks != sarama.WaitForAll, !s.Producer.Idempotent, s.Net.MaxOpenRequests != 1:
		t.Error("a leader that fails may lose or reorder acknowledged orders")
	case s.Consumer.Offsets.Initial != sarama.OffsetOldest, s.Consumer.Group.ResetInvalidOffsets:
		t.Error("a new group, or one behind the retention, may skip orders silently")
	case s.Metadata.Full, s.Metadata.AllowAutoTopicCreation:
		t.Error("constructors dial, or a typo creates a topic")
	}
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		s, err := Config{Brokers: []string{"h:1"}, SASL: SASL{mechanism, "u", "p"}, TLS: TLS{Enable: true}}.Sarama()
		if err != nil || !s.Net.SASL.Enable || !s.Net.TLS.Enable {
			t.Errorf("%s: %v", mechanism, err)
			continue
		}
		if f := s.Net.SASL.SCRAMClientGeneratorFunc; f != nil {
			conversation := f()
			if err := conversation.Begin("u", "p", ""); err != nil {
				t.Errorf("%s: %v", mechanism, err)
			}
			if first, err := conversation.Step(""); err != nil || !strings.HasPrefix(first, "n,,n=u,r=") || conversation.Done() {
				t.Errorf("%s: first message %q: %v", mechanism, first, err)
			}
		}
	}
}

// sarama 1.48.0 to 1.60.0 can strand a batch for ever after a connection error. The producer here does not use the part at fault,
// but the worker's group and the administration share the library.
func TestE26SaramaIsNewEnough(t *testing.T) {
	t.Parallel()
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`github\.com/IBM/sarama v(\d+\.\d+\.\d+)`).FindSubmatch(mod)
	if m == nil {
		t.Fatal("go.mod does not name sarama")
	}
	have, err := sarama.ParseKafkaVersion(string(m[1])) // compares numbers, which is all that is needed
	if err != nil {
		t.Fatal(err)
	}
	least, err := sarama.ParseKafkaVersion("1.60.1")
	if err != nil {
		t.Fatal(err)
	}
	if !have.IsAtLeast(least) {
		t.Errorf("sarama %s: want at least 1.60.1", m[1])
	}
}

func TestProducerOptions(t *testing.T) {
	t.Parallel()
	cfg := Config{Brokers: []string{"127.0.0.1:1"}}
	for _, opt := range []ProducerOptions{{Budget: 1}, {MaxInFlight: -1}} {
		if _, err := NewProducer(cfg, opt, nil); err == nil {
			t.Errorf("options %+v are accepted", opt)
		}
	}
	if _, err := NewProducer(Config{}, ProducerOptions{}, nil); err == nil {
		t.Error("no brokers are accepted")
	}
	p, err := NewProducer(cfg, ProducerOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil { // before anything was started
		t.Error(err)
	}
}
