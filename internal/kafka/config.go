package kafka

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/seckillgate/seckillgate/internal/order"
)

// Defaults of Config.
const (
	DefaultClientID        = "seckillgate"
	DefaultVersion         = "2.8.0" // and the oldest, see oldestVersion
	DefaultMaxMessageBytes = 1_000_000
)

// Config says where Kafka is and how to talk to it. The gateway, the worker and the syncer share it. The zero value of every
// field but Brokers means its default.
type Config struct {
	// Brokers are the bootstrap addresses, "host:port". Names are resolved again at every connection.
	Brokers []string `yaml:"brokers" json:"brokers,omitempty"`

	// Version is the oldest Kafka that has to be spoken to. Every connection negotiates downwards from it, so the default
	// suits Kafka 2.8 up to and including 4.x. Nothing older is spoken to. Default: 2.8.0.
	Version string `yaml:"version" json:"version,omitempty"`

	// ClientID is what brokers see in their logs, metrics and quotas. Default: seckillgate.
	ClientID string `yaml:"client_id" json:"client_id,omitempty"`

	TLS    TLS    `yaml:"tls" json:"tls,omitzero"`
	SASL   SASL   `yaml:"sasl" json:"sasl,omitzero"`
	Topics Topics `yaml:"topics" json:"topics,omitzero"`

	// Group is the consumer group of the workers. Default: seckill-worker.
	Group string `yaml:"group" json:"group,omitempty"`

	// MaxMessageBytes bounds one message, in bytes; it must not exceed the topic's max.message.bytes. Default: 1000000.
	MaxMessageBytes int `yaml:"max_message_bytes" json:"max_message_bytes,omitempty"`
}

// TLS switches encryption on. With Enable alone the system's certificate authorities are trusted.
type TLS struct {
	Enable bool `yaml:"enable" json:"enable,omitempty"`

	// CAFile is a PEM file of the authorities to trust in place of the system's. Default: none.
	CAFile string `yaml:"ca_file" json:"ca_file,omitempty"`

	// CertFile and KeyFile are this client's certificate for mutual TLS, both or neither. Default: none.
	CertFile string `yaml:"cert_file" json:"cert_file,omitempty"`
	KeyFile  string `yaml:"key_file" json:"key_file,omitempty"`

	// ServerName overrides the name that the brokers' certificates are checked against. Default: the broker's host.
	ServerName string `yaml:"server_name" json:"server_name,omitempty"`
}

// SASL authenticates this client. An empty Mechanism switches it off.
type SASL struct {
	// Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. Default: none.
	Mechanism string `yaml:"mechanism" json:"mechanism,omitempty"`
	User      string `yaml:"user" json:"user,omitempty"`
	Password  string `yaml:"password" json:"password,omitempty" secret:"true"`
}

// Topics are the names of the topics. Each default is the product's documented name.
type Topics struct {
	// Orders carries accepted orders, keyed by activity id. Default: seckill.orders.
	Orders string `yaml:"orders" json:"orders,omitempty"`
	// DeadLetters carries what could never become an order. Default: seckill.orders.dlq.
	DeadLetters string `yaml:"dead_letters" json:"dead_letters,omitempty"`
	// Results carries what became of each order. Default: seckill.results.
	Results string `yaml:"results" json:"results,omitempty"`
}

// All lists the three names.
func (t Topics) All() []string { return []string{t.Orders, t.DeadLetters, t.Results} }

// SetDefaults fills every field that is still zero, but Brokers.
func (c *Config) SetDefaults() {
	for _, d := range []struct {
		field *string
		value string
	}{
		{&c.Version, DefaultVersion},
		{&c.ClientID, DefaultClientID},
		{&c.Topics.Orders, order.TopicOrders},
		{&c.Topics.DeadLetters, order.TopicDeadLetters},
		{&c.Topics.Results, order.TopicResults},
		{&c.Group, order.GroupWorker},
	} {
		if *d.field == "" {
			*d.field = d.value
		}
	}
	if c.MaxMessageBytes == 0 {
		c.MaxMessageBytes = DefaultMaxMessageBytes
	}
}

