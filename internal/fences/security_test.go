package fences

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

// TestSecurityNamesTestsThatExist: each threat in docs/security.md names at least one test, and each test that the page names is
// there, in the package that it says.
func TestSecurityNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{} // package and name
	for _, f := range testenv.Functions(t, root) {
		have[f.Package+" "+f.Name] = true
	}
	named := regexp.MustCompile("`([a-z0-9/]+) ((?:Test|Fuzz)\\w+)`")
	threats, inTable := 0, false
	for line := range strings.Lines(string(page)) {
		tests := named.FindAllStringSubmatch(line, -1)
		for _, m := range tests {
			if !have[m[1]+" "+m[2]] {
				t.Errorf("docs/security.md names %s in %s, which does not exist", m[2], m[1])
			}
		}
		switch {
		case strings.HasPrefix(line, "| threat |"):
			inTable = true
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case inTable && !strings.HasPrefix(line, "|---"):
			if threats++; len(tests) == 0 {
				t.Errorf("docs/security.md names no test for %s", strings.Split(line, "|")[1])
			}
		}
	}
	if threats < 15 {
		t.Errorf("docs/security.md lists %d threats: is its table read?", threats)
	}
}
