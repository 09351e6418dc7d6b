package kafka

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestPublishCommitsInGroups(t *testing.T) {
	t.Parallel()
	b := setup(t, 4, ProducerOptions{})
	const orders = 300
	activity := testenv.ID()
	acks := make([]Ack, orders)
	ids := make([]string, orders)
	var wg sync.WaitGroup
	for i := range orders {
		wg.Go(func() {
			o, ack, _, err := b.publish(activity)
			if err != nil {
				t.Errorf("publish: %v", err)
			}
			acks[i], ids[i] = ack, o.ID
		})
	}
	wg.Wait()
	seen := map[int64]bool{}
	for _, a := range acks {
		if a.Partition != acks[0].Partition || a.Offset < 0 || a.Offset >= orders || seen[a.Offset] {
			t.Fatalf("ack %+v: want one partition and each offset once", a)
		}
		seen[a.Offset] = true
	}
	if want := Partition(ActivityKey(activity), 4); acks[0].Partition != want {
		t.Errorf("partition %d, want %d", acks[0].Partition, want)
	}
	s := b.p.Stats()
	if s.Acked != orders || s.Batches > orders/2 || s.InFlight != 0 || s.Unknown+s.NotSent != 0 {
		t.Errorf("stats %+v: want all acknowledged in few batches", s)
	}
	log := b.log()
	for _, id := range ids {
		if log[id] != 1 {
			t.Errorf("order %s is %d times in the log", id, log[id])
		}
	}
	if b.p.OldestUnacked() != 0 || b.p.Healthy() != nil || b.p.HealthyFor(activity) != nil {
		t.Errorf("oldest %v, healthy %v: want 0 and nil", b.p.OldestUnacked(), b.p.Healthy())
	}
}

func TestSendKeepsKeyHeadersAndTime(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, ProducerOptions{})
	began := time.Now().Truncate(time.Millisecond)
	ack, err := b.p.Send(t.Context(), b.topic, []byte("k"), []byte("v"), map[string]string{"error": "bad", "topic": "x"})
	if err != nil {
		t.Fatal(err)
	}
	var got []Record
	err = b.admin.ReadRecords(t.Context(), b.topic, nil, map[int32]int64{0: ack.Offset + 1}, func(r Record) error {
		got = append(got, r)
		return nil
	})
	if err != nil || len(got) != 1 {
		t.Fatalf("read %d records: %v", len(got), err)
	}
	r := got[0]
	if string(r.Key) != "k" || string(r.Value) != "v" || r.Headers["error"] != "bad" || r.Headers["topic"] != "x" {
		t.Errorf("record %+v", r)
	}
	if r.Time.Before(began) || r.Time.After(time.Now()) {
		t.Errorf("record time %v, want after %v", r.Time, began)
	}
}

// The vectors are from the tests of Kafka's own Java client.
func TestPartitionIsTheOneOfJavaClients(t *testing.T) {
	t.Parallel()
	for key, hash := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		if got, want := Partition([]byte(key), math.MaxInt32), (hash&0x7fffffff)%math.MaxInt32; got != want {
			t.Errorf("partition of %q is %d, want %d", key, got, want)
		}
	}
}

func TestConstructorNeitherDialsNorFails(t *testing.T) {
	t.Parallel()
	opt := ProducerOptions{Budget: 5 * time.Second}
	p := newProducer(t, Config{Brokers: []string{"127.0.0.1:1"}}, opt)
	began := time.Now()
	_, err := p.Publish(t.Context(), newOrder(t, 1), nil)
	if !errors.Is(err, ErrNotSent) {
		t.Errorf("publish with no broker: %v, want %v", err, ErrNotSent)
	}
	if d := time.Since(began); d > opt.Budget {
		t.Errorf("publish took %v, want less than the budget", d)
	}
	testenv.Eventually(t, 5*time.Second, "unhealthy", func() bool { return p.Healthy() != nil && p.HealthyFor(1) != nil })
}

