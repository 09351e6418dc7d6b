// Package startup runs the checks that a process makes of its surroundings before it works, and that `config check` shows.
package startup

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// answer is what came of one check.
type answer struct {
	found []Finding
	err   error
}

// ask runs all checks at once: a system that does not answer must not hide what the others have to say. It tells of each
// that takes longer than it should; tell may be nil.
func ask(ctx context.Context, checks []Check, patience time.Duration, tell func(Check)) []answer {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	out := make([]answer, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() {
			if tell != nil {
				t := time.AfterFunc(patience, func() { tell(c) })
				defer t.Stop()
			}
			found, err := c.Ask(ctx)
			if err != nil {
				err = fmt.Errorf("%s cannot be checked: %w", c.System, err)
			}
			out[i] = answer{found, err}
		})
	}
	wg.Wait()
	return out
}

// Run asks each system once, within a bound. Systems that could not be asked come back as errors.
func Run(ctx context.Context, checks []Check) (found []Finding, unreached []error) {
	for _, a := range ask(ctx, checks, 0, nil) {
		found = append(found, a.found...)
		if a.err != nil {
			unreached = append(unreached, a.err)
		}
	}
	return found, unreached
}

// Refusal names the unsafe findings that are not accepted, or is nil.
func Refusal(found []Finding, accepted []string) error {
	var errs []error
	for _, f := range found {
		if f.Level == store.Unsafe && !f.accepted(accepted) {
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

// Print writes the findings, and which accepted names have none.
func Print(out io.Writer, found []Finding, unreached []error, accepted []string) {
	for _, f := range found {
		fmt.Fprintln(out, f)
	}
	if len(unreached) > 0 {
		return // it may be a name of what could not be asked
	}
	if names := Unmatched(found, accepted); len(names) > 0 {
		fmt.Fprintf(out, "%-7s accept: %s: %s\n", store.Warning, strings.Join(names, ", "), unmatched)
	}
}

// Health takes the condition "checks"; *telemetry.Health is one.
type Health interface{ Set(name string, err error) }

// Await repeats the checks until each system has answered, logs what they find, and refuses what is unsafe. what is the work
// that waits for them.
func Await(ctx context.Context, checks []Check, accepted []string, what string, health Health, log *zap.Logger) error {
	return await(ctx, checks, accepted, what, health, log, slow)
}

func await(ctx context.Context, checks []Check, accepted []string, what string, health Health, log *zap.Logger, patience time.Duration) error {
	pause := time.Second
	var all []Finding
	for len(checks) > 0 {
		answers := ask(ctx, checks, patience, func(c Check) {
			log.Warn(c.System+" does not answer yet", zap.String("at", c.Where), zap.Duration("for", patience))
		})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var waiting []Check
		var unreached []error
		var found []Finding
		for i, a := range answers {
			if a.err != nil { // it is asked again, and what it said in part is said then
				waiting, unreached = append(waiting, checks[i]), append(unreached, a.err)
				continue
			}
			found = append(found, a.found...)
		}
		for _, f := range found {
			logFinding(log, f, accepted)
		}
		if err := Refusal(found, accepted); err != nil {
			return err
		}
		all = append(all, found...)
		if checks = waiting; len(checks) == 0 {
			break
		}
		err := errors.Join(unreached...)
		health.Set("checks", err)
		log.Warn("waiting for a system before "+what+" begins", zap.Duration("pause", pause), zap.Error(err))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
			pause = min(2*pause, 10*time.Second)
		}
	}
	if names := Unmatched(all, accepted); len(names) > 0 {
		log.Warn(unmatched, zap.Strings("accept", names))
	}
	health.Set("checks", nil)
	return nil
}

func logFinding(log *zap.Logger, f Finding, accepted []string) {
	write := log.Warn
	switch {
	case f.Level == store.Info:
		write = log.Info
	case f.Level == store.Unsafe && !f.accepted(accepted):
		write = log.Error
	}
	// Not "level", which every line of the log has already.
	write(f.Text, zap.String("check", f.id()), zap.String("severity", string(f.Level)))
}
