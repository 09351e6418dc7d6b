package ledger

import (
	"context"
	"fmt"
	"strings"

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

// Finding is something that a start-up check found about Redis.
type Finding struct {
	Fatal bool // selling on this server is not safe
	Text  string
}

// Check looks at the server's settings: an eviction policy that may drop keys is fatal.
func (l *Ledger) Check(ctx context.Context) ([]Finding, error) {
	if err := l.rdb.Ping(ctx).Err(); err != nil {
		return nil, fmt.Errorf("ping redis: %w", err)
	}
	var found []Finding
	m, err := l.rdb.ConfigGet(ctx, "maxmemory-policy").Result()
	switch policy := m["maxmemory-policy"]; {
	case err != nil || policy == "":
		found = append(found, Finding{Text: "redis does not show its maxmemory-policy; make sure that it is noeviction"})
	case policy != "noeviction":
		found = append(found, Finding{
			Fatal: true,
			Text:  fmt.Sprintf("redis has maxmemory-policy %s, which drops stock and reservations when memory is short; set it to noeviction", policy),
		})
	}
	info, err := l.rdb.Info(ctx, "server").Result()
	if err != nil || !strings.Contains(info, "run_id:") {
		found = append(found, Finding{
			Text: "redis hides its run id; a marker key stands in, which notices a server that lost everything but not one that lost its last writes",
		})
	}
	return found, nil
}
