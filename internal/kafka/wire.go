package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

// wire is a lane's way to its partition's leader.
type wire struct {
	conn    *conn
	suspect time.Time // what was known of the leader before this is not trusted

	// The identity and the next sequence number by which the broker recognizes a batch that it already has.
	identified bool
	producer   int64
	epoch      int16
	sequence   int32
}

// reset drops the connection.
func (w *wire) reset() {
	w.conn.close()
	w.conn = nil
}

// doubt drops the connection and has the leader looked up again.
func (w *wire) doubt() {
	w.reset()
	w.suspect = time.Now()
}

// connect sees to a connection to the leader and an identity. Nothing that it does can append a message.
func (l *lane) connect(ctx context.Context) error {
	w := &l.wire
	addr, err := l.p.cluster.leader(ctx, l.key.topic, l.key.partition, w.suspect)
	if err != nil {
		return err
	}
	if !w.conn.usable() || w.conn.addr != addr {
		w.reset()
		if w.conn, err = l.p.cluster.open(ctx, addr); err != nil {
			w.conn = nil
			return err
		}
	}
	if w.identified {
		return nil
	}
	var resp *sarama.InitProducerIDResponse
	err = w.conn.do(ctx, func(b *sarama.Broker) (err error) {
		resp, err = b.InitProducerID(&sarama.InitProducerIDRequest{
			Version: initVersion, ProducerID: -1, ProducerEpoch: -1,
		})
		return err
	})
	if err != nil {
		return err
	}
	if resp.Err != sarama.ErrNoError {
		return fmt.Errorf("broker %s: init producer id: %w", addr, resp.Err)
	}
	w.identified, w.producer, w.epoch, w.sequence = true, resp.ProducerID, resp.ProducerEpoch, 0
	return nil
}

// deliver sends a batch and settles all its messages. It returns an error if the lane should stop taking messages.
func (l *lane) deliver(ctx context.Context, batch []*message) error {
	base, maybe, err := l.produce(ctx, batch)
	switch {
	case err == nil:
		l.p.batches.Add(1)
		for i, m := range batch {
			ack := Ack{l.key.partition, -1}
			if base >= 0 {
				ack.Offset = base + int64(i)
			}
			l.p.finish(m, ack, nil)
		}
		return nil
	case maybe:
		// The identity's sequence is uncertain now; the next batch begins a new one.
		l.wire.identified = false
		l.wire.doubt()
		err = fmt.Errorf("topic %q partition %d: no acknowledgement: %w", l.key.topic, l.key.partition, err)
		for _, m := range batch {
			l.p.finish(m, Ack{}, err)
		}
		return err
	case concernsMessages(err) && len(batch) > 1:
		// One of them is not acceptable, or they are too much together.
		half := len(batch) / 2
		first := l.deliver(ctx, batch[:half])
		if first == nil {
			return l.deliver(ctx, batch[half:])
		}
		for _, m := range batch[half:] {
			l.p.finish(m, Ack{}, notSent("%w", first))
		}
		return first
	}
	for _, m := range batch {
		l.p.finish(m, Ack{}, notSent("topic %q partition %d: %w", l.key.topic, l.key.partition, err))
	}
	if concernsMessages(err) {
		return nil
	}
	l.wire.doubt()
	return err
}

// produce tries to get a batch acknowledged until the oldest message's budget ends. maybe is false if, in spite of the error, it is
// certain that nothing is in the log nor can get there.
func (l *lane) produce(ctx context.Context, batch []*message) (base int64, maybe bool, err error) {
	oldest := batch[0].at
	for _, m := range batch {
		if m.at.Before(oldest) {
			oldest = m.at
		}
	}
	ctx, cancel := context.WithDeadline(ctx, oldest.Add(l.p.opt.Budget))
	defer cancel()
	records := recordBatch(batch)
	for try := 0; ; try++ {
		if l.p.opt.beforeAttempt != nil {
			l.p.opt.beforeAttempt()
		}
		one, cancel := context.WithTimeout(ctx, l.p.opt.attempt())
		base, v, failed := l.attempt(one, records, maybe)
		cancel()
		if failed == nil {
			return base, false, nil
		}
		err = failed
		switch v {
		case refused:
			return 0, maybe, err
		case newIdentity:
			l.wire.identified = false
			if maybe {
				return 0, true, err // with another identity the broker would not recognize the batch
			}
		case perhaps:
			maybe = true
		case notAppended:
		}
		if v != newIdentity {
			l.wire.doubt()
		}
		// An attempt that is cut short would only turn a certain no into a perhaps.
		wait := min(backoff(try), l.p.opt.Budget/20)
		if deadline, _ := ctx.Deadline(); time.Until(deadline) < wait+l.p.opt.Budget/10 || !pause(ctx, wait) {
			return 0, maybe, err
		}
	}
}

