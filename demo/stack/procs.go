// Package stack runs what the demo needs as private child processes and in-process servers on loopback: Redis, MariaDB,
// an embedded Kafka, and the product's own binaries. Everything lives below one folder, nothing is installed, and
// everything ends with the process that started it.
package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Spec describes a child process.
type Spec struct {
	Name string   // names its log, <logs>/<name>.log, and errors
	Path string   // the program
	Args []string // without the program's name
	Env  []string // added to the parent's environment
	Dir  string   // working directory; empty: the parent's
}

// Procs starts child processes and ends them all again, last started first.
//
// On Linux the kernel kills the children should the parent die without a word. That tie is to the parent's thread, not
// to the process, so one thread that lives as long as Procs starts all of them.
type Procs struct {
	logs string

	start chan func()
	died  chan error

	mu       sync.Mutex
	children []*Child
	stopping bool
}

// Child is a running child process.
type Child struct {
	Name string
	Log  string // path of its output

	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid once done is closed
}

// NewProcs makes the logs folder and the thread that children are tied to. Stop ends both.
func NewProcs(logs string) (*Procs, error) {
	if err := os.MkdirAll(logs, 0o750); err != nil { //nolint:gosec // below the folder that the demo was given
		return nil, fmt.Errorf("make log folder: %w", err)
	}
	p := &Procs{logs: logs, start: make(chan func()), died: make(chan error, 1)}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		for f := range p.start {
			f()
		}
	}()
	return p, nil
}

// Died reports the first child that ended without being asked to.
func (p *Procs) Died() <-chan error { return p.died }

// Start runs a child. Its output goes to its log.
func (p *Procs) Start(s Spec) (*Child, error) {
	c := &Child{Name: s.Name, Log: filepath.Join(p.logs, s.Name+".log"), done: make(chan struct{})}
	out, err := os.OpenFile(c.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", s.Name, err)
	}
	defer out.Close()                       // the child has its own copy
	c.cmd = exec.Command(s.Path, s.Args...) //nolint:noctx // it outlives the call; End and Stop end it
	c.cmd.Stdout, c.cmd.Stderr, c.cmd.Dir = out, out, s.Dir
	c.cmd.Env = append(os.Environ(), s.Env...)
	// A group of its own: Ctrl-C in the terminal then reaches the parent alone, which ends the children in order.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	tieToParent(c.cmd.SysProcAttr)

	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		return nil, fmt.Errorf("start %s: shutting down", s.Name)
	}
	started := make(chan error)
	p.start <- func() { started <- c.cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	p.children = append(p.children, c)
	go func() {
		c.err = c.cmd.Wait()
		close(c.done)
		p.report(c)
	}()
	return c, nil
}

func (p *Procs) report(c *Child) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping || !p.owns(c) {
		return
	}
	select {
	case p.died <- c.Failure():
	default:
	}
}

// owns is false for a child that End was called for. The caller holds mu.
func (p *Procs) owns(c *Child) bool {
	for _, x := range p.children {
		if x == c {
			return true
		}
	}
	return false
}

// End stops one child: a request to terminate, and force once the bound has passed.
func (p *Procs) End(c *Child, within time.Duration) {
	p.mu.Lock()
	for i, x := range p.children {
		if x == c {
			p.children = append(p.children[:i], p.children[i+1:]...)
			break
		}
	}
	p.mu.Unlock()
	c.end(within)
}

// Stop ends all children, the last started first, each within the given time, and may be called again.
func (p *Procs) Stop(within time.Duration) {
	p.mu.Lock()
	if p.stopping {
		p.mu.Unlock()
		return
	}
	p.stopping = true
	children := p.children
	p.mu.Unlock()
	for i := len(children) - 1; i >= 0; i-- {
		children[i].end(within)
	}
	close(p.start)
}

func (c *Child) end(within time.Duration) {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // an error means that it is gone
	select {
	case <-c.done:
		return
	case <-time.After(within):
	}
	_ = c.cmd.Process.Kill()
	<-c.done
}

// Running says whether the child is alive.
func (c *Child) Running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// Failure is an error that says how the child ended, with the end of its log.
func (c *Child) Failure() error {
	how := "ended"
	if c.cmd.ProcessState != nil {
		how = c.cmd.ProcessState.String()
	}
	return fmt.Errorf("%s ended (%s); the end of %s:\n%s", c.Name, how, c.Log, indent(tail(c.Log, 12)))
}

// Wait polls ready until it returns nil, the child ends, or the bound passes.
func (c *Child) Wait(ctx context.Context, within time.Duration, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.done:
			return c.Failure()
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), context.Canceled) {
				return ctx.Err()
			}
			return fmt.Errorf("%s is not ready after %s: %w; the end of %s:\n%s", c.Name, within, err, c.Log, indent(tail(c.Log, 12)))
		case <-tick.C:
		}
	}
}

func tail(file string, lines int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}

func indent(s string) string { return "    " + strings.ReplaceAll(s, "\n", "\n    ") }
