//go:build !race

// Data races are looked for by TestModelOfTheProtocol; here only speed counts. `make model` runs this.

package ledger

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// A fault is a rule of the protocol that is left out on purpose: in a script's text, or in what the model plays around them.
// The model must find each, or it proves nothing.
type fault struct {
	name string
	// In a script.
	script   **redis.Script
	file     string
	from, to string
	// Around the scripts.
	off rule
	// Where to begin to look, for what takes long to find. Default: 1.
	seed uint64
}

var faults = []fault{
	// settle
	{
		name: "settle counts stock down", script: &settleScript, file: "settle",
		from: "a.pending = a.pending - units",
		to:   "if a.stock >= units then redis.call('DECRBY', KEYS[1], str(units)) end",
	},
	{
		name: "settle without the version gate", script: &settleScript, file: "settle",
		from: "version > a.version then", to: "true then",
	},
	{
		name: "settle leaves stock to the binlog", script: &settleScript, file: "settle",
		from: "version > a.version then", to: "version > a.version and overwrite then",
	},
	{
		name: "settle leaves pending", script: &settleScript, file: "settle",
		from: "redis.call('DECRBY', KEYS[3], str(units))", to: "local _ = 0",
	},
	{
		name: "settle frees by user alone", script: &settleScript, file: "settle",
		from: "if live[i] == ids[i] then", to: "if live[i] then",
	},
	{
		name: "the worker writes over a final result", script: &settleScript, file: "settle",
		from: "if overwrite or not is_final(results[i]) then", to: "if true then",
	},
	{
		name: "the binlog writes over no final result", script: &settleScript, file: "settle",
		from: "if overwrite or not is_final(results[i]) then", to: "if not is_final(results[i]) then",
	},
	{
		name: "settle drops entries during a load", script: &settleScript, file: "settle",
		from: "if not a.loaded then return { NOT_LOADED, str(now), '0', 0, 0 } end",
		to:   "if not a.loaded then if n > 0 then redis.call('HDEL', KEYS[4], ARGV[9]) end return { NOT_LOADED, str(now), '0', 0, 0 } end",
	},
	// release
	{
		name: "release leaves no tombstone", script: &releaseScript, file: "release",
		from: "redis.call('SET', KEYS[8], ARGV[8], 'PX', ttl)", to: "local _ = 0",
	},
	{
		name: "release frees by user, not by id", script: &releaseScript, file: "release",
		from: "if not entry then", to: "if not entry then redis.call('HDEL', KEYS[5], user)",
	},
	{
		name: "release does not look at the request", script: &releaseScript, file: "release",
		from: "by ~= nonce or", to: "",
	},
	{
		name: "release does not look at the age", script: &releaseScript, file: "release",
		from: "or now - tonumber(ms) > tonumber(ARGV[6])", to: "",
	},
	{
		name: "release on a server that lost writes", script: &releaseScript, file: "release", seed: 450,
		from: "if not a.loaded or not same_server(a.server, a.epoch) then", to: "if not a.exists or not a.pending then",
	},
	// reserve
	{
		name: "reserve has no deadline", script: &reserveScript, file: "reserve",
		from: "if now > tonumber(ARGV[at + 6]) then return TOO_LATE, '' end",
	},
	{
		name: "reserve trusts any server", script: &reserveScript, file: "reserve",
		from: "elseif not same_server(a.server, a.epoch) then", to: "elseif false then",
	},
	{
		name: "reserve does not look at tombstones", script: &reserveScript, file: "reserve",
		from: "if results[i] then return DECIDED, results[i] end",
	},
	{
		name: "reserve does not look at the buyers", script: &reserveScript, file: "reserve",
		from: "if other then return ALREADY, other end",
	},
	{
		name: "reserve counts no pending", script: &reserveScript, file: "reserve",
		from: "local left = available(a)", to: "local left = a.stock or 0",
	},
	// load
	{
		name: "a load forgets the records of kafka", script: &loadEntriesScript, file: "load_entries",
		from: "redis.call('HSETNX', KEYS[4], ARGV[at + 1], ARGV[at + 4]) == 1", to: "false",
	},
	{
		name: "a load forgets the buyers", script: &loadOrdersScript, file: "load_orders",
		from: "redis.call('HSET', KEYS[5], user, id)", to: "local _ = 0",
	},
	{
		name: "a load keeps what a lost release had given back", script: &loadDropScript, file: "load_drop",
		from: "redis.call('HDEL', KEYS[4], id) == 1", to: "false",
	},
	{
		name: "closing an activity does not stop a load under way", script: &loadFinishScript, file: "load_finish", seed: 2170,
		from: "or a.why ~= 'load'",
	},
	{
		name: "an older load is not fenced", script: &loadFinishScript, file: "load_finish",
		from: "if fenced(a, ARGV[3]) then return 0 end", to: "if not a.exists then return 0 end",
	},
	// around the scripts
	{name: "a repeated refusal is told unfenced", off: ruleRefusalFenced},
	{name: "a release without an answer is taken for done", off: ruleReleaseUnknown},
	{name: "records are marked before they have landed", off: ruleMarkedAfter},
	{name: "the version is a plain counter", off: ruleHybridClock},
	{name: "redis is ahead and the row is not touched", off: ruleAheadIsTouched, seed: 990},
	{name: "lost orders are not landed again", off: ruleLandedAgain},
	{name: "a load does not outwait publications", off: ruleLoadOutwaitsPublish},
	{name: "a load does not outwait calls", off: ruleLoadOutwaitsCalls, seed: 1350},
	{name: "a load reads mysql before kafka's end", off: ruleKafkaFirst, seed: 4750},
	{name: "the binlog goes on after a load", off: ruleBinlogGoesBack, seed: 2420},
	{name: "a lost position loads nothing", off: ruleLostPositionLoads},
	{name: "tombstones expire before the deadline", off: ruleTombstonesOutlive},
	{name: "the sweep does not wait", off: ruleSweepWaits},
	{name: "compare frees nobody", off: ruleLockedOutAreFreed, seed: 670},
	{name: "compare adds nobody", off: ruleBuyersAreKnown},
	{name: "compare writes results that are out of date", off: ruleLiveMayHaveDied, seed: 1470},
	{name: "compare resets pending", off: ruleNothingResetsPending},
}

// leaveOut makes the fault and gives what mends it.
func (f fault) leaveOut(t *testing.T) (rules, func()) {
	if f.script == nil {
		return rules{f.off: true}, func() {}
	}
	good := source("prelude") + source(f.file)
	if !strings.Contains(good, f.from) {
		t.Fatalf("%s.lua does not hold %q any more", f.file, f.from)
	}
	was := *f.script
	*f.script = redis.NewScript(strings.ReplaceAll(good, f.from, f.to))
	return nil, func() { *f.script = was }
}

func TestModelFindsFaults(t *testing.T) {
	srv := startModelServer(t)
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			off, mend := f.leaveOut(t)
			defer mend()
			played, bad := explore(t.Context(), srv, max(f.seed, 1), 1_000_000, off)
			if bad == nil {
				t.Fatalf("not found in %d steps", played)
			}
			t.Logf("found within %d steps, %s", played, bad)
		})
	}
}