// attempt sends a batch once. If an earlier attempt may have got through, it is sent as the very same batch.
func (l *lane) attempt(ctx context.Context, records *sarama.RecordBatch, again bool) (int64, verdict, error) {
	if err := l.connect(ctx); err != nil {
		if hopeless(err) {
			return 0, refused, err
		}
		return 0, notAppended, err
	}
	w := &l.wire
	if !again {
		if w.sequence > 1<<30 { // long before it would overflow
			w.identified = false
			return l.attempt(ctx, records, false)
		}
		records.ProducerID, records.ProducerEpoch, records.FirstSequence = w.producer, w.epoch, w.sequence
	}
	if ctx.Err() != nil {
		return 0, notAppended, context.Cause(ctx)
	}
	deadline, _ := ctx.Deadline()
	req := &sarama.ProduceRequest{
		RequiredAcks: sarama.WaitForAll,
		// The broker's wait for its replicas ends a little before ours.
		Timeout: int32(max(time.Until(deadline)*9/10, time.Millisecond) / time.Millisecond),
		Version: produceVersion(l.p.cluster.conf.Version),
	}
	req.AddBatch(l.key.topic, l.key.partition, records)
	var resp *sarama.ProduceResponse
	err := w.conn.do(ctx, func(b *sarama.Broker) (err error) {
		resp, err = b.Produce(req)
		return err
	})
	if err != nil {
		return 0, judgeFailure(err), err
	}
	block := resp.GetBlock(l.key.topic, l.key.partition)
	if block == nil {
		return 0, perhaps, fmt.Errorf("broker %s: %w", w.conn.addr, sarama.ErrIncompleteResponse)
	}
	switch {
	case block.Err == sarama.ErrNoError:
		w.sequence += int32(len(records.Records))
		return block.Offset, 0, nil
	case block.Err == sarama.ErrDuplicateSequenceNumber && again:
		w.sequence += int32(len(records.Records))
		return -1, 0, nil
	}
	return 0, judgeAnswer(block.Err), fmt.Errorf("broker %s: %w", w.conn.addr, block.Err)
}

// judgeFailure classifies a produce request that got no answer. Only what the library finds before it writes is proof.
func judgeFailure(err error) verdict {
	var encoding sarama.PacketEncodingError
	if errors.As(err, &encoding) || errors.Is(err, sarama.ErrUnsupportedVersion) {
		return refused
	}
	return perhaps
}

// recordBatch encodes messages for the wire. Its records are encoded once, however often it is sent.
func recordBatch(batch []*message) *sarama.RecordBatch {
	first, last := batch[0].at, batch[0].at
	for _, m := range batch {
		if m.at.Before(first) {
			first = m.at
		}
		if m.at.After(last) {
			last = m.at
		}
	}
	out := &sarama.RecordBatch{
		Version: 2, PartitionLeaderEpoch: -1, FirstTimestamp: first, MaxTimestamp: last,
		LastOffsetDelta: int32(len(batch) - 1), Records: make([]*sarama.Record, len(batch)),
	}
	for i, m := range batch {
		out.Records[i] = &sarama.Record{
			Key: m.key, Value: m.value, Headers: m.headers,
			OffsetDelta: int64(i), TimestampDelta: time.Duration(m.at.UnixMilli()-first.UnixMilli()) * time.Millisecond,
		}
	}
	return out
}

// initVersion is that of the request for an identity in the oldest Kafka; nothing newer is needed.
const initVersion = 4

// produceVersion is the newest version of the produce request that a Kafka version has; each connection negotiates downwards.
func produceVersion(v sarama.KafkaVersion) int16 {
	if v.IsAtLeast(sarama.V3_7_0_0) {
		return 10
	}
	return 9
}
