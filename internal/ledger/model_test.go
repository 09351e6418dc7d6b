package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/order"
)

// The model test plays everything around Redis in memory (gateways, Kafka, worker, MySQL, syncer) and runs the real
// scripts on a real server, in random interleavings with crashes, losses, late copies and repetitions. After each step it
// checks what must hold at every moment, and after each run what must hold once all is quiet:
//
//	I1 never more sold than there was    I2 stock equal, nothing pending    I3 one live order a buyer
//	I4 queued lands, refused never does  I5 available never above the truth I6 nobody locked out
//
// A run is a list of steps, each with a seed of its own, so that steps can be left out to shrink a failure.
type world struct {
	ctx context.Context
	l   *Ledger
	rdb *redis.Client
	k   Keys
	id  int64
	rnd *rand.Rand // of the current step

	// MySQL.
	units, stock, version int64
	restocks              int
	orders                map[string]modelOrder
	live                  map[string]string
	// Kafka.
	log       []Reservation
	committed int
	// Gateways.
	n        int
	publish  map[string]Reservation // reserved, publish under way
	late     []Reservation          // copies of reserve calls that are still on their way
	expired  int                    // how many of late are past their deadline
	old      map[string]bool        // older than the publish budget: can no longer be published by its gateway
	queued   map[string]bool        // told
	refused  map[string]bool        // told
	settles  []modelSettle
	binlog   []Settlement
	position int
	// Syncer.
	load *modelLoad
	// What a replica, or a file on disk, has of Redis.
	replica map[string]string
}

type modelOrder struct {
	r    Reservation
	dead bool
}

type modelSettle struct {
	s  Settlement
	to int
}

type modelLoad struct {
	epoch    string
	doubtful bool
	position int
	records  []Reservation
	snapshot map[string]modelOrder
	stock    int64
	version  int64
	stage    int
}

type step struct {
	action string
	seed   uint64
}

var actions = func() []string {
	weights := map[string]int{
		"buy": 10, "late": 3, "published": 6, "publish fails": 2, "gateway dies": 1, "land": 5, "settle": 5, "deliver again": 2,
		"binlog": 6, "binlog again": 1, "sweep": 2, "restock": 1, "cancel": 2, "redis lost": 1, "redis copied": 2, "redis stale": 1, "load": 6,
		"compare": 2, "result expires": 2, "grow old": 2,
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		for range weights[name] {
			all = append(all, name)
		}
	}
	return all
}()

func newWorld(ctx context.Context, rdb *redis.Client, l *Ledger, id int64, seed uint64) (*world, error) {
	w := &world{
		ctx: ctx, l: l, rdb: rdb, id: id, k: KeysOf(id), rnd: rand.New(rand.NewPCG(seed, 0)), version: 1,
		orders: map[string]modelOrder{}, live: map[string]string{}, publish: map[string]Reservation{},
		old: map[string]bool{}, queued: map[string]bool{}, refused: map[string]bool{},
	}
	w.units = 1 + w.rnd.Int64N(6)
	w.stock = w.units
	for w.load == nil || w.load.stage > 0 {
		if err := w.loading(); err != nil {
			return nil, err
		}
		if w.load == nil {
			return w, nil
		}
	}
	return w, nil
}

func (w *world) chance(p float64) bool { return w.rnd.Float64() < p }

func pick[K comparable, V any](w *world, m map[K]V, less func(a, b K) int) (K, bool) {
	if len(m) == 0 {
		var none K
		return none, false
	}
	keys := slices.SortedFunc(maps.Keys(m), less)
	return keys[w.rnd.IntN(len(keys))], true
}