// Validate checks the configuration after SetDefaults. Its messages begin with the key.
func (c *Config) Validate() error {
	if len(c.Brokers) == 0 {
		return errors.New("brokers: none given: list at least one host:port")
	}
	for _, b := range c.Brokers {
		host, port, err := net.SplitHostPort(b)
		if err == nil {
			var n uint64
			if n, err = strconv.ParseUint(port, 10, 16); err == nil && (host == "" || n == 0) {
				err = errors.New("host or port missing")
			}
		}
		if err != nil {
			return fmt.Errorf("brokers: %q is not host:port: %w", b[strings.LastIndexByte(b, '@')+1:], cause(err))
		}
	}
	if v, err := sarama.ParseKafkaVersion(c.Version); err != nil || !v.IsAtLeast(oldestVersion) {
		return fmt.Errorf("version: %q: want %s or a later version of Kafka, or leave it out; older brokers are not supported", c.Version, oldestVersion)
	}
	names := c.Topics.All()
	for i, name := range names {
		key := []string{"orders", "dead_letters", "results"}[i]
		if !validTopic(name) {
			return fmt.Errorf("topics.%s: %q is not a topic name: use 1 to 249 letters, digits, dots, dashes and underscores", key, name)
		}
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("topics.%s: %q is used twice: each kind of message needs its own topic", key, name)
		}
	}
	if c.MaxMessageBytes < 4096 || c.MaxMessageBytes > 100<<20 {
		return fmt.Errorf("max_message_bytes: %d is out of range: use 4096 to %d", c.MaxMessageBytes, 100<<20)
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		return errors.New("tls: cert_file and key_file go together: give both or neither")
	}
	if !c.TLS.Enable && c.TLS != (TLS{}) {
		return errors.New("tls: has settings but enable is false: set enable to true or remove them")
	}
	switch c.SASL.Mechanism {
	case "":
		if c.SASL != (SASL{}) {
			return errors.New("sasl: has a user but no mechanism: use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
		}
	case sarama.SASLTypePlaintext, sarama.SASLTypeSCRAMSHA256, sarama.SASLTypeSCRAMSHA512:
		if c.SASL.User == "" || c.SASL.Password == "" {
			return fmt.Errorf("sasl: %s needs a user and a password", c.SASL.Mechanism)
		}
	default:
		return fmt.Errorf("sasl.mechanism: %q is not supported: use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", c.SASL.Mechanism)
	}
	return nil
}

// oldestVersion is the one minimum, of the configuration as of the documentation. The message format and idempotence that this package
// relies on are older; from 2.8 on who may write to a topic may do so idempotently, and nothing before it is tested.
var oldestVersion = sarama.V2_8_0_0

// Sarama gives the library's configuration with every setting of this product in it, for the worker's consumer group and for
// administration. It validates c, and reads the TLS files.
func (c Config) Sarama() (*sarama.Config, error) {
	c.SetDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	s := sarama.NewConfig()
	s.ClientID = c.ClientID
	s.Version, _ = sarama.ParseKafkaVersion(c.Version)

	s.Net.MaxOpenRequests = 1 // more could reorder idempotent batches
	s.Net.DialTimeout = 2 * time.Second
	s.Net.ReadTimeout = 10 * time.Second
	s.Net.WriteTimeout = 5 * time.Second
	s.Net.KeepAlive = 15 * time.Second

	// Full metadata would dial in the constructor and fetch every topic of a shared cluster.
	s.Metadata.Full = false
	s.Metadata.AllowAutoTopicCreation = false // a typo must not become a topic
	s.Metadata.RefreshFrequency = 30 * time.Second
	s.Metadata.Timeout = 10 * time.Second

	// The library's default acks=1 loses accepted orders when a leader fails.
	s.Producer.RequiredAcks = sarama.WaitForAll
	s.Producer.Idempotent = true
	s.Producer.MaxMessageBytes = c.MaxMessageBytes
	s.Producer.Partitioner = sarama.NewMurmur2Partitioner
	s.Producer.Return.Successes = true
	s.Producer.Return.Errors = true

	// The default, newest, skips what was queued before the group first ran; and an offset that is out of range must be an
	// alarm, not a silent jump.
	s.Consumer.Offsets.Initial = sarama.OffsetOldest
	s.Consumer.Group.ResetInvalidOffsets = false
	s.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategySticky()}
	s.Consumer.Return.Errors = true
	s.Consumer.MaxProcessingTime = 10 * time.Second
	s.Consumer.Fetch.Default = 1 << 20
	s.ChannelBufferSize = 256

	if c.TLS.Enable {
		t, err := c.TLS.config()
		if err != nil {
			return nil, fmt.Errorf("kafka: %w", err)
		}
		s.Net.TLS.Enable, s.Net.TLS.Config = true, t
	}
	if c.SASL.Mechanism != "" {
		s.Net.SASL.Enable = true
		s.Net.SASL.Version = sarama.SASLHandshakeV1
		s.Net.SASL.Mechanism = sarama.SASLMechanism(c.SASL.Mechanism)
		s.Net.SASL.User, s.Net.SASL.Password = c.SASL.User, c.SASL.Password
		s.Net.SASL.SCRAMClientGeneratorFunc = scramClient(c.SASL.Mechanism)
	}
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return s, nil
}

func (t TLS) config() (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tls.ca_file: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.ca_file: %s holds no PEM certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("tls.cert_file: %w", err)
		}
		out.Certificates = []tls.Certificate{cert}
	}
	return out, nil
}

// cause is an error without the address that it is about, in which somebody may have put a password.
func cause(err error) error {
	if a := (*net.AddrError)(nil); errors.As(err, &a) {
		return errors.New(a.Err)
	}
	return err
}

func validTopic(name string) bool {
	if name == "" || len(name) > 249 || name == "." || name == ".." {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	})
}
