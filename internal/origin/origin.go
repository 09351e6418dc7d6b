// Package origin says what a report is of: the commit and the day. Reports that do not name them cannot be compared, nor made again.
package origin

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// dirty is what git describe ends a version with where files differ from the commit. The Makefile names what it builds alike.
const dirty = "-dirty"

// Line is the line of a report that says what was looked at, and when: the commit, whether it had changes that no commit has, and the
// day. version is Checkout's or Built's.
func Line(version string, on time.Time) string {
	commit, changed := strings.CutSuffix(version, dirty)
	with := ""
	if changed {
		with = " with changes that no commit has"
	}
	return fmt.Sprintf("Commit %s%s, %s.", commit, with, on.UTC().Format("2 January 2006"))
}

// Checkout is the version of the files in a folder, and "unknown" where git cannot tell.
func Checkout(dir string) string {
	return answer(exec.CommandContext(context.Background(), "git", "-C", dir, "describe", "--tags", "--always", "--dirty"))
}

// Built is the version that a program of this product says it is, and "unknown" where it does not tell.
func Built(program string) string {
	words := strings.Fields(answer(exec.CommandContext(context.Background(), program, "--version")))
	if len(words) < 2 {
		return unknown
	}
	return words[1] // after its name
}

const unknown = "unknown"

func answer(cmd *exec.Cmd) string {
	out, err := cmd.Output()
	if err != nil {
		return unknown
	}
	return cmp.Or(strings.TrimSpace(string(out)), unknown)
}
