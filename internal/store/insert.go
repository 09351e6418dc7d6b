package store

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
)

// Bounds of one INSERT: 9 parameters a row are far from MySQL's 65,535, and 1 MiB from any sane max_allowed_packet.
const (
	insertRows  = 1000
	insertBytes = 1 << 20
)

func rowArgs(o *order.Order, out ledger.Outcome) []any {
	var extra any
	if len(o.Extra) > 0 {
		extra = string(o.Extra)
	}
	return []any{o.ID, o.Activity, o.User, o.Item, o.Quantity, string(out.Status), out.Reason, extra, o.CreatedAtMs}
}

// insert adds the fresh rows of a plan, in statements as wide as they may be.
func (x *session) insert(ctx context.Context, b *batch, p plan) error {
	for begin := 0; begin < len(p.fresh); {
		var args []any
		end, size := begin, 0
		for end < len(p.fresh) && end-begin < insertRows && size < insertBytes {
			o := b.orders[p.fresh[end]]
			args = append(args, rowArgs(o, p.outcomes[p.fresh[end]])...)
			size += 256 + len(o.User) + len(o.Extra)
			end++
		}
		if _, err := x.exec(ctx, x.s.sql.insert(end-begin), args...); err != nil {
			switch {
			case number(err) == errDuplicate && x.s.ownKey(err):
				return fmt.Errorf("%w: %w", errTaken, err)
			case number(err) == errDuplicate || refusesRow(err):
				return x.refused(ctx, b, p, begin, end, err)
			}
			return err
		}
		begin = end
	}
	return nil
}

// ownKey says whether a duplicate was met in a key of ours, as opposed to one that the shop added to the table, which no look at
// our own keys would ever explain. MySQL names the key as `key` or `table.key`.
func (s *Store) ownKey(err error) bool {
	msg := err.Error()
	for _, key := range []string{"PRIMARY", keyLive} {
		if strings.Contains(msg, "'"+key+"'") || strings.Contains(msg, "."+key+"'") {
			return true
		}
	}
	return false
}

var atRow = regexp.MustCompile(`at row (\d+)$`)

// refused finds out which row of an INSERT was refused for good.
func (x *session) refused(ctx context.Context, b *batch, p plan, begin, end int, cause error) error {
	if m := atRow.FindStringSubmatch(cause.Error()); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil && n >= 1 && n <= end-begin {
			return &ErrRowRefused{Index: b.index[p.fresh[begin+n-1]], Err: cause}
		}
	}
	// The message does not say: insert one by one. The transaction is rolled back in any case.
	for _, i := range p.fresh[begin:end] {
		o := b.orders[i]
		_, err := x.exec(ctx, x.s.sql.insert(1), rowArgs(o, p.outcomes[i])...)
		switch {
		case err == nil:
		case number(err) == errDuplicate && x.s.ownKey(err):
			return fmt.Errorf("%w: %w", errTaken, err)
		case number(err) == errDuplicate || refusesRow(err):
			return &ErrRowRefused{Index: b.index[i], Err: err}
		default:
			return errors.Join(err, cause)
		}
	}
	return cause
}
