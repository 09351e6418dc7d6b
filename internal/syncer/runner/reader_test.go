package runner_test

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	driver "github.com/go-sql-driver/mysql"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/syncer/runner"
	"github.com/seckillgate/seckillgate/internal/syncer/synctest"
	"github.com/seckillgate/seckillgate/internal/testenv"
)

// readers counts who reads the binlog of a server that is the test's own.
func readers(b *synctest.Bench) int {
	b.Helper()
	var n int
	if err := b.Store.DB().QueryRowContext(b.Context(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'").Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// observed gives the bench's parts a log that the test can read.
func observed(b *synctest.Bench, cfg runner.Config) (*runner.Parts, *observer.ObservedLogs) {
	b.Helper()
	core, logs := observer.New(zap.InfoLevel)
	p, err := runner.Open(b.Context(), cfg, zap.New(core))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.Close() })
	return p, logs
}

// E53: two syncers come up in the same second with the same configuration: one reads the binlog, the other stands by. Then
// somebody else reads under the very id that is configured for ours: ours goes on under another one, says so, and leaves the
// other reader alone.
func TestE53ServerIDClash(t *testing.T) {
	t.Parallel()
	server := testenv.StartMySQL(t)
	const id = 4242
	b := synctest.NewOn(t, server.DSN("shop"), synctest.Quiet, func(c *runner.Config) { c.Binlog.ServerID = id })
	a := b.Activity(10)
	p, logs := observed(b, b.Cfg)
	defer func() {
		if t.Failed() {
			for _, l := range logs.All() {
				t.Log(l.Time, l.Message, l.ContextMap())
			}
		}
	}()
	_, h := b.SyncerOn(p)
	second, h2 := b.SyncerOn(b.OpenParts(b.Cfg))
	epoch := b.Loaded(a, "").Epoch
	testenv.Eventually(t, 20*time.Second, "both to be well", func() bool { return h.Err() == nil && h2.Err() == nil })
	if n := readers(b); n != 1 {
		t.Errorf("%d readers of the binlog, want 1", n)
	}
	second.Stop()
	b.Restock(a, 1)
	b.Equal(a)

	other := newReader(t, server, id)
	defer other.close()
	b.Restock(a, 1)
	b.Equal(a)
	testenv.Eventually(t, 20*time.Second, "both to read", func() bool { return readers(b) == 2 })
	b.Ready(h)
	b.Restock(a, 1)
	b.Equal(a)
	if err := other.err(); err != nil {
		t.Errorf("the other reader was thrown out: %v", err)
	}
	if s := b.Look(a); s.Epoch != epoch {
		t.Error("a clash of ids led to a load")
	}
	// MySQL tells readers apart by their uuid, where they have one; MariaDB by their id alone.
	if testenv.OnMariaDB(t, server.DSN("shop")) && logs.FilterMessageSnippet("binlog.server_id 4242").Len() == 0 {
		t.Error("the clash was not told")
	}
}

// reader reads a binlog as a replica does.
type reader struct {
	syncer *replication.BinlogSyncer
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	failed error
}

func newReader(t *testing.T, server *testenv.MariaDB, id uint32) *reader {
	t.Helper()
	dsn, err := driver.ParseDSN(server.DSN("shop"))
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(dsn.Addr, ":")
	flavor := mysql.MySQLFlavor
	if testenv.OnMariaDB(t, server.DSN("shop")) {
		flavor = mysql.MariaDBFlavor
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &reader{cancel: cancel, syncer: replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
		ServerID: id, Flavor: flavor, Host: host, Port: number(t, port), User: dsn.User, Password: dsn.Passwd, DisableRetrySync: true,
		Logger: slog.New(slog.DiscardHandler),
	})}
	stream, err := r.syncer.StartSync(mysql.Position{Name: "binlog.000001", Pos: 4})
	if err != nil {
		t.Fatal(err)
	}
	r.wg.Go(func() {
		for {
			if _, err := stream.GetEvent(ctx); err != nil {
				r.mu.Lock()
				defer r.mu.Unlock()
				if ctx.Err() == nil {
					r.failed = err
				}
				return
			}
		}
	})
	return r
}

func (r *reader) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *reader) close() {
	r.cancel()
	r.syncer.Close()
	r.wg.Wait()
}

