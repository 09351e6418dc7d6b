package edge

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

const (
	markQueue   = 8192
	markBatch   = 256
	markTimeout = time.Second
)

// marker keeps the Kafka offsets of published orders in Redis, for `queued` and the position in the queue. What gathers
// while one call is under way makes the next. It drops rather than waits: the order itself is safe without it.
type marker struct {
	led     Ledger
	in      chan marked
	dropped atomic.Int64
	batches map[int64][]ledger.Ack // by activity; only write uses it, and it is kept for its room
}

type marked struct {
	activity int64
	ack      ledger.Ack
}

func newMarker(l Ledger) *marker {
	return &marker{led: l, in: make(chan marked, markQueue), batches: map[int64][]ledger.Ack{}}
}

func (m *marker) mark(activity int64, a ledger.Ack) {
	select {
	case m.in <- marked{activity, a}:
	default:
		m.dropped.Add(1)
	}
}

// run works until ctx ends, and then once more on what has gathered.
func (m *marker) run(ctx context.Context) {
	for {
		select {
		case first := <-m.in:
			m.write(context.WithoutCancel(ctx), first)
		case <-ctx.Done():
			select {
			case first := <-m.in:
				m.write(context.WithoutCancel(ctx), first)
			default:
			}
			return
		}
	}
}

func (m *marker) write(ctx context.Context, first marked) {
	batches := m.batches
	for activity := range batches {
		if len(batches[activity]) == 0 {
			delete(batches, activity) // not in the last batch: maybe over
			continue
		}
		batches[activity] = batches[activity][:0]
	}
	batches[first.activity] = append(batches[first.activity], first.ack)
gather:
	for range markBatch - 1 {
		select {
		case next := <-m.in:
			batches[next.activity] = append(batches[next.activity], next.ack)
		default:
			break gather
		}
	}
	for activity, acks := range batches {
		if len(acks) == 0 {
			continue
		}
		cctx, cancel := context.WithTimeout(ctx, markTimeout)
		if err := m.led.MarkQueued(cctx, activity, acks); err != nil {
			m.dropped.Add(int64(len(acks)))
		}
		cancel()
	}
}
