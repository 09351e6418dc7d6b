package faultproxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, testenv.KnownLeaks()...)
}

// A server that talks all the time learns that its client has gone, as it would without a proxy in between.
func TestAServerLearnsThatItsClientHasGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	var talking sync.WaitGroup
	talking.Go(func() {
		c, err := l.Accept()
		if err != nil {
			ended <- err
			return
		}
		defer c.Close()
		for err == nil {
			_, err = c.Write([]byte("event\n"))
		}
		ended <- err
	})
	p := New(t, l.Addr().String())
	t.Cleanup(talking.Wait)
	t.Cleanup(func() { _ = l.Close() })
	c := dial(t, p.Addr())
	if _, err := c.in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the server still talks to a client that has gone")
		p.Reset()
	}
}

// server answers each line "x" with "did x" and counts what it has executed.
type server struct {
	addr string
	done atomic.Int64
}

func startServer(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				lines := bufio.NewScanner(c)
				for lines.Scan() {
					s.done.Add(1)
					if _, err := fmt.Fprintf(c, "did %s\n", lines.Text()); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return s
}

// client sends lines and reads answers.
type client struct {
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &client{c, bufio.NewReader(c)}
}

const patience = 100 * time.Millisecond // how long a silence is listened to

func (c *client) ask(line string, within time.Duration) (string, error) {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(c, "%s\n", line); err != nil {
		return "", err
	}
	answer, err := c.in.ReadString('\n')
	return strings.TrimSpace(answer), err
}

func (c *client) mustDo(t *testing.T, line string) {
	t.Helper()
	if got, err := c.ask(line, 10*time.Second); err != nil || got != "did "+line {
		t.Fatalf("%s is answered by %q, %v", line, got, err)
	}
}

// try is one question on a connection of its own; a proxy that resets at once may already be felt while dialling.
func try(addr, line string) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = (&client{c, bufio.NewReader(c)}).ask(line, 5*time.Second)
	return err
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF)
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestForwards(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := New(t, s.addr)
	c := dial(t, p.Addr())
	for i := range 100 {
		c.mustDo(t, fmt.Sprint("job ", i))
	}
	big := strings.Repeat("x", 60_000)
	c.mustDo(t, big)
	if n := p.Conns(); n != 1 {
		t.Errorf("%d connections", n)
	}
	_ = c.Close()
	testenv.Eventually(t, 5*time.Second, "the closed connection is gone", func() bool { return p.Conns() == 0 })
}

func TestRedirect(t *testing.T) {
	t.Parallel()
	first, second := startServer(t), startServer(t)
	p := New(t, first.addr)
	c := dial(t, p.Addr())
	c.mustDo(t, "a")
	p.Redirect(second.addr)
	if got, err := c.ask("b", 5*time.Second); !isReset(err) {
		t.Fatalf("answered by %q, %v", got, err)
	}
	dial(t, p.Addr()).mustDo(t, "c")
	if first.done.Load() != 1 || second.done.Load() != 1 || p.Target() != second.addr {
		t.Errorf("%d executed by the first server and %d by the second; the target is %s", first.done.Load(), second.done.Load(), p.Target())
	}
}

func TestWithholdReply(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := New(t, s.addr)
	r := p.WithholdReply(Contains("BUY"), 1)
	c := dial(t, p.Addr())
	c.mustDo(t, "look")
	if got, err := c.ask("buy 1", patience); !isTimeout(err) {
		t.Fatalf("answered by %q, %v", got, err)
	}
	if s.done.Load() != 2 || r.Fired() != 1 {
		t.Errorf("%d executed, %d caught", s.done.Load(), r.Fired())
	}
	if got, err := c.ask("look", patience); !isTimeout(err) {
		t.Errorf("the connection recovers: %q, %v", got, err)
	}
	dial(t, p.Addr()).mustDo(t, "buy 2")
}

func TestCloseAfterTheServerHasExecuted(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := New(t, s.addr)
	r := p.CloseAfter(Contains("buy"), 2)
	for i := range 2 {
		if got, err := dial(t, p.Addr()).ask("buy", 5*time.Second); !isReset(err) {
			t.Fatalf("answered by %q, %v", got, err)
		}
		if got := s.done.Load(); got != int64(i+1) {
			t.Fatalf("%d executed when the client hears of the end, want %d", got, i+1)
		}
	}
	select {
	case <-r.Spent():
	default:
		t.Error("not spent after two")
	}
	dial(t, p.Addr()).mustDo(t, "buy")
}

