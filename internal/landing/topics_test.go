package landing

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/IBM/sarama"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/order"
)

// sent is one call of a fakeSender.
type sent struct {
	topic      string
	key, value []byte
	headers    map[string]string
}

type fakeSender struct {
	mu     sync.Mutex
	sent   []sent
	answer func(n int, s sent) error
}

func (f *fakeSender) Send(ctx context.Context, topic string, key, value []byte, headers map[string]string) (kafka.Ack, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := sent{topic, key, value, headers}
	if f.answer != nil {
		if err := f.answer(len(f.sent)+1, s); err != nil {
			f.sent = append(f.sent, s)
			return kafka.Ack{}, err
		}
	}
	f.sent = append(f.sent, s)
	return kafka.Ack{}, ctx.Err()
}

func TestDeadLetterCarriesItsOrigin(t *testing.T) {
	f := &fakeSender{}
	d := NewTopicDeadLetters(f, kafka.Config{})
	r := Record{Topic: "seckill.orders", Partition: 7, Offset: 1 << 40, Key: []byte("k"), Value: []byte("\x00v")}
	if err := d.Put(t.Context(), r, errors.New("bad")); err != nil {
		t.Fatal(err)
	}
	got := f.sent[0]
	want := map[string]string{"error": "bad", "topic": "seckill.orders", "partition": "7", "offset": "1099511627776"}
	if got.topic != order.TopicDeadLetters || string(got.key) != "k" || string(got.value) != "\x00v" || fmt.Sprint(got.headers) != fmt.Sprint(want) {
		t.Errorf("sent %+v, want key and value as they were and headers %v", got, want)
	}
	l := letterOf("dlq", kafka.Record{Headers: got.headers})
	if l.Why != "bad" || l.OriginTopic != "seckill.orders" || l.OriginPartition != 7 || l.OriginOffset != 1<<40 {
		t.Errorf("read back %+v", l)
	}
}

// TestDeadLetterThatIsTooLarge must not hold up its partition for ever.
func TestDeadLetterThatIsTooLarge(t *testing.T) {
	for name, answer := range map[string]func(int, sent) error{
		"for the producer": nil,
		"for the broker": func(n int, _ sent) error {
			if n == 1 {
				return fmt.Errorf("%w: %w", kafka.ErrNotSent, sarama.ErrMessageSizeTooLarge)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeSender{answer: answer}
			size := 1 << 20
			if answer != nil {
				size = 100 << 10
			}
			value := []byte(strings.Repeat("x", size))
			if err := NewTopicDeadLetters(f, kafka.Config{}).Put(t.Context(), Record{Value: value}, errors.New("bad")); err != nil {
				t.Fatal(err)
			}
			last := f.sent[len(f.sent)-1]
			if len(last.value) != truncatedTo || last.headers["truncated"] != strconv.Itoa(size) {
				t.Errorf("sent %d bytes with headers %v: want the beginning and the true size", len(last.value), last.headers)
			}
		})
	}
}
