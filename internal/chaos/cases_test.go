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

var (
	testName   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	caseNumber = regexp.MustCompile(`E\d{2,3}`)
)

// TestEveryCaseHasATest: each case has a test with its number in the name, so that `go test -run E24` runs case E24,
// and docs/reliability.md lists them. CASES_UPDATE=1 writes that list.
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
		if len(tests[id]) == 0 {
			t.Errorf("case %s (%s) has no test with its number in the name", id, names[id])
		}
		fmt.Fprintf(&table, "| %s | %s | %s |\n", id, names[id], strings.Join(slices.Sorted(maps.Keys(tests[id])), "<br>"))
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
	if !strings.Contains(string(text), table.String()) {
		t.Error("the list of cases in docs/reliability.md is not that of the tests: run this with CASES_UPDATE=1")
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
