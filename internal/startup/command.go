package startup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seckillgate/seckillgate/internal/config"
)

// Exit codes of daemons. The unit files rely on ExitRefused: restarting does not help there.
const (
	ExitFailed  = 1
	ExitRefused = 78 // EX_CONFIG: the configuration, or what it points at, must be mended by a person
)

// Code is the exit code of an error.
func Code(err error) int {
	if errors.Is(err, ErrRefused) {
		return ExitRefused
	}
	return ExitFailed
}

// Subject is a process whose configuration is explained and checked.
type Subject struct {
	Process  string // for people: the worker
	Settings any    // with the keys of the configuration
	Accept   []string
	Explain  func(io.Writer) error // says in words what run would do
	// Open makes what the checks need, and says how it is closed.
	Open func(context.Context) (checks []Check, end func() error, err error)
}

// NewConfigCheck is the command `config check`.
func NewConfigCheck(load func() (*Subject, error)) *cobra.Command {
	var offline bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Explain what run would do, and whether it would start",
		Long: `Check prints every key with the value in force (secrets hidden), says in words what run would do
with them, and runs the start-up checks of run, which change nothing: a line each. It ends with 0
if run would start now, with 78 if it would refuse to, and with 1 if it would wait.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := load()
			if err != nil {
				return err
			}
			return s.check(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), offline)
		},
	}
	cmd.Flags().BoolVar(&offline, "offline", false, "do not ask Redis, MySQL and Kafka")
	return cmd
}

func (s *Subject) check(ctx context.Context, out, progress io.Writer, offline bool) (err error) {
	if err := config.Explain(s.Settings, out); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, name := range config.UnknownEnv(s.Settings) {
		fmt.Fprintf(out, "warning environment variable %s is not a key of %s and is ignored\n", name, s.Process)
	}
	if err := s.Explain(out); err != nil || offline {
		return err
	}
	checks, end, err := s.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	systems := make([]string, len(checks))
	for i, c := range checks {
		systems[i] = c.System
	}
	fmt.Fprintf(progress, "asking %s, for up to %s ...\n", list(systems), bound)
	found, unreached := Run(ctx, checks)
	fmt.Fprintln(out, "\nChecks:")
	Print(out, found, unreached, s.Accept)
	if err := judge(found, unreached, s.Accept); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "run would start.")
	return err
}

// verdict says in a line that run would not start, and wraps why. What that is stands in the lines above it.
type verdict struct {
	text string
	why  error
}

func (v *verdict) Error() string { return v.text }
func (v *verdict) Unwrap() error { return v.why }

// judge is nil where run would start.
func judge(found []Finding, unreached []error, accepted []string) error {
	var away []string
	for _, err := range unreached {
		if u := new(Unreached); errors.As(err, &u) {
			away = append(away, u.System)
		}
	}
	refusal := Refusal(found, accepted)
	var unsafe []string
	for _, f := range found {
		if f.refuses(accepted) && !slices.Contains(unsafe, f.id()) {
			unsafe = append(unsafe, f.id())
		}
	}
	v := &verdict{why: errors.Join(append(unreached, refusal)...)}
	switch {
	case refusal != nil:
		v.text = "run would refuse to start: mend " + list(unsafe) + ", or list the name under accept"
		if len(away) > 0 {
			v.text += "; it would also wait for " + list(away)
		}
	case len(away) > 0:
		v.text = "run would not start yet: it would wait for " + list(away)
	default:
		return nil
	}
	return v
}

// list is a list for people.
func list(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
