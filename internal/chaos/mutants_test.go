package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// mutation takes one protection out of the product, or one and the other that stands behind it.
type mutation struct {
	without string // the protection
	edits   []edit
	kinds   string // of the faults that it protects from
	seed    uint64 // whose plan has them in an order that matters; 0: CHAOS_SEED
	stocked bool   // there is more to sell than anybody asks for: what comes late still finds some
}

// edit replaces what stands once in a file.
type edit struct{ file, old, with string }

// noSweep leaves what is old to itself. Without it no fault of a worker is harmful yet: only a gateway's.
var noSweep = edit{"internal/syncer/compare/sweep.go", "if age > w.Timings.HorizonMs || w.opt.Young {", "if w.opt.Young {"}

// noDeadline lets a reserve call that was held up reserve after its buyer has been answered.
var noDeadline = edit{"internal/ledger/lua/reserve.lua", "if now > tonumber(ARGV[at + 6]) then return TOO_LATE, '' end", ""}

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
		kinds: "lose replies@gateway1-kafka,lose replies@gateway2-kafka,partition link@gateway1-kafka,pause kafka",
	},
	{
		without: "settle's order: units leave pending, and the stock is left to the binlog",
		edits: []edit{{
			"internal/ledger/lua/settle.lua", "if version and version > a.version then",
			"if version and overwrite and version > a.version then",
		}},
		kinds:   "delay replies@syncer1-mysql,delay replies@syncer2-mysql,pause@syncer1,pause@syncer2",
		stocked: true,
	},
	{
		without: "settle's comparison of versions: whoever comes last is believed",
		edits: []edit{{
			"internal/ledger/lua/settle.lua", "if version and version > a.version then",
			"if version and version > 0 then",
		}},
		kinds: "compare,delay replies@syncer1-mysql,delay replies@syncer2-mysql",
	},
	{
		without: "landing before the offset is marked, and the sweep behind it",
		edits: []edit{noSweep, {
			"internal/landing/claim.go", "if _, err := h.c.lander.Land(work, batch); err != nil {",
			`s.MarkOffset(claim.Topic(), part, batch[len(batch)-1].Offset+1, "")
		if _, err := h.c.lander.Land(work, batch); err != nil {`,
		}},
		kinds:   "pairs,pause mysql,kill@worker1,kill@worker2",
		seed:    244, // a batch waits for MySQL, and then its worker is killed
		stocked: true,
	},
	{
		without: "a script's way back when the server does not know it any more",
		edits: []edit{
			{"internal/ledger/script.go", `redis.HasErrorPrefix(err, "NOSCRIPT")`, `redis.HasErrorPrefix(err, "NOSCRIPT") && !sent(s)`},
			{"internal/ledger/script.go", "// reply runs a script whose answer is an array.", `var all sync.Map

func sent(s *redis.Script) bool {
	_, before := all.LoadOrStore(s.Hash(), true)
	return before
}

// reply runs a script whose answer is an array.`},
			{"internal/ledger/script.go", "\t\"sync/atomic\"\n", "\t\"sync\"\n\t\"sync/atomic\"\n"},
		},
		kinds: "flush scripts",
	},
	{
		without: "unknown as an outcome of a reserve call, and the deadline behind it: without an answer it counts as refused",
		edits: []edit{
			{"internal/edge/order.go", "return e.handOver(t, CauseUnknown)", "return refuse(&t.Request, Unavailable, CauseNotReserved)"},
			noDeadline,
		},
		kinds:   "delay requests@gateway1-redis,delay requests@gateway2-redis,pause redis,reset link@gateway1-redis",
		stocked: true,
	},
	{
		without: "orders that have landed before take no units again",
		edits: []edit{{
			"internal/store/batch.go", "p.outcomes[i] = row\n\t\t\tcontinue", "p.outcomes[i] = row\n\t\t\tp.sum += o.Quantity\n\t\t\tcontinue",
		}},
		kinds: "rebalance,kill@worker1,kill@worker2,stop@worker1,pause@worker2,lose replies@worker1-kafka,lose replies@worker2-kafka",
	},
	{
		without: "the stock in the binlog, and the look of compare behind it",
		edits: []edit{
			{"internal/syncer/follow/applier.go", "for item, stock := range stocks {", "for item, stock := range map[int64]binlog.Stock(nil) {"},
			{"internal/syncer/follow/applier.go", "ok && sameItem(out) {", "ok && !sameItem(nil) {"},
			{"internal/syncer/compare/compare.go", "return w.behind(ctx, version, stock)", "return nil"},
		},
		kinds: "restock,correct stock,replace stock row",
	},
	{
		without: "the buyers of live orders, when an activity is loaded, and compare behind that",
		edits: []edit{
			{"internal/ledger/lua/load_orders.lua", "redis.call('HSET', KEYS[5], user, id)", "-- not put back"},
			{"internal/ledger/lua/buyers.lua", "changed = changed + redis.call('HSETNX', KEYS[5], user, id)", "changed = changed + 0"},
		},
		kinds: "load,force,compare",
	},
	{
		without: "the pause of a sale, in the reserve script and in the gate before it",
		edits: []edit{
			{
				"internal/ledger/lua/reserve.lua", "  elseif a.state == 'paused' then\n    phase = PAUSED\n  elseif a.state ~= 'open' then",
				"  elseif a.state ~= 'open' and a.state ~= 'paused' then",
			},
			{
				"internal/gate/judge.go", "case state == ledger.Paused:\n\t\treturn phasePaused\n\tcase state != ledger.Open:",
				"case state != ledger.Open && state != ledger.Paused:",
			},
		},
		kinds: "admin pause",
	},
	{
		without: "waiting for the requests of the old configuration before its clients are closed, and the sweep behind it",
		edits: []edit{
			noSweep,
			{"caddymodule/shared.go", "s.buying.wait(half)\n", "_ = half\n"},
			{"caddymodule/shared.go", "err := b.drain(ctx)\n\ts.buying.wait(ctx)\n\ts.waiting.wait(ctx)\n", "var err error\n"},
			{"caddymodule/core.go", "c.batcher.Close()\n", "_ = c.redis.Close()\n\tc.batcher.Close()\n"},
		},
		kinds: "pairs,reload caddy,delay replies@gateway1-redis,delay replies@gateway2-redis",
	},
	{
		without: "the syncer's look whether Redis still has what was loaded",
		edits: []edit{
			{"internal/syncer/runner/loads.go", "func (l *loads) loaded(id int64, epoch string) {\n", "var ever sync.Map\n\nfunc (l *loads) loaded(id int64, epoch string) {\n\tever.Store(id, true)\n"},
			{"internal/syncer/runner/loads.go", "why := problem(look)\n", "why := problem(look)\n\t\tif _, was := ever.Load(a.ID); was {\n\t\t\twhy = \"\"\n\t\t}\n"},
		},
		kinds: "kill redis,kill redis; data lost,flush redis,fail over redis",
	},
	{
		without: "unknown as an outcome of COMMIT, and the sweep behind it: without an answer it counts as done",
		edits: []edit{noSweep, {
			"internal/store/session.go", `if _, err := x.exec(context.WithoutCancel(ctx), "COMMIT"); err != nil {`,
			`if _, err := x.exec(context.WithoutCancel(ctx), "COMMIT"); err != nil && ctx == nil {`,
		}},
		kinds: "pairs,lose replies@worker1-mysql,lose replies@worker2-mysql,kill mysql,cut link@worker1-mysql,cut link@worker2-mysql,reset link@worker1-mysql",
		seed:  2488, // both workers' connections are closed before their COMMITs are heard
	},
}

