package ledger

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Subscribe delivers events until ctx ends, then closes the channel. It connects, and reconnects, by itself; after each
// connection it sends an Event with Catalogue set and Activity 0, since events may have been missed. A receiver that is
// slow holds nobody up: what does not fit is dropped by the client, and gateways poll besides.
func (l *Ledger) Subscribe(ctx context.Context) <-chan Event {
	out := make(chan Event, 256)
	go func() {
		defer close(out)
		sub := l.rdb.Subscribe(ctx, EventsChannel)
		defer func() { _ = sub.Close() }()
		in := sub.ChannelWithSubscriptions(redis.WithChannelSize(1024))
		for {
			var e Event
			select {
			case <-ctx.Done():
				return
			case msg, ok := <-in:
				if !ok {
					return
				}
				switch m := msg.(type) {
				case *redis.Subscription:
					e = Event{Catalogue: true}
				case *redis.Message:
					var err error
					if e, err = decodeEvent(m.Payload); err != nil {
						continue // of another version; polling brings what it said
					}
				default:
					continue
				}
			}
			select {
			case out <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