func (w *world) do(s step) error {
	w.rnd = rand.New(rand.NewPCG(s.seed, 1))
	switch s.action {
	case "buy":
		return w.buy()
	case "late":
		return w.lateCopy()
	case "published":
		if id, ok := pick(w, w.publish, strings.Compare); ok && !w.old[id] {
			w.log = append(w.log, w.publish[id])
			delete(w.publish, id)
			w.queued[id] = true
		}
	case "publish fails": // provably not sent
		if id, ok := pick(w, w.publish, strings.Compare); ok {
			r := w.publish[id]
			delete(w.publish, id)
			return w.giveBack(r)
		}
	case "gateway dies":
		for _, id := range slices.Sorted(maps.Keys(w.publish)) {
			if !w.old[id] && w.chance(0.5) {
				w.log = append(w.log, w.publish[id])
			}
			delete(w.publish, id)
		}
	case "land":
		if w.committed < len(w.log) {
			to := min(len(w.log), w.committed+1+w.rnd.IntN(3))
			s := w.land(w.log[w.committed:to])
			if w.chance(0.8) { // else the worker dies before it settles, and meets the records again
				w.settles = append(w.settles, modelSettle{s, to})
			}
		}
	case "settle":
		if len(w.settles) > 0 {
			i := w.rnd.IntN(len(w.settles))
			m := w.settles[i]
			w.settles = slices.Delete(w.settles, i, i+1)
			if err := w.settle(m.s); err != nil {
				return err
			}
			if w.chance(0.7) && m.to > w.committed && m.to-w.committed <= 3 {
				w.committed = m.to
			}
		}
	case "deliver again":
		if len(w.log) > 0 {
			return w.settle(w.land([]Reservation{w.log[w.rnd.IntN(len(w.log))]}))
		}
	case "binlog":
		if w.position < len(w.binlog) {
			if err := w.settle(w.binlog[w.position]); err != nil {
				return err
			}
			if w.chance(0.8) {
				w.position++
			}
		}
	case "binlog again":
		w.position = max(0, w.position-w.rnd.IntN(4))
	case "sweep":
		return w.sweep()
	case "restock":
		if w.restocks < 3 {
			w.restocks++
			w.units++
			w.change(1)
			w.binlog = append(w.binlog, Settlement{Version: w.version, Stock: w.stock})
		}
	case "cancel":
		if user, ok := pick(w, w.live, strings.Compare); ok && w.chance(0.3) {
			w.cancel(w.live[user])
		}
	case "redis lost":
		if w.chance(0.25) {
			return w.forget()
		}
	case "redis stale":
		if w.replica != nil && w.chance(0.25) {
			return w.promote()
		}
	case "redis copied":
		return w.copyRedis()
	case "load":
		return w.loadOn()
	case "compare":
		return w.compare()
	case "result expires":
		// Results outlive every publish by a day.
		if id, ok := pick(w, w.old, strings.Compare); ok && w.publish[id].Order == "" {
			return w.rdb.Del(w.ctx, w.k.Result(id)).Err()
		}
	case "grow old": // the publish budget of everything under way passes; so do the deadlines, which are shorter
		for _, e := range w.entries() {
			w.old[e.Order] = true // its gateway may not have heard yet what became of its publish
		}
		w.expired = len(w.late)
	}
	return nil
}

func (w *world) now() int64 { return time.Now().UnixMilli() }

func (w *world) reserve(r Reservation, expired bool) (Decision, error) {
	r.NotAfterMs = w.now() + 60_000
	if expired {
		r.NotAfterMs = w.now() - 1000
	}
	d, err := w.l.Reserve(w.ctx, w.id, []Reservation{r})
	if err != nil {
		return Decision{}, err
	}
	return d[0], nil
}

func (w *world) buy() error {
	w.n++
	r := Reservation{
		Order: fmt.Sprintf("00000000-0000-7000-8000-%012d", w.n), Nonce: fmt.Sprint(w.n), User: fmt.Sprint("u", w.rnd.IntN(5)),
		Quantity: 1 + int64(w.rnd.IntN(3)/2),
	}
	copied := w.chance(0.2)
	d, err := w.reserve(r, false)
	if err != nil {
		return err
	}
	if copied {
		w.late = append(w.late, r)
	}
	switch d.Code {
	case Reserved:
		w.publish[r.Order] = r
	case SoldOut, AlreadyHas:
		if !copied {
			w.refused[r.Order] = true
			return nil
		}
		return w.giveBack(r) // fenced before it is told
	}
	return nil
}

