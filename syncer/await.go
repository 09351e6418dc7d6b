package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
)

// change is what a command did to an activity in MySQL, and by what Redis shows it.
type change struct {
	id   int64
	did  string // in mysql, for people
	here func(ledger.Snapshot) bool
	// late says why Redis does not have it although a syncer leads; nil: it does not say.
	late func(ledger.Snapshot) string
}

// notAtTheEdge says that MySQL has a change and buyers do not see it.
type notAtTheEdge struct {
	id  int64
	why string
}

func (e *notAtTheEdge) Error() string { return fmt.Sprintf("activity %d: %s", e.id, e.why) }

// awaitEdge polls Redis until a running syncer has brought the changes there, at most for d in all; 0 does not wait. What
// MySQL has it keeps, whatever comes of this.
func awaitEdge(ctx context.Context, p *runner.Parts, out io.Writer, d time.Duration, changes []change) error {
	if d <= 0 {
		return nil
	}
	end := time.Now().Add(d)
	var errs []error
	for _, c := range changes {
		if err := c.await(ctx, p, end); err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(out, "activity %d: %s in mysql and at the edge\n", c.id, c.did)
	}
	return errors.Join(errs...)
}

// lookBound bounds one look at Redis, the last one too.
const lookBound = time.Second

func (c *change) await(ctx context.Context, p *runner.Parts, end time.Time) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		last := !time.Now().Before(end)
		look, err := c.look(ctx, p)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && c.here(look):
			return nil
		case last && err != nil:
			return &notAtTheEdge{c.id, fmt.Sprintf("redis does not answer, so that nobody knows what buyers see: %v", err)}
		case last:
			return c.missing(ctx, p, look)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (c *change) look(ctx context.Context, p *runner.Parts) (ledger.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	s, err := p.Ledger.Inspect(ctx, c.id)
	if err != nil {
		return ledger.Snapshot{}, err
	}
	return s[0], nil
}

// missing says why Redis does not have a change.
func (c *change) missing(ctx context.Context, p *runner.Parts, look ledger.Snapshot) error {
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	holder, err := p.Ledger.LeaseHolder(ctx)
	switch {
	case err == nil && holder == "" && look.Exists:
		return &notAtTheEdge{c.id, fmt.Sprintf("no syncer leads: buyers still see it %s; start seckill-syncer run", look.State)}
	case err == nil && holder == "":
		return &notAtTheEdge{c.id, "no syncer leads: buyers cannot see it; start seckill-syncer run"}
	}
	if c.late != nil {
		if why := c.late(look); why != "" {
			return &notAtTheEdge{c.id, why}
		}
	}
	return &notAtTheEdge{c.id, "redis does not have it yet (seckill-syncer status shows both sides)"}
}
