package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

// Record is one record as it is in a topic.
type Record struct {
	Partition  int32
	Offset     int64
	Time       time.Time
	Key, Value []byte
	Headers    map[string]string
}

// Read calls fn for every record at from[p] <= offset < to[p], one at a time and in order within each partition, and returns once
// all partitions of `to` are read, fn fails or ctx ends. A partition that is missing or negative in from is read from its oldest
// record. Control records and gaps are passed over. A from below the oldest record kept is ErrOffsetGone: records were lost
// to retention.
func (a *Admin) Read(ctx context.Context, topic string, from, to map[int32]int64,
	fn func(partition int32, offset int64, ts time.Time, key, value []byte) error,
) error {
	return a.ReadRecords(ctx, topic, from, to, func(r Record) error {
		return fn(r.Partition, r.Offset, r.Time, r.Key, r.Value)
	})
}

// ReadRecords is Read with the records' headers.
func (a *Admin) ReadRecords(ctx context.Context, topic string, from, to map[int32]int64, fn func(Record) error) error {
	var oldest map[int32]int64
	partitions := make([]int32, 0, len(to))
	for p := range to {
		partitions = append(partitions, p)
	}
	slices.Sort(partitions)
	r := &reader{admin: a, topic: topic}
	defer func() { r.conn.close() }()
	for _, p := range partitions {
		start, ok := from[p]
		if !ok || start < 0 {
			if oldest == nil {
				var err error
				if oldest, err = a.Oldest(ctx, topic); err != nil {
					return err
				}
			}
			start = oldest[p]
		}
		if err := r.read(ctx, p, start, to[p], fn); err != nil {
			return fmt.Errorf("read topic %q partition %d: %w", topic, p, err)
		}
	}
	return nil
}

// reader fetches batches itself, for the library's consumer does not tell its position: where the last records of a range are
// control records or compacted away, it would wait for ever.
type reader struct {
	admin *Admin
	topic string
	conn  *conn
}

// fetchAtMost bounds one fetch, in bytes; a larger batch still comes whole.
const fetchAtMost = 4 << 20

// errCallback marks what fn returned, which is not to be retried.
type errCallback struct{ error }

func (e errCallback) Unwrap() error { return e.error }

func (r *reader) read(ctx context.Context, p int32, position, end int64, fn func(Record) error) error {
	since, tries, progress := time.Time{}, 0, time.Now()
	for position < end {
		next, err := r.fetch(ctx, p, position, end, since, fn)
		var callback errCallback
		switch {
		case errors.As(err, &callback):
			return callback.error
		case ctx.Err() != nil:
			return fmt.Errorf("stopped at offset %d of %d: %w", position, end, context.Cause(ctx))
		case err != nil && (hopeless(err) || permanent(err)):
			return err
		case err == nil && next > position:
			position, tries, progress = next, 0, time.Now()
			continue
		}
		// An error that may pass, or nothing came: the fetch may have been throttled.
		if err == nil {
			err = errors.New("the broker sends nothing: is the topic compacted?")
		}
		if next > position {
			position, tries, progress = next, 0, time.Now()
		}
		if time.Since(progress) > adminTimeout {
			return fmt.Errorf("stuck at offset %d of %d: %w", position, end, err)
		}
		since = time.Now()
		if tries++; !pause(ctx, backoff(tries-1)) {
			return fmt.Errorf("stopped at offset %d of %d: %w", position, end, context.Cause(ctx))
		}
	}
	return nil
}

// fetch reads once and returns the position after what it read.
func (r *reader) fetch(ctx context.Context, p int32, position, end int64, since time.Time, fn func(Record) error) (int64, error) {
	cl := r.admin.cluster
	one, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	addr, err := cl.leader(one, r.topic, p, since)
	if err != nil {
		return position, err
	}
	if !r.conn.usable() || r.conn.addr != addr {
		r.conn.close()
		if r.conn, err = cl.open(one, addr); err != nil {
			r.conn = nil
			return position, err
		}
	}
	req := &sarama.FetchRequest{
		Version: fetchVersion, MinBytes: 1, MaxWaitTime: 250, MaxBytes: fetchAtMost, SessionEpoch: -1,
	}
	req.AddBlock(r.topic, p, position, fetchAtMost, -1)
	var resp *sarama.FetchResponse
	err = r.conn.do(one, func(b *sarama.Broker) (err error) {
		resp, err = b.Fetch(req)
		return err
	})
	if err != nil {
		return position, err
	}
	block := resp.GetBlock(r.topic, p)
	switch {
	case block == nil:
		return position, fmt.Errorf("broker %s: %w", addr, sarama.ErrIncompleteResponse)
	case block.Err == sarama.ErrOffsetOutOfRange:
		return position, r.outOfRange(ctx, p, position)
	case block.Err != sarama.ErrNoError:
		return position, fmt.Errorf("broker %s: %w", addr, block.Err)
	}
	for _, set := range block.RecordsSet {
		batch := set.RecordBatch
		if batch == nil {
			return position, errCallback{fmt.Errorf("offset %d: message format older than Kafka 0.11", position)}
		}
		if batch.PartialTrailingRecord {
			break
		}
		if position, err = deliverBatch(ctx, p, batch, position, end, fn); err != nil {
			return position, err
		}
	}
	return position, nil
}

// deliverBatch passes on the records of a batch from position up to end, and returns the position after the batch.
func deliverBatch(ctx context.Context, p int32, batch *sarama.RecordBatch, position, end int64, fn func(Record) error) (int64, error) {
	if !batch.Control {
		for _, rec := range batch.Records {
			offset := batch.FirstOffset + rec.OffsetDelta
			if offset < position {
				continue // a fetch begins with the whole batch around its offset
			}
			if offset >= end {
				return end, nil
			}
			if ctx.Err() != nil {
				return offset, context.Cause(ctx)
			}
			out := Record{Partition: p, Offset: offset, Key: rec.Key, Value: rec.Value, Time: batch.FirstTimestamp.Add(rec.TimestampDelta)}
			if batch.LogAppendTime {
				out.Time = batch.MaxTimestamp
			}
			if len(rec.Headers) > 0 {
				out.Headers = make(map[string]string, len(rec.Headers))
				for _, h := range rec.Headers {
					out.Headers[string(h.Key)] = string(h.Value)
				}
			}
			if err := fn(out); err != nil {
				return offset, errCallback{err}
			}
		}
	}
	return max(position, batch.LastOffset()+1), nil
}

// outOfRange tells records that retention deleted from a log that is shorter than it was, after an unclean fail-over.
func (r *reader) outOfRange(ctx context.Context, p int32, position int64) error {
	oldest, err := r.admin.Oldest(ctx, r.topic)
	if err != nil {
		return err
	}
	if position < oldest[p] {
		return fmt.Errorf("%w: offset %d was asked for, the oldest kept is %d", ErrOffsetGone, position, oldest[p])
	}
	return fmt.Errorf("%w: offset %d is past the end: the topic lost records", ErrOffsetGone, position)
}

// fetchVersion is that of the oldest Kafka; each connection negotiates downwards, and nothing newer is needed.
const fetchVersion = 12
