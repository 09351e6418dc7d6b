package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// ui tells a person what is going on: a line for each thing done, and on a terminal a line that changes meanwhile.
type ui struct {
	out      io.Writer
	terminal bool

	mu   sync.Mutex
	open bool      // a changing line is on the screen
	last time.Time // elsewhere: of the last line, or when what is under way began
	what string    // elsewhere: what is under way
}

func newUI(out *os.File) *ui {
	st, err := out.Stat()
	return &ui{out: out, terminal: err == nil && st.Mode()&os.ModeCharDevice != 0}
}

// quietFor is how long nothing is said about something under way where lines cannot change: most things are done by then,
// and the line that says so is enough.
const quietFor = 10 * time.Second

// progress is about something under way.
func (u *ui) progress(what, text string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.terminal {
		fmt.Fprintf(u.out, "\r\x1b[2K  … %-9s %s", what, text)
		u.open = true
		return
	}
	if u.what != what {
		u.what, u.last = what, time.Now()
	}
	if time.Since(u.last) >= quietFor {
		u.last = time.Now()
		fmt.Fprintf(u.out, "  … %-9s %s\n", what, text)
	}
}

// done is about something that is there now.
func (u *ui) done(what, text string) { u.line("  ✓ %-9s %s", what, text) }

// line prints a line as it is.
func (u *ui) line(format string, args ...any) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.open {
		fmt.Fprint(u.out, "\r\x1b[2K")
		u.open = false
	}
	u.what = ""
	fmt.Fprintf(u.out, format+"\n", args...)
}

// list joins "name count" pairs, the largest first.
func list(parts []string) string {
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, " · ")
}
