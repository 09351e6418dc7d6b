//go:build chaos

package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seckillgate/seckillgate/internal/faultproxy"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// begin strikes. The returned function ends the fault and gives the time from which the product has what it needs.
func (r *run) begin(f Fault) (end func() time.Time) {
	s := r.stack
	now := func(after func()) func() time.Time {
		return func() time.Time {
			at := time.Now()
			after()
			return at
		}
	}
	then := func(after func()) func() time.Time {
		return func() time.Time {
			after()
			return time.Now()
		}
	}
	none := func() time.Time { return time.Now() }
	switch f.Kind {
	case "kill":
		p := s.programs[f.Target]
		p.Kill()
		return now(p.Restart) // how long our own processes take to start is part of the recovery
	case "pause":
		p := s.programs[f.Target]
		p.Pause()
		return then(p.Resume)
	case "stop":
		p := s.programs[f.Target]
		p.Stop()
		return now(p.Restart)

	case "kill redis", "kill redis, data lost":
		n := s.redisAt(f.Target)
		s.redis[n].Kill()
		return then(func() {
			if f.Kind != "kill redis" {
				s.forget(n)
			}
			s.redis[n].Restart()
		})
	case "pause redis":
		n := s.redisAt(f.Target)
		s.redis[n].Pause()
		return then(s.redis[n].Resume)
	case "flush redis":
		s.redisDo(s.redisAt(f.Target), "FLUSHALL")
		return none
	case "flush scripts":
		s.redisDo(s.redisAt(f.Target), "SCRIPT", "FLUSH")
		return none
	case "fail over redis", "fail over redis, writes lost":
		return s.failOver(f)
	case "sentinel fail-over":
		n := s.redisAt("redis")
		s.redis[n].Kill()
		r.untilDone("the sentinels promote a replica", func() error {
			if now := s.redisAt("redis"); now == n {
				return errSame
			}
			return nil
		})
		return now(s.redis[n].Restart)

	case "kill kafka":
		b := s.brokerAt(f.Target)
		b.Kill()
		return then(b.Restart)
	case "pause kafka":
		b := s.brokerAt(f.Target)
		b.Pause()
		return then(b.Resume)
	case "kill mysql":
		s.mysql.Kill()
		return then(s.mysql.Restart)
	case "pause mysql":
		s.mysql.Pause()
		return then(s.mysql.Resume)

	case "cut link", "partition link", "delay requests", "delay replies", "lose replies", "reset link":
		return r.strike(f)

	case "reload caddy":
		return r.during(f, func() { r.reload(f.Target) })
	case "rebalance":
		if s.programs["worker3"] == nil {
			s.start("worker3")
		} else {
			s.programs["worker3"].Restart()
		}
		if f.Draw%2 == 0 {
			return then(s.programs["worker3"].Kill)
		}
		return then(s.programs["worker3"].Stop)

	case "restock":
		r.shopDoes("restock", func() error { return r.shop.Change(s.Context(), 20+int64(f.Draw%100)) })
		return none
	case "correct stock":
		delta := 1 + int64(f.Draw%40)
		if f.Draw>>32%3 != 0 {
			delta = -delta
		}
		r.shopDoes("correction", func() error { return r.shop.Change(s.Context(), delta) })
		return none
	case "replace stock row":
		r.shopDoes("new stock row", func() error { return r.shop.Rewrite(s.Context()) })
		return none

	case "admin pause":
		r.operator("activity", "pause", fmt.Sprint(s.activity), "--wait", "0")
		return then(func() {
			r.untilDone("activity resume", func() error {
				_, err := s.try("seckill-syncer", "activity", "resume", fmt.Sprint(s.activity), "--wait", "0")
				return err
			})
		})
	case "compare":
		r.operator("compare")
		return none
	case "load":
		r.operator("load", fmt.Sprint(s.activity))
		return none
	case "force":
		r.operator("force", fmt.Sprint(s.activity), "--yes")
		return none
	}
	r.Fatalf("no way to begin %q", f)
	return nil
}

// operator runs a command that may fail, since something else may be down just then, and stays so until the command has
// ended; what it says is kept.
func (r *run) operator(args ...string) {
	out, err := r.stack.try("seckill-syncer", args...)
	if err != nil {
		r.say("%s: %v: %s", args[0], err, lastLine(out))
	}
	fmt.Fprintf(r.notes, "%s: %v\n%s\n", strings.Join(args, " "), err, out)
}

func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}

// shopDoes is one try of something that cannot be done while MySQL is away.
func (r *run) shopDoes(what string, do func() error) {
	if err := do(); err != nil && !errors.Is(err, errTooFew) {
		r.say("%s: %v", what, err)
	}
}

// untilDone repeats what has to happen in the end.
func (r *run) untilDone(what string, do func() error) {
	testenv.Eventually(r, 2*time.Minute, what, func() bool {
		err := do()
		if err != nil {
			r.say("%s: %v", what, err)
		}
		return err == nil
	})
}

