package chaos

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

var caseNumber = regexp.MustCompile(`E\d{2,3}`)

// TestEveryCaseHasATest: each case has a test with its number in the name, so that `go test -run E24` runs case E24,
// and docs/reliability.md lists them. CASES_UPDATE=1 writes that list.
func TestEveryCaseHasATest(t *testing.T) {
	root := filepath.Join("..", "..")
	names := cases(t)
	tests := map[string]map[string]bool{} // by case: package, test
	for _, f := range testenv.Functions(t, root) {
		for _, id := range caseNumber.FindAllString(f.Name, -1) {
			if tests[id] == nil {
				tests[id] = map[string]bool{}
			}
			tests[id]["`"+f.Package+"` "+f.Name] = true
		}
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
