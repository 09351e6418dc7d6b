package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/store"
)

// finding is one line of the start-up checks: what is, and what to do about it.
type finding struct {
	level  string // info, warning or unsafe
	system string // redis, kafka or mysql
	name   string // by which it may be accepted
	text   string
}

func (f finding) String() string {
	return fmt.Sprintf("%-7s %s/%s: %s", f.level, f.system, f.name, f.text)
}

// check is one system's part of the checks. Its error means that the system could not be asked.
type check struct {
	system string
	ask    func(ctx context.Context) ([]finding, error)
}

// checks looks at everything that the worker depends on. None of them changes anything.
func (p *parts) checks(s *settings) []check {
	return []check{
		{"redis", func(ctx context.Context) (out []finding, err error) {
			found, err := p.ledger.Check(ctx)
			for _, f := range found {
				level := "warning"
				if f.Fatal {
					level = "unsafe"
				}
				out = append(out, finding{level, "redis", redisName(f), f.Text})
			}
			return out, err
		}},
		{"mysql", func(ctx context.Context) (out []finding, err error) {
			found, err := p.store.Check(ctx)
			for _, f := range found {
				if f.Name == "privilege_binlog" { // the syncer's; the worker's user need not have it
					continue
				}
				out = append(out, finding{string(f.Level), "mysql", f.Name, f.Text})
			}
			if err != nil || !s.Unpaid.Enabled() {
				return out, err
			}
			found, err = p.store.CheckUnpaid(ctx)
			for _, f := range found {
				out = append(out, finding{string(f.Level), "mysql", f.Name, f.Text})
			}
			return out, err
		}},
		{"kafka", func(ctx context.Context) (out []finding, err error) {
			found, err := p.admin.EnsureTopics(ctx, kafka.TopicOptions{})
			for _, f := range found {
				out = append(out, finding{string(f.Level), "kafka", f.Name, f.Text})
			}
			return out, err
		}},
	}
}

// redisName gives a finding of the ledger the name that it is accepted by.
func redisName(f ledger.Finding) string {
	if f.Fatal {
		return "maxmemory_policy"
	}
	return "redis"
}

// runChecks asks each system once, within a bound each. Systems that could not be asked come back as errors.
func runChecks(ctx context.Context, checks []check) (found []finding, unreached []error) {
	for _, c := range checks {
		ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
		f, err := c.ask(ctx)
		cancel()
		found = append(found, f...)
		if err != nil {
			unreached = append(unreached, fmt.Errorf("%s cannot be checked: %w", c.system, err))
		}
	}
	return found, unreached
}

// refusal names the unsafe findings that are not accepted, or is nil.
func refusal(found []finding, accepted []string) error {
	var errs []error
	for _, f := range found {
		if f.level == string(store.Unsafe) && !slices.Contains(accepted, f.name) {
			errs = append(errs, fmt.Errorf("%s/%s: %s", f.system, f.name, f.text))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w to start (mend it, or list its name under accept): %w", errRefused, errors.Join(errs...))
}

func printFindings(out io.Writer, found []finding) {
	for _, f := range found {
		fmt.Fprintln(out, f)
	}
}