func (w *world) giveBack(r Reservation) error {
	age := time.Hour
	if w.old[r.Order] {
		age = -time.Millisecond
	}
	got, err := w.l.Release(w.ctx, w.id, r, age)
	if err == nil && got == ReleasedNow {
		w.refused[r.Order] = true
	}
	if redis.HasErrorPrefix(err, "NOTLOADED") {
		return nil // not answered: the buyer hears processing
	}
	return err
}

func (w *world) lateCopy() error {
	if len(w.late) == 0 {
		return nil
	}
	i := w.rnd.IntN(len(w.late))
	r := w.late[i]
	expired := i < w.expired
	w.late = slices.Delete(w.late, i, i+1)
	if expired {
		w.expired--
	}
	_, err := w.reserve(r, expired)
	return err
}

func (w *world) change(by int64) {
	w.stock += by
	w.version++
}

// land is the worker's transaction.
func (w *world) land(records []Reservation) Settlement {
	s := Settlement{Source: FromWorker}
	var fresh []Outcome
	for _, r := range records {
		o, ok := w.orders[r.Order]
		if !ok {
			o = modelOrder{r: r}
			if w.live[r.User] != "" || w.stock < r.Quantity {
				o.dead = true
			} else {
				w.change(-r.Quantity)
				w.live[r.User] = r.Order
			}
			w.orders[r.Order] = o
			fresh = append(fresh, w.outcome(o))
		}
		s.Orders = append(s.Orders, w.outcome(o))
	}
	s.Version, s.Stock = w.version, w.stock
	if len(fresh) > 0 {
		w.binlog = append(w.binlog, Settlement{Version: w.version, Stock: w.stock, Orders: fresh})
	}
	return s
}

func (w *world) cancel(id string) {
	o := w.orders[id]
	o.dead = true
	w.orders[id] = o
	delete(w.live, o.r.User)
	w.change(o.r.Quantity)
	w.binlog = append(w.binlog, Settlement{Version: w.version, Stock: w.stock, Orders: []Outcome{w.outcome(o)}})
}

func (w *world) outcome(o modelOrder) Outcome {
	out := Outcome{Order: o.r.Order, User: o.r.User, Item: 1, Quantity: o.r.Quantity, Status: order.Confirmed}
	if o.dead {
		out.Status, out.Dead = order.Failed, true
	}
	return out
}

func (w *world) settle(s Settlement) error {
	s.Activity = w.id
	got, err := w.l.Settle(w.ctx, s)
	if err == nil && got.Broken {
		err = errors.New("settle found pending below its ledger")
	}
	return err
}

func (w *world) keys() []string {
	keys := w.k.base(w.n)
	for i := range w.n {
		keys = append(keys, w.k.Result(fmt.Sprintf("00000000-0000-7000-8000-%012d", i+1)))
	}
	return keys
}

func (w *world) forget() error {
	w.load = nil
	return w.rdb.Del(w.ctx, w.keys()...).Err()
}

func (w *world) copyRedis() error {
	w.replica = map[string]string{}
	for _, key := range w.keys() {
		v, err := w.rdb.Dump(w.ctx, key).Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return err
		}
		w.replica[key] = v
	}
	return nil
}

// promote is a fail-over to a replica that misses the last writes, or a restart from an old file.
func (w *world) promote() error {
	if err := w.forget(); err != nil {
		return err
	}
	for key, v := range w.replica {
		if err := w.rdb.Restore(w.ctx, key, 0, v).Err(); err != nil {
			return err
		}
	}
	return w.rdb.HSet(w.ctx, w.k.Activity, "server", "aa:bb").Err()
}

func (w *world) look() (Snapshot, error) {
	s, err := w.l.Inspect(w.ctx, w.id)
	if err != nil {
		return Snapshot{}, err
	}
	return s[0], nil
}

