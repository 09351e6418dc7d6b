package landing

import (
	"context"
	"slices"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/crashpoint"
)

// handler serves the sessions of a Consumer. Its methods are called by the library.
type handler struct{ c *Consumer }

// Setup notes that the group has given this worker its partitions.
func (h *handler) Setup(s sarama.ConsumerGroupSession) error {
	h.c.metrics.sessions.Inc()
	h.c.session(true)
	mine := s.Claims()[h.c.kafka.Topics.Orders]
	h.c.offsetsFound(func(part int32) bool { return !slices.Contains(mine, part) })
	h.c.log.Info("joined the consumer group", zap.Int32("generation", s.GenerationID()), zap.Int32s("partitions", mine))
	return nil
}

// Cleanup notes the end of a session. The library commits what is marked right after it.
func (h *handler) Cleanup(s sarama.ConsumerGroupSession) error {
	for _, p := range s.Claims()[h.c.kafka.Topics.Orders] {
		h.c.progress.released(p)
	}
	h.c.session(false)
	return nil
}

// ConsumeClaim lands one partition until its session ends. It marks an offset only when all below it are done, and
// returns within a moment of the session's end, whatever MySQL is doing: a worker that lingers holds up its whole group.
func (h *handler) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	work, cancel := h.c.workContext(s.Context())
	defer cancel()
	part := claim.Partition()
	h.c.offsetsFound(func(p int32) bool { return p == part })
	start := claim.InitialOffset()
	if start < 0 { // the group has never committed here; all that is gone or was never written counts as landed
		oldest, err := h.c.oldest(claim.Topic(), part)
		if err != nil {
			return err
		}
		start = oldest
	}
	h.c.progress.claimed(part, start, claim.HighWaterMarkOffset)
	for {
		batch := h.c.gather(s.Context(), claim.Messages())
		if len(batch) == 0 {
			return nil
		}
		h.c.progress.batch(part, batch[0])
		if _, err := h.c.lander.Land(work, batch); err != nil {
			h.c.log.Info("batch abandoned: its records will be delivered again", zap.Int32("partition", part),
				zap.Int64("from", batch[0].Offset), zap.Int("records", len(batch)), zap.Error(err))
			return nil
		}
		last := batch[len(batch)-1]
		s.MarkOffset(claim.Topic(), part, last.Offset+1, "")
		crashpoint.Here("after_mark")
		h.c.progress.landed(part, last)
	}
}

// gather waits for a record and takes along what has arrived, within the bounds of a batch. It gives nothing once the
// session has ended, even if records are waiting: they will be delivered to whoever gets the partition next.
func (c *Consumer) gather(ctx context.Context, from <-chan *sarama.ConsumerMessage) []Record {
	var batch []Record
	size := 0
	take := func(m *sarama.ConsumerMessage, ok bool) bool {
		if !ok {
			return false
		}
		batch = append(batch, Record{m.Topic, m.Partition, m.Offset, m.Timestamp, m.Key, m.Value, traceOf(m)})
		size += len(m.Value)
		return len(batch) < c.cfg.MaxOrders && size < c.cfg.MaxBytes
	}
	select {
	case m, ok := <-from:
		if ctx.Err() != nil || !ok {
			return nil
		}
		if !take(m, ok) {
			return batch
		}
	case <-ctx.Done():
		return nil
	}
	var wait <-chan time.Time
	if c.cfg.MaxWait > 0 {
		t := time.NewTimer(c.cfg.MaxWait)
		defer t.Stop()
		wait = t.C
	}
	for {
		select { // first what is there already
		case m, ok := <-from:
			if !take(m, ok) {
				return batch
			}
			continue
		default:
		}
		if wait == nil {
			return batch
		}
		select {
		case m, ok := <-from:
			if !take(m, ok) {
				return batch
			}
		case <-wait:
			wait = nil
		case <-ctx.Done():
			return nil
		}
	}
}
