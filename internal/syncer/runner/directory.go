package runner

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// directory is what the leader knows of the activities: MySQL's rows, those that cannot be trusted, and those that are to
// be compared soon. It implements follow.Directory.
type directory struct {
	grace time.Duration

	mu      sync.Mutex
	rows    map[int64]ledger.Activity
	open    map[int64]ledger.Activity // over for longer than the grace, or without a row, but with reservations that are not settled
	suspect map[int64]string
	compare map[int64]bool
	young   bool          // and look up young reservations too
	all     bool          // compare all of them
	look    chan struct{} // read the activity table, and see to the catalogue
	soon    chan struct{} // compare
	watch   chan struct{} // look at the keys
}

func newDirectory(grace time.Duration) *directory {
	return &directory{
		grace: grace, rows: map[int64]ledger.Activity{}, suspect: map[int64]string{}, compare: map[int64]bool{},
		look: make(chan struct{}, 1), soon: make(chan struct{}, 1), watch: make(chan struct{}, 1),
	}
}

func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Read replaces what is known of the table.
func (d *directory) Read(rows []ledger.Activity) {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.rows)
	for _, a := range rows {
		d.rows[a.ID] = a
	}
}

// Wanted lists the activities that Redis should have: all but those that are over for longer than the grace.
func (d *directory) Wanted(now time.Time) []ledger.Activity {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []ledger.Activity
	for _, a := range d.rows {
		if now.Before(time.UnixMilli(a.EndsAtMs).Add(d.grace)) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b ledger.Activity) int { return int(a.StartsAtMs - b.StartsAtMs) })
	return out
}

// Over lists the activities of the table that are over for longer than the grace.
func (d *directory) Over(now time.Time) []ledger.Activity {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []ledger.Activity
	for _, a := range d.rows {
		if !now.Before(time.UnixMilli(a.EndsAtMs).Add(d.grace)) {
			out = append(out, a)
		}
	}
	return out
}

// LeaveOpen notes which activities Redis has beyond those that it should have, since they cannot be removed yet.
func (d *directory) LeaveOpen(open map[int64]ledger.Activity) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = open
}

// Tended lists the activities that have to be looked after: those that Redis should have, and those that are left open there, or what
// is open in them would stay so for ever. Without a row an activity can be swept, but not loaded.
func (d *directory) Tended(now time.Time, withoutRow bool) []ledger.Activity {
	out := d.Wanted(now)
	wanted := make(map[int64]bool, len(out))
	for _, a := range out {
		wanted[a.ID] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(d.open)) {
		a, there := d.rows[id]
		if !there {
			a = d.open[id]
		}
		if !wanted[id] && (there || withoutRow) {
			out = append(out, a)
		}
	}
	return out
}

// OfItem lists every activity of an item, retired ones too: to settle those does nothing.
func (d *directory) OfItem(item int64) []int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []int64
	for id, a := range d.rows {
		if a.Item == item {
			out = append(out, id)
		}
	}
	return out
}

// Changed notes a row of the activity table, and has the catalogue follow at once.
func (d *directory) Changed(a ledger.Activity) {
	d.mu.Lock()
	d.rows[a.ID] = a
	d.mu.Unlock()
	kick(d.watch)
	kick(d.look)
}

// Look has the activity table read again.
func (d *directory) Look() { kick(d.look) }

// NeedsLoad has an activity loaded again.
func (d *directory) NeedsLoad(activity int64, why error) {
	d.mu.Lock()
	d.suspect[activity] = why.Error()
	d.mu.Unlock()
	kick(d.watch)
}

// Suspect says why an activity must be loaded although its keys look well.
func (d *directory) Suspect(activity int64) (string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	why, ok := d.suspect[activity]
	return why, ok
}

// Trust forgets a suspicion.
func (d *directory) Trust(activity int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.suspect, activity)
}

// NeedsCompare has an activity compared soon; 0: all.
func (d *directory) NeedsCompare(activity int64) {
	d.mu.Lock()
	if activity == 0 {
		d.all = true
	} else {
		d.compare[activity] = true
	}
	d.mu.Unlock()
	kick(d.soon)
}

// LoadedElsewhere has an activity compared that somebody else loaded: the stream did not go back for what it missed.
func (d *directory) LoadedElsewhere(activity int64) {
	d.mu.Lock()
	d.young = true
	d.mu.Unlock()
	d.NeedsCompare(activity)
}

// ToCompare takes the requests to compare: everything, or these.
func (d *directory) ToCompare() (all, young bool, ids map[int64]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all, young, ids = d.all, d.young, d.compare
	d.all, d.young, d.compare = false, false, map[int64]bool{}
	return all, young, ids
}