func (w *world) entries() []Entry {
	var all []Entry
	for cursor := uint64(0); ; {
		part, next, err := w.l.ScanLedger(w.ctx, w.id, cursor, 1000)
		if err != nil {
			return nil
		}
		all = append(all, part...)
		if cursor = next; cursor == 0 {
			return all
		}
	}
}

// loadOn takes the next step of a load; one that was fenced begins anew.
func (w *world) loadOn() error {
	err := w.loading()
	if errors.Is(err, ErrFenced) {
		w.load = nil
		return nil
	}
	return err
}

// loading takes the next step of a load, so that everything else may come in between.
func (w *world) loading() error {
	if w.load == nil {
		s, err := w.look()
		if err != nil || (s.Loaded && s.SameServer) {
			return err
		}
		now := w.now()
		l, err := w.l.LoadBegin(w.ctx, Activity{ID: w.id, Item: 1, StartsAtMs: now - 1000, EndsAtMs: now + 3_600_000, MaxPerUser: 9, State: Open})
		if err != nil {
			return err
		}
		// Wait out the publish budget and the reserve deadline: every publish ends, one way or the other.
		for _, id := range slices.Sorted(maps.Keys(w.publish)) {
			if !w.old[id] && w.chance(0.7) {
				w.log = append(w.log, w.publish[id])
				w.queued[id] = true
			}
			delete(w.publish, id)
		}
		w.expired = len(w.late)
		for i := range w.n {
			w.old[fmt.Sprintf("00000000-0000-7000-8000-%012d", i+1)] = true
		}
		w.load = &modelLoad{epoch: l.Epoch, doubtful: l.Doubtful, stage: 1, position: len(w.binlog)}
		w.load.records = slices.Clone(w.log[w.committed:])
		return nil
	}
	m := w.load
	switch m.stage {
	case 1:
		m.snapshot, m.stock, m.version = maps.Clone(w.orders), w.stock, w.version
	case 2:
		var all []Outcome
		for _, id := range slices.Sorted(maps.Keys(m.snapshot)) {
			all = append(all, w.outcome(m.snapshot[id]))
		}
		if err := w.l.LoadOrders(w.ctx, w.id, m.epoch, all); err != nil {
			return err
		}
	case 3:
		var back, drop []Entry
		for _, e := range w.entries() {
			_, has := m.snapshot[e.Order]
			published := slices.ContainsFunc(m.records, func(r Reservation) bool { return r.Order == e.Order })
			switch {
			case has: // it landed
			case m.doubtful && !published:
				drop = append(drop, e)
			default:
				back = append(back, e)
			}
		}
		if err := w.l.LoadDrop(w.ctx, w.id, m.epoch, drop); err != nil {
			return err
		}
		for _, r := range m.records {
			if _, has := m.snapshot[r.Order]; !has {
				back = append(back, Entry{Order: r.Order, User: r.User, Item: 1, Quantity: r.Quantity, ReservedAtMs: w.now()})
			}
		}
		if err := w.l.LoadEntries(w.ctx, w.id, m.epoch, back); err != nil {
			return err
		}
	case 4:
		if _, err := w.l.LoadFinish(w.ctx, w.id, m.epoch, m.version, m.stock, Open); err != nil {
			return err
		}
		w.position = min(w.position, m.position)
		w.load = nil
		for id, o := range m.snapshot {
			if o.dead || w.orders[id].dead {
				continue
			}
			if held, err := w.l.BuyersOf(w.ctx, w.id, []string{o.r.User}); err != nil || held[0] != id {
				return errors.Join(fmt.Errorf("I3: after a load %s holds %v, not %s", o.r.User, held, id), err)
			}
		}
		return nil
	}
	m.stage++
	return nil
}

