package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Program is a program under test, run as its users run it. Kill it, restart it, pause it: it is the test's own.
type Program struct{ *process }

// StartProgram runs what command gives and waits until answers returns nil. command is called again for each Restart.
// The program is gone when the test ends.
func StartProgram(t testing.TB, name string, command func() *exec.Cmd, answers func() error) *Program {
	t.Helper()
	p := &Program{&process{t: t, name: name, log: filepath.Join(t.TempDir(), name+".log"), command: command, answers: answers}}
	t.Cleanup(p.Kill)
	if err := p.start(); err != nil {
		t.Fatalf("start %s: %v%s", name, err, p.tail())
	}
	return p
}

// Log is everything that the program has printed so far.
func (p *Program) Log() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// FreePort returns a loopback port that was free a moment ago and that the kernel does not hand out to outgoing
// connections.
func FreePort(t testing.TB) int { return freePort(t) }
