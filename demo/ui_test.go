package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestWithoutATerminalOnlyWhatTakesLongIsTold: in a log, a line about something under way would only repeat its result.
func TestWithoutATerminalOnlyWhatTakesLongIsTold(t *testing.T) {
	var b bytes.Buffer
	u := &ui{out: &b}
	u.progress("sale", "1 of 9")
	u.done("sale", "9 of 9")
	u.progress("check", "waiting")
	if got, want := b.String(), "  ✓ sale      9 of 9\n"; got != want {
		t.Fatalf("told %q, want %q", got, want)
	}
	u.last = u.last.Add(-quietFor)
	u.progress("check", "still waiting")
	u.progress("check", "still waiting")
	if got := b.String(); strings.Count(got, "still waiting") != 1 {
		t.Fatalf("told %q, want the long wait once", got)
	}
	if time.Since(u.last) >= quietFor {
		t.Error("the wait does not begin anew")
	}
}

func TestABuildSaysWhatItIsAt(t *testing.T) {
	var s stage
	for _, step := range []struct{ line, want string }{
		{"", "looking for changes, or linking"},
		{"go: downloading github.com/x/y v1.2.3", "fetching modules"},
		{"internal/goarch", "1 package compiled"},
		{module + "/internal/worker", "2 packages compiled"},
		{module + "/worker", "linking, 3 packages compiled"},
	} {
		if step.line != "" && !s.saw(step.line, "./worker") {
			t.Errorf("%q was taken for an error", step.line)
		}
		if got := s.String(); got != step.want {
			t.Errorf("after %q: %q, want %q", step.line, got, step.want)
		}
	}
	if s.saw("worker/main.go:3:1: syntax error", "./worker") {
		t.Error("an error was taken for progress")
	}
	s = stage{}
	s.saw(module+"/demo/caddy", "./caddy")
	if got := s.String(); got != "linking" {
		t.Errorf("only the program itself: %q", got)
	}
}
