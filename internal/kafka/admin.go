package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// Admin reads offsets and records and looks after topics. It dials when first used. All methods are safe for concurrent use and
// bounded by their context, or by 30 s if that has no deadline; until then they retry what may pass.
type Admin struct {
	cfg     Config
	log     *zap.Logger
	cluster *cluster
	onWait  func(err error, left time.Duration)
	waited  sync.Once
}

const adminTimeout = 30 * time.Second

// NewAdmin checks the configuration and does not dial.
func NewAdmin(cfg Config, log *zap.Logger) (*Admin, error) {
	cfg.SetDefaults()
	cl, err := newCluster(cfg)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = zap.NewNop()
	}
	return &Admin{cfg: cfg, log: log, cluster: cl}, nil
}

// OnWait has f called when a call has failed for the first time and is tried again, so that whoever waits knows why, and how long that
// may take. Call it before any other method.
func (a *Admin) OnWait(f func(err error, left time.Duration)) { a.onWait = f }

// Close ends all connections, once running calls have ended.
func (a *Admin) Close() error {
	a.cluster.close()
	return nil
}

// HighWater is the offset that the next record of each partition will get, among records that all replicas have.
func (a *Admin) HighWater(ctx context.Context, topic string) (map[int32]int64, error) {
	return a.offsets(ctx, topic, sarama.OffsetNewest)
}

// Oldest is the first offset still kept in each partition.
func (a *Admin) Oldest(ctx context.Context, topic string) (map[int32]int64, error) {
	return a.offsets(ctx, topic, sarama.OffsetOldest)
}

// OffsetsAt is the first offset in each partition whose record is at or after t; the high water mark where there is none.
func (a *Admin) OffsetsAt(ctx context.Context, topic string, t time.Time) (map[int32]int64, error) {
	out, err := a.offsets(ctx, topic, t.UnixMilli())
	if err != nil {
		return nil, err
	}
	var newest map[int32]int64
	for p, offset := range out {
		if offset >= 0 {
			continue
		}
		if newest == nil {
			if newest, err = a.HighWater(ctx, topic); err != nil {
				return nil, err
			}
		}
		out[p] = newest[p]
	}
	return out, nil
}

