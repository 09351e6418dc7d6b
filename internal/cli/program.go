package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
)

// Main runs a command line to its end and exits: with 0, or with the code of the error, which it prints. The first SIGINT or SIGTERM
// ends the command's context, a second one the process.
func Main(root *cobra.Command, code func(error) int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", root.Name(), err)
		stop()
		os.Exit(code(err)) //nolint:gocritic // stop() was called
	}
}

// Root finishes the root of a command line, once its commands are there: what all programs of the product have in common.
func Root(root *cobra.Command) *cobra.Command {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	Strict(root)
	return root
}

// Version names the release, where the build set one, else the module version or commit that the Go tool noted.
func Version(release string) string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (v == "" || v == "(devel)") {
			v = "devel-" + s.Value[:min(12, len(s.Value))]
		}
	}
	return v + " " + info.GoVersion
}
