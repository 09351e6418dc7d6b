//go:build chaos

package chaos

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seckillgate/seckillgate/internal/invariant"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// Bounds of the end of a run. They are the recovery time of I4, with room for a busy machine. A run that is only to show that
// something breaks (TestMutations) need not wait so long.
const (
	quietWithin = 3 * time.Minute
	hastyWithin = 40 * time.Second
	retryWithin = time.Minute
)

// run is one chaos run.
type run struct {
	*testing.T
	stack *stack
	plan  *Plan
	shop  *Shop
	book  *Book
	crowd *Crowd
	watch *Watch
	logs  string
	hasty bool     // end at the first finding
	notes *os.File // what the operator's commands said
	start time.Time

	out     sync.Mutex // one line at a time
	samples int
	selling int
	alarms  []alarm
	alarmed atomic.Bool
	done    []Done
}

// alarm is an invariant that was seen broken in the middle of the sale.
type alarm struct {
	at   time.Time
	text string
}

func (r *run) say(format string, args ...any) {
	r.out.Lock()
	defer r.out.Unlock()
	at := time.Duration(0)
	if !r.start.IsZero() {
		at = time.Since(r.start)
	}
	fmt.Printf("%7.1fs  %s\n", at.Seconds(), fmt.Sprintf(format, args...))
}

// positive is a number of the environment.
func positive(t *testing.T, name string, or float64) float64 {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return or
	}
	n, err := strconv.ParseFloat(v, 64)
	if err != nil || n <= 0 {
		t.Fatalf("%s=%q: want a positive number", name, v)
	}
	return n
}

// set is what the environment asks for.
type set struct {
	setup   Setup
	seed    uint64
	minutes float64
	buyers  int
	kinds   []string
	report  string
	bin     string
	logs    string
	hasty   bool
}

func settings(t *testing.T) set {
	t.Helper()
	number := func(name string, or float64) float64 { return positive(t, name, or) }
	var random [4]byte
	_, _ = rand.Read(random[:])
	c := set{
		setup: Setup(os.Getenv("CHAOS_SETUP")), minutes: number("CHAOS_MINUTES", 5), buyers: int(number("CHAOS_BUYERS", 60_000)),
		seed:   uint64(number("CHAOS_SEED", float64(binary.BigEndian.Uint32(random[:])|1))),
		report: os.Getenv("CHAOS_REPORT"), bin: os.Getenv("CHAOS_BIN"), logs: os.Getenv("CHAOS_LOGS"),
		hasty: os.Getenv("CHAOS_HASTY") != "",
	}
	if c.setup == "" {
		c.setup = Base
	}
	if v := os.Getenv("CHAOS_KINDS"); v != "" {
		c.kinds = strings.Split(v, ",")
		for i, k := range c.kinds {
			c.kinds[i] = strings.ReplaceAll(strings.TrimSpace(k), ";", ",") // some names have a comma in them
		}
	}
	for name, v := range map[string]*string{"CHAOS_BIN": &c.bin, "CHAOS_LOGS": &c.logs} {
		if *v == "" {
			t.Fatalf("%s is unset: run this by `make chaos`, which builds the programs first", name)
		}
	}
	return c
}

// again is the command that repeats the run.
func (c *set) again() string {
	s := fmt.Sprintf("make chaos CHAOS_SEED=%d CHAOS_MINUTES=%g CHAOS_SETUP=%s", c.seed, c.minutes, c.setup)
	if c.buyers != 60_000 {
		s += fmt.Sprintf(" CHAOS_BUYERS=%d", c.buyers)
	}
	if len(c.kinds) > 0 {
		s += fmt.Sprintf(" CHAOS_KINDS=%q", strings.ReplaceAll(strings.Join(c.kinds, "|"), ",", ";"))
		s = strings.ReplaceAll(s, "|", ",")
	}
	return s
}