// offsets asks every partition's leader, all partitions of one leader in one request.
func (a *Admin) offsets(ctx context.Context, topic string, when int64) (map[int32]int64, error) {
	out := map[int32]int64{}
	err := a.retry(ctx, func(ctx context.Context, since time.Time) error {
		info, err := a.cluster.known(ctx, topic, since)
		if err != nil {
			return err
		}
		byLeader := map[string][]int32{}
		for p := range info.partitions {
			if err := info.leaderless(topic, int32(p)); err != nil {
				return err
			}
			addr := info.partitions[p].addr
			byLeader[addr] = append(byLeader[addr], int32(p))
		}
		for addr, partitions := range byLeader {
			if err := a.offsetsFrom(ctx, addr, topic, partitions, when, out); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("offsets of topic %q: %w", topic, err)
	}
	return out, nil
}

func (a *Admin) offsetsFrom(ctx context.Context, addr, topic string, partitions []int32, when int64, out map[int32]int64) error {
	return a.cluster.at(ctx, addr, func(ctx context.Context, c *conn) error {
		req := sarama.NewOffsetRequest(a.cluster.conf.Version)
		for _, p := range partitions {
			req.AddBlock(topic, p, when, 1)
		}
		var resp *sarama.OffsetResponse
		err := c.do(ctx, func(b *sarama.Broker) (err error) {
			resp, err = b.GetAvailableOffsets(req)
			return err
		})
		if err != nil {
			return err
		}
		for _, p := range partitions {
			block := resp.GetBlock(topic, p)
			switch {
			case block == nil:
				return fmt.Errorf("broker %s: partition %d: %w", addr, p, sarama.ErrIncompleteResponse)
			case block.Err != sarama.ErrNoError:
				return fmt.Errorf("broker %s: partition %d: %w", addr, p, block.Err)
			}
			out[p] = block.Offset
		}
		return nil
	})
}

// Committed is the group's committed offset in each partition of the topic: the next one to consume; -1 where there is none.
func (a *Admin) Committed(ctx context.Context, group, topic string) (map[int32]int64, error) {
	out := map[int32]int64{}
	err := a.retry(ctx, func(ctx context.Context, since time.Time) error {
		info, err := a.cluster.known(ctx, topic, since)
		if err != nil {
			return err
		}
		partitions := make([]int32, len(info.partitions))
		for p := range partitions {
			partitions[p] = int32(p)
		}
		addr, err := a.coordinator(ctx, group)
		if err != nil {
			return err
		}
		return a.cluster.at(ctx, addr, func(ctx context.Context, c *conn) error {
			var resp *sarama.OffsetFetchResponse
			err := c.do(ctx, func(b *sarama.Broker) (err error) {
				resp, err = b.FetchOffset(sarama.NewOffsetFetchRequest(a.cluster.conf.Version, group, map[string][]int32{topic: partitions}))
				return err
			})
			if err != nil {
				return err
			}
			if err := resp.GroupError(); err == sarama.ErrGroupAuthorizationFailed {
				return a.cluster.denied("Describe", "group", group, err)
			}
			if resp.GroupError() != sarama.ErrNoError {
				return fmt.Errorf("broker %s: %w", addr, resp.GroupError())
			}
			for _, p := range partitions {
				block := resp.GetBlock(topic, p)
				switch {
				case block == nil:
					return fmt.Errorf("broker %s: partition %d: %w", addr, p, sarama.ErrIncompleteResponse)
				case block.Err != sarama.ErrNoError:
					return fmt.Errorf("broker %s: partition %d: %w", addr, p, block.Err)
				}
				out[p] = block.Offset
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("offsets of group %q in topic %q: %w", group, topic, err)
	}
	return out, nil
}

// coordinator finds the broker that keeps a group's offsets.
func (a *Admin) coordinator(ctx context.Context, group string) (addr string, err error) {
	err = a.cluster.any(ctx, func(ctx context.Context, c *conn) error {
		var resp *sarama.FindCoordinatorResponse
		err := c.do(ctx, func(b *sarama.Broker) (err error) {
			resp, err = b.FindCoordinator(&sarama.FindCoordinatorRequest{Version: 1, CoordinatorKey: group, CoordinatorType: sarama.CoordinatorGroup})
			return err
		})
		if err != nil {
			return err
		}
		if resp.Err == sarama.ErrGroupAuthorizationFailed {
			return a.cluster.denied("Describe", "group", group, resp.Err)
		}
		if resp.Err != sarama.ErrNoError {
			return fmt.Errorf("broker %s: coordinator: %w", c.addr, resp.Err)
		}
		addr = resp.Coordinator.Addr()
		return nil
	})
	return addr, err
}

// retry calls f until it succeeds or fails for good, or ctx ends; since is the time before which metadata must not be from.
func (a *Admin) retry(ctx context.Context, f func(ctx context.Context, since time.Time) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, adminTimeout)
		defer cancel()
	}
	since := time.Now().Add(-watchEvery)
	for try := 0; ; try++ {
		err := f(ctx, since)
		if err == nil || hopeless(err) || permanent(err) || ctx.Err() != nil {
			return err
		}
		if a.onWait != nil {
			end, _ := ctx.Deadline()
			a.waited.Do(func() { a.onWait(err, time.Until(end)) })
		}
		if !pause(ctx, backoff(try)) {
			return err
		}
		since = time.Now()
	}
}

// permanent lists answers to administrative requests that stay the same.
func permanent(err error) bool {
	for _, code := range []sarama.KError{
		sarama.ErrGroupAuthorizationFailed, sarama.ErrInvalidGroupId, sarama.ErrInvalidTopic, sarama.ErrInvalidReplicationFactor,
		sarama.ErrInvalidPartitions, sarama.ErrInvalidConfig, sarama.ErrPolicyViolation, sarama.ErrOffsetOutOfRange,
	} {
		if errors.Is(err, code) {
			return true
		}
	}
	return errors.Is(err, ErrOffsetGone)
}