// sweep is the outbox: what has a row is settled; what is old, has none and can be in no unlanded record is published again.
func (w *world) sweep() error {
	// On another server an entry may be one that was released: it is for a load to look at, not for the sweep.
	s, err := w.look()
	if err != nil || !s.Loaded || !s.SameServer {
		return err
	}
	landed := w.committed == len(w.log)
	for _, e := range w.entries() {
		if o, ok := w.orders[e.Order]; ok {
			if err := w.settle(Settlement{Version: w.version, Stock: w.stock, Orders: []Outcome{w.outcome(o)}}); err != nil {
				return err
			}
		} else if w.old[e.Order] && landed {
			w.log = append(w.log, Reservation{Order: e.Order, User: e.User, Quantity: e.Quantity})
		}
	}
	return nil
}

func (w *world) compare() error {
	s, err := w.look()
	if err != nil || !s.Loaded || !s.SameServer {
		return err
	}
	if w.version > s.Version {
		if err := w.settle(Settlement{Version: w.version, Stock: w.stock}); err != nil {
			return err
		}
	}
	buyers, _, err := w.l.ScanBuyers(w.ctx, w.id, 0, 1000)
	if err != nil {
		return err
	}
	for _, b := range buyers {
		o, has := w.orders[b.Order]
		switch {
		case has && o.dead:
			if err := w.settle(Settlement{Orders: []Outcome{w.outcome(o)}}); err != nil {
				return err
			}
		case !has && !b.InLedger:
			if _, err := w.l.FreeBuyers(w.ctx, w.id, []Buyer{b}); err != nil {
				return err
			}
		}
	}
	for user, id := range w.live {
		if _, err := w.l.AddBuyers(w.ctx, w.id, []Buyer{{User: user, Order: id}}); err != nil {
			return err
		}
	}
	return nil
}

// check is what holds at every moment.
func (w *world) check() error {
	var sold int64
	holder := map[string]string{}
	for id, o := range w.orders {
		if o.dead {
			continue
		}
		sold += o.r.Quantity
		if other := holder[o.r.User]; other != "" {
			return fmt.Errorf("I3: %s has %s and %s", o.r.User, other, id)
		}
		holder[o.r.User] = id
	}
	if w.stock < 0 || sold+w.stock != w.units {
		return fmt.Errorf("I1: sold %d, left %d, of %d", sold, w.stock, w.units)
	}
	s, err := w.look()
	if err != nil || !s.Loaded {
		return err
	}
	var sum int64
	for _, e := range w.entries() {
		sum += e.Quantity
		if held, err := w.l.BuyersOf(w.ctx, w.id, []string{e.User}); err != nil || held[0] == "" {
			return errors.Join(fmt.Errorf("I3: %s has the open reservation %s and could make another", e.User, e.Order), err)
		}
	}
	if sum != s.Pending {
		return fmt.Errorf("I5: pending %d, the ledger sums up to %d", s.Pending, sum)
	}
	if !s.SameServer {
		return nil // nothing is sold
	}
	truth, counted := w.stock, map[string]bool{}
	may := append(slices.Collect(maps.Values(w.publish)), w.log...)
	for _, r := range may {
		if _, landed := w.orders[r.Order]; !landed && !counted[r.Order] {
			counted[r.Order] = true
			truth -= r.Quantity
		}
	}
	if s.Available > max(truth, 0) {
		return fmt.Errorf("I5: available %d above the truth %d", s.Available, truth)
	}
	return nil
}

// quiet lets everything end and checks what holds then.
func (w *world) quiet() error {
	for w.load != nil {
		if err := w.loadOn(); err != nil {
			return err
		}
	}
	for {
		s, err := w.look()
		if err != nil {
			return err
		}
		if s.Loaded && s.SameServer {
			break
		}
		if err := w.loadOn(); err != nil {
			return err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.publish)) {
		if !w.old[id] {
			w.log = append(w.log, w.publish[id])
			w.queued[id] = true
		}
	}
	clear(w.publish)
	for len(w.late) > 0 {
		w.expired = len(w.late)
		if err := w.lateCopy(); err != nil {
			return err
		}
	}
	for _, m := range w.settles {
		if err := w.settle(m.s); err != nil {
			return err
		}
	}
	for i := range w.n {
		w.old[fmt.Sprintf("00000000-0000-7000-8000-%012d", i+1)] = true
	}
	for range 3 {
		if err := w.settle(w.land(w.log[w.committed:])); err != nil {
			return err
		}
		w.committed = len(w.log)
		for ; w.position < len(w.binlog); w.position++ {
			s := w.binlog[w.position]
			s.Source = FromBinlog
			if err := w.settle(s); err != nil {
				return err
			}
		}
		if err := w.sweep(); err != nil {
			return err
		}
		if err := w.compare(); err != nil {
			return err
		}
	}
	return w.atRest()
}

