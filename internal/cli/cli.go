// Package cli is what the command lines of all programs have in common.
package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Strict makes every command of a tree that only groups others refuse a name that it does not know. Left to itself cobra
// shows the help and reports success, which a script takes for a change that was made. Commands say which argument is missing, and
// those that take none that one is too many.
func Strict(root *cobra.Command) {
	if !root.HasSubCommands() {
		root.Args = named(root.Args)
		return
	}
	if !root.Runnable() {
		root.Args = known
		root.DisableFlagsInUseLine = true // its own are none but --help
		root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
			// The flags behind a name that does not exist are not known either: the name is the mistake.
			if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 {
				return known(cmd, args)
			}
			return plain(err)
		})
	}
	for _, cmd := range root.Commands() {
		Strict(cmd)
	}
}

// named has a command name what is missing, where cobra counts, and say that it takes no arguments, where cobra takes the first one for
// the name of a command that does not exist.
func named(takes cobra.PositionalArgs) cobra.PositionalArgs {
	if takes == nil {
		takes = cobra.ArbitraryArgs
	}
	return func(cmd *cobra.Command, args []string) error {
		if err := required(cmd); err != nil {
			return err
		}
		err := takes(cmd, args)
		if err != nil && len(args) == 0 {
			return fmt.Errorf("argument missing: want %s", strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		}
		if err != nil && len(args) > 0 && takes(cmd, nil) == nil && takes(cmd, args[:1]) != nil {
			return fmt.Errorf("surplus argument %q: %s takes none (--help shows what it takes)", args[0], cmd.CommandPath())
		}
		return err
	}
}

// required says which flag is missing, and what it takes; cobra would only list the names.
func required(cmd *cobra.Command) error {
	var missing []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if must := f.Annotations[cobra.BashCompOneRequiredFlag]; len(must) > 0 && must[0] == "true" && !f.Changed {
			value, usage := pflag.UnquoteUsage(f)
			missing = append(missing, fmt.Sprintf("--%s %s is missing: %s", f.Name, value, usage))
		}
	})
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%s (%s --help)", strings.Join(missing, "; "), cmd.CommandPath())
}

// plain says of a flag's value what is wanted, in place of the words of the library that could not read it.
func plain(err error) error {
	num := new(strconv.NumError)
	if !errors.As(err, &num) {
		return err
	}
	want := "want a whole number"
	switch {
	case errors.Is(num.Err, strconv.ErrRange):
		want = "the number is too large or too small"
	case num.Func == "ParseBool":
		want = "want true or false"
	case num.Func == "ParseFloat":
		want = "want a number"
	}
	return errors.New(strings.Replace(err.Error(), num.Error(), want, 1))
}

// Count is a number of things for people: 1 activity, 2 activities.
func Count[N int | int64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if stem, ok := strings.CutSuffix(thing, "y"); ok {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// known accepts no argument: one is a subcommand that does not exist.
func known(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return fmt.Errorf("unknown command %q: did you mean %s? (%s --help)", args[0], strings.Join(near, " or "), cmd.CommandPath())
	}
	return fmt.Errorf("unknown command %q (%s --help shows those that there are)", args[0], cmd.CommandPath())
}
