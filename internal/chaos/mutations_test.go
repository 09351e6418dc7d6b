//go:build chaos

package chaos

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMutations takes one protection after the other out and shows that a short run notices. CHAOS_MUTATIONS, a regular
// expression, chooses some.
func TestMutations(t *testing.T) {
	c := settings(t)
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	chosen, err := regexp.Compile(os.Getenv("CHAOS_MUTATIONS"))
	if err != nil {
		t.Fatalf("CHAOS_MUTATIONS: %v", err)
	}
	table := "| without | faults | noticed |\n|---|---|---|\n"
	for i, m := range mutations {
		if !chosen.MatchString(m.without) {
			continue
		}
		dir := t.TempDir()
		m.build(t, root, dir)
		cmd := exec.Command(os.Args[0], "-test.run", "^TestChaos$", "-test.v", "-test.timeout", "15m")
		cmd.Env = append(os.Environ(), "CHAOS_BIN="+dir, "CHAOS_KINDS="+m.kinds, fmt.Sprintf("CHAOS_SEED=%d", cmp.Or(m.seed, c.seed)),
			"CHAOS_SETUP=base", "CHAOS_REPORT=", "CHAOS_HASTY=1", fmt.Sprintf("CHAOS_MINUTES=%g", c.minutes), fmt.Sprintf("CHAOS_BUYERS=%d", c.buyers))
		if m.stocked {
			cmd.Env = append(cmd.Env, "CHAOS_OPENS=4")
		}
		out, err := cmd.CombinedOutput()
		if err := os.WriteFile(filepath.Join(c.logs, fmt.Sprintf("mutation-%d.log", i+1)), out, 0o600); err != nil {
			t.Fatal(err)
		}
		word := noticed(string(out))
		if err == nil || word == "" {
			word = "**no**"
			t.Errorf("nobody notices a product without %s", m.without)
		}
		table += fmt.Sprintf("| %s | %s | %s |\n", m.without, "`"+strings.Join(m.faults(), "`, `")+"`", word)
		fmt.Printf("without %s: %s\n", m.without, word)
	}
	fmt.Print(table)
	if c.report != "" {
		if err := Insert(c.report, "mutations", table); err != nil {
			t.Error(err)
		}
	}
}

// build makes the programs of a product that lacks the protection.
func (m *mutation) build(t *testing.T, root, dir string) {
	t.Helper()
	mutants, err := m.apply(root)
	if err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{}
	for path, text := range mutants {
		replace[path] = filepath.Join(dir, fmt.Sprintf("mutant%d%s", len(replace), filepath.Ext(path)))
		if err := os.WriteFile(replace[path], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, pkg := range map[string]string{"caddy": "./cmd/caddy", "seckill-worker": "./worker", "seckill-syncer": "./syncer"} {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-tags", "nobadger,nomysql,nopgx", "-overlay", file, "-o", filepath.Join(dir, name), pkg)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s without %s: %v\n%s", name, m.without, err, out)
		}
	}
}

// noticed names the invariants that a run found broken.
func noticed(out string) string {
	var ids []string
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "BROKEN") && !strings.Contains(line, "_test.go:") {
			continue
		}
		for _, id := range []string{"I1", "I2", "I3", "I4", "I5", "I6"} {
			if strings.Contains(line, id+" ") || strings.Contains(line, id+":") {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), ", ")
}
