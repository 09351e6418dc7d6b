// Command demo plays a whole flash sale on this machine and then serves the sample shop's page until Ctrl-C. It needs Go and
// nothing else that runs already: see `make demo` at the root.
//
// DEMO_EXIT=1 ends it after the verdict, with 1 if an invariant is broken. DEMO_PORT is the port of the page (default 8080;
// another one is taken if it is in use). DEMO_DIR is where it keeps everything (default .demo). DEMO_UNPACK=1 uses Redis and MariaDB out of the distribution's packages even where
// they are installed.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once, and the kernel its children
	err := run(ctx, newUI(os.Stdout))
	stop()
	switch {
	case err == nil || errors.Is(err, context.Canceled):
	default:
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, ui *ui) error {
	// The caller's own deployment must not leak into the demo's processes.
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "SECKILL_") {
			if err := os.Unsetenv(name); err != nil {
				return fmt.Errorf("clear %s: %w", name, err)
			}
		}
	}
	root, err := findRoot()
	if err != nil {
		return err
	}
	opt := options{base: filepath.Join(root, ".demo"), unpack: os.Getenv("DEMO_UNPACK") == "1", port: 8080}
	if dir := os.Getenv("DEMO_DIR"); dir != "" {
		if opt.base, err = filepath.Abs(dir); err != nil {
			return fmt.Errorf("DEMO_DIR: %w", err)
		}
	}
	if p := os.Getenv("DEMO_PORT"); p != "" {
		if opt.port, err = strconv.Atoi(p); err != nil || opt.port < 1 || opt.port > 65535 {
			return fmt.Errorf("DEMO_PORT %q: want a port, 1 to 65535", p)
		}
	}
	exit := os.Getenv("DEMO_EXIT") == "1"
	ends := "ends with Ctrl-C"
	if exit {
		ends = "ends after the verdict"
	}
	ui.line("\nseckillgate demo: a flash sale on this machine. Everything lives in %s and %s.\n", opt.base, ends)
	bin, err := build(ctx, root, filepath.Join(opt.base, "bin"), ui)
	if err != nil {
		return err
	}
	d, err := start(ctx, opt, bin, ui)
	if err != nil {
		return err
	}
	defer d.stop()
	report, err := d.playSale(ctx)
	if err != nil {
		return err
	}
	if exit {
		return report.Err()
	}
	return d.serve(ctx)
}

// module is the path of the root's.
const module = "github.com/seckillgate/seckillgate"

// findRoot looks for the checkout that holds the working directory.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	for {
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(b), "module "+module+"\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find the checkout: no folder above this one is the root of seckillgate; run `make demo` there")
		}
		dir = parent
	}
}
