package stack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Program is a server's executable and what it needs to run from where it lies.
type Program struct {
	Path  string
	Env   []string // LD_LIBRARY_PATH for unpacked ones
	Share string   // MariaDB: the folder with its SQL files and messages
}

// Servers are the programs of the two servers that the demo does not embed.
type Servers struct {
	Redis, MariaDB Program
	Unpacked       bool // out of the distribution's packages, rather than found on this machine
}

// Find looks for redis-server and mariadbd on PATH and in the usual folders for servers, else unpacks the
// distribution's packages below dir, which an earlier run may have done already. It never installs anything.
// Setting unpack skips the first step. progress gets a line now and then.
func Find(ctx context.Context, dir string, unpack bool, progress func(string)) (*Servers, error) {
	if !unpack {
		if s, ok := installed(); ok {
			return s, nil
		}
	}
	root := filepath.Join(dir, "servers")
	if s, ok := unpacked(root); ok {
		return s, nil
	}
	if err := fetch(ctx, dir, root, progress); err != nil {
		return nil, fmt.Errorf("%w\n\n%s", err, remedy)
	}
	s, ok := unpacked(root)
	if !ok {
		return nil, fmt.Errorf("the packages unpacked to %s have no redis-server or no mariadbd\n\n%s", root, remedy)
	}
	return s, nil
}

const remedy = `The demo needs redis-server and mariadbd. Install them and run it again:
    Debian, Ubuntu:  sudo apt-get install redis-server mariadb-server-core
    Fedora:          sudo dnf install redis mariadb-server
    Alpine:          sudo apk add redis mariadb
    macOS:           brew install redis mariadb`

func installed() (*Servers, bool) {
	redis, ok1 := lookPath("redis-server", "valkey-server")
	maria, ok2 := lookPath("mariadbd")
	if !ok1 || !ok2 {
		return nil, false
	}
	share, ok := shareOf(maria)
	if !ok {
		return nil, false
	}
	return &Servers{Redis: Program{Path: redis}, MariaDB: Program{Path: maria, Share: share}}, true
}

// lookPath also looks where distributions keep servers, since an ordinary user's PATH often lacks sbin.
func lookPath(names ...string) (string, bool) {
	for _, name := range names {
		if p, err := exec.LookPath(name); err == nil {
			if p, err = filepath.Abs(p); err == nil {
				return p, true
			}
		}
		for _, dir := range []string{"/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/usr/libexec", "/opt/homebrew/bin"} {
			if isFile(filepath.Join(dir, name)) {
				return filepath.Join(dir, name), true
			}
		}
	}
	return "", false
}

// shareOf finds the SQL files that belong to a mariadbd.
func shareOf(mariadbd string) (string, bool) {
	if target, err := filepath.EvalSymlinks(mariadbd); err == nil {
		mariadbd = target
	}
	up := filepath.Dir(filepath.Dir(mariadbd))
	for _, dir := range []string{up + "/share/mysql", up + "/share/mariadb", "/usr/share/mysql", "/usr/share/mariadb"} {
		if _, ok := sqlFile(dir, "system_tables.sql"); ok {
			return dir, true
		}
	}
	return "", false
}

// sqlFile finds one of MariaDB's own SQL files, whose prefix changed with version 11.
func sqlFile(share, name string) (string, bool) {
	for _, prefix := range []string{"mariadb_", "mysql_"} {
		if p := filepath.Join(share, prefix+name); isFile(p) {
			return p, true
		}
	}
	return "", false
}

// unpacked describes the servers below root, once it is whole.
func unpacked(root string) (*Servers, bool) {
	if !isFile(filepath.Join(root, "complete")) {
		return nil, false
	}
	redis, maria := filepath.Join(root, "usr/bin/redis-server"), filepath.Join(root, "usr/sbin/mariadbd")
	share, ok := shareOf(maria)
	if !ok || !isFile(redis) {
		return nil, false
	}
	var libs []string
	for _, pattern := range []string{"usr/lib/*-linux-*", "lib/*-linux-*", "usr/lib", "lib"} {
		found, _ := filepath.Glob(filepath.Join(root, pattern)) // the pattern is well-formed
		libs = append(libs, found...)
	}
	env := []string{"LD_LIBRARY_PATH=" + strings.Join(libs, ":")}
	return &Servers{
		Redis: Program{Path: redis, Env: env}, MariaDB: Program{Path: maria, Env: env, Share: share}, Unpacked: true,
	}, true
}

func isFile(path string) bool {
	st, err := os.Stat(path) //nolint:gosec // only looks whether it is there
	return err == nil && st.Mode().IsRegular()
}
