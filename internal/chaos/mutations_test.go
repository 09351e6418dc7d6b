//go:build chaos

package chaos

import (
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

// mutation takes one protection out of the product.
type mutation struct {
	without string // the protection
	file    string
	old     string
	with    string
	kinds   string // of the faults that it protects from
}

// mutations are a list to grow: whoever adds a protection adds here what breaks without it.
var mutations = []mutation{
	{
		without: "the sweep: a reservation that is never published is looked after",
		file:    "internal/syncer/compare/sweep.go",
		old:     "if age > w.Timings.HorizonMs || w.opt.Young {",
		with:    "if w.opt.Young {",
		kinds:   "kill@gateway1,kill@gateway2,kill kafka",
	},
	{
		without: "the reserve script's look at which server this is",
		file:    "internal/ledger/lua/prelude.lua",
		old:     "return server_identity() == loaded_on",
		with:    "return true",
		kinds:   "pairs,fail over redis; writes lost,pause@worker1,pause@worker2",
	},
	{
		without: "unknown as an outcome of a publication: every error counts as not sent",
		file:    "internal/edge/publish.go",
		old:     "case !errors.Is(err, ErrNotSent):",
		with:    "case errors.Is(err, context.Canceled) && errors.Is(err, ErrNotSent):",
		kinds:   "lose replies@gateway1-kafka,lose replies@gateway2-kafka,partition link@gateway1-kafka",
	},
	{
		without: "settle's order: units leave pending, and the stock is left to the binlog",
		file:    "internal/ledger/lua/settle.lua",
		old:     "if version and version > a.version then",
		with:    "if version and overwrite and version > a.version then",
		kinds:   "delay replies@syncer1-mysql,delay replies@syncer2-mysql,pause@syncer1,pause@syncer2",
	},
	{
		without: "settle's comparison of versions: whoever comes last is believed",
		file:    "internal/ledger/lua/settle.lua",
		old:     "if version and version > a.version then",
		with:    "if version and version > 0 then",
		kinds:   "delay replies@syncer1-mysql,delay replies@syncer2-mysql",
	},
}

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
		if !chosen.MatchString(m.without + " " + m.file) {
			continue
		}
		dir := t.TempDir()
		m.build(t, root, dir)
		cmd := exec.Command(os.Args[0], "-test.run", "^TestChaos$", "-test.v", "-test.timeout", "15m")
		cmd.Env = append(os.Environ(), "CHAOS_BIN="+dir, "CHAOS_KINDS="+m.kinds, fmt.Sprintf("CHAOS_SEED=%d", c.seed),
			"CHAOS_SETUP=base", "CHAOS_REPORT=", "CHAOS_HASTY=1", fmt.Sprintf("CHAOS_MINUTES=%g", c.minutes), fmt.Sprintf("CHAOS_BUYERS=%d", c.buyers))
		out, err := cmd.CombinedOutput()
		if err := os.WriteFile(filepath.Join(c.logs, fmt.Sprintf("mutation-%d.log", i+1)), out, 0o600); err != nil {
			t.Fatal(err)
		}
		word := noticed(string(out))
		if err == nil || word == "" {
			word = "**no**"
			t.Errorf("nobody notices a product without %s", m.without)
		}
		table += fmt.Sprintf("| %s | %s | %s |\n", m.without, strings.ReplaceAll(strings.ReplaceAll(m.kinds, ",", ", "), ";", ","), word)
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
	path := filepath.Join(root, m.file)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		t.Fatalf("%s has %q %d times, want once: mend the mutation", m.file, m.old, n)
	}
	mutant := filepath.Join(dir, "mutant"+filepath.Ext(m.file))
	if err := os.WriteFile(mutant, []byte(strings.Replace(string(text), m.old, m.with, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutant}})
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