// E55: Redis hangs, so that nothing of the binlog can be applied; what MySQL writes meanwhile is more than may wait in memory,
// and it gives the reader up. When Redis is back the stream goes on where it was: nothing is skipped, nothing is loaded.
func TestE55SlowHandler(t *testing.T) {
	t.Parallel()
	server := testenv.StartMySQL(t, "--net-write-timeout=1", "--max-allowed-packet=64M")
	b := synctest.NewOn(t, server.DSN("shop"), synctest.Quiet, func(c *runner.Config) { c.LeaseTTL = 2 * time.Minute })
	a, _, h := following(t, b, 100)
	b.Exec("CREATE TABLE pictures (id INT AUTO_INCREMENT PRIMARY KEY, picture LONGBLOB)")
	caughtUp(b)
	epoch := b.Look(a).Epoch
	b.Server.Pause()
	for range 10 {
		b.Restock(a, 1)
	}
	// The shop's other tables are in the log too.
	testenv.Eventually(t, time.Minute, "mysql to give the reader up", func() bool {
		b.Exec("INSERT INTO pictures (picture) VALUES (REPEAT('x', 4000000))")
		return readers(b) == 0
	})
	for range 10 {
		b.Restock(a, 1)
	}
	b.Server.Resume()
	b.Equal(a)
	b.Ready(h)
	if s := b.Look(a); s.Stock != 120 || s.Epoch != epoch {
		t.Errorf("stock %d, want 120; epoch %s, was %s: want no load", s.Stock, s.Epoch, epoch)
	}
}

// E90 with the real binlog: what the worker confirms and what the binlog brings meet in every order, and twice. Available is
// never above the truth, and all end in one state.
func TestE90BinlogAndConfirmInEveryOrder(t *testing.T) {
	t.Parallel()
	for name, play := range map[string]func(p *confirming){
		"binlog first": func(p *confirming) {
			p.land()
			p.binlog()
			p.confirm(0, 1)
		},
		"confirm first": func(p *confirming) { // and, for E91, long before the binlog
			p.syncer.Stop()
			p.land()
			p.confirm(0, 1)
			p.Equal(p.a)
			p.resume()
		},
		"binlog between two confirms": func(p *confirming) {
			p.syncer.Stop()
			p.land()
			p.confirm(0)
			p.resume()
			p.binlog()
			p.confirm(1)
		},
		"twice": func(p *confirming) {
			old := p.position()
			p.land()
			p.binlog()
			p.confirm(0, 1)
			p.syncer.Stop()
			if err := p.Client().Set(p.Context(), "seckill:{syncer}:binlog", old, 0).Err(); err != nil {
				p.Fatal(err)
			}
			p.resume()
			p.confirm(1, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := synctest.New(t, synctest.Quiet)
			p := &confirming{Bench: b}
			p.a, p.syncer, p.health = following(t, b, 10)
			caughtUp(b)
			b.Buy(p.a, "u0", 2)
			b.Buy(p.a, "u1", 3)
			epoch := b.Look(p.a).Epoch
			stop := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() { p.neverAbove(5, stop) })
			play(p)
			b.Equal(p.a)
			close(stop)
			wg.Wait()
			b.Ready(p.health)
			if s := b.Look(p.a); s.Stock != 5 || s.Epoch != epoch {
				t.Errorf("%+v; want stock 5 and no load", s)
			}
		})
	}
}

type confirming struct {
	*synctest.Bench
	a      ledger.Activity
	syncer *runner.Syncer
	health *synctest.Health
	landed []synctest.Landed
}

// land commits both orders and confirms neither.
func (p *confirming) land() {
	p.Helper()
	p.landed = p.LandOnly()
}

// confirm does what a worker does after its commit, for one order at a time.
func (p *confirming) confirm(which ...int) {
	p.Helper()
	for _, l := range p.landed {
		for _, i := range which {
			one := l.Landing
			one.Outcomes = l.Outcomes[i : i+1]
			p.Settle(l.Orders, one)
		}
	}
}

// binlog waits until the log has been applied.
func (p *confirming) binlog() {
	p.Helper()
	testenv.Eventually(p, 20*time.Second, "the binlog to be applied", func() bool { return p.Look(p.a).Stock == 5 })
	caughtUp(p.Bench)
}

func (p *confirming) resume() {
	p.Helper()
	p.syncer, p.health = p.Syncer()
	p.Ready(p.health)
	caughtUp(p.Bench)
}

func (p *confirming) position() string {
	p.Helper()
	text, err := p.Ledger.Position(p.Context())
	if err != nil {
		p.Fatal(err)
	}
	return text
}

func (p *confirming) neverAbove(truth int64, stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
			if s, err := p.Ledger.Inspect(p.Context(), p.a.ID); err == nil && s[0].Available > truth {
				p.Errorf("available is %d, above the truth of %d", s[0].Available, truth)
				return
			}
		}
	}
}

func number(t *testing.T, text string) uint16 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return uint16(n)
}