// during repeats something in the background until the fault ends.
func (r *run) during(_ Fault, do func()) func() time.Time {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			do()
			select {
			case <-over:
				return
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
	return func() time.Time {
		close(over)
		<-done
		return time.Now()
	}
}

func (r *run) reload(gateway string) {
	s := r.stack
	s.caddyfile(gateway)
	cmd := s.cmd("caddy", gateway+".caddyfile", "reload", "--adapter", "caddyfile", "--address", fmt.Sprintf("127.0.0.1:%d", s.admins[gateway]))
	if out, err := cmd.CombinedOutput(); err != nil {
		r.say("reload %s: %v: %s", gateway, err, lastLine(string(out)))
	}
}

// strike disturbs a link.
func (r *run) strike(f Fault) func() time.Time {
	proxies := r.stack.links[f.Target]
	each := func(do func(*faultproxy.Proxy)) {
		for _, p := range proxies {
			do(p)
		}
	}
	heal := func() time.Time {
		each((*faultproxy.Proxy).Heal)
		return time.Now()
	}
	slow := 100*time.Millisecond + time.Duration(f.Draw%1400)*time.Millisecond
	switch f.Kind {
	case "cut link":
		each((*faultproxy.Proxy).Cut)
	case "partition link":
		each((*faultproxy.Proxy).HalfOpen)
		if f.Draw%2 == 0 { // what was sent meanwhile never arrives
			return func() time.Time {
				each((*faultproxy.Proxy).Reset)
				return heal()
			}
		}
	case "delay requests":
		each(func(p *faultproxy.Proxy) { p.Delay(slow) })
	case "delay replies":
		each(func(p *faultproxy.Proxy) { p.DelayReplies(slow) })
	case "lose replies":
		match, n := matching(f.Target), 1+int(f.Draw>>16%6)
		each(func(p *faultproxy.Proxy) {
			switch f.Draw % 4 {
			case 0:
				p.WithholdReply(match, n)
			case 1:
				p.CloseAfter(match, n)
			case 2:
				p.CloseBefore(match, n)
			default:
				p.Hold(match, n)
			}
		})
	case "reset link":
		end := r.during(f, func() { each((*faultproxy.Proxy).Reset) })
		return end
	}
	return heal
}

// matching chooses the requests of a link whose loss matters most.
func matching(link string) func([]byte) bool {
	process, server, _ := strings.Cut(link, "-")
	switch {
	case server == "redis":
		return faultproxy.Contains("evalsha")
	case server == "mysql":
		return faultproxy.Contains("commit")
	case strings.HasPrefix(process, "worker"):
		return faultproxy.KafkaRequest(faultproxy.KafkaOffsetCommit)
	default:
		return faultproxy.KafkaRequest(faultproxy.KafkaProduce)
	}
}

// redisAt is the server that a fault strikes.
func (s *stack) redisAt(target string) int {
	switch {
	case target != "redis":
	case s.setup == Sentinel:
		return s.watched()
	default:
		return s.primary
	}
	return int(target[len(target)-1] - '1')
}

// errSame: the sentinels still hold the old primary for the primary.
var errSame = errors.New("not yet")

// watched is the server that the sentinels hold for the primary.
func (s *stack) watched() int {
	c := redis.NewSentinelClient(&redis.Options{Addr: s.sentinels[0].Addr})
	defer c.Close()
	n := 0
	testenv.Eventually(s, 30*time.Second, "the sentinels to name the primary", func() bool {
		at, err := c.GetMasterAddrByName(s.Context(), master).Result()
		if err != nil || len(at) != 2 {
			return false
		}
		n = slices.Index(addresses(s.redis), at[0]+":"+at[1])
		return n >= 0
	})
	return n
}

func (s *stack) brokerAt(target string) *testenv.Broker { return s.brokers[target[len(target)-1]-'1'] }

// forget throws away what a Redis server keeps on disk; its place in a cluster stays.
func (s *stack) forget(n int) {
	for _, name := range []string{"appendonlydir", "dump.rdb"} {
		if err := os.RemoveAll(filepath.Join(s.redis[n].Dir, name)); err != nil {
			s.Fatal(err)
		}
	}
}

// failOver kills the primary and promotes the replica, which all clients then find at the same address. Where writes are to
// be lost, the replica does not hear the last of them.
func (s *stack) failOver(f Fault) func() time.Time {
	old := s.primary
	if f.Kind != "fail over redis" {
		s.redis[1-old].Pause()
		pause(s.Context(), 300*time.Millisecond+time.Duration(f.Draw%1000)*time.Millisecond)
	}
	s.redis[old].Kill()
	if f.Kind != "fail over redis" {
		s.redis[1-old].Resume()
	}
	return func() time.Time {
		s.redisDo(1-old, "REPLICAOF", "NO", "ONE")
		s.primary = 1 - old
		for link, proxies := range s.links {
			if strings.HasSuffix(link, "-redis") {
				proxies[0].Redirect(s.redis[s.primary].Addr)
			}
		}
		ended := time.Now()
		s.redis[old].Restart()
		s.replicate()
		return ended
	}
}
