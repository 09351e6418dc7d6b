package edge

import (
	"context"
	"sync/atomic"
	"time"
)

// budgetSlack is by how much a budget may be shorter than it says.
const budgetSlack = 10 * time.Millisecond

// budget gives contexts that end a fixed time from now. Requests of the same moment share one, since a context with a timer of
// its own costs a request more than its part of the reserve call.
type budget struct {
	d   time.Duration
	now atomic.Pointer[sharedBudget]
}

type sharedBudget struct {
	context.Context //nolint:containedctx // what this type is for: one context for all requests of a moment

	cancel context.CancelFunc
	began  time.Time
}

// from gives a context for a request that began at that time. It ends d later, or up to budgetSlack before.
func (b *budget) from(began time.Time) context.Context {
	if s := b.now.Load(); s != nil {
		if age := began.Sub(s.began); age >= 0 && age < min(budgetSlack, b.d/8) {
			return s.Context
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), began.Add(b.d))
	b.now.Store(&sharedBudget{ctx, cancel, began}) // the one before ends by itself: others may hold it
	return ctx
}

// end ends the current context, once nobody holds it any more.
func (b *budget) end() {
	if s := b.now.Load(); s != nil {
		s.cancel()
	}
}
