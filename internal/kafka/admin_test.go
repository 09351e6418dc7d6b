package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestOffsets(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, ProducerOptions{})
	for range 5 {
		b.mustPublish(1)
	}
	between := time.Now()
	testenv.Eventually(t, 10*time.Second, "the next millisecond", func() bool { return time.Since(between) > 2*time.Millisecond })
	b.mustPublish(1)
	mine := Partition(ActivityKey(1), 3)
	high, err := b.admin.HighWater(t.Context(), b.topic)
	if err != nil || len(high) != 3 || high[mine] != 6 || high[(mine+1)%3] != 0 {
		t.Errorf("high water %v, %v: want 6 in partition %d alone", high, err, mine)
	}
	oldest, err := b.admin.Oldest(t.Context(), b.topic)
	if err != nil || len(oldest) != 3 || oldest[mine] != 0 {
		t.Errorf("oldest %v, %v", oldest, err)
	}
	at, err := b.admin.OffsetsAt(t.Context(), b.topic, between.Add(time.Millisecond))
	if err != nil || at[mine] != 5 || at[(mine+1)%3] != 0 {
		t.Errorf("offsets at %v: %v, %v: want 5", between, at, err)
	}
	at, err = b.admin.OffsetsAt(t.Context(), b.topic, time.Now().Add(time.Hour))
	if err != nil || at[mine] != 6 {
		t.Errorf("offsets in an hour: %v, %v: want the high water mark", at, err)
	}
}

func TestCommitted(t *testing.T) {
	t.Parallel()
	b := setup(t, 2, ProducerOptions{})
	group := "group-" + b.topic
	got, err := b.admin.Committed(t.Context(), group, b.topic)
	if err != nil || got[0] != -1 || got[1] != -1 {
		t.Fatalf("committed %v, %v: want none", got, err)
	}
	conf, err := b.cfg.Sarama()
	if err != nil {
		t.Fatal(err)
	}
	conf.Consumer.Offsets.AutoCommit.Enable = false
	client, err := sarama.NewClient(testenv.Brokers(t), conf)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	offsets, err := sarama.NewOffsetManagerFromClient(group, client)
	if err != nil {
		t.Fatal(err)
	}
	part, err := offsets.ManagePartition(b.topic, 1)
	if err != nil {
		t.Fatal(err)
	}
	part.MarkOffset(42, "")
	offsets.Commit()
	part.AsyncClose() // Close would wait for the automatic commit
	_ = offsets.Close()
	got, err = b.admin.Committed(t.Context(), group, b.topic)
	if err != nil || got[0] != -1 || got[1] != 42 {
		t.Errorf("committed %v, %v: want 42 in partition 1", got, err)
	}
}

func TestReadEndsBehindMarkersAndGaps(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, ProducerOptions{})
	conf, err := b.cfg.Sarama()
	if err != nil {
		t.Fatal(err)
	}
	conf.Producer.Transaction.ID = b.topic
	conf.Producer.Retry.Backoff = 10 * time.Millisecond
	tx, err := sarama.NewSyncProducer(testenv.Brokers(t), conf)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	for i := range 3 { // each ends with a marker, so the last offset is never a record
		if err := tx.BeginTxn(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, _, err := tx.SendMessage(&sarama.ProducerMessage{Topic: b.topic, Value: sarama.StringEncoder(strconv.Itoa(i))}); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.CommitTxn(); err != nil {
			t.Fatal(err)
		}
	}
	b.eventually("the last marker is written", func() bool {
		high, err := b.admin.HighWater(t.Context(), b.topic)
		return err == nil && high[0] == 9
	})
	read := func(from, to int64) (got []int64, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err = b.admin.Read(ctx, b.topic, map[int32]int64{0: from}, map[int32]int64{0: to},
			func(_ int32, offset int64, _ time.Time, _, _ []byte) error { got = append(got, offset); return nil })
		return got, err
	}
	for _, c := range []struct {
		from, to int64
		want     string
	}{
		{0, 9, "[0 1 3 4 6 7]"}, {-1, 9, "[0 1 3 4 6 7]"}, {1, 4, "[1 3]"}, {2, 3, "[]"}, {8, 9, "[]"}, {5, 5, "[]"}, {7, 8, "[7]"},
	} {
		if got, err := read(c.from, c.to); err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("read from %d to %d: %v, %v: want %s", c.from, c.to, got, err, c.want)
		}
	}

	stop := errors.New("stop")
	err = b.admin.Read(t.Context(), b.topic, nil, map[int32]int64{0: 9}, func(int32, int64, time.Time, []byte, []byte) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("read with a failing callback: %v, want %v", err, stop)
	}

	admin := saramaAdmin(t)
	defer admin.Close()
	if err := admin.DeleteRecords(b.topic, map[int32]int64{0: 4}); err != nil {
		t.Fatal(err)
	}
	if got, err := read(-1, 9); err != nil || fmt.Sprint(got) != "[4 6 7]" {
		t.Errorf("read from the oldest: %v, %v: want [4 6 7]", got, err)
	}
	if _, err := read(1, 9); !errors.Is(err, ErrOffsetGone) {
		t.Errorf("read what is deleted: %v, want %v", err, ErrOffsetGone)
	}
	if _, err := read(20, 30); !errors.Is(err, ErrOffsetGone) {
		t.Errorf("read past the end: %v, want %v", err, ErrOffsetGone)
	}
}

