package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
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
		if err := compile(ctx, p.dir, p.pkg, p.out, func(at string) {
			ui.progress("build", fmt.Sprintf("%s: %s, %.0f s", p.name, at, time.Since(began).Seconds()))
		}); err != nil {
			return nil, err
		}
	}
	ui.done("build", fmt.Sprintf("gateway, worker, syncer, drill (%.1f s)", time.Since(began).Seconds()))
	return b, nil
}

// compile runs the Go tool and calls progress about once a second with what it is at.
func compile(ctx context.Context, dir, pkg, out string, progress func(at string)) error {
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
	var s stage
	var errs []string
	for more := true; more; {
		select {
		case line, ok := <-lines:
			switch {
			case !ok:
				more = false
			case !s.saw(line, pkg):
				errs = append(errs, line)
			}
		case <-tick.C:
			progress(s.String())
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

// stage is how far a build is, from what `go build -v` prints.
type stage struct {
	fetching bool // the last line was about a download
	packages int
	last     bool // the program's own package, which comes last, is being compiled: what follows is the linker
}

// saw takes a line in and says whether it was about progress.
func (s *stage) saw(line, pkg string) bool {
	switch {
	case strings.HasPrefix(line, "go: downloading "):
		s.fetching = true
	case isPackage(line):
		s.fetching = false
		s.packages++
		s.last = strings.HasPrefix(line, module) && !strings.Contains(line, "/internal/") && path.Base(line) == path.Base(pkg)
	default:
		return false
	}
	return true
}

func (s *stage) String() string {
	compiled := fmt.Sprintf("%d packages compiled", s.packages)
	if s.packages == 1 {
		compiled = "1 package compiled"
	}
	switch {
	case s.fetching:
		return "fetching modules"
	case s.last && s.packages > 1:
		return "linking, " + compiled
	case s.last:
		return "linking"
	case s.packages == 0:
		return "looking for changes, or linking" // the tool does not say which
	}
	return compiled
}

// isPackage tells the names that `go build -v` prints from everything else.
func isPackage(line string) bool {
	return line != "" && !strings.ContainsAny(line, " \t:#") && !strings.HasSuffix(line, ".go")
}
