package ledger

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seckillgate/seckillgate/internal/order"
)

// The model test plays everything around Redis in memory (gateways, Kafka, workers, MySQL, two syncers) and runs the real
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
	srv *modelServer
	k   Keys
	id  int64
	off rules
	rnd *rand.Rand // of the current step

	// MySQL.
	mysql    tables
	stocks   map[[2]int64]bool // version and stock that were together
	clock    int64             // that versions are made of
	binlog   []Settlement
	commits  []tables // the latest ones, for a replica that misses some
	failover bool     // commits were lost in this run
	toReplay bool     // and their orders have not been landed again yet
	// Kafka.
	log       []Reservation
	committed int
	// Gateways.
	n       int
	grown   int             // orders up to this one are older than the publish budget
	expired int             // and the copies of calls for orders up to this one past their deadline
	budgets int             // that have passed
	publish []publication   // reserved, publish under way
	late    []Reservation   // copies of reserve calls that are still on their way
	unknown []Reservation   // nobody heard what became of the call: it is released in the background
	queued  map[string]bool // told
	refused map[string]bool // told
	// Workers.
	settles []modelSettle
	// Syncers.
	position int  // in the binlog
	applied  int  // the furthest that Redis has seen
	behind   bool // MySQL has lost some of that
	syncers  [2]syncer
	// Redis.
	seen    *view             // nil: something was written since
	replica map[string]string // what a replica, or a file on disk, has
}

// tables is what MySQL holds.
type tables struct {
	units, stock, version int64
	restocks              int
	orders                map[string]modelOrder
	live                  map[string]string // user → order
	events                int               // of the binlog, up to here
}

func (t tables) clone() tables {
	t.orders, t.live = maps.Clone(t.orders), maps.Clone(t.live)
	return t
}

type modelOrder struct {
	r      Reservation
	status order.Status
}

func (o modelOrder) dead() bool { return o.status != order.Confirmed }

type publication struct {
	r    Reservation
	mine bool // no other request can have published it
}

type modelSettle struct {
	s        Settlement
	from, to int // of the log
}

type step struct {
	action string
	seed   uint64
}

// weights say how often each thing happens.
var weights = map[string]int{
	"buy": 20, "buy again": 2, "late copy": 6, "published": 10, "publish fails": 4, "publish unknown": 1, "release unknown": 1, "gateway dies": 2,
	"land": 10, "settle": 10, "deliver again": 4, "binlog": 12, "binlog again": 2, "position lost": 1,
	"restock": 2, "restock unnoticed": 1, "row anew": 1, "cancel": 4,
	"redis lost": 1, "redis copied": 4, "redis stale": 1, "key lost": 1, "result expires": 4, "grow old": 4,
	"load": 20, "compare": 12, "syncer dies": 1,
}

var (
	actions         = weighted(weights)
	failoverActions = weighted(weights, "mysql fails over", "mysql fails over")
)

func weighted(weights map[string]int, more ...string) []string {
	all := more
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		all = append(all, slices.Repeat([]string{name}, weights[name])...)
	}
	return all
}

func newWorld(ctx context.Context, srv *modelServer, id int64, seed uint64, off rules) (*world, error) {
	w := &world{
		l: srv.ledger, srv: srv, id: id, k: KeysOf(id), off: off, rnd: rand.New(rand.NewPCG(seed, 0)), clock: 1,
		stocks: map[[2]int64]bool{}, queued: map[string]bool{}, refused: map[string]bool{},
	}
	w.ctx = context.WithValue(ctx, worldKey{}, w)
	w.mysql = tables{version: 1, orders: map[string]modelOrder{}, live: map[string]string{}}
	w.mysql.units = 1 + w.rnd.Int64N(6)
	w.mysql.stock = w.mysql.units
	w.note()
	return w, w.syncers[0].loadNow(w)
}

func (w *world) chance(p float64) bool { return w.rnd.Float64() < p }

// take removes a random element.
func take[T any](w *world, from *[]T) (T, bool) {
	var none T
	if len(*from) == 0 {
		return none, false
	}
	i := w.rnd.IntN(len(*from))
	got := (*from)[i]
	*from = slices.Delete(*from, i, i+1)
	return got, true
}

func orderID(n int) string { return fmt.Sprintf("00000000-0000-7000-8000-%012d", n) }

// growOld lets the publish budget of orders pass, and with it the deadline of their reserve calls, which is shorter.
func (w *world) growOld(upTo int) {
	w.grown, w.expired = max(w.grown, upTo), max(w.expired, upTo)
	w.budgets++
}

// old says that an order's publish budget is over: its gateway publishes it no more.
func (w *world) old(id string) bool { return id <= orderID(w.grown) }

func (w *world) do(s step) error {
	w.rnd = rand.New(rand.NewPCG(s.seed, 1))
	w.clock++
	switch s.action {
	case "buy":
		return w.buy()
	case "buy again":
		return w.buyAgain()
	case "late copy":
		return w.lateCopy()
	case "published":
		w.published()
	case "publish fails": // provably not sent
		if p, ok := take(w, &w.publish); ok && p.mine {
			return w.giveBack(p.r)
		}
	case "publish unknown":
		if p, ok := take(w, &w.publish); ok {
			w.perhaps(p)
		}
	case "release unknown":
		if r, ok := take(w, &w.unknown); ok {
			return w.giveBack(r)
		}
	case "gateway dies":
		for _, p := range w.publish {
			w.perhaps(p)
		}
		w.publish, w.unknown = nil, nil
	case "grow old":
		w.growOld(w.n)
	case "land":
		w.landNext()
	case "settle":
		return w.settleNext()
	case "deliver again":
		if len(w.log) > 0 {
			return w.settle(w.land([]Reservation{w.log[w.rnd.IntN(len(w.log))]}))
		}
	case "restock":
		w.restock(true)
	case "restock unnoticed": // by a shop without the trigger
		w.restock(false)
	case "row anew": // REPLACE, or DELETE and INSERT
		w.rowAnew()
	case "cancel":
		w.cancelOne()
	case "mysql fails over":
		w.mysqlFailsOver()
	case "redis lost":
		if w.chance(0.5) {
			return w.forget()
		}
	case "redis copied":
		return w.copyRedis()
	case "redis stale":
		if w.replica != nil && w.chance(0.5) {
			return w.promote()
		}
	case "key lost":
		return w.loseKey()
	case "result expires":
		return w.expireResult()
	case "binlog":
		return w.follow()
	case "binlog again":
		w.position = max(0, w.position-w.rnd.IntN(4))
	case "position lost":
		return w.loadAgain()
	case "load":
		return w.someSyncer().loadOn(w)
	case "compare":
		return w.someSyncer().compareOn(w)
	case "syncer dies":
		w.someSyncer().die()
	default:
		return fmt.Errorf("no such step: %q", s.action)
	}
	return nil
}

// someSyncer is the leader, mostly.
func (w *world) someSyncer() *syncer {
	if w.chance(0.1) {
		return &w.syncers[1]
	}
	return &w.syncers[0]
}

func (w *world) now() int64 { return time.Now().UnixMilli() }
