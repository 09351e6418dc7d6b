package stack

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// refusesToUnpack holds the demo to its word where there is no apt-get: it says what is missing. Servers are unpacked on Debian and
// Ubuntu only.
func refusesToUnpack(t *testing.T) bool {
	t.Helper()
	if _, err := exec.LookPath("apt-get"); err == nil {
		return false
	}
	dir := t.TempDir()
	err := fetch(t.Context(), dir, filepath.Join(dir, "servers"), func(s string) { t.Log(s) })
	if err == nil || !strings.Contains(err.Error(), "apt-get") {
		t.Errorf("without apt-get: %v, want it to be named", err)
	}
	return true
}

// TestNothingToUnpackWith is what a machine of another kind hears.
func TestNothingToUnpackWith(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if !refusesToUnpack(t) {
		t.Error("apt-get was found on an empty PATH")
	}
}

// TestUnpackedServersRun fetches the distribution's packages as a machine without the servers would, and runs them from
// the folder that they were unpacked to.
func TestUnpackedServersRun(t *testing.T) {
	if refusesToUnpack(t) {
		return
	}
	dir := t.TempDir()
	servers, err := Find(t.Context(), dir, true, func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	if !servers.Unpacked {
		t.Fatalf("found %+v, want unpacked ones", servers)
	}
	p, err := NewProcs(filepath.Join(dir, "logs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(10 * time.Second) })
	if _, err := StartRedis(t.Context(), p, servers.Redis, filepath.Join(dir, "redis")); err != nil {
		t.Fatal(err)
	}
	if _, err := StartMariaDB(t.Context(), p, servers.MariaDB, filepath.Join(dir, "mariadb")); err != nil {
		t.Fatal(err)
	}
	// The second time nothing is fetched.
	if err := os.RemoveAll(filepath.Join(dir, "apt")); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(t.Context(), dir, true, func(s string) { t.Errorf("did again: %s", s) }); err != nil {
		t.Fatal(err)
	}
}

// TestUnpackOnABareMachine stands for a machine that has no package lists and lacks the libraries, too.
func TestUnpackOnABareMachine(t *testing.T) {
	if refusesToUnpack(t) {
		return
	}
	dir := t.TempDir()
	lists, status := filepath.Join(dir, "no-lists"), filepath.Join(dir, "status")
	if err := os.MkdirAll(filepath.Join(lists, "partial"), 0o755); err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadFile("/var/lib/dpkg/status")
	if err != nil {
		t.Fatal(err)
	}
	kept := without(string(all), "redis-tools", "mariadb-common", "libjemalloc2", "liburing2", "libaio1", "libnuma1", "liblzf1")
	if err := os.WriteFile(status, []byte(kept), 0o644); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "servers")
	a := apt{dir: filepath.Join(dir, "apt"), lists: lists, status: status, progress: func(s string) { t.Log(s) }}
	if err := a.fetch(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	servers, ok := unpacked(root)
	if !ok {
		t.Fatal("not whole")
	}
	for _, prog := range []Program{servers.Redis, servers.MariaDB} {
		ldd := exec.Command("ldd", prog.Path)
		ldd.Env = append(os.Environ(), prog.Env...)
		out, err := ldd.CombinedOutput()
		if err != nil || strings.Contains(string(out), "not found") {
			t.Errorf("%s lacks a library: %v\n%s", prog.Path, err, out)
		}
		if strings.HasSuffix(prog.Path, "redis-server") && !strings.Contains(string(out), root) {
			t.Errorf("%s does not use the unpacked libraries:\n%s", prog.Path, out)
		}
	}
}

// without drops packages from dpkg's status file, and those that depend on them.
func without(status string, names ...string) string {
	stanzas := strings.Split(strings.TrimSpace(status), "\n\n")
	for i := 0; i < len(names); i++ {
		drop := regexp.MustCompile(`(?m)^Package: ` + regexp.QuoteMeta(names[i]) + `$|^(Pre-)?Depends: (.*[ ,])?` + regexp.QuoteMeta(names[i]) + `([ ,:(]|$)`)
		kept := stanzas[:0]
		for _, s := range stanzas {
			if !drop.MatchString(s) {
				kept = append(kept, s)
				continue
			}
			first, _, _ := strings.Cut(s, "\n")
			names = append(names, strings.TrimPrefix(first, "Package: "))
		}
		stanzas = kept
	}
	return strings.Join(stanzas, "\n\n") + "\n"
}