// apply gives the files of the product without the protection, by their paths.
func (m *mutation) apply(root string) (map[string]string, error) {
	mutants := map[string]string{}
	for _, e := range m.edits {
		path := filepath.Join(root, filepath.FromSlash(e.file))
		text, ok := mutants[path]
		if !ok {
			b, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			text = string(b)
		}
		if n := strings.Count(text, e.old); n != 1 {
			return nil, fmt.Errorf("without %s: %s has %q %d times, want once: mend the mutation", m.without, e.file, e.old, n)
		}
		mutants[path] = strings.Replace(text, e.old, e.with, 1)
	}
	return mutants, nil
}

// faults are the kinds, as NewPlan takes them.
func (m *mutation) faults() []string {
	kinds := strings.Split(m.kinds, ",")
	for i, k := range kinds {
		kinds[i] = strings.ReplaceAll(strings.TrimSpace(k), ";", ",")
	}
	return kinds
}

// TestMutationsFit: the protections are still where the mutations look for them, and the faults exist.
func TestMutationsFit(t *testing.T) {
	for _, m := range mutations {
		if _, err := m.apply(filepath.Join("..", "..")); err != nil {
			t.Error(err)
		}
		if _, err := NewPlan(Base, 1, time.Minute, m.faults()...); err != nil {
			t.Errorf("without %s: %v", m.without, err)
		}
	}
}

// TestEveryKindOfFaultHasAMutation: of each kind of fault it is shown that a run notices when what protects from it is missing.
func TestEveryKindOfFaultHasAMutation(t *testing.T) {
	covered := map[string]bool{}
	for _, m := range mutations {
		for _, k := range m.faults() {
			name, _, _ := strings.Cut(k, "@")
			covered[name] = true
		}
	}
	for _, k := range kinds(Base) {
		if !covered[k.name] {
			t.Errorf("no mutation for the fault %q", k.name)
		}
	}
}
