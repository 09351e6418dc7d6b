package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

// Level says how bad a Finding is.
type Level string

// Levels of findings.
const (
	Info    Level = "info"
	Warning Level = "warning" // works, but not as safe as it should be
	Unsafe  Level = "unsafe"  // may lose accepted orders: refuse to start unless overridden by name
)

// Finding is one line about a topic: what is, and what to do about it.
type Finding struct {
	Level Level
	Name  string // short stable word by which it may be overridden: missing, replication, min_insync, retention, …
	Text  string
}

// TopicOptions say what EnsureTopics creates and what it compares with. The zero value of each field means its default.
type TopicOptions struct {
	// Create creates the topics that are missing. Without it a missing topic is an Unsafe finding "missing".
	Create bool
	// Partitions of a new orders topic and of a new results topic. Default: 12.
	Partitions int32
	// Replication of new topics. Default: 3, or as many brokers as there are when fewer.
	Replication int16
	// MinRetention is the longest outage of the workers planned for. Default: 24h.
	MinRetention time.Duration
}

// newRetention is the retention of topics created here, if the planned outage is not longer.
const newRetention = 7 * 24 * time.Hour

// EnsureTopics checks the three topics of the configuration and creates the missing ones if asked to. It never changes an
// existing one.
func (a *Admin) EnsureTopics(ctx context.Context, opt TopicOptions) ([]Finding, error) {
	if opt.Partitions == 0 {
		opt.Partitions = 12
	}
	if opt.MinRetention == 0 {
		opt.MinRetention = 24 * time.Hour
	}
	var out []Finding
	for _, name := range a.cfg.Topics.All() {
		found, err := a.ensure(ctx, name, opt)
		if err != nil {
			return out, fmt.Errorf("topic %q: %w", name, err)
		}
		out = append(out, found...)
	}
	return out, nil
}

func (a *Admin) ensure(ctx context.Context, name string, opt TopicOptions) ([]Finding, error) {
	var out []Finding
	created := false
	for {
		info, err := a.describe(ctx, name)
		switch {
		case err == nil:
			settings, err := a.settings(ctx, name)
			if err != nil {
				return out, err
			}
			return append(out, a.judge(name, info, settings, opt)...), nil
		case !errors.Is(err, ErrTopicMissing):
			return out, err
		case !opt.Create:
			return append(out, Finding{Unsafe, "missing", err.Error()}), nil
		case created: // not known everywhere yet
			if !pause(ctx, 100*time.Millisecond) {
				return out, err
			}
			continue
		}
		partitions := opt.Partitions
		if name == a.cfg.Topics.DeadLetters {
			partitions = 1
		}
		if err := a.create(ctx, name, partitions, opt); err != nil {
			return out, err
		}
		created = true
		out = append(out, Finding{Info, "created", fmt.Sprintf("topic %q created with %d partitions", name, partitions)})
	}
}

// describe waits until each of the topic's partitions has a leader.
func (a *Admin) describe(ctx context.Context, name string) (info *topicInfo, err error) {
	err = a.retry(ctx, func(ctx context.Context, _ time.Time) error {
		if info, err = a.cluster.known(ctx, name, time.Now()); err != nil {
			return err
		}
		for p := range info.partitions {
			if err := info.leaderless(name, int32(p)); err != nil {
				return err
			}
		}
		return nil
	})
	return info, err
}

func (a *Admin) create(ctx context.Context, name string, partitions int32, opt TopicOptions) error {
	return a.retry(ctx, func(ctx context.Context, _ time.Time) error {
		if err := a.cluster.refresh(ctx, time.Now(), name); err != nil {
			return err
		}
		brokers, addr := a.cluster.size()
		replication := opt.Replication
		if replication == 0 {
			replication = int16(min(3, brokers))
		}
		setting := func(s string) *string { return &s }
		detail := &sarama.TopicDetail{
			NumPartitions: partitions, ReplicationFactor: replication,
			ConfigEntries: map[string]*string{
				"min.insync.replicas":            setting(strconv.Itoa(min(2, int(replication)))),
				"retention.ms":                   setting(strconv.FormatInt(max(newRetention, opt.MinRetention).Milliseconds(), 10)),
				"cleanup.policy":                 setting("delete"),
				"unclean.leader.election.enable": setting("false"),
			},
		}
		return a.cluster.at(ctx, addr, func(ctx context.Context, c *conn) error {
			var resp *sarama.CreateTopicsResponse
			err := c.do(ctx, func(b *sarama.Broker) (err error) {
				resp, err = b.CreateTopics(sarama.NewCreateTopicsRequest(a.cluster.conf.Version,
					map[string]*sarama.TopicDetail{name: detail}, 5*time.Second, false))
				return err
			})
			if err != nil {
				return err
			}
			if e := resp.TopicErrors[name]; e != nil && (e.Err == sarama.ErrTopicAuthorizationFailed || e.Err == sarama.ErrClusterAuthorizationFailed) {
				return a.cluster.denied("Create", "topic", name, e.Err)
			}
			if e := resp.TopicErrors[name]; e != nil && e.Err != sarama.ErrNoError && e.Err != sarama.ErrTopicAlreadyExists {
				return fmt.Errorf("create: %w", e)
			}
			return nil
		})
	})
}

