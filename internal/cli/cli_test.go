package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func tree(ran *bool) *cobra.Command {
	root := &cobra.Command{Use: "gate", SilenceUsage: true, SilenceErrors: true, Args: cobra.NoArgs}
	group := &cobra.Command{Use: "activity", Args: cobra.NoArgs}
	create := &cobra.Command{Use: "create", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { *ran = true; return nil }}
	create.Flags().Int("item", 0, "")
	create.Flags().Float64("rate", 0, "")
	create.Flags().Bool("paused", false, "")
	move := &cobra.Command{Use: "move", RunE: func(*cobra.Command, []string) error { *ran = true; return nil }}
	move.Flags().String("to", "", "`TIME` to move it to")
	_ = move.MarkFlagRequired("to")
	group.AddCommand(create, move)
	root.AddCommand(group)
	Strict(root)
	return root
}

func run(args ...string) (out string, ran bool, err error) {
	root := tree(&ran)
	var b bytes.Buffer
	root.SetOut(&b)
	root.SetErr(&b)
	root.SetArgs(args)
	err = root.Execute()
	return b.String(), ran, err
}

// A name that does not exist is an error at every level, whatever follows it.
func TestUnknownCommand(t *testing.T) {
	for line, want := range map[string]string{
		"foo":                      `unknown command "foo"`,
		"activty":                  "did you mean activity?",
		"activity crate":           `unknown command "crate": did you mean create?`,
		"activity crate --item 42": `unknown command "crate"`,
		"activity --item 42":       "unknown flag",
		"activity create --itme 4": "unknown flag",
		"activity create foo":      `surplus argument "foo": gate activity create takes none`,
		"activity create --item x": `invalid argument "x" for "--item" flag: want a whole number`,
		"activity create --item 99999999999999999999": "flag: the number is too large or too small",
		"activity create --rate x":                    "flag: want a number",
		"activity create --paused=x":                  "flag: want true or false",
		"activity move 7":                             "--to TIME is missing: TIME to move it to (gate activity move --help)",
	} {
		if _, ran, err := run(strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "strconv") || ran {
			t.Errorf("%s: %v, ran %v; want %s", line, err, ran, want)
		}
	}
}

func TestKnownCommand(t *testing.T) {
	for _, line := range []string{"activity create --item 42", "activity move --to now 7"} {
		if _, ran, err := run(strings.Fields(line)...); err != nil || !ran {
			t.Errorf("%s: %v, ran %v", line, err, ran)
		}
	}
	for _, line := range []string{"", "activity", "activity --help"} {
		if out, _, err := run(strings.Fields(line)...); err != nil || !strings.Contains(out, "create") && !strings.Contains(out, "activity") {
			t.Errorf("%q: %v\n%s", line, err, out)
		}
	}
}

// Commands name an argument that is missing, and keep cobra's word on what is too much.
func TestArguments(t *testing.T) {
	for _, c := range []struct {
		takes cobra.PositionalArgs
		args  []string
		want  string
	}{
		{cobra.ExactArgs(1), []string{"a", "b"}, "accepts 1 arg(s), received 2"},
		{cobra.MaximumNArgs(1), []string{"a", "b"}, "accepts at most 1 arg(s), received 2"},
		{cobra.MinimumNArgs(1), nil, "argument missing: want gate ITEM"},
		{cobra.ExactArgs(1), nil, "argument missing: want gate ITEM"},
		{cobra.NoArgs, nil, ""},
		{nil, []string{"a", "b"}, ""},
	} {
		cmd := &cobra.Command{Use: "gate ITEM", Args: c.takes, RunE: func(*cobra.Command, []string) error { return nil }, SilenceUsage: true, SilenceErrors: true}
		Strict(cmd)
		cmd.SetArgs(append([]string{}, c.args...))
		if err := cmd.Execute(); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
}

func TestCount(t *testing.T) {
	for want, got := range map[string]string{
		"0 activities": Count(0, "activity"), "1 activity": Count(1, "activity"), "2 activities": Count(2, "activity"),
		"1 outcome": Count(int64(1), "outcome"), "5 outcomes": Count(int64(5), "outcome"),
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
