package testenv

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a server that belongs to one test. Its methods fail the test when they cannot do what they say.
type process struct {
	t       testing.TB
	name    string
	log     string
	command func() *exec.Cmd
	answers func() error
	within  time.Duration // for a start; 0: startWithin

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed once the process has been reaped
}

const (
	startWithin = 30 * time.Second
	stopWithin  = 15 * time.Second
)

// Kill ends the server as kill -9 does and waits until it is gone. A server that is down already stays down.
func (p *process) Kill() { p.t.Helper(); p.end(syscall.SIGKILL) }

// Stop ends the server in its own orderly way and waits until it is gone.
func (p *process) Stop() { p.t.Helper(); p.end(syscall.SIGTERM) }

// Restart starts the server again at the same address with the same data, after stopping it in case it still runs,
// and waits until it answers.
func (p *process) Restart() {
	p.t.Helper()
	p.Stop()
	if err := p.start(); err != nil {
		p.t.Fatalf("restart %s: %v%s", p.name, err, p.tail())
	}
}

// Pause stops the server in its tracks (SIGSTOP): connections stay open and nothing answers.
func (p *process) Pause() { p.t.Helper(); p.signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (p *process) Resume() { p.t.Helper(); p.signal(syscall.SIGCONT) }

// Pid returns the server's process id, 0 when it is down.
func (p *process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Running says whether the server is up as far as the system knows: a paused one is, one that has ended by itself is not.
func (p *process) Running() bool {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if done == nil {
		return false
	}
	select {
	case <-done:
		return false
	default:
		return true
	}
}

// errExited means that the server ended by itself instead of answering; its log says why.
var errExited = errors.New("ended while starting")

func (p *process) start() error {
	if err := p.launch(); err != nil {
		return err
	}
	return p.await()
}

// launch runs the server and does not wait for it.
func (p *process) launch() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()

	cmd := p.command()
	cmd.Stdout, cmd.Stderr = log, log
	dieWithTest(cmd)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run %s: %w; install it or run `make services` as root, which does", cmd.Path, err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	p.mu.Lock()
	p.cmd, p.done = cmd, done
	p.mu.Unlock()
	return nil
}

// await waits until a launched server answers.
func (p *process) await() error {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	within := cmp.Or(p.within, startWithin)
	deadline := time.Now().Add(within)
	for {
		err := p.answers()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			p.end(syscall.SIGKILL)
			return fmt.Errorf("does not answer within %v: %w", within, err)
		}
		select {
		case <-done:
			p.forget()
			return errExited
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (p *process) end(sig syscall.Signal) {
	p.t.Helper()
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Signal(syscall.SIGCONT) // a paused process does not see SIGTERM
	_ = cmd.Process.Signal(sig)
	select {
	case <-done:
	case <-time.After(stopWithin):
		_ = cmd.Process.Kill()
		<-done
		p.t.Errorf("%s did not end within %v of %v and was killed%s", p.name, stopWithin, sig, p.tail())
	}
	p.forget()
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		p.t.Fatalf("send %v to %s: it is down", sig, p.name)
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("send %v to %s: %v", sig, p.name, err)
	}
}

func (p *process) forget() {
	p.mu.Lock()
	p.cmd, p.done = nil, nil
	p.mu.Unlock()
}

// tail returns the end of the log for an error message.
func (p *process) tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil || len(b) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return "\nlast lines of its log:\n\t" + strings.Join(lines[max(0, len(lines)-15):], "\n\t")
}

// startOnFreePort starts a server that setup prepares for a port, with another port when that one was taken meanwhile,
// and stops it when the test ends.
func startOnFreePort(t testing.TB, p *process, setup func(port int)) {
	t.Helper()
	t.Cleanup(p.Kill) // its data goes with the test: no need to be orderly
	var err error
	for range 5 {
		setup(freePort(t))
		if err = p.start(); err == nil {
			return
		}
		if !errors.Is(err, errExited) || !strings.Contains(strings.ToLower(p.tail()), "address already in use") {
			break
		}
	}
	t.Fatalf("start %s: %v%s", p.name, err, p.tail())
}

// freePort returns a loopback port that was free a moment ago, from below the range that the kernel hands out to
// outgoing connections: a server that restarts finds it free again.
func freePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 15000 + rand.IntN(17000)
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatalf("close listener on port %d: %v", port, err)
		}
		return port
	}
	t.Fatal("found no free port on 127.0.0.1 between 15000 and 32000")
	return 0
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
