package origin

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What a report says it is of is the commit that is checked out, and tells a changed file.
func TestLine(t *testing.T) {
	dir := t.TempDir()
	if got := Checkout(dir); got != "unknown" {
		t.Errorf("where git knows nothing: %q", got)
	}
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	file := filepath.Join(dir, "f")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git("init", "-q")
	write("one")
	git("add", "f")
	git("commit", "-q", "-m", "one")
	commit := git("rev-parse", "--short", "HEAD")
	on := time.Date(2026, 11, 30, 23, 59, 0, 0, time.UTC)
	if got, want := Line(Checkout(dir), on), "Commit "+commit+", 30 November 2026."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	write("two")
	if got, want := Line(Checkout(dir), on), "Commit "+commit+" with changes that no commit has, 30 November 2026."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	program := filepath.Join(dir, "program")
	script := "#!/bin/sh\n[ \"$*\" = --version ] && echo seckill-worker v1.2-dirty\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := Built(program); got != "v1.2-dirty" {
		t.Errorf("a program's version: %q", got)
	}
	if got := Built(filepath.Join(dir, "none")); got != "unknown" {
		t.Errorf("no program's version: %q", got)
	}
}
