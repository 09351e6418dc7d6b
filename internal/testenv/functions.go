package testenv

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Function is a test or a fuzz test of this repository.
type Function struct {
	Package string // its folder from the root, such as internal/edge
	Name    string
}

var functionHead = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

// Functions gives every test and fuzz test below the root of the repository, whatever its build tags.
func Functions(t testing.TB, root string) []Function {
	t.Helper()
	var out []Function
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
		for _, m := range functionHead.FindAllStringSubmatch(string(text), -1) {
			out = append(out, Function{Package: filepath.ToSlash(dir), Name: m[1]})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
