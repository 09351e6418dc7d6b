package compare

import (
	"context"
	"strconv"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// part is how many buyers one step deals with.
const part = 500

// buyersOfRedis frees the buyers whose order no longer holds their place. A buyer whose order is in the ledger is left
// alone: that order has not been decided.
func (w *work) buyersOfRedis(ctx context.Context) error {
	for cursor := uint64(0); ; {
		buyers, next, err := w.Ledger.ScanBuyers(ctx, w.out.ID, cursor, part)
		if err != nil {
			return err
		}
		if err := w.free(ctx, buyers); err != nil {
			return err
		}
		if cursor = next; cursor == 0 || w.out.overCap {
			return nil
		}
	}
}

func (w *work) free(ctx context.Context, buyers []ledger.Buyer) error {
	byOrder := map[string]ledger.Buyer{}
	var ids []string
	for _, b := range buyers {
		if !b.InLedger {
			byOrder[b.Order] = b
			ids = append(ids, b.Order)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := w.rows(ctx, ids)
	if err != nil {
		return err
	}
	suspects := w.notLive(ids, rows)
	if len(suspects) == 0 {
		return nil
	}
	// Redis may know from the binlog what a plain read does not show yet.
	if err := w.visible(ctx); err != nil {
		return err
	}
	if rows, err = w.rows(ctx, suspects); err != nil {
		return err
	}
	ids = w.notLive(suspects, rows)
	var dead []ledger.Outcome
	var nowhere []ledger.Buyer
	for _, id := range ids {
		if !w.within() {
			break
		}
		why := "mysql has no such order, and neither has the ledger"
		row, there := rows[id]
		if there {
			why = "the order is " + string(row.Status) + " in mysql"
			dead = append(dead, row)
		} else {
			nowhere = append(nowhere, byOrder[id])
			w.out.Drift = true // the other case may be a delay
		}
		w.out.add(Repair{Kind: BuyerFreed, Order: id, User: byOrder[id].User, Why: why})
	}
	if w.opt.DryRun {
		return nil
	}
	if err := w.settle(ctx, dead); err != nil {
		return err
	}
	_, err = w.Ledger.FreeBuyers(ctx, w.out.ID, nowhere)
	return err
}

func (w *work) notLive(ids []string, rows map[string]ledger.Outcome) []string {
	var out []string
	for _, id := range ids {
		if row, there := rows[id]; !there || row.Dead {
			out = append(out, id)
		}
	}
	return out
}

// buyersOfMySQL adds the buyers of live orders that Redis does not know.
func (w *work) buyersOfMySQL(ctx context.Context) error {
	for after := ""; ; {
		rows, err := w.Store.LiveOrders(ctx, w.out.ID, after, part)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return nil
		}
		after = rows[len(rows)-1].Order
		if err := w.know(ctx, rows); err != nil {
			return err
		}
		if len(rows) < part || w.out.overCap {
			return nil
		}
	}
}

func (w *work) know(ctx context.Context, rows []ledger.Outcome) error {
	users := make([]string, len(rows))
	for i, o := range rows {
		users[i] = o.User
	}
	held, err := w.Ledger.BuyersOf(ctx, w.out.ID, users)
	if err != nil {
		return err
	}
	var missing []ledger.Buyer
	var ids []string
	for i, o := range rows {
		if held[i] != "" {
			continue // that order if it is the same; else one that is still open, and that will fail as a second one
		}
		missing = append(missing, ledger.Buyer{User: o.User, Order: o.Order})
		ids = append(ids, o.Order)
	}
	if len(missing) == 0 {
		return nil
	}
	// Whoever is not in Redis may have been freed a moment ago, by a transaction that a plain read does not show yet.
	if err := w.visible(ctx); err != nil {
		return err
	}
	now, err := w.rows(ctx, ids)
	if err != nil {
		return err
	}
	live := missing[:0]
	for _, b := range missing {
		if row, there := now[b.Order]; there && !row.Dead && w.within() {
			live = append(live, b)
			w.out.Drift = true
			w.out.add(Repair{Kind: BuyerAdded, Order: b.Order, User: b.User, Why: "mysql has this live order and redis did not know its buyer"})
		}
	}
	if w.opt.DryRun || len(live) == 0 {
		return nil
	}
	if _, err := w.Ledger.AddBuyers(ctx, w.out.ID, live); err != nil {
		return err
	}
	return w.diedMeanwhile(ctx, live)
}

// diedMeanwhile frees the buyers among those just added whose order died between the look and the write.
func (w *work) diedMeanwhile(ctx context.Context, added []ledger.Buyer) error {
	if err := w.visible(ctx); err != nil {
		return err
	}
	ids := make([]string, len(added))
	for i, b := range added {
		ids[i] = b.Order
	}
	rows, err := w.rows(ctx, ids)
	if err != nil {
		return err
	}
	var dead []ledger.Outcome
	for _, row := range rows {
		if row.Dead {
			dead = append(dead, row)
		}
	}
	return w.settle(ctx, dead)
}

// within counts a repair against the cap.
func (w *work) within() bool {
	if w.out.repairs < w.Cap {
		w.out.repairs++
		return true
	}
	if !w.out.overCap {
		w.out.overCap = true
		w.out.alarm("more than %d buyers differ; nothing more is mended: check mysql, then run `seckill-syncer force %d`", w.Cap, w.out.ID)
	}
	return false
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}
