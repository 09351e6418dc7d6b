// Package fences proves what must never be compiled into whose binary. The linter (depguard in .golangci.yml) sees what a
// package imports itself; this looks at everything that comes along.
package fences

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/seckillgate/seckillgate"

// The tags that xcaddy builds with.
const caddyTags = "nobadger,nomysql,nopgx"

// pkg is what `go list` says of a package.
type pkg struct {
	ImportPath string
	Imports    []string
	Standard   bool
}

// closure returns all packages that the given ones are built from.
func closure(t *testing.T, patterns ...string) map[string]pkg {
	t.Helper()
	args := append([]string{"list", "-deps", "-json=ImportPath,Imports,Standard", "-tags", caddyTags}, patterns...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = "../.."
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -deps %s: %v\n%s", strings.Join(patterns, " "), err, stderr.String())
	}
	found := map[string]pkg{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatalf("read go list's answer: %v", err)
		}
		found[p.ImportPath] = p
	}
}

// importers names who brings path into the closure, for the message.
func importers(all map[string]pkg, path string) []string {
	var by []string
	for _, p := range all {
		for _, i := range p.Imports {
			if i == path {
				by = append(by, p.ImportPath)
			}
		}
	}
	return by
}

func refuse(t *testing.T, all map[string]pkg, roots []string, why string) {
	t.Helper()
	for path := range all {
		for _, root := range roots {
			if path == root || strings.HasPrefix(path, root+"/") {
				t.Errorf("%s is compiled in, imported by %s: %s", path, strings.Join(importers(all, path), ", "), why)
			}
		}
	}
}

// Who builds Caddy with the plugin gets no MySQL driver, no binlog reader and no migrations with it.
func TestCaddyModuleKnowsNoDatabase(t *testing.T) {
	t.Parallel()
	all := closure(t, "./caddymodule")
	if len(all) < 100 {
		t.Fatalf("the closure of caddymodule has %d packages: go list has not seen it", len(all))
	}
	refuse(t, all, []string{
		"github.com/go-sql-driver/mysql",
		"github.com/go-mysql-org/go-mysql",
		"github.com/golang-migrate/migrate",
		"github.com/pingcap/tidb/pkg/parser",
		module + "/internal/store",
		module + "/internal/syncer",
		module + "/internal/landing",
		module + "/internal/testenv",
	}, "the edge asks Redis and Kafka, never the database")
}

// The core can be read, tested and used without Caddy.
func TestCoreKnowsNoCaddy(t *testing.T) {
	t.Parallel()
	refuse(t, closure(t, "./internal/..."), []string{"github.com/caddyserver/caddy/v2"},
		"packages under internal/ are framework-free")
}

// What a user's go.mod or binary inherits holds nothing that only tests or the demo need.
func TestProductsHoldNothingForTests(t *testing.T) {
	t.Parallel()
	refuse(t, closure(t, "./caddymodule", "./cmd/...", "./worker", "./syncer"), []string{
		"testing",
		"go.uber.org/goleak",
		module + "/internal/testenv",
		"github.com/twmb/franz-go",
	}, "that is for tests and the demo")
}
