package chaos

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// reasons say why a case has no test of its own, or where it is tried without its number.
var reasons = map[string]string{
	"E02": "without its number: `internal/redisconn` TestOptions, of every kind of client",
	"E06": "without its number: `internal/ledger` and the chaos run on `cluster`, where a script over two slots is an error",
	"E10": "without its number: TestE105… of `internal/syncer/runner`, and the chaos run, which demotes and promotes servers",
	"E15": "without its number: `internal/ledger`, whose tests of E12 and E13 ask a Redis that has nothing",
	"E19": "without its number: the chaos run on `cluster`, whose buyers hang up",
	"E21": "without its number: TestE03ClusterClientRepeatsByItself makes the redirect loop repeat; slots are not moved during a sale",
	"E22": "without its number: `internal/gate` TestSoldOutFlag, and `make bench`, which measures refusals from memory",
	"E99": "no test can tell a person with many accounts from many persons. What the product does against bots is tested where it is: " +
		"identity only from what is verified (E77), addresses that cannot be forged (E79), limits whose memory is bounded and that " +
		"refuse when they do not know (`internal/ratelimit`), one reservation however often one buyer clicks (E84)",
}

var (
	testName   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	caseNumber = regexp.MustCompile(`E\d{2,3}`)
)

// TestEveryCaseHasATest: each case has a test with its number in the name, so that `go test -run E24` runs case E24, or a
// reason for having none; and docs/reliability.md lists them. CASES_UPDATE=1 writes that list.
func TestEveryCaseHasATest(t *testing.T) {
	root := filepath.Join("..", "..")
	names := cases(t)
	tests := map[string]map[string]bool{} // by case: package, test
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() != ".." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, m := range testName.FindAllStringSubmatch(string(text), -1) {
			for _, id := range caseNumber.FindAllString(m[1], -1) {
				if tests[id] == nil {
					tests[id] = map[string]bool{}
				}
				tests[id]["`"+filepath.ToSlash(dir)+"` "+m[1]] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| case | fault | tests |\n|---|---|---|\n")
	for _, id := range slices.Sorted(maps.Keys(names)) {
		reason, excused := reasons[id]
		if len(tests[id]) == 0 && !excused {
			t.Errorf("case %s (%s) has neither a test with its number in the name nor a reason here", id, names[id])
		}
		what := reason
		if len(tests[id]) > 0 {
			what = strings.Join(slices.Sorted(maps.Keys(tests[id])), "<br>")
		}
		fmt.Fprintf(&table, "| %s | %s | %s |\n", id, names[id], what)
	}
	for id := range tests {
		if _, known := names[id]; !known {
			t.Errorf("case %s, which tests name, is not in cases.txt", id)
		}
	}
	doc := filepath.Join(root, "docs", "reliability.md")
	if os.Getenv("CASES_UPDATE") != "" {
		if err := Insert(doc, "cases", table.String()); err != nil {
			t.Error(err)
		}
	}
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	for id := range names {
		if !strings.Contains(string(text), "| "+id+" | ") {
			t.Errorf("docs/reliability.md does not list case %s: run this with CASES_UPDATE=1", id)
		}
	}
}

// cases reads the list of cases: number and name.
func cases(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("cases.txt")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if id, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok && caseNumber.MatchString(id) {
			out[id] = name
		}
	}
	if len(out) < 90 {
		t.Fatalf("cases.txt lists %d cases", len(out))
	}
	return out
}
