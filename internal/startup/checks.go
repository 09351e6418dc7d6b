package startup

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/redisconn"
	"github.com/seckillgate/seckillgate/internal/store"
)

// System is something that a command may need the address of.
type System int

// The three systems.
const (
	Redis System = iota
	Kafka
	MySQL
)

// Unneeded gives those systems addresses that a command does not need, so that its configuration is whole without them.
func Unneeded(need []System, r *redisconn.Config, k *kafka.Config, m *store.Config) {
	if !slices.Contains(need, Redis) {
		r.Addrs = []string{"redis.invalid:6379"}
	}
	if !slices.Contains(need, Kafka) {
		k.Brokers = []string{"kafka.invalid:9092"}
	}
	if !slices.Contains(need, MySQL) {
		m.DSN = "nobody@tcp(mysql.invalid:3306)/none"
	}
}

// CheckRedis looks at the Redis of a ledger.
func CheckRedis(l *ledger.Ledger, cfg redisconn.Config) Check {
	return Check{System: "redis", Where: strings.Join(cfg.Addrs, ", "), Ask: func(ctx context.Context) (out []Finding, err error) {
		found, err := l.Check(ctx)
		for _, f := range found {
			level := store.Warning
			if f.Fatal {
				level = store.Unsafe
			}
			out = append(out, Finding{Level: level, System: "redis", Name: f.Name, Text: f.Text})
		}
		return out, err
	}}
}

// CheckMySQL looks at a store's server, but for the findings that are not the process's business; more adds what the process needs beside
// it, and may be nil.
func CheckMySQL(s *store.Store, notOurs []string, more func(ctx context.Context, found []store.Finding) ([]store.Finding, error)) Check {
	return Check{System: "mysql", Where: s.Addr(), Ask: func(ctx context.Context) (out []Finding, err error) {
		found, err := s.Check(ctx)
		if err == nil && more != nil {
			found, err = more(ctx, found)
		}
		for _, f := range found {
			if slices.Contains(notOurs, f.Name) {
				continue
			}
			out = append(out, Finding{Level: f.Level, System: "mysql", Name: f.Name, Text: f.Text})
		}
		return out, err
	}}
}

// CheckKafka looks at the topics.
func CheckKafka(a *kafka.Admin, cfg kafka.Config) Check {
	return Check{System: "kafka", Where: strings.Join(cfg.Brokers, ", "), Ask: func(ctx context.Context) ([]Finding, error) {
		found, err := a.EnsureTopics(ctx, kafka.TopicOptions{})
		return OfKafka(found), err
	}}
}

// TellWait has a command that somebody waits for say at once, on out, when Kafka is why. Daemons log it instead.
func TellWait(a *kafka.Admin, out io.Writer) {
	a.OnWait(func(err error, left time.Duration) {
		fmt.Fprintf(out, "waiting for kafka, for up to %s: %v\n", left.Round(time.Second), err)
	})
}

// OfKafka gives Kafka's findings the common form.
func OfKafka(found []kafka.Finding) (out []Finding) {
	for _, f := range found {
		out = append(out, Finding{Level: store.Level(f.Level), System: "kafka", Name: f.Name, Text: f.Text})
	}
	return out
}