func TestMissingTopicIsUnhealthyAndNamesTheRemedy(t *testing.T) {
	t.Parallel()
	cfg := Config{Brokers: testenv.Brokers(t), Topics: Topics{Orders: testenv.Topic(t, "gone", 1) + "-missing"}}
	p := newProducer(t, cfg, second)
	p.Start()
	testenv.Eventually(t, 5*time.Second, "unhealthy", func() bool { return p.Healthy() != nil })
	err := p.HealthyFor(1)
	if !errors.Is(err, ErrTopicMissing) || !strings.Contains(err.Error(), cfg.Topics.Orders) || !strings.Contains(err.Error(), "migrate --create-topics") {
		t.Errorf("healthy: %v, want %v with topic and remedy", err, ErrTopicMissing)
	}
	if _, err := p.Publish(t.Context(), newOrder(t, 1), nil); !errors.Is(err, ErrNotSent) || !errors.Is(err, ErrTopicMissing) {
		t.Errorf("publish: %v", err)
	}

	// It is created while the producer runs.
	admin := newAdmin(t, cfg)
	if _, err := admin.EnsureTopics(t.Context(), TopicOptions{Create: true, Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteTopics(t, cfg.Topics.Orders) })
	testenv.Eventually(t, 10*time.Second, "healthy", func() bool { return p.Healthy() == nil })
	if _, err := p.Publish(t.Context(), newOrder(t, 1), nil); err != nil {
		t.Errorf("publish: %v", err)
	}
}

func TestContextEndsTheWait(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, ProducerOptions{Budget: 4 * time.Second})
	b.mustPublish(1)
	rule := b.proxy.Hold(faultproxy.KafkaRequest(faultproxy.KafkaProduce), 1)
	outcome := func(ctx context.Context, o *order.Order) <-chan error {
		ch := make(chan error, 1)
		go func() {
			_, err := b.p.Publish(ctx, o, nil)
			ch <- err
		}()
		return ch
	}
	onWire, cancelWire := context.WithCancel(t.Context())
	first := outcome(onWire, newOrder(t, 1))
	<-rule.Seen()
	queued, cancelQueued := context.WithCancel(t.Context())
	waiting := newOrder(t, 1)
	second := outcome(queued, waiting)
	b.eventually("the second is queued", func() bool { return b.p.Stats().InFlight == 2 })
	cancelQueued()
	if err := <-second; !errors.Is(err, ErrNotSent) || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled in the queue: %v, want %v", err, ErrNotSent)
	}
	cancelWire()
	if err := <-first; err == nil || errors.Is(err, ErrNotSent) || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled on the wire: %v, want unknown", err)
	}
	rule.Release()
	b.eventually("both are settled", func() bool { return b.p.Stats().InFlight == 0 })
	b.mustPublish(1)
	if n := b.log()[waiting.ID]; n != 0 {
		t.Errorf("an order that was not sent is %d times in the log", n)
	}
}

// What has not been handed over after three fifths of the budget is refused, so that what is handed over has time for an attempt.
func TestQueuedMessageIsRefusedWhileThereIsTime(t *testing.T) {
	t.Parallel()
	opt := ProducerOptions{Budget: 5 * time.Second}
	b := setup(t, 1, opt)
	b.mustPublish(1)
	rule := b.proxy.WithholdReply(faultproxy.KafkaRequest(faultproxy.KafkaProduce), 100)
	first := make(chan error, 1)
	go func() {
		_, _, _, err := b.publish(1)
		first <- err
	}()
	<-rule.Seen()
	_, _, took, err := b.publish(1)
	if !errors.Is(err, ErrNotSent) || took > opt.Budget*9/10 {
		t.Errorf("%v after %v, want %v after %v", err, took, ErrNotSent, opt.Budget*3/5)
	}
	t.Logf("refused after %v of %v", took, opt.Budget)
	if err := <-first; err == nil || errors.Is(err, ErrNotSent) {
		t.Errorf("the one on the wire: %v, want unknown", err)
	}
}

func TestE23HealthFlipsWithinASecond(t *testing.T) {
	t.Parallel()
	opt := ProducerOptions{Budget: 10 * time.Second}
	b := setup(t, 1, opt)
	b.mustPublish(1)
	rule := b.proxy.WithholdReply(faultproxy.KafkaRequest(faultproxy.KafkaProduce), 1)
	done := make(chan error, 1)
	go func() {
		_, _, _, err := b.publish(1)
		done <- err
	}()
	<-rule.Seen()
	began := time.Now()
	// The second attempt ends the stall, so that it cannot be seen later than that.
	testenv.Eventually(t, opt.attempt(), "unhealthy a second after the last answer", func() bool {
		return errors.Is(b.p.HealthyFor(1), errStalled) && errors.Is(b.p.Healthy(), errStalled)
	})
	t.Logf("unhealthy after %v", time.Since(began))
	if b.p.OldestUnacked() < time.Second {
		t.Errorf("oldest unacknowledged is %v", b.p.OldestUnacked())
	}
	if err := <-done; err != nil { // by the second attempt
		t.Errorf("publish: %v", err)
	}
	b.eventually("healthy", func() bool { return b.p.Healthy() == nil })
}

