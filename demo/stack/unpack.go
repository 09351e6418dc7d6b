package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// fetch downloads Debian or Ubuntu packages of the two servers, with those libraries that this machine lacks, and
// unpacks them below root. apt gets folders of its own for lists, archives and caches, so an ordinary user can do it and
// the system's state is only read.
func fetch(ctx context.Context, dir, root string, progress func(string)) error {
	for _, tool := range []string{"apt-get", "dpkg"} {
		if _, err := exec.LookPath(tool); err != nil {
			return errors.New("redis-server or mariadbd is not installed, and without apt-get and dpkg they cannot be unpacked either")
		}
	}
	return apt{
		dir: filepath.Join(dir, "apt"), lists: "/var/lib/apt/lists", status: "/var/lib/dpkg/status", progress: progress,
	}.fetch(ctx, root)
}

type apt struct {
	dir      string // apt's own files
	lists    string // the system's package lists, used where there are any
	status   string // the system's record of what is installed
	progress func(string)
}

func (a apt) fetch(ctx context.Context, root string) error {
	for _, d := range []string{"lists/partial", "cache/archives/partial", "debs"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o750); err != nil {
			return fmt.Errorf("make folders for apt: %w", err)
		}
	}
	// redis-server holds a link to the program, which is in redis-tools.
	wanted := []string{"redis-server", "redis-tools", "mariadb-server-core"}
	debs, err := a.packages(ctx, wanted)
	if err != nil {
		// The machine has no lists, or old ones that name versions which the archive no longer has.
		a.progress("fetching package lists")
		a.lists = filepath.Join(a.dir, "lists")
		if _, err = a.run(ctx, "update"); err == nil {
			debs, err = a.packages(ctx, wanted)
		}
	}
	if err != nil {
		return err
	}
	return unpackAll(ctx, root, debs)
}

func unpackAll(ctx context.Context, root string, debs []string) error {
	if err := os.RemoveAll(root); err != nil { //nolint:gosec // below the folder that the demo was given
		return fmt.Errorf("clear %s: %w", root, err)
	}
	if err := os.MkdirAll(root, 0o750); err != nil { //nolint:gosec // likewise
		return fmt.Errorf("make %s: %w", root, err)
	}
	for _, deb := range debs {
		if out, err := exec.CommandContext(ctx, "dpkg", "-x", deb, root).CombinedOutput(); err != nil { //nolint:gosec // files that apt has just verified
			return fmt.Errorf("unpack %s: %w: %s", deb, err, bytes.TrimSpace(out))
		}
	}
	// Last, so that a run which was cut short is not taken for a whole one.
	return os.WriteFile(filepath.Join(root, "complete"), nil, 0o600) //nolint:gosec // likewise
}

// packages downloads the wanted packages and what they need, and gives the files.
func (a apt) packages(ctx context.Context, wanted []string) ([]string, error) {
	names, err := a.closure(ctx, wanted)
	if err != nil {
		return nil, err
	}
	a.progress(fmt.Sprintf("fetching %d packages: %s", len(names), strings.Join(names, " ")))
	return a.download(ctx, names)
}

// closure names the wanted packages and those that an installation of them would add to this machine.
func (a apt) closure(ctx context.Context, wanted []string) ([]string, error) {
	out, err := a.run(ctx, append([]string{"install", "--simulate", "--no-install-recommends"}, wanted...)...)
	if err != nil {
		return nil, err
	}
	names := append([]string(nil), wanted...)
	seen := map[string]bool{}
	for _, n := range names {
		seen[n] = true
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "Inst" || seen[f[1]] || unneeded(f[1]) {
			continue
		}
		seen[f[1]] = true
		names = append(names, f[1])
	}
	return names, nil
}

// unneeded leaves out packages of scripts and settings, which an unpacked server does not use, and the C library, which
// must be the one of the system's loader.
func unneeded(name string) bool {
	switch name {
	case "libc6", "libc-bin":
		return true
	case "mariadb-common", "mysql-common", "lsb-base", "sysvinit-utils", "adduser", "galera-4":
		return true
	}
	return false
}

// download puts the packages into a folder of its own and gives the files.
func (a apt) download(ctx context.Context, names []string) ([]string, error) {
	debs := filepath.Join(a.dir, "debs")
	if err := os.RemoveAll(debs); err != nil {
		return nil, fmt.Errorf("clear %s: %w", debs, err)
	}
	if err := os.MkdirAll(debs, 0o750); err != nil {
		return nil, fmt.Errorf("make %s: %w", debs, err)
	}
	if _, err := a.run(ctx, append([]string{"download"}, names...)...); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err == nil && len(files) < len(names) {
		err = fmt.Errorf("apt-get download fetched %d of %d packages into %s", len(files), len(names), debs)
	}
	return files, err
}

func (a apt) run(ctx context.Context, args ...string) (string, error) {
	options := []string{
		"-q", "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=",
		"-o", "Dir::State=" + a.dir, "-o", "Dir::State::status=" + a.status, "-o", "Dir::State::lists=" + a.lists,
		"-o", "Dir::Cache=" + filepath.Join(a.dir, "cache"), "-o", "APT::Get::List-Cleanup=0",
		"-o", "APT::Update::Post-Invoke::=", "-o", "Acquire::Retries=2",
	}
	cmd := exec.CommandContext(ctx, "apt-get", append(options, args...)...)
	cmd.Dir = filepath.Join(a.dir, "debs") // `download` writes to the working directory
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("apt-get %s: %w: %s", args[0], err, lastLines(errs.String(), 4))
	}
	return out.String(), nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "; ")
}
