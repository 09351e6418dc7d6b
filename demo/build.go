package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// binaries are the product's programs, and the demo's gateway, which has a JWT provider compiled in.
type binaries struct {
	gateway, worker, syncer, drill string
}

// build compiles them into a folder; what has not changed costs a second. The first time takes minutes, so it says what it
// is at.
func build(ctx context.Context, root, dir string, ui *ui) (*binaries, error) {
	b := &binaries{
		gateway: filepath.Join(dir, "caddy"),
		worker:  filepath.Join(dir, "seckill-worker"),
		syncer:  filepath.Join(dir, "seckill-syncer"),
		drill:   filepath.Join(dir, "seckill-drill"),
	}
	began := time.Now()
	for _, p := range []struct{ name, dir, pkg, out string }{
		{"worker", root, "./worker", b.worker},
		{"syncer", root, "./syncer", b.syncer},
		{"drill", root, "./drill", b.drill},
		{"gateway", filepath.Join(root, "demo"), "./caddy", b.gateway},
	} {
		if err := compile(ctx, p.dir, p.pkg, p.out, func(packages int) {
			ui.progress("build", fmt.Sprintf("%s, %d packages compiled, %.0f s", p.name, packages, time.Since(began).Seconds()))
		}); err != nil {
			return nil, err
		}
	}
	ui.done("build", fmt.Sprintf("gateway, worker, syncer, drill (%.1f s)", time.Since(began).Seconds()))
	return b, nil
}

// compile runs the Go tool and calls progress about once a second with the number of packages that it has compiled.
func compile(ctx context.Context, dir, pkg, out string, progress func(packages int)) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o750); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	// The tags are those with which xcaddy builds. No VCS stamp: git refuses to read another user's checkout.
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w",
		"-tags", "nobadger,nomysql,nopgx", "-o", out, pkg)
	cmd.Dir = dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it has children to end
	cmd.WaitDelay = 5 * time.Second
	pipe, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		in := bufio.NewScanner(pipe)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			lines <- in.Text()
		}
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	packages := 0
	var errs []string
	for more := true; more; {
		select {
		case line, ok := <-lines:
			switch {
			case !ok:
				more = false
			case isPackage(line):
				packages++
			default:
				errs = append(errs, line)
			}
		case <-tick.C:
			progress(packages)
		}
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("build %s in %s: %w\n%s", pkg, dir, err, strings.Join(errs, "\n"))
	}
	return nil
}

// isPackage tells the names that `go build -v` prints from everything else.
func isPackage(line string) bool {
	return line != "" && !strings.ContainsAny(line, " \t:#") && !strings.HasSuffix(line, ".go")
}