func TestE24NoAckIsUnknown(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, second)
	b.mustPublish(1)
	b.proxy.WithholdReply(faultproxy.KafkaRequest(faultproxy.KafkaProduce), 100)
	o, _, took, err := b.publish(1)
	if err == nil || errors.Is(err, ErrNotSent) {
		t.Errorf("publish without any ack: %v, want unknown", err)
	}
	inTime(t, took, second.Budget, err)
	if err := b.p.HealthyFor(1); err == nil {
		t.Error("healthy after an unknown outcome")
	}
	b.proxy.Heal()
	b.eventually("healthy", func() bool { return b.p.HealthyFor(1) == nil })
	b.mustPublish(1)
	if n := b.log()[o.ID]; n != 1 {
		t.Errorf("%d copies, want one for all attempts", n)
	}
}

func TestE24LostAckIsRepeatedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, ProducerOptions{})
	b.mustPublish(1)
	for _, fault := range []func(func([]byte) bool, int) *faultproxy.Rule{b.proxy.CloseAfter, b.proxy.CloseBefore} {
		rule := fault(faultproxy.KafkaRequest(faultproxy.KafkaProduce), 1)
		o, ack, _, err := b.publish(1)
		if err != nil || rule.Fired() != 1 {
			t.Fatalf("publish: %v (fault seen %d times)", err, rule.Fired())
		}
		to, err := b.admin.HighWater(t.Context(), b.topic)
		if err != nil || to[0] != ack.Offset+1 {
			t.Errorf("acknowledged at %d, the log ends at %d: %v", ack.Offset, to[0], err)
		}
		if n := b.log()[o.ID]; n != 1 {
			t.Errorf("%d copies, want 1", n)
		}
	}
}

func TestE25Blackhole(t *testing.T) {
	t.Parallel()
	opt := ProducerOptions{Budget: 5 * time.Second}
	b := setup(t, 1, opt)
	b.mustPublish(1)
	b.proxy.HalfOpen()
	var mu sync.Mutex
	unsent, unknown := 0, 0
	var wg sync.WaitGroup
	var ids []string
	for range 200 {
		wg.Go(func() {
			o, _, took, err := b.publish(1)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				t.Error("acknowledged through a black hole")
			case errors.Is(err, ErrNotSent):
				unsent++
				ids = append(ids, o.ID)
			default:
				unknown++
			}
			inTime(t, took, opt.Budget, err)
		})
	}
	wg.Wait()
	if unknown == 0 || unknown > maxBatch || unsent == 0 {
		t.Logf("%d unknown, %d not sent", unknown, unsent)
	}
	if b.p.HealthyFor(1) == nil {
		t.Error("healthy in a black hole")
	}
	_, _, took, err := b.publish(1)
	if !errors.Is(err, ErrNotSent) || took >= opt.handover() { // which is when a queue would refuse it
		t.Errorf("with the breaker open: %v after %v, want %v at once", err, took, ErrNotSent)
	}
	t.Logf("refused by the open breaker after %v", took)
	b.proxy.Heal()
	b.eventually("healthy", func() bool { return b.p.HealthyFor(1) == nil })
	b.mustPublish(1)
	log := b.log()
	for _, id := range ids {
		if log[id] != 0 {
			t.Errorf("order %s was said not to be sent, and is in the log", id)
		}
	}
	for id, n := range log {
		if n != 1 {
			t.Errorf("order %s is %d times in the log", id, n)
		}
	}
}

func TestE26EverySendEndsInTimeOverDroppedConnections(t *testing.T) {
	t.Parallel()
	opt := ProducerOptions{Budget: 5 * time.Second}
	b := setup(t, 2, opt)
	b.mustPublish(1)
	sent := 0
	for i := range 40 {
		switch i % 4 {
		case 1:
			b.proxy.Reset()
		case 3:
			b.proxy.CloseAfter(faultproxy.KafkaRequest(faultproxy.KafkaProduce), 1)
		}
		_, _, took, err := b.publish(int64(i%2 + 1))
		if err == nil {
			sent++
		}
		inTime(t, took, opt.Budget, err)
	}
	if sent < 35 {
		t.Errorf("%d of 40 sent, want nearly all: a dropped connection is repeated", sent)
	}
	for id, n := range b.log() {
		if n != 1 {
			t.Errorf("order %s is %d times in the log", id, n)
		}
	}
}

