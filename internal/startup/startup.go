// Package startup runs the checks that a process makes of its surroundings before it works, and that `config check` shows.
package startup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/store"
)

// ErrRefused marks what a person must mend before a start has any sense.
var ErrRefused = errors.New("refused")

// Finding is one line of the checks: what is, and what to do about it.
type Finding struct {
	Level  store.Level
	System string // redis, kafka, mysql or binlog
	Name   string // by which it may be accepted, with the system and a slash before it or without
	Text   string
}

func (f Finding) String() string { return fmt.Sprintf("%-7s %s: %s", f.Level, f.id(), f.Text) }

func (f Finding) id() string { return f.System + "/" + f.Name }

func (f Finding) accepted(names []string) bool {
	return slices.Contains(names, f.Name) || slices.Contains(names, f.id())
}

// refuses says that a process does not start because of it.
func (f Finding) refuses(accepted []string) bool {
	return f.Level == store.Unsafe && !f.accepted(accepted)
}

// Check is one system's part of the checks. The error of Ask means that the system could not be asked.
type Check struct {
	System string
	Where  string // its addresses, for people
	Ask    func(ctx context.Context) ([]Finding, error)
}

const (
	bound = 15 * time.Second // of one check
	slow  = 2 * time.Second  // after which a check that has not ended is told
)

// ask runs one check within its bound.
func (c Check) ask(ctx context.Context) ([]Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	found, err := c.Ask(ctx)
	if err != nil {
		return found, &Unreached{c.System, err}
	}
	return found, nil
}

// Unreached says that a system could not be asked.
type Unreached struct {
	System string
	Cause  error
}

func (u *Unreached) Error() string { return u.System + " cannot be checked: " + u.Cause.Error() }
func (u *Unreached) Unwrap() error { return u.Cause }

// Run asks each system once, all at the same time. Systems that could not be asked come back as errors.
func Run(ctx context.Context, checks []Check) (found []Finding, unreached []error) {
	finds, errs := make([][]Finding, len(checks)), make([]error, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() { finds[i], errs[i] = c.ask(ctx) })
	}
	wg.Wait()
	return slices.Concat(finds...), slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// Refusal names the unsafe findings that are not accepted, or is nil.
func Refusal(found []Finding, accepted []string) error {
	var errs []error
	for _, f := range found {
		if f.refuses(accepted) {
			errs = append(errs, fmt.Errorf("%s: %s", f.id(), f.Text))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w to start (mend it, or list its name under accept): %w", ErrRefused, errors.Join(errs...))
}

// Unmatched gives the accepted names that no finding has: mistyped, or of something that has been mended.
func Unmatched(found []Finding, accepted []string) (names []string) {
	for _, name := range accepted {
		if !slices.ContainsFunc(found, func(f Finding) bool { return f.accepted([]string{name}) }) {
			names = append(names, name)
		}
	}
	return names
}

// unmatched says what a name of Unmatched means.
const unmatched = "nothing that was found has a name that is listed under accept: it is mistyped, or no longer needed"

// Print writes the findings, what could not be asked, and which accepted names excuse nothing, a line each.
func Print(out io.Writer, found []Finding, unreached []error, accepted []string) {
	for _, f := range found {
		fmt.Fprintln(out, f)
	}
	for _, err := range unreached {
		fmt.Fprintf(out, "%-7s %s\n", "waiting", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	names := strings.Join(Unmatched(found, accepted), ", ")
	switch {
	case names == "":
	case len(unreached) > 0:
		fmt.Fprintf(out, "%-7s accept: %s: nothing that was found so far has this name, and not all could be asked\n", store.Info, names)
	default:
		fmt.Fprintf(out, "%-7s accept: %s: %s\n", store.Warning, names, unmatched)
	}
}

// Health takes the condition "checks"; *telemetry.Health is one.
type Health interface{ Set(name string, err error) }

// Await repeats each check until its system has answered, logs what they find, and refuses what is unsafe. what is the work
// that waits for them. A system that does not answer is told of at once, and holds up no other's check.
func Await(ctx context.Context, checks []Check, accepted []string, what string, health Health, log *zap.Logger) error {
	return (&waiter{what: what, health: health, log: log, patience: slow, errs: map[string]error{}}).await(ctx, checks, accepted)
}

// waiter is one Await.
type waiter struct {
	what     string
	health   Health
	log      *zap.Logger
	patience time.Duration

	mu   sync.Mutex
	errs map[string]error // of the systems that do not answer
}

func (w *waiter) await(ctx context.Context, checks []Check, accepted []string) error {
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan []Finding)
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	for _, c := range checks {
		wg.Go(func() {
			if found, ok := w.repeat(ctx, c); ok {
				select {
				case answers <- found:
				case <-ctx.Done():
				}
			}
		})
	}
	var all []Finding
	for range checks {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case found := <-answers:
			for _, f := range found {
				logFinding(w.log, f, accepted)
			}
			if err := Refusal(found, accepted); err != nil {
				return err
			}
			all = append(all, found...)
		}
	}
	if names := Unmatched(all, accepted); len(names) > 0 {
		w.log.Warn(unmatched, zap.Strings("accept", names))
	}
	w.health.Set("checks", nil)
	return nil
}

// repeat asks one system until it answers; false when ctx ended first.
func (w *waiter) repeat(ctx context.Context, c Check) ([]Finding, bool) {
	for pause := time.Second; ; pause = min(2*pause, 10*time.Second) {
		late := time.AfterFunc(w.patience, func() {
			w.log.Warn(c.System+" does not answer yet", zap.String("at", c.Where), zap.Duration("for", w.patience))
		})
		found, err := c.ask(ctx)
		late.Stop()
		if ctx.Err() != nil {
			return nil, false
		}
		w.note(c, err)
		if err == nil {
			return found, true
		}
		w.log.Warn(w.what+" waits for "+c.System, zap.String("at", c.Where), zap.Duration("pause", pause), zap.Error(err))
		select {
		case <-ctx.Done():
			return nil, false
		case <-time.After(pause):
		}
	}
}

// note keeps what health says of the checks.
func (w *waiter) note(c Check, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		delete(w.errs, c.System)
	} else {
		w.errs[c.System] = err
	}
	if len(w.errs) == 0 {
		w.health.Set("checks", errNotDone) // well only when all have been judged
		return
	}
	var errs []error
	for _, system := range slices.Sorted(maps.Keys(w.errs)) {
		errs = append(errs, w.errs[system])
	}
	w.health.Set("checks", errors.Join(errs...))
}

func logFinding(log *zap.Logger, f Finding, accepted []string) {
	write := log.Warn
	switch {
	case f.Level == store.Info:
		write = log.Info
	case f.refuses(accepted):
		write = log.Error
	}
	// Not "level", which every line of the log has already.
	write(f.Text, zap.String("check", f.id()), zap.String("severity", string(f.Level)))
}
