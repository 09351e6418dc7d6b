package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// timingsField keeps the catalogue from being empty, which Redis cannot tell from missing.
const timingsField = "timings"

// Catalogue reads the activities that the syncer offers. ErrNoCatalogue: Redis lost it, or no syncer has run yet.
func (l *Ledger) Catalogue(ctx context.Context) (*Catalogue, error) {
	m, err := l.rdb.HGetAll(ctx, catalogueKey).Result()
	if err != nil {
		return nil, fmt.Errorf("read the catalogue of activities: %w", err)
	}
	if len(m) == 0 {
		return nil, ErrNoCatalogue
	}
	c := &Catalogue{Activities: make(map[int64]Activity, len(m))}
	for field, value := range m {
		if field == timingsField {
			if err := json.Unmarshal([]byte(value), &c.Timings); err != nil {
				return nil, fmt.Errorf("read the catalogue of activities: timings: %w", err)
			}
			continue
		}
		var a Activity
		id, err := strconv.ParseInt(field, 10, 64)
		if err == nil {
			err = json.Unmarshal([]byte(value), &a)
		}
		if err != nil {
			return nil, fmt.Errorf("read the catalogue of activities: field %q: %w", field, err)
		}
		a.ID = id
		c.Activities[id] = a
	}
	return c, nil
}

// PutCatalogue replaces the catalogue and tells the gateways.
func (l *Ledger) PutCatalogue(ctx context.Context, c *Catalogue) error {
	timings, err := json.Marshal(c.Timings)
	if err != nil {
		return err
	}
	event := strings.Join([]string{"0", strconv.FormatInt(l.nowMs(), 10), "0", catalogueEvent}, us)
	args := []any{EventsChannel, event, timingsField, timings}
	for id, a := range c.Activities {
		b, err := json.Marshal(a)
		if err != nil {
			return err
		}
		args = append(args, id, b)
	}
	if err := l.run(ctx, catalogueScript, []string{catalogueKey}, args...).Err(); err != nil {
		return fmt.Errorf("write the catalogue of activities: %w", err)
	}
	return nil
}

// SetLanded moves the landed offsets forward.
func (l *Ledger) SetLanded(ctx context.Context, at map[int32]LandedAt) error {
	if len(at) == 0 {
		return nil
	}
	args := make([]any, 0, 3*len(at))
	for p, x := range at {
		args = append(args, p, x.Offset, x.TimeMs)
	}
	if err := l.run(ctx, landedScript, []string{landedKey}, args...).Err(); err != nil {
		return fmt.Errorf("write the landed offsets: %w", err)
	}
	return nil
}

// Landed reads how far each partition has landed. A partition that is missing is not known.
func (l *Ledger) Landed(ctx context.Context) (map[int32]LandedAt, error) {
	m, err := l.rdb.HGetAll(ctx, landedKey).Result()
	if err != nil {
		return nil, fmt.Errorf("read the landed offsets: %w", err)
	}
	out := make(map[int32]LandedAt, len(m))
	for field, value := range m {
		p, err := strconv.ParseInt(field, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read the landed offsets: partition %q: %w", field, err)
		}
		offset, ms, ok := strings.Cut(value, " ")
		if !ok {
			return nil, fmt.Errorf("read the landed offsets: partition %d: %q has no time", p, value)
		}
		var at LandedAt
		if err := parseInts([]string{offset, ms}, &at.Offset, &at.TimeMs); err != nil {
			return nil, fmt.Errorf("read the landed offsets: partition %d: %w", p, err)
		}
		out[int32(p)] = at
	}
	return out, nil
}

// Lease takes or renews the syncer's lease for ttl. It reports whether holder has it. Everything that a leader writes is
// fenced or idempotent on its own, so a leader that was paused and wakes up late does no harm; the lease only keeps two
// from doing the work twice.
func (l *Ledger) Lease(ctx context.Context, holder string, ttl time.Duration) (bool, error) {
	return l.lease(ctx, "acquire", holder, ttl.Milliseconds())
}

// DropLease gives the lease up, if holder has it.
func (l *Ledger) DropLease(ctx context.Context, holder string) error {
	_, err := l.lease(ctx, "drop", holder, 0)
	return err
}

// LeaseHolder names who has the lease, "" if nobody.
func (l *Ledger) LeaseHolder(ctx context.Context) (string, error) {
	s, err := l.rdb.Get(ctx, leaderKey).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return s, err
}

// SavePosition keeps the binlog position beside the state that it describes: what Redis forgets of the one it forgets of
// the other. It reports false when holder has lost the lease, and writes nothing then.
func (l *Ledger) SavePosition(ctx context.Context, holder, position string) (bool, error) {
	return l.lease(ctx, "position", holder, position)
}

// Position is the saved binlog position, "" if there is none.
func (l *Ledger) Position(ctx context.Context) (string, error) {
	s, err := l.rdb.Get(ctx, positionKey).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return s, err
}

func (l *Ledger) lease(ctx context.Context, what, holder string, arg any) (bool, error) {
	n, err := l.run(ctx, leaseScript, []string{leaderKey, positionKey}, what, holder, arg).Int()
	if err != nil {
		return false, fmt.Errorf("syncer lease: %s: %w", what, err)
	}
	return n == 1, nil
}

// nowMs is the server's time as far as it is known, for what only informs.
func (l *Ledger) nowMs() int64 {
	t, _ := l.clock.now(time.Now())
	return t.UnixMilli()
}