// settings reads the topic's configuration.
func (a *Admin) settings(ctx context.Context, name string) (map[string]string, error) {
	out := map[string]string{}
	err := a.retry(ctx, func(ctx context.Context, _ time.Time) error {
		return a.cluster.any(ctx, func(ctx context.Context, c *conn) error {
			var resp *sarama.DescribeConfigsResponse
			err := c.do(ctx, func(b *sarama.Broker) (err error) {
				resp, err = b.DescribeConfigs(&sarama.DescribeConfigsRequest{
					Version:   1,
					Resources: []*sarama.ConfigResource{{Type: sarama.TopicResource, Name: name}},
				})
				return err
			})
			if err != nil {
				return err
			}
			for _, r := range resp.Resources {
				if err := sarama.KError(r.ErrorCode); err == sarama.ErrTopicAuthorizationFailed {
					return a.cluster.denied("DescribeConfigs", "topic", name, err)
				}
				if r.ErrorCode != 0 {
					return fmt.Errorf("describe: %w: %s", sarama.KError(r.ErrorCode), r.ErrorMsg)
				}
				for _, e := range r.Configs {
					out[e.Name] = e.Value
				}
			}
			return nil
		})
	})
	return out, err
}

// judge compares a topic with what accepted orders need.
func (a *Admin) judge(name string, info *topicInfo, settings map[string]string, opt TopicOptions) []Finding {
	var out []Finding
	add := func(level Level, word, text string, args ...any) {
		out = append(out, Finding{level, word, fmt.Sprintf("topic %q: ", name) + fmt.Sprintf(text, args...)})
	}
	number := func(key string, otherwise int64) int64 {
		if n, err := strconv.ParseInt(settings[key], 10, 64); err == nil {
			return n
		}
		return otherwise
	}
	if n := number("max.message.bytes", 1<<20); n < int64(a.cfg.MaxMessageBytes) {
		add(Warning, "max_message_bytes", "max.message.bytes is %d, below kafka.max_message_bytes %d: raise the one or lower the other", n, a.cfg.MaxMessageBytes)
	}
	if name == a.cfg.Topics.Results {
		return out // outcomes are also in MySQL and Redis
	}

	replicas := 1 << 20
	for _, p := range info.partitions {
		replicas = min(replicas, p.replicas)
	}
	brokers, _ := a.cluster.size()
	minISR := number("min.insync.replicas", 1)
	switch {
	case brokers == 1:
		add(Warning, "replication", "the cluster has a single broker: when its disk is lost, so are the orders on it; run three")
	case replicas < 2:
		add(Unsafe, "replication", "a partition has a single replica: when that broker is lost, so are its orders; use replication factor 3")
	case minISR < 2:
		add(Unsafe, "min_insync", "min.insync.replicas is %d: an order can be acknowledged by one broker and lost with it; set it to 2", minISR)
	case replicas < 3:
		add(Warning, "replication", "replication factor %d with min.insync.replicas %d: no broker may be missing; use replication factor 3", replicas, minISR)
	}
	if minISR > int64(replicas) {
		add(Unsafe, "min_insync", "min.insync.replicas is %d with %d replicas: older brokers then accept no order at all; set it to 2 with replication factor 3", minISR, replicas)
	}
	if settings["unclean.leader.election.enable"] == "true" {
		add(Unsafe, "unclean_leader", "unclean.leader.election.enable is true: a stale replica may take over and drop orders; set it to false")
	}
	if strings.Contains(settings["cleanup.policy"], "compact") {
		add(Unsafe, "cleanup_policy", "cleanup.policy is %q: compaction keeps one message per activity and drops all others; set it to delete", settings["cleanup.policy"])
	}
	if ms := number("retention.ms", -1); ms >= 0 && time.Duration(ms)*time.Millisecond < opt.MinRetention {
		add(Unsafe, "retention", "retention.ms is %d (%s), below the planned outage %s: orders would be dropped unread; raise it",
			ms, time.Duration(ms)*time.Millisecond, opt.MinRetention)
	}
	if n := number("retention.bytes", -1); n >= 0 {
		add(Warning, "retention_bytes", "retention.bytes is %d: a large sale may push unread orders out; set it to -1", n)
	}
	if name == a.cfg.Topics.Orders && len(info.partitions) == 1 {
		add(Warning, "partitions", "one partition: all sales are landed by one worker, one after the other; use 12 or more")
	}
	return out
}
