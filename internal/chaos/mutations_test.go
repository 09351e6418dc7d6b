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

// mutation takes one protection out of the product, or one and the other that stands behind it.
type mutation struct {
	without string // the protection
	edits   []edit
	kinds   string // of the faults that it protects from
	seed    uint64 // whose plan has them in an order that matters; 0: CHAOS_SEED
}

// edit replaces what stands once in a file.
type edit struct{ file, old, with string }

// noSweep leaves what is old to itself. Without it no fault of a worker is harmful yet: only a gateway's.
var noSweep = edit{"internal/syncer/compare/sweep.go", "if age > w.Timings.HorizonMs || w.opt.Young {", "if w.opt.Young {"}

// mutations are a list to grow: whoever adds a protection adds here what breaks without it.
var mutations = []mutation{
	{
		without: "the sweep: a reservation that is never published is looked after",
		edits:   []edit{noSweep},
		kinds:   "kill@gateway1,kill@gateway2,kill kafka",
	},
	{
		without: "the reserve script's look at which server this is",
		edits:   []edit{{"internal/ledger/lua/prelude.lua", "return server_identity() == loaded_on", "return true"}},
		kinds:   "pairs,fail over redis; writes lost,pause@worker1,pause@worker2",
	},
	{
		without: "unknown as an outcome of a publication: every error counts as not sent",
		edits: []edit{{
			"internal/edge/publish.go", "case !errors.Is(err, ErrNotSent):",
			"case errors.Is(err, context.Canceled) && errors.Is(err, ErrNotSent):",
		}},
		kinds: "lose replies@gateway1-kafka,lose replies@gateway2-kafka,partition link@gateway1-kafka",
	},
	{
		without: "settle's order: units leave pending, and the stock is left to the binlog",
		edits: []edit{{
			"internal/ledger/lua/settle.lua", "if version and version > a.version then",
			"if version and overwrite and version > a.version then",
		}},
		kinds: "delay replies@syncer1-mysql,delay replies@syncer2-mysql,pause@syncer1,pause@syncer2",
	},
	{
		without: "settle's comparison of versions: whoever comes last is believed",
		edits: []edit{{
			"internal/ledger/lua/settle.lua", "if version and version > a.version then",
			"if version and version > 0 then",
		}},
		kinds: "delay replies@syncer1-mysql,delay replies@syncer2-mysql",
	},
	{
		without: "landing before the offset is marked, and the sweep behind it",
		edits: []edit{noSweep, {
			"internal/landing/claim.go", "if _, err := h.c.lander.Land(work, batch); err != nil {",
			`s.MarkOffset(claim.Topic(), part, batch[len(batch)-1].Offset+1, "")
		if _, err := h.c.lander.Land(work, batch); err != nil {`,
		}},
		kinds: "pairs,pause mysql,kill@worker1,kill@worker2",
		seed:  244, // a batch waits for MySQL, and then its worker is killed
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
		if !chosen.MatchString(m.without) {
			continue
		}
		dir := t.TempDir()
		m.build(t, root, dir)
		cmd := exec.Command(os.Args[0], "-test.run", "^TestChaos$", "-test.v", "-test.timeout", "15m")
		cmd.Env = append(os.Environ(), "CHAOS_BIN="+dir, "CHAOS_KINDS="+m.kinds, fmt.Sprintf("CHAOS_SEED=%d", cmp.Or(m.seed, c.seed)),
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
	replace := map[string]string{}
	for i, e := range m.edits {
		path := filepath.Join(root, e.file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), e.old); n != 1 {
			t.Fatalf("%s has %q %d times, want once: mend the mutation", e.file, e.old, n)
		}
		replace[path] = filepath.Join(dir, fmt.Sprintf("mutant%d%s", i, filepath.Ext(e.file)))
		if err := os.WriteFile(replace[path], []byte(strings.Replace(string(text), e.old, e.with, 1)), 0o600); err != nil {
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