func TestE26AcrossABrokerRestart(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, second)
	b.mustPublish(1)
	b.proxy.Cut()
	o, _, _, err := b.publish(1)
	if err == nil {
		t.Fatal("acknowledged by a broker that is down")
	}
	notSent := errors.Is(err, ErrNotSent)
	b.eventually("unhealthy", func() bool { return b.p.Healthy() != nil })
	b.proxy.Heal()
	b.eventually("healthy", func() bool { return b.p.Healthy() == nil })
	b.mustPublish(1)
	if n := b.log()[o.ID]; notSent && n != 0 || n > 1 {
		t.Errorf("%d copies after %v", n, err)
	}
}

func TestE27SequenceRefusedByTheBroker(t *testing.T) {
	t.Parallel()
	tamper := false
	var p *Producer
	opt := ProducerOptions{Budget: 5 * time.Second}
	var topic string
	opt.beforeAttempt = func() {
		if tamper { // on the lane's own goroutine
			tamper = false
			p.lanes[laneKey{topic, 0}].wire.sequence += 7
		}
	}
	b := setup(t, 1, opt)
	p, topic = b.p, b.topic
	b.mustPublish(1)
	tamper = true
	o, _, _, err := b.publish(1)
	if err != nil || tamper {
		t.Fatalf("publish: %v, want a new identity and success", err)
	}
	if n := b.log()[o.ID]; n != 1 {
		t.Errorf("%d copies, want 1", n)
	}
	if err := b.p.Healthy(); err != nil {
		t.Errorf("healthy: %v", err)
	}
}

func TestOnlyAnswersFromBeforeTheAppendAreProof(t *testing.T) {
	t.Parallel()
	for code, want := range map[sarama.KError]verdict{
		sarama.ErrMessageSizeTooLarge: refused, sarama.ErrTopicAuthorizationFailed: refused,
		sarama.ErrNotEnoughReplicas: notAppended, sarama.ErrOutOfOrderSequenceNumber: newIdentity, sarama.ErrInvalidProducerEpoch: newIdentity,
		sarama.ErrNotEnoughReplicasAfterAppend: perhaps, sarama.ErrRequestTimedOut: perhaps, sarama.ErrNotLeaderForPartition: perhaps,
		sarama.ErrUnknownTopicOrPartition: perhaps, sarama.ErrKafkaStorageError: perhaps, sarama.ErrLeaderNotAvailable: perhaps,
		sarama.ErrUnknown: perhaps, sarama.KError(9999): perhaps,
	} {
		if got := judgeAnswer(code); got != want {
			t.Errorf("%v: verdict %d, want %d", code, got, want)
		}
	}
	if judgeFailure(io.EOF) != perhaps || judgeFailure(context.DeadlineExceeded) != perhaps {
		t.Error("a request without an answer is proof of nothing")
	}
}

func TestE32TooLargeIsNotSent(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, second)
	big := make([]byte, 2<<20)
	if _, err := b.p.Send(t.Context(), b.topic, nil, big, nil); !errors.Is(err, ErrNotSent) {
		t.Errorf("2 MiB: %v, want %v", err, ErrNotSent)
	}
	alterTopic(t, b.topic, "max.message.bytes", "20000")
	small := func() error {
		_, err := b.p.Send(t.Context(), b.topic, nil, []byte("small"), nil)
		return err
	}
	b.eventually("the broker refuses what the client would send", func() bool {
		_, err := b.p.Send(t.Context(), b.topic, nil, big[:100_000], nil)
		if err != nil && !errors.Is(err, ErrNotSent) {
			t.Fatalf("refused by the broker: %v, want %v", err, ErrNotSent)
		}
		return err != nil
	})
	// Among others in one batch it alone is refused, and nobody becomes unhealthy.
	rule := b.proxy.Hold(faultproxy.KafkaRequest(faultproxy.KafkaProduce), 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := small(); err != nil {
			t.Errorf("first: %v", err)
		}
	})
	<-rule.Seen()
	for i := range 20 {
		wg.Go(func() {
			if i == 7 {
				if _, err := b.p.Send(t.Context(), b.topic, nil, big[:100_000], nil); !errors.Is(err, ErrNotSent) {
					t.Errorf("large: %v, want %v", err, ErrNotSent)
				}
				return
			}
			if err := small(); err != nil {
				t.Errorf("small: %v", err)
			}
		})
	}
	b.eventually("all are queued", func() bool { return b.p.Stats().InFlight == 21 })
	rule.Release()
	wg.Wait()
	if err := b.p.Healthy(); err != nil {
		t.Errorf("healthy: %v", err)
	}
}