func (w *world) atRest() error {
	s, err := w.look()
	if err != nil {
		return err
	}
	if !s.Loaded || s.Stock != w.stock || s.Pending != 0 || s.LedgerLen != 0 {
		return fmt.Errorf("I2: redis has stock %d, pending %d, %d entries; mysql %d", s.Stock, s.Pending, s.LedgerLen, w.stock)
	}
	for id := range w.queued {
		if _, ok := w.orders[id]; !ok {
			return fmt.Errorf("I4: %s was told queued and has no row", id)
		}
	}
	for id := range w.refused {
		if o, ok := w.orders[id]; ok && !o.dead {
			return fmt.Errorf("I4: %s was refused and landed", id)
		}
	}
	buyers, _, err := w.l.ScanBuyers(w.ctx, w.id, 0, 1000)
	if err != nil {
		return err
	}
	for _, b := range buyers {
		if w.live[b.User] != b.Order {
			return fmt.Errorf("I6: %s is locked out by %s", b.User, b.Order)
		}
	}
	if len(buyers) != len(w.live) {
		return fmt.Errorf("I3: redis knows %d buyers of %d", len(buyers), len(w.live))
	}
	return w.check()
}

// play runs the steps and reports after how many something broke.
func play(ctx context.Context, rdb *redis.Client, l *Ledger, id int64, seed uint64, steps []step) (int, error) {
	w, err := newWorld(ctx, rdb, l, id, seed)
	if err != nil {
		return 0, err
	}
	defer func() { _ = w.forget() }()
	for i, s := range steps {
		if err := w.do(s); err != nil {
			return i + 1, err
		}
		if err := w.check(); err != nil {
			return i + 1, err
		}
	}
	return len(steps), w.quiet()
}

func stepsOf(seed uint64, n int) []step {
	rnd := rand.New(rand.NewPCG(seed, 2))
	steps := make([]step, n)
	for i := range steps {
		steps[i] = step{actions[rnd.IntN(len(actions))], rnd.Uint64()}
	}
	return steps
}

// shrink leaves out every step without which it still breaks.
func shrink(steps []step, breaks func([]step) bool) []step {
	for size := len(steps) / 2; size >= 1; size /= 2 {
		for at := 0; at+size <= len(steps); {
			shorter := slices.Concat(steps[:at], steps[at+size:])
			if breaks(shorter) {
				steps = shorter
			} else {
				at += size
			}
		}
	}
	return steps
}

// explore plays runs until one breaks, and returns it shrunk, with what broke.
func explore(t *testing.T, rdb *redis.Client, first, runs uint64, length int) (uint64, []step, error) {
	t.Helper()
	l := New(rdb, Options{})
	for seed := first; seed < first+runs; seed++ {
		steps := stepsOf(seed, length)
		at, err := play(t.Context(), rdb, l, int64(seed)+1, seed, steps)
		if err == nil {
			continue
		}
		steps = shrink(steps[:at], func(s []step) bool {
			_, err := play(t.Context(), rdb, l, int64(seed)+1, seed, s)
			return err != nil
		})
		_, err = play(t.Context(), rdb, l, int64(seed)+1, seed, steps)
		return seed, steps, err
	}
	return 0, nil, nil
}

func describe(steps []step) string {
	var b strings.Builder
	for i, s := range steps {
		fmt.Fprintf(&b, "\n  %2d %s", i+1, s.action)
	}
	return b.String()
}