func TestReadIsBoundedByItsContextAndSurvivesFaults(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, ProducerOptions{})
	for range 10 {
		b.mustPublish(1)
	}
	through := newAdmin(t, b.cfg)
	b.proxy.CloseAfter(faultproxy.KafkaRequest(faultproxy.KafkaFetch), 2)
	n := 0
	count := func(int32, int64, time.Time, []byte, []byte) error { n++; return nil }
	if err := through.Read(t.Context(), b.topic, nil, map[int32]int64{0: 10}, count); err != nil || n != 10 {
		t.Errorf("read %d of 10 over dropped connections: %v", n, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	err := through.Read(ctx, b.topic, map[int32]int64{0: 10}, map[int32]int64{0: 11}, count)
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 10*time.Second {
		t.Errorf("read of what is not there yet: %v after %v, want the context's end", err, time.Since(began))
	}
}

func TestEnsureTopics(t *testing.T) {
	t.Parallel()
	cfg := Config{Brokers: testenv.Brokers(t)}
	stem := testenv.Topic(t, "ensure", 1)
	cfg.Topics = Topics{Orders: stem + ".o", DeadLetters: stem + ".d", Results: stem + ".r"}
	admin := newAdmin(t, cfg)
	found, err := admin.EnsureTopics(t.Context(), TopicOptions{})
	if err != nil || len(found) != 3 || found[0].Level != Unsafe || found[0].Name != "missing" {
		t.Fatalf("findings %v, %v: want three missing topics", found, err)
	}
	t.Cleanup(func() { deleteTopics(t, cfg.Topics.All()...) })
	found, err = admin.EnsureTopics(t.Context(), TopicOptions{Create: true, Partitions: 5})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Level == Unsafe {
			t.Errorf("a topic that was just created is unsafe: %v", f)
		}
	}
	high, err := admin.HighWater(t.Context(), cfg.Topics.Orders)
	if err != nil || len(high) != 5 {
		t.Errorf("partitions %v, %v: want 5", high, err)
	}
	again, err := admin.EnsureTopics(t.Context(), TopicOptions{Create: true, MinRetention: 1000 * time.Hour})
	if err != nil || !strings.Contains(fmt.Sprint(again), "below the planned outage") {
		t.Errorf("findings %v, %v: want the retention", again, err)
	}
}

func TestE30E39TopicsThatMayLoseOrders(t *testing.T) {
	t.Parallel()
	admin := newAdmin(t, Config{Brokers: []string{"127.0.0.1:1"}})
	good := map[string]string{
		"min.insync.replicas": "2", "retention.ms": "604800000", "retention.bytes": "-1", "cleanup.policy": "delete",
		"unclean.leader.election.enable": "false", "max.message.bytes": "1048588",
	}
	for _, c := range []struct {
		name, key, value string
		replicas         int
		brokers          int32
		want             string
	}{
		{name: "good", replicas: 3, brokers: 3},
		{name: "acks of one broker", key: "min.insync.replicas", value: "1", replicas: 3, brokers: 3, want: "unsafe min_insync"},
		{name: "one replica", replicas: 1, brokers: 3, want: "unsafe replication,unsafe min_insync"},
		{name: "one broker", key: "min.insync.replicas", value: "1", replicas: 1, brokers: 1, want: "warning replication"},
		{name: "two replicas", replicas: 2, brokers: 3, want: "warning replication"},
		{name: "short retention", key: "retention.ms", value: "3600000", replicas: 3, brokers: 3, want: "unsafe retention"},
		{name: "endless retention", key: "retention.ms", value: "-1", replicas: 3, brokers: 3},
		{name: "compaction", key: "cleanup.policy", value: "compact,delete", replicas: 3, brokers: 3, want: "unsafe cleanup_policy"},
		{name: "unclean election", key: "unclean.leader.election.enable", value: "true", replicas: 3, brokers: 3, want: "unsafe unclean_leader"},
		{name: "bytes", key: "retention.bytes", value: "1000", replicas: 3, brokers: 3, want: "warning retention_bytes"},
		{name: "size", key: "max.message.bytes", value: "1000", replicas: 3, brokers: 3, want: "warning max_message_bytes"},
	} {
		settings := map[string]string{}
		for k, v := range good {
			settings[k] = v
		}
		if c.key != "" {
			settings[c.key] = c.value
		}
		admin.cluster.brokers = map[int32]string{}
		for i := range c.brokers {
			admin.cluster.brokers[i] = "h:1"
		}
		info := &topicInfo{partitions: []partitionInfo{{replicas: c.replicas}, {replicas: c.replicas}}}
		var got []string
		for _, f := range admin.judge(admin.cfg.Topics.Orders, info, settings, TopicOptions{MinRetention: 24 * time.Hour}) {
			got = append(got, string(f.Level)+" "+f.Name)
		}
		if strings.Join(got, ",") != c.want {
			t.Errorf("%s: findings %v, want %q", c.name, got, c.want)
		}
	}
}

// Who waits for a Kafka that is away hears so once, and at once.
func TestOnWait(t *testing.T) {
	a, err := NewAdmin(Config{Brokers: []string{"127.0.0.1:1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	told := 0
	a.OnWait(func(err error, left time.Duration) {
		told++
		if err == nil || left <= 0 || left > 10*time.Second {
			t.Errorf("told of %v, %s left: want the reason, and the time of the context", err, left)
		}
		time.AfterFunc(time.Second, cancel)
	})
	if _, err := a.HighWater(ctx, "orders"); err == nil {
		t.Error("a broker that is not there answers")
	}
	if told != 1 {
		t.Errorf("told %d times, want once", told)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
