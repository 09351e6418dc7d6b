package landing

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/IBM/sarama"

	"github.com/seckillgate/seckillgate/internal/kafka"
)

// Sender sends one message and waits for its acknowledgement. *kafka.Producer is one.
type Sender interface {
	Send(ctx context.Context, topic string, key, value []byte, headers map[string]string) (kafka.Ack, error)
}

// Headers of a dead letter. Its key and value are the record's own.
const (
	headerError     = "error"     // why the record can never become an order
	headerTopic     = "topic"     // where it came from
	headerPartition = "partition" // decimal
	headerOffset    = "offset"    // decimal
	// headerTruncated is there only when the topic would not take the whole value: its true size in bytes. The record's own
	// topic still has all of it, for as long as it keeps it.
	headerTruncated = "truncated"
)

const (
	maxErrorHeader = 1024
	truncatedTo    = 64 << 10
)

// TopicDeadLetters writes records to the dead-letter topic.
type TopicDeadLetters struct {
	sender Sender
	topic  string
	most   int // bytes of a message that the producer takes
}

// NewTopicDeadLetters uses k for the topic's name and the producer's limit.
func NewTopicDeadLetters(s Sender, k kafka.Config) *TopicDeadLetters {
	k.SetDefaults()
	return &TopicDeadLetters{sender: s, topic: k.Topics.DeadLetters, most: k.MaxMessageBytes}
}

// Put returns once Kafka has the dead letter.
func (d *TopicDeadLetters) Put(ctx context.Context, r Record, why error) error {
	reason := why.Error()
	if len(reason) > maxErrorHeader {
		reason = strings.ToValidUTF8(reason[:maxErrorHeader], "")
	}
	headers := map[string]string{
		headerError: reason, headerTopic: r.Topic,
		headerPartition: strconv.Itoa(int(r.Partition)), headerOffset: strconv.FormatInt(r.Offset, 10),
	}
	const overhead = 4096 // framing and headers, generously
	var err error
	if len(r.Key)+len(r.Value)+overhead <= d.most {
		_, err = d.sender.Send(ctx, d.topic, r.Key, r.Value, headers)
		if !errors.Is(err, sarama.ErrMessageSizeTooLarge) {
			return wrapDeadLetter(r, err)
		}
	}
	// Better a clipped letter that says so than a partition that stands still behind it.
	headers[headerTruncated] = strconv.Itoa(len(r.Value))
	_, err = d.sender.Send(ctx, d.topic, clip(r.Key, maxErrorHeader), clip(r.Value, truncatedTo), headers)
	return wrapDeadLetter(r, err)
}

func wrapDeadLetter(r Record, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("dead letter for %s/%d/%d: %w", r.Topic, r.Partition, r.Offset, err)
}

func clip(b []byte, most int) []byte { return b[:min(len(b), most)] }

// Letter is a dead letter as it is read back.
type Letter struct {
	Record // where it lies in the dead-letter topic, and its key and value

	Why             string // header error
	OriginTopic     string
	OriginPartition int32 // -1: the header is missing
	OriginOffset    int64 // -1: the header is missing
	Truncated       int   // true size of the value in bytes when the letter holds only its beginning, else 0
}

// Letterbox reads the dead-letter topic. *kafka.Admin is one.
type Letterbox interface {
	HighWater(ctx context.Context, topic string) (map[int32]int64, error)
	ReadRecords(ctx context.Context, topic string, from, to map[int32]int64, fn func(kafka.Record) error) error
}

// ReadLetters gives fn every dead letter that is in the topic now, in order within each partition.
func ReadLetters(ctx context.Context, box Letterbox, topic string, fn func(Letter) error) error {
	end, err := box.HighWater(ctx, topic)
	if err != nil {
		return err
	}
	return box.ReadRecords(ctx, topic, nil, end, func(r kafka.Record) error { return fn(letterOf(topic, r)) })
}

func letterOf(topic string, r kafka.Record) Letter {
	l := Letter{
		Record: Record{Topic: topic, Partition: r.Partition, Offset: r.Offset, Time: r.Time, Key: r.Key, Value: r.Value}, Why: r.Headers[headerError],
		OriginTopic: r.Headers[headerTopic], OriginPartition: -1, OriginOffset: -1,
	}
	if n, err := strconv.ParseInt(r.Headers[headerPartition], 10, 32); err == nil {
		l.OriginPartition = int32(n)
	}
	if n, err := strconv.ParseInt(r.Headers[headerOffset], 10, 64); err == nil {
		l.OriginOffset = n
	}
	l.Truncated, _ = strconv.Atoi(r.Headers[headerTruncated])
	return l
}
