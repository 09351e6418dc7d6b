package edge

import (
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// complainEvery is the time from one line about refused orders to the next of its kind.
const complainEvery = 10 * time.Second

// complaint tells why orders are refused where no other part would: Redis can be read, but takes no reservations (its memory is
// full, a right is missing); Kafka is well, but takes no records (they are too large for it, its clock is another).
type complaint struct {
	log  *zap.Logger
	text string

	mu   sync.Mutex
	next time.Time
	kept int // refusals since the last line
}

func newComplaint(log *zap.Logger, text string) *complaint { return &complaint{log: log, text: text} }

func (c *complaint) make(activity int64, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept++
	now := time.Now()
	if now.Before(c.next) {
		return
	}
	c.log.Warn(c.text, zap.Int64("activity", activity), zap.Int("refused", c.kept), zap.Error(why))
	c.next, c.kept = now.Add(complainEvery), 0
}

// errOf is what the reserve script met at a key of one buyer's.
func errOf(d ledger.Decision) error {
	if d.Code != ledger.BadKey {
		return nil
	}
	return errors.New(d.Err)
}
