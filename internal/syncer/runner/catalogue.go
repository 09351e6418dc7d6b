package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/store"
)

// readAgain is how long after the binlog told of a change the activity table is read once more: the read that came at once may have been
// earlier than the change's commit (onItsWay), and what it undid would stand until the next interval.
const readAgain = 4 * onItsWay

// table keeps the catalogue equal to MySQL's activity table.
func (t *term) table(ctx context.Context) {
	tick := time.NewTicker(t.parts.Config.ActivityInterval)
	defer tick.Stop()
	var again <-chan time.Time
	for {
		err := t.bring(ctx)
		if ctx.Err() != nil {
			return
		}
		t.health.Set(healthTable, err)
		if err != nil {
			t.log.Warn("the catalogue of activities is not up to date", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-again:
			again = nil
		case <-t.dir.look:
			again = time.After(readAgain)
		}
	}
}

// bring reads the table and publishes it.
func (t *term) bring(ctx context.Context) error {
	t.turn.Lock()
	defer t.turn.Unlock()
	if err := t.readTable(ctx); err != nil {
		return err
	}
	return t.publish(ctx)
}

// readTable has to have the turn.
func (t *term) readTable(ctx context.Context) error {
	rows, err := t.parts.Store.Activities(ctx)
	if err != nil {
		return fmt.Errorf("read the activity table: %w", err)
	}
	t.dir.Read(rows)
	kick(t.dir.watch)
	return nil
}

// publish writes what differs to Redis, and retires what is over. It has to have the turn since the table was read.
func (t *term) publish(ctx context.Context) error {
	have, err := t.parts.Ledger.Catalogue(ctx)
	missing := errors.Is(err, ledger.ErrNoCatalogue)
	if err != nil && !missing {
		// One that cannot be read is written anew; a Redis that does not answer refuses that too.
		t.log.Warn("the catalogue in redis is not readable", zap.Error(err))
		missing = true
	}
	if missing {
		have = &ledger.Catalogue{Activities: map[int64]ledger.Activity{}}
	}
	want := &ledger.Catalogue{Activities: map[int64]ledger.Activity{}, Timings: t.parts.Config.Timings()}
	now := time.Now()
	for _, a := range t.dir.Wanted(now) {
		_, listed := have.Activities[a.ID]
		// One that lies ahead is loaded first: as long as it is not listed its load knows that nobody can have bought, and is
		// short. One that has begun has to be outwaited anyway, and its buyers shall hear 503 meanwhile, not 404.
		if listed || missing || t.loads.wasTried(a.ID) || a.StartsAtMs <= now.UnixMilli() {
			want.Activities[a.ID] = a
		}
	}
	var over []ledger.Activity
	open := map[int64]ledger.Activity{}
	there := have.Activities
	if !t.primed {
		if there, err = t.withForgotten(ctx, there, now); err != nil {
			return err
		}
	}
	for id, a := range there {
		if _, wanted := want.Activities[id]; wanted {
			continue
		}
		left, retire, err := t.mayRetire(ctx, a)
		if err != nil {
			return err
		}
		if !retire {
			want.Activities[id], open[id] = left, left
			continue
		}
		over = append(over, a)
	}
	t.dir.LeaveOpen(open)
	// The catalogue, which is written first, tells nothing of the keys. Should anything from here on fail, though only for a reply that is
	// lost, the next pass tells Redis everything once more.
	primed := t.primed
	t.primed = false
	if missing || have.Timings != want.Timings || !maps.Equal(have.Activities, want.Activities) {
		if err := t.parts.Ledger.PutCatalogue(ctx, want); err != nil {
			return err
		}
	}
	var refused []error
	for id, a := range want.Activities {
		// At first all of them: their keys also hold the retention, which this syncer's configuration may have changed.
		if primed && have.Activities[id] == a {
			continue
		}
		known, err := t.parts.Ledger.SetActivity(ctx, a)
		switch {
		case err != nil && !known:
			return err
		case err != nil: // for good, until a person mends the row: the others shall not wait for that
			refused = append(refused, err)
		}
	}
	if err := t.retire(ctx, over); err != nil {
		return errors.Join(append(refused, err)...)
	}
	t.primed = true
	return errors.Join(refused...)
}

// withForgotten adds what Redis still has of activities that are over and not listed any more: whoever took them off the list did not
// come to remove their keys.
func (t *term) withForgotten(ctx context.Context, listed map[int64]ledger.Activity, now time.Time) (map[int64]ledger.Activity, error) {
	all := maps.Clone(listed)
	for part := range slices.Chunk(t.dir.Over(now), 500) {
		part = slices.DeleteFunc(part, func(a ledger.Activity) bool { _, is := listed[a.ID]; return is })
		ids := make([]int64, len(part))
		for i, a := range part {
			ids[i] = a.ID
		}
		looks, err := t.parts.Ledger.Inspect(ctx, ids...)
		if err != nil {
			return nil, err
		}
		for i, look := range looks {
			if look.Exists {
				all[part[i].ID] = part[i]
			}
		}
	}
	return all, nil
}

// mayRetire says whether an activity that is over, or that MySQL no longer has, can be removed: nothing may be open. Where it
// cannot, left is what the catalogue shall say of it.
func (t *term) mayRetire(ctx context.Context, a ledger.Activity) (left ledger.Activity, retire bool, err error) {
	looks, err := t.parts.Ledger.Inspect(ctx, a.ID)
	if err != nil {
		return a, false, err
	}
	look := looks[0]
	if look.Exists && look.State != ledger.Closed && look.NowMs < look.Activity.EndsAtMs {
		// Its row seems to have been deleted in the middle of the sale. The table may have been read before the row was written.
		row, err := t.parts.Store.Activity(ctx, a.ID)
		switch {
		case err == nil:
			a = row
			t.dir.Changed(row)
		case errors.Is(err, store.ErrNoActivity):
			a.State = ledger.Closed // what is open is settled as usual
		default:
			return a, false, err
		}
		_, err = t.parts.Ledger.SetActivity(ctx, a)
		return a, false, err
	}
	return a, look.LedgerLen == 0, nil
}

// retire removes keys. The catalogue comes first: were the keys gone and the activity listed, they would be loaded again.
func (t *term) retire(ctx context.Context, over []ledger.Activity) error {
	var failed []error
	for _, a := range over {
		if err := t.parts.Ledger.Retire(ctx, a.ID); err != nil {
			failed = append(failed, err)
			continue
		}
		t.log.Info("retired", zap.Int64("activity", a.ID))
	}
	return errors.Join(failed...)
}
