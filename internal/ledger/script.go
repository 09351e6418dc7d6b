package ledger

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/*.lua
var luaFiles embed.FS

var (
	reserveScript     = newScript("reserve")
	settleScript      = newScript("settle")
	releaseScript     = newScript("release")
	queuedScript      = newScript("queued")
	postponeScript    = newScript("postpone")
	inspectScript     = newScript("inspect")
	loadBeginScript   = newScript("load_begin")
	loadOrdersScript  = newScript("load_orders")
	loadEntriesScript = newScript("load_entries")
	loadDropScript    = newScript("load_drop")
	loadFinishScript  = newScript("load_finish")
	activityScript    = newScript("activity")
	recoveringScript  = newScript("recovering")
	buyersScript      = newScript("buyers")
	repairScript      = newScript("repair")
	retireScript      = newScript("retire")
	catalogueScript   = newPlainScript("catalogue")
	landedScript      = newPlainScript("landed")
	leaseScript       = newPlainScript("lease")
)

func newScript(name string) *redis.Script {
	return redis.NewScript(source("prelude") + source(name))
}

// newPlainScript is for keys outside of an activity, which need nothing of the prelude.
func newPlainScript(name string) *redis.Script { return redis.NewScript(source(name)) }

func source(name string) string {
	b, err := luaFiles.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // embedded: cannot be missing in a build that compiles
	}
	return string(b)
}

// run executes a script by its digest and sends the source only to a server that says it does not know it. NOSCRIPT is
// the one error after which nothing can have run, so it alone is repeated here, and it does not count as an attempt.
func (l *Ledger) run(ctx context.Context, s *redis.Script, keys []string, args ...any) *redis.Cmd {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, "evalsha", s.Hash(), len(keys))
	for i := range keys {
		all = append(all, &keys[i]) // a pointer is not copied
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	if len(keys) > 0 {
		cmd.SetFirstKeyPos(3)
	}
	_ = l.rdb.Process(ctx, cmd)
	if err := cmd.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		if n := attemptsOf(ctx); n != nil {
			n.Add(-1)
		}
		return s.Eval(ctx, l.rdb, keys, args...)
	}
	return cmd
}

// reply runs a script whose answer is an array.
func (l *Ledger) reply(ctx context.Context, s *redis.Script, keys []string, args ...any) (reply, error) {
	v, err := l.run(ctx, s, keys, args...).Slice()
	if err != nil {
		return nil, err
	}
	return v, nil
}

// reply is a script's answer. Its accessors collect nothing: a field of the wrong kind is zero, and scripts and Go are of
// one build, so a test would see it.
type reply []any

func (r reply) str(i int) string {
	if i >= len(r) {
		return ""
	}
	switch v := r[i].(type) {
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	}
	return ""
}

func (r reply) num(i int) int64 {
	if i >= len(r) {
		return 0
	}
	switch v := r[i].(type) {
	case int64:
		return v
	case string:
		n, _ := strconv.ParseInt(v, 10, 64)
		return n
	}
	return 0
}

// attempts counts how often a command was written to a server, which the client's own retries and the cluster client's
// redirects hide otherwise.
type attemptsKey struct{}

func countAttempts(ctx context.Context) (context.Context, *atomic.Int32) {
	n := new(atomic.Int32)
	return context.WithValue(ctx, attemptsKey{}, n), n
}

func attemptsOf(ctx context.Context) *atomic.Int32 {
	n, _ := ctx.Value(attemptsKey{}).(*atomic.Int32)
	return n
}

// attemptHook counts script calls only: the greetings of a fresh connection pass the same hooks, under the context of the
// call that it is made for.
type attemptHook struct{}

func isScript(cmd redis.Cmder) bool { return strings.HasPrefix(cmd.Name(), "eval") }

func (attemptHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (attemptHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if n := attemptsOf(ctx); n != nil && isScript(cmd) {
			n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (attemptHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if n := attemptsOf(ctx); n != nil && slices.ContainsFunc(cmds, isScript) {
			n.Add(1)
		}
		return next(ctx, cmds)
	}
}

// watchAttempts installs the hook where single attempts pass: on the client, or on each node of a cluster.
func watchAttempts(rdb redis.UniversalClient) {
	switch c := rdb.(type) {
	case *redis.ClusterClient:
		c.OnNewNode(func(node *redis.Client) { node.AddHook(attemptHook{}) })
	default:
		rdb.AddHook(attemptHook{})
	}
}

// refusals are replies by which a server says that it did not run the script. An error reply that is not listed may come
// from inside of a script and is unknown.
var refusals = []string{
	"NOSCRIPT", "READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "OOM", "BUSY", "TRYAGAIN", "MOVED", "ASK",
	"NOAUTH", "WRONGPASS", "NOPERM", "NOREPLICAS", "MISCONF", "CROSSSLOT", "ERR max number of clients",
}

// notExecuted says whether err proves that a call of one attempt did not run.
func notExecuted(err error) bool {
	var server redis.Error
	if errors.As(err, &server) {
		for _, prefix := range refusals {
			if strings.HasPrefix(server.Error(), prefix) {
				return true
			}
		}
		return false
	}
	return errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) ||
		errors.Is(err, redis.ErrClosed) || isDial(err)
}

func errorf(activity int64, what string, err error) error {
	return fmt.Errorf("%s activity %d in redis: %w", what, activity, err)
}