func TestChaos(t *testing.T) {
	c := settings(t)
	plan, err := NewPlan(c.setup, c.seed, time.Duration(c.minutes*float64(time.Minute)), c.kinds...)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Print(plan.Describe())
	r := &run{T: t, plan: plan, book: NewBook(), logs: filepath.Join(c.logs, fmt.Sprintf("%s-%d", c.setup, c.seed)), hasty: c.hasty}
	if err := os.MkdirAll(r.logs, 0o755); err != nil {
		t.Fatal(err)
	}
	if r.notes, err = os.Create(filepath.Join(r.logs, "commands.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.notes.Close() })
	r.stack = newStack(t, c.setup, c.bin, "")
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		r.stack.keep(r.logs)
		fmt.Printf("\nFAILED. Logs: %s\nThe same run again: %s\n", r.logs, c.again())
	})
	for _, p := range Programs {
		r.stack.start(p)
	}
	units := int64(c.buyers / 3)
	first := int64(float64(units) * positive(t, "CHAOS_OPENS", 0.2))
	r.stack.sell(first)
	r.shop = &Shop{DB: r.stack.db, Activity: r.stack.activity, Item: r.stack.item}
	if err := r.shop.Open(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	r.crowd = &Crowd{
		Gateways: r.stack.sites, Activity: r.stack.activity, Buyers: c.buyers, Length: plan.Length, Seed: c.seed, Book: r.book,
	}
	r.watch = &Watch{Shop: r.shop, Ledger: r.stack.ledger, Book: r.book}
	r.say("the sale is open: %d of %d units for %d buyers", first, units, c.buyers)

	r.play(first, units)
	r.judge()
	r.conclude(&c)
}

// play is the sale with its faults.
func (r *run) play(first, units int64) {
	r.start = time.Now()
	over := make(chan struct{})
	quiet, still := context.WithCancel(r.Context())
	defer still()
	var buyers, others sync.WaitGroup
	buyers.Go(func() { r.crowd.Run(r.Context(), over) })
	others.Go(func() { r.business(quiet, first, units) })
	others.Go(func() { r.observe(quiet) })

	for _, step := range r.plan.Steps {
		pause(r.Context(), time.Until(r.start.Add(step.At)))
		if r.enough() {
			break
		}
		r.step(step)
		r.alive()
	}
	if !r.enough() {
		pause(r.Context(), time.Until(r.start.Add(r.plan.Length)))
	}
	close(over)
	r.stack.heal()
	buyers.Wait()
	still()
	others.Wait()
	r.say("the sale is over: %v; %d answers to those who asked after their orders", r.book.Count(), r.book.Heard())
	r.alive()
}

// enough says that a hasty run has found what it was made for.
func (r *run) enough() bool { return r.hasty && (r.Failed() || r.alarmed.Load()) }

// step plays one fault, or two at once.
func (r *run) step(step Step) {
	r.say("%s", step)
	type under struct {
		n   int       // in r.done
		due time.Time // decides the order of the ends
		end func() time.Time
	}
	var way []under
	for i, f := range step.Faults {
		if i > 0 { // what the first has piled up meets the second
			pause(r.Context(), time.Duration(f.Draw>>40%2500)*time.Millisecond)
		}
		d := Done{Fault: f, Began: time.Now()}
		end := r.begin(f)
		r.done = append(r.done, d)
		due := d.Began.Add(f.For)
		if f.Kind == "admin pause" { // its end needs what the other fault has taken away
			due = due.Add(time.Hour)
		}
		way = append(way, under{len(r.done) - 1, due, end})
	}
	slices.SortFunc(way, func(a, b under) int { return a.due.Compare(b.due) })
	for _, w := range way {
		d := &r.done[w.n]
		pause(r.Context(), time.Until(d.Began.Add(d.For)))
		d.Ended = w.end()
	}
	r.say("  ended: %s", step)
}

// alive finds out whether one of our own processes has ended by itself, and starts it again as a supervisor would.
func (r *run) alive() {
	for _, name := range Programs {
		p := r.stack.programs[name]
		if p.Running() {
			continue
		}
		r.Errorf("%s has ended by itself; the end of its log:\n%s", name, tail(p.Log(), 20))
		p.Restart()
	}
}

func tail(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// business is the shop's own doing: more units come on sale all the time, orders are paid, and some cancelled.
func (r *run) business(ctx context.Context, first, units int64) {
	total := first
	for k := 1; pause(ctx, time.Second); k++ {
		want := first + int64(float64(units-first)*min(1, time.Since(r.start).Seconds()/r.plan.Length.Seconds()))
		if n := want - total; n > 0 && r.shop.Change(ctx, n) == nil { // where COMMIT was lost there are more units on sale: they are counted
			total = want
		}
		if k%3 == 0 {
			_ = r.shop.Move(ctx, "CANCELLED", 2)
		}
		if k%2 == 0 {
			_ = r.shop.Move(ctx, "PAID", 8)
		}
	}
}

// observe samples the invariants that hold at every moment, and tells from time to time how it goes.
func (r *run) observe(ctx context.Context) {
	told := time.Now()
	var before *Sample
	for pause(ctx, 700*time.Millisecond) {
		s, err := r.watch.Look(ctx)
		if err != nil {
			continue // something is down, which is no finding
		}
		r.samples++
		if s.Selling() {
			r.selling++
		}
		if r.hasty && len(r.book.Strange()) > 0 { // the judge says which
			r.alarmed.Store(true)
		}
		broken := s.Broken()
		for _, text := range []string{s.Amnesia(before, r.book), s.SoldInPause(before, r.book)} {
			if text != "" {
				broken = append(broken, text)
			}
		}
		before = s
		for _, text := range broken {
			r.say("BROKEN %s", text)
			r.alarms = append(r.alarms, alarm{s.At, text})
			r.alarmed.Store(true)
		}
		if time.Since(told) > 10*time.Second {
			told = time.Now()
			waiting, dropped := r.crowd.Waiting()
			state := string(s.Redis.State)
			if !s.Selling() {
				state += " (not selling: " + s.Redis.Problem + ")"
			}
			r.say("  sold %d, left %d of %d; redis %s: stock %d, pending %d; %d buyers wait, %d gave up; %v", s.Live, s.Stock, s.Units,
				state, s.Redis.Stock, s.Redis.Pending, waiting, dropped, r.book.Count())
		}
	}
}

// judge evaluates I1 to I6 once all is quiet.
func (r *run) judge() {
	s := r.stack
	for _, a := range r.alarms {
		if d := Blame(r.done, a.at); d != nil {
			d.Oversold++
		}
	}
	if len(r.alarms) > 0 {
		r.Errorf("%d samples of %d broke an invariant during the sale, the first: %s", len(r.alarms), r.samples, r.alarms[0].text)
	}
	if r.selling < r.samples/4 || r.samples == 0 {
		r.Errorf("I6: only %d of %d samples found the sale open: nobody could buy, and this run has shown little", r.selling, r.samples)
	}
	if strange := r.book.Strange(); len(strange) > 0 {
		r.Errorf("%d answers that nobody may hear in this sale, such as %q", len(strange), strange[0])
	}
	if r.enough() {
		return
	}
	began := time.Now()
	r.check("the end state", r.book)
	r.say("judged after %.1f s", time.Since(began).Seconds())
	r.attribute()
	r.failures()
	if r.enough() {
		return
	}
	r.statuses()
	r.nobodyLockedOut()
	for i := range r.done {
		d := &r.done[i]
		d.Impact = r.book.Impact(d.Began, d.Ended)
	}
	for _, name := range Programs {
		if text := s.programs[name].Log(); strings.Contains(text, "panic:") || strings.Contains(text, "\tpanic\t") || strings.Contains(text, "DATA RACE") {
			at := strings.Index(text, "panic")
			r.Errorf("%s panicked:\n%s", name, text[max(0, at-200):min(len(text), at+2000)])
		}
	}
}

func (r *run) check(what string, book *Book) {
	var units int64
	testenv.Eventually(r, time.Minute, "the number of units put on sale", func() bool {
		n, err := r.shop.Units(r.Context())
		units = n
		return err == nil
	})
	options := invariant.Options{Units: units, ToldRecords: true, Complete: true}
	var report *invariant.Report
	deadline := time.Now().Add(quietWithin)
	if r.hasty {
		deadline = time.Now().Add(hastyWithin)
	}
	for {
		var err error
		report, err = invariant.Check(r.Context(), r.stack.sources, r.stack.activity, book.Records(), options, time.Until(deadline))
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			r.Errorf("I4: %s: no verdict: %v", what, err)
			return
		}
		pause(r.Context(), time.Second)
	}
	var text strings.Builder
	_ = report.Write(&text)
	r.say("%s:\n%s", what, text.String())
	if err := report.Err(); err != nil {
		r.Errorf("%s: %v", what, err)
	}
}

// attribute finds lost orders and leaked units, each by the fault in whose time it was reserved.
func (r *run) attribute() {
	open := r.book.Open()
	landed, err := r.watch.landed(r.Context(), open)
	if err != nil {
		r.Errorf("look for lost orders: %v", err)
		return
	}
	r.book.Landed(landed)
	for id := range r.book.Open() {
		if d := Blame(r.done, bornAt(id)); d != nil {
			d.Lost++
		}
	}
	for cursor, more := uint64(0), true; more; more = cursor != 0 {
		var part []ledger.Entry
		if part, cursor, err = r.stack.ledger.ScanLedger(r.Context(), r.stack.activity, cursor, 500); err != nil {
			r.Errorf("look for leaked units: %v", err)
			return
		}
		for _, e := range part {
			if d := Blame(r.done, time.UnixMilli(e.ReservedAtMs)); d != nil {
				d.Leaked += int(e.Quantity)
			}
		}
	}
}

// failures tells how many accepted orders failed, and why. For want of stock, or because their buyer had another, they may only
// where the edge could not know: the shop took units away, or a promoted or restarted Redis was not noticed at once.
func (r *run) failures() {
	rows, err := r.stack.db.QueryContext(r.Context(),
		"SELECT reason, COUNT(*) FROM orders WHERE activity_id = ? AND status = 'FAILED' GROUP BY reason", r.stack.activity)
	if err != nil {
		r.Errorf("read the orders that failed: %v", err)
		return
	}
	defer rows.Close()
	for rows.Next() {
		var reason string
		var n int
		if err := rows.Scan(&reason, &n); err != nil {
			r.Errorf("read the orders that failed: %v", err)
			return
		}
		r.say("%d accepted orders failed: %s", n, reason)
		excused := slices.ContainsFunc(r.done, func(d Done) bool {
			return d.Kind == "correct stock" || strings.Contains(d.Kind, "redis") || strings.Contains(d.Kind, "sentinel")
		})
		switch reason {
		case order.ReasonSoldOut, order.ReasonDuplicate:
			if !excused {
				r.Errorf("I5: %d accepted orders failed (%s), and nothing excuses it", n, reason)
			}
		default:
			r.Errorf("I2: %d accepted orders failed: %s", n, reason)
		}
	}
	if err := rows.Err(); err != nil {
		r.Errorf("read the orders that failed: %v", err)
	}
}

// bornAt reads the time in a UUIDv7.
func bornAt(id string) time.Time {
	ms, _ := strconv.ParseInt(strings.ReplaceAll(id, "-", "")[:12], 16, 64)
	return time.UnixMilli(ms)
}

// statuses asks for every accepted order as its buyer: what is told is what MySQL has.
func (r *run) statuses() {
	rows := map[string]string{}
	view, err := r.stack.store.Snapshot(r.Context())
	if err != nil {
		r.Errorf("read the orders: %v", err)
		return
	}
	defer view.Close()
	if err := view.Orders(r.Context(), r.stack.activity, func(part []ledger.Outcome) error {
		for i := range part {
			rows[part[i].Order] = part[i].Status.Word()
		}
		return nil
	}); err != nil {
		r.Errorf("read the orders: %v", err)
		return
	}
	type job struct{ id, user string }
	jobs := make(chan job)
	var mu sync.Mutex
	var wrong []string
	asked := 0
	var askers sync.WaitGroup
	for n := range 16 {
		askers.Go(func() {
			for j := range jobs {
				// An id that was derived from an Idempotency-Key carries no time, so for some seconds a gateway that is asked for
				// it the first time cannot tell what never was from what is under way.
				word, code, err := "", 0, error(nil)
				for deadline := time.Now().Add(retryWithin); time.Now().Before(deadline); pause(r.Context(), time.Second) {
					word, code, err = r.crowd.Status(r.Context(), n%len(r.stack.sites), j.user, j.id)
					if err == nil && code != http.StatusServiceUnavailable && word != order.Processing.Word() && word != order.Queued.Word() {
						break
					}
				}
				want, landed := rows[j.id]
				fine := err == nil && (landed && word == want || !landed && (code == http.StatusNotFound || word == order.Failed.Word()))
				mu.Lock()
				asked++
				if !fine {
					wrong = append(wrong, fmt.Sprintf("%s of %s is told as %q (http %d, %v), mysql has %q", j.id, j.user, word, code, err, want))
				}
				mu.Unlock()
			}
		})
	}
	for id, user := range r.book.Accepted() {
		jobs <- job{id, user}
	}
	close(jobs)
	askers.Wait()
	r.say("asked after %d accepted orders: %d told otherwise than mysql has it", asked, len(wrong))
	if len(wrong) > 0 {
		r.Errorf("I4: %d buyers are told another status than their order has: %s", len(wrong), strings.Join(wrong[:min(5, len(wrong))], "; "))
	}
}

// nobodyLockedOut has buyers who got nothing try again, with stock enough for all: I6.
func (r *run) nobodyLockedOut() {
	const many = 300
	holders := map[string]bool{}
	live, err := column(r.Context(), r.stack.db, "SELECT user_id FROM orders WHERE activity_id = ? AND live = 1", r.stack.activity)
	if err != nil {
		r.Errorf("read who has an order: %v", err)
	}
	for _, user := range live {
		holders[user] = true
	}
	var users []string
	for user := range r.book.Users() {
		if !holders[user] && len(users) < many {
			users = append(users, user)
		}
	}
	r.untilDone("the last restock", func() error { return r.shop.Change(r.Context(), many) })
	var mu sync.Mutex
	var out []string
	var wg sync.WaitGroup
	places := make(chan struct{}, 16)
	for i, user := range users {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			for deadline := time.Now().Add(retryWithin); ; pause(r.Context(), 300*time.Millisecond) {
				a := r.crowd.Buy(r.Context(), i%len(r.stack.sites), user, 1, "")
				if a.Accepted() {
					return
				}
				if time.Now().After(deadline) {
					mu.Lock()
					out = append(out, fmt.Sprintf("%s: %s", user, a.Answer))
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	r.say("%d buyers who had nothing tried again: %d were locked out", len(users), len(out))
	if len(out) > 0 {
		r.Errorf("I6: %d of %d buyers cannot buy although nothing speaks against it: %s", len(out), len(users), strings.Join(out[:min(5, len(out))], "; "))
	}
	if len(users) > 0 {
		r.check("after those who had nothing bought", r.book)
	}
}

// conclude prints the table, and keeps it where that is asked for.
func (r *run) conclude(c *set) {
	verdict := "green"
	if r.Failed() {
		verdict = "RED"
	}
	head := fmt.Sprintf("Seed %d on set-up `%s`: **%s**. %g minutes, %d faults, %d requests by %d buyers; %d samples during the sale, %d of them with the edge selling. %s",
		c.seed, c.setup, verdict, c.minutes, len(r.done), len(r.book.Records()), c.buyers, r.samples, r.selling, Origin(c.bin))
	text := head + "\n\n" + Table(r.done)
	fmt.Printf("\n%s\n", text)
	file, err := os.Create(filepath.Join(r.logs, "told.jsonl"))
	if err != nil {
		r.Fatal(err)
	}
	defer file.Close()
	enc := json.NewEncoder(file)
	for _, rec := range r.book.Records() {
		if err := enc.Encode(rec); err != nil {
			r.Fatal(err)
		}
	}
	if c.report != "" {
		if err := Insert(c.report, "chaos "+string(c.setup), text); err != nil {
			r.Error(err)
		}
	}
}