func TestCloseBeforeTheServerHears(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := New(t, s.addr)
	p.CloseBefore(Contains("buy"), 1)
	if got, err := dial(t, p.Addr()).ask("buy", 5*time.Second); !isReset(err) {
		t.Fatalf("answered by %q, %v", got, err)
	}
	dial(t, p.Addr()).mustDo(t, "buy")
	if got := s.done.Load(); got != 1 {
		t.Errorf("%d executed, want 1", got)
	}
}

func TestHeldRequestArrivesAfterItsClientHasLeft(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := New(t, s.addr)
	r := p.Hold(Contains("buy"), 1)
	c := dial(t, p.Addr())
	if got, err := c.ask("buy", patience); !isTimeout(err) {
		t.Fatalf("answered by %q, %v", got, err)
	}
	_ = c.Close()
	dial(t, p.Addr()).mustDo(t, "buy") // the client's second try passes it by
	if got := s.done.Load(); got != 1 {
		t.Fatalf("%d executed while one is held", got)
	}
	r.Release()
	testenv.Eventually(t, 5*time.Second, "the held request arrives", func() bool { return s.done.Load() == 2 })
}

func TestRequestInSeveralPacketsIsSeenWhole(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := New(t, s.addr)
	r := p.CloseAfter(Contains("buy", "seven"), 1)
	c := dial(t, p.Addr())
	if _, err := io.WriteString(c, "buy se"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 5*time.Second, "the first packet passes", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for l := range p.links {
			codec := l.codec.(*stream)
			codec.mu.Lock()
			defer codec.mu.Unlock()
			return len(codec.unheard) > 0
		}
		return false
	})
	if got, err := c.ask("ven", 5*time.Second); !isReset(err) || r.Fired() != 1 {
		t.Errorf("answered by %q, %v; caught %d", got, err, r.Fired())
	}
}

func TestCutAndHeal(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := New(t, s.addr)
	c := dial(t, p.Addr())
	c.mustDo(t, "a")
	p.Cut()
	if _, err := c.ask("b", 5*time.Second); !isReset(err) {
		t.Errorf("an open connection says %v after the cut", err)
	}
	if err := try(p.Addr(), "b"); !isReset(err) {
		t.Errorf("a new connection says %v during the cut", err)
	}
	p.Heal()
	dial(t, p.Addr()).mustDo(t, "c")
}

func TestHalfOpenDeliversLate(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p := New(t, s.addr)
	c := dial(t, p.Addr())
	c.mustDo(t, "a")
	p.HalfOpen()
	if got, err := c.ask("b", patience); !isTimeout(err) {
		t.Fatalf("answered by %q, %v during the partition", got, err)
	}
	if got, err := dial(t, p.Addr()).ask("c", patience); !isTimeout(err) {
		t.Fatalf("a new connection is answered by %q, %v during the partition", got, err)
	}
	if got := s.done.Load(); got != 1 {
		t.Fatalf("%d executed, want 1", got)
	}
	p.Heal()
	testenv.Eventually(t, 5*time.Second, "what was sent meanwhile arrives", func() bool { return s.done.Load() == 3 })
}

func TestDelayKeepsTheBandwidth(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for name, delay := range map[string]func(*Proxy, time.Duration){
		"requests": (*Proxy).Delay, "replies": (*Proxy).DelayReplies,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := New(t, s.addr)
			const d, many = 150 * time.Millisecond, 20
			delay(p, d)
			c := dial(t, p.Addr())
			began := time.Now()
			for i := range many { // each in a packet of its own, none waiting for the other
				if _, err := fmt.Fprintln(c, i); err != nil {
					t.Fatal(err)
				}
			}
			for range many {
				if _, err := c.in.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(began); took < d || took > many*d/2 {
				t.Errorf("%d requests took %v with a delay of %v", many, took, d)
			}
		})
	}
}

func TestServerThatIsDownLooksLikeOne(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	if err := try(New(t, addr).Addr(), "a"); !isReset(err) {
		t.Errorf("got %v", err)
	}
}

func TestCloseTwiceAndInTheMiddle(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	p, err := Start(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	p.HalfOpen()
	p.Hold(Any, 1)
	p.Delay(time.Hour)
	c := dial(t, p.Addr())
	if _, err := io.WriteString(c, "a\n"); err != nil {
		t.Fatal(err)
	}
	p.Close()
	p.Close()
	if _, err := c.ask("b", 5*time.Second); !isReset(err) {
		t.Errorf("after Close: %v", err)
	}
}