func TestE33CloseWhileSending(t *testing.T) {
	t.Parallel()
	b := setup(t, 3, ProducerOptions{})
	b.mustPublish(1)
	b.proxy.DelayReplies(50 * time.Millisecond)
	var mu sync.Mutex
	outcome := map[string]error{}
	var wg sync.WaitGroup
	for i := range 500 {
		wg.Go(func() {
			o, _, _, err := b.publish(int64(i%5 + 1))
			mu.Lock()
			defer mu.Unlock()
			outcome[o.ID] = err
		})
	}
	b.eventually("some are on their way", func() bool { return b.p.Stats().InFlight > 50 })
	if err := b.p.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	wg.Wait()
	log := b.log()
	for id, err := range outcome {
		switch n := log[id]; {
		case err == nil && n == 1, errors.Is(err, ErrNotSent) && n == 0:
		default:
			t.Errorf("order %s: %v, and %d copies in the log", id, err, n)
		}
	}
	if s := b.p.Stats(); s.InFlight != 0 {
		t.Errorf("%d in flight after close", s.InFlight)
	}
	if _, _, _, err := b.publish(1); !errors.Is(err, ErrNotSent) {
		t.Errorf("publish after close: %v, want %v", err, ErrNotSent)
	}
	if b.p.Healthy() == nil || b.p.HealthyFor(1) == nil {
		t.Error("healthy after close")
	}
	if err := b.p.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
}

func TestE33CloseIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, second)
	b.mustPublish(1)
	b.proxy.HalfOpen()
	done := make(chan error, 1)
	go func() {
		_, _, _, err := b.publish(1)
		done <- err
	}()
	b.eventually("it is on its way", func() bool { return b.p.Stats().InFlight == 1 })
	began := time.Now()
	_ = b.p.Close()
	inTime(t, time.Since(began), second.Budget, nil)
	if err := <-done; err == nil {
		t.Error("acknowledged through a black hole")
	}
}

func TestE43BrokersMoveBehindTheirNames(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, second)
	other := faultproxy.NewKafka(t, testenv.Brokers(t)[0])
	var mu sync.Mutex
	now := b.proxy.Addr()
	dial := b.p.cluster.dial
	b.p.cluster.dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		mu.Lock()
		addr := now
		mu.Unlock()
		return dial(ctx, network, addr)
	}
	b.mustPublish(1)
	mu.Lock()
	now = other.Addr()
	mu.Unlock()
	b.proxy.Cut()
	b.mustPublish(1)
	b.eventually("healthy", func() bool { return b.p.Healthy() == nil })
}

func TestE44MemoryIsBounded(t *testing.T) {
	t.Parallel()
	opt := second
	opt.MaxInFlight = 100
	b := setup(t, 1, opt)
	b.mustPublish(1)
	b.proxy.HalfOpen()
	var most int64
	var wg sync.WaitGroup
	for range 2000 {
		wg.Go(func() {
			if _, _, _, err := b.publish(1); err == nil {
				t.Error("acknowledged through a black hole")
			}
		})
		most = max(most, b.p.Stats().InFlight)
	}
	wg.Wait()
	if most > 101 { // the one that is just being refused counts for a moment
		t.Errorf("%d in flight, want at most 100", most)
	}
	b.eventually("nothing is kept", func() bool { return b.p.Stats().InFlight == 0 })
}

func deleteTopics(t *testing.T, names ...string) {
	t.Helper()
	admin := saramaAdmin(t)
	defer admin.Close()
	for _, name := range names {
		if err := admin.DeleteTopic(name); err != nil && !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			t.Errorf("delete topic %q: %v", name, err)
		}
	}
}

func alterTopic(t *testing.T, topic, key, value string) {
	t.Helper()
	admin := saramaAdmin(t)
	defer admin.Close()
	err := admin.IncrementalAlterConfig(sarama.TopicResource, topic,
		map[string]sarama.IncrementalAlterConfigsEntry{key: {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}}, false)
	if err != nil {
		t.Fatal(err)
	}
}

func saramaAdmin(t *testing.T) sarama.ClusterAdmin {
	t.Helper()
	conf, err := Config{Brokers: testenv.Brokers(t)}.Sarama()
	if err != nil {
		t.Fatal(err)
	}
	conf.Metadata.Full = true // the library's own admin asks for all topics
	admin, err := sarama.NewClusterAdmin(testenv.Brokers(t), conf)
	if err != nil {
		t.Fatal(err)
	}
	return admin
}
