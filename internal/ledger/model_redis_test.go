package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// modelServer is a real Redis on which many runs are played at once. Each waits for the answer to its own call; what they
// call at the same time goes in one round trip.
type modelServer struct {
	rdb    *redis.Client
	ledger *Ledger
	calls  chan *modelCall
}

type modelCall struct {
	cmds []redis.Cmder
	done chan struct{}
}

// senders are the connections: while Redis works for one, the next batch gathers.
const senders = 2

func newModelServer(t testing.TB, network, addr string) *modelServer {
	options := redis.Options{Network: network, Addr: addr, MaxRetries: -1, PoolSize: senders, ReadBufferSize: 1 << 16, WriteBufferSize: 1 << 16}
	wire := redis.NewClient(&options)
	s := &modelServer{rdb: redis.NewClient(&options), calls: make(chan *modelCall, 64)}
	s.ledger = New(s.rdb, Options{})
	s.rdb.AddHook(s)
	ended := make(chan struct{})
	for range senders {
		go func() {
			s.send(context.Background(), wire)
			ended <- struct{}{}
		}()
	}
	t.Cleanup(func() {
		close(s.calls)
		for range senders {
			<-ended
		}
		_ = s.rdb.Close()
		_ = wire.Close()
	})
	return s
}

func (s *modelServer) send(ctx context.Context, wire *redis.Client) {
	var batch []*modelCall
	for call := range s.calls {
		batch = append(batch[:0], call)
		for more := true; more; {
			select {
			case next, open := <-s.calls:
				if more = open; open {
					batch = append(batch, next)
				}
			default:
				more = false
			}
		}
		p := wire.Pipeline()
		for _, call := range batch {
			for _, cmd := range call.cmds {
				_ = p.Process(ctx, cmd)
			}
		}
		_, _ = p.Exec(ctx) // each command has its own error
		for _, call := range batch {
			close(call.done)
		}
	}
}

func (s *modelServer) call(ctx context.Context, cmds ...redis.Cmder) {
	if w, ok := ctx.Value(worldKey{}).(*world); ok {
		w.seen = nil
	}
	call := &modelCall{cmds, make(chan struct{})}
	s.calls <- call
	<-call.done
}

// DialHook, ProcessHook and ProcessPipelineHook implement redis.Hook.
func (s *modelServer) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *modelServer) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.call(ctx, cmd)
		return cmd.Err()
	}
}

func (s *modelServer) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.call(ctx, cmds...)
		return nil
	}
}

type worldKey struct{}

// view is one consistent look at everything that Redis has of an activity.
type view struct {
	loaded, same            bool
	epoch                   string
	stock, version, pending int64
	entries                 []Entry
	buyers                  map[string]string // user → order
}

func (v *view) available() int64 { return v.stock - v.pending }

func (v *view) holds(id string) bool {
	return slices.ContainsFunc(v.entries, func(e Entry) bool { return e.Order == id })
}

var viewScript = redis.NewScript(source("prelude") + `
local a = read_activity()
local ledger, buyers = redis.pcall('HGETALL', KEYS[4]), redis.pcall('HGETALL', KEYS[5])
return { a.loaded and 1 or 0, a.exists and same_server(a.server, a.epoch) and 1 or 0, a.epoch or '', a.stock and str(a.stock) or '0',
  a.version and str(a.version) or '0', a.pending and str(a.pending) or '0', ledger, buyers }`)

// look gives the present view. Most steps change nothing in Redis, and then the last one still stands.
func (w *world) look() (*view, error) {
	if w.seen != nil {
		return w.seen, nil
	}
	r, err := w.l.reply(w.ctx, viewScript, w.k.base(0))
	if err != nil {
		return nil, err
	}
	v := &view{
		loaded: r.num(0) == 1, same: r.num(1) == 1, epoch: r.str(2), stock: r.num(3), version: r.num(4), pending: r.num(5),
		buyers: map[string]string{},
	}
	kv, _ := r[6].([]any)
	for i := 0; i+1 < len(kv); i += 2 {
		e, err := decodeEntry(fmt.Sprint(kv[i]), fmt.Sprint(kv[i+1]))
		if err != nil {
			return nil, err
		}
		v.entries = append(v.entries, e)
	}
	slices.SortFunc(v.entries, func(a, b Entry) int { return strings.Compare(a.Order, b.Order) })
	kv, _ = r[7].([]any)
	for i := 0; i+1 < len(kv); i += 2 {
		v.buyers[fmt.Sprint(kv[i])] = fmt.Sprint(kv[i+1])
	}
	w.seen = v
	return v, nil
}

func (w *world) keys() []string {
	keys := w.k.base(w.n + 5)
	for i := range w.n {
		keys = append(keys, w.k.Result(orderID(i+1)))
	}
	for i := range 5 {
		keys = append(keys, w.k.LastOrder(fmt.Sprint("u", i)))
	}
	return keys
}

func (w *world) forget() error { return w.srv.rdb.Del(w.ctx, w.keys()...).Err() }

func (w *world) copyRedis() error {
	keys := w.keys()
	dumps := make([]*redis.StringCmd, len(keys))
	_, _ = w.srv.rdb.Pipelined(w.ctx, func(p redis.Pipeliner) error {
		for i, key := range keys {
			dumps[i] = p.Dump(w.ctx, key)
		}
		return nil
	})
	w.replica = map[string]string{}
	for i, key := range keys {
		v, err := dumps[i].Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		if err == nil {
			w.replica[key] = v
		}
	}
	return nil
}

// promote is a fail-over to a replica that misses the last writes, or a restart from an old file.
func (w *world) promote() error {
	if err := w.forget(); err != nil {
		return err
	}
	for key, v := range w.replica {
		if err := w.srv.rdb.Restore(w.ctx, key, 0, v).Err(); err != nil {
			return err
		}
	}
	return w.srv.rdb.HSet(w.ctx, w.k.Activity, "server", "aa:bb").Err()
}

// loseKey loses a single key of an activity that is loaded.
func (w *world) loseKey() error {
	v, err := w.look()
	if err != nil || !v.loaded || !w.chance(0.5) {
		return err
	}
	keys := w.k.base(0)
	return w.srv.rdb.Del(w.ctx, keys[w.rnd.IntN(len(keys))]).Err()
}

// expireResult lets a result or a tombstone go. They outlive by a day whatever anybody still has to do about the order.
func (w *world) expireResult() error {
	if w.off[ruleTombstonesOutlive] && w.n > 0 {
		return w.srv.rdb.Del(w.ctx, w.k.Result(orderID(1+w.rnd.IntN(w.n)))).Err()
	}
	n := w.grown
	if n == 0 || len(w.settles) > 0 || w.syncers[0].comparing != nil || w.syncers[1].comparing != nil {
		return nil
	}
	id := orderID(1 + w.rnd.IntN(n))
	if slices.ContainsFunc(w.publish, func(p publication) bool { return p.r.Order == id }) ||
		slices.ContainsFunc(w.unknown, func(r Reservation) bool { return r.Order == id }) {
		return nil
	}
	return w.srv.rdb.Del(w.ctx, w.k.Result(id)).Err()
}

// results are what buyers are told of the orders.
func (w *world) results() (map[string]*Result, error) {
	keys := w.keys()[7 : 7+w.n]
	if len(keys) == 0 {
		return nil, nil
	}
	values, err := w.srv.rdb.MGet(w.ctx, keys...).Result()
	if err != nil {
		return nil, err
	}
	out := map[string]*Result{}
	for i, v := range values {
		if text, ok := v.(string); ok {
			if out[orderID(i+1)], err = decodeResult(text); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}
