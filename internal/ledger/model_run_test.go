package ledger

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

func modelRedis(t *testing.T) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: testenv.StartRedis(t).Addr, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestModelOfTheProtocol(t *testing.T) {
	const runs, length = 250, 120
	if seed, steps, err := explore(t, modelRedis(t), 1, runs, length); err != nil {
		t.Fatalf("seed %d: %v; %d steps are enough:%s", seed, err, len(steps), describe(steps))
	}
}

// The model must find each of these faults when it is put in on purpose, or it proves nothing.
func TestModelFindsFaults(t *testing.T) {
	for name, m := range map[string]struct {
		script   **redis.Script
		file     string
		from, to string
		seed     uint64 // where to begin to look, for what takes long to find; default 1
	}{
		"settle counts stock down": {
			&settleScript, "settle", "a.pending = a.pending - units",
			"if a.stock >= units then redis.call('DECRBY', KEYS[1], str(units)) end",
			1,
		},
		"settle without the version gate": {
			&settleScript, "settle", "version > a.version then", "true then",
			1,
		},
		"settle leaves pending": {
			&settleScript, "settle", "redis.call('DECRBY', KEYS[3], str(units))", "local _ = 0",
			1,
		},
		"settle frees by user alone": {
			&settleScript, "settle", "if live[i] == ids[i] then", "if live[i] then",
			1,
		},
		"release leaves no tombstone": {
			&releaseScript, "release", "redis.call('SET', KEYS[8], ARGV[8], 'PX', ttl)", "local _ = 0",
			1,
		},
		"release does not look at the age": {
			&releaseScript, "release", "or now - tonumber(ms) > tonumber(ARGV[6])", "",
			1,
		},
		"release on a server that lost writes": {
			&releaseScript, "release", "if not a.loaded or not same_server(a.server, a.epoch) then", "if not a.exists then",
			1830,
		},
		"reserve has no deadline": {
			&reserveScript, "reserve", "if now > tonumber(ARGV[at + 6]) then return TOO_LATE, '' end", "",
			1,
		},
		"reserve trusts any server": {
			&reserveScript, "reserve", "elseif not same_server(a.server, a.epoch) then", "elseif false then",
			430,
		},
		"a load forgets the records of kafka": {
			&loadEntriesScript, "load_entries", "redis.call('HSETNX', KEYS[4], ARGV[at + 1], ARGV[at + 4]) == 1", "false",
			1,
		},
		"a load forgets the buyers": {
			&loadOrdersScript, "load_orders", "redis.call('HSET', KEYS[5], user, id)", "local _ = 0",
			1,
		},
		"a load keeps what a lost release had given back": {
			&loadDropScript, "load_drop", "redis.call('HDEL', KEYS[4], id) == 1", "false",
			1,
		},
		"settle drops entries during a load": {
			&settleScript, "settle", "if not a.loaded then return { NOT_LOADED, str(now), '0', 0, 0 } end",
			"if not a.loaded then if n > 0 then redis.call('HDEL', KEYS[4], ARGV[8]) end return { NOT_LOADED, str(now), '0', 0, 0 } end",
			1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			good := source(m.file)
			if strings.Count(good, m.from) == 0 {
				t.Fatalf("%s.lua does not hold %q any more", m.file, m.from)
			}
			was := *m.script
			*m.script = redis.NewScript(source("prelude") + strings.ReplaceAll(good, m.from, m.to))
			defer func() { *m.script = was }()
			seed, steps, err := explore(t, modelRedis(t), max(m.seed, 1), 500, 120)
			if err == nil {
				t.Fatal("not found in 500 runs")
			}
			t.Logf("seed %d, %d steps: %v", seed, len(steps), err)
		})
	}
}
