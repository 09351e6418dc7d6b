// Package faultproxy is a TCP proxy that misbehaves on request: it withholds replies, closes after the server has
// executed, holds a request back, delays, cuts and freezes. Tests and rehearsals put it between a client and Redis,
// MySQL or Kafka to produce the moments in which nobody knows whether something was done.
//
// Faults that depend on what is sent are rules (see rules.go): "the first n requests that match". The others hold for the
// whole link until Heal.
package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// TB is the part of testing.TB that New needs; the package itself works without tests.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// New starts a proxy before target (host:port) that ends with the test.
func New(t TB, target string) *Proxy {
	t.Helper()
	p, err := Start(target)
	if err != nil {
		t.Fatalf("start fault proxy: %v", err)
	}
	t.Cleanup(p.Close)
	return p
}

// NewKafka is New for a Kafka broker: see StartKafka.
func NewKafka(t TB, broker string) *Proxy {
	t.Helper()
	p, err := StartKafka(broker)
	if err != nil {
		t.Fatalf("start fault proxy: %v", err)
	}
	t.Cleanup(p[0].Close)
	return p[0]
}

// Proxy forwards connections to one target. All methods may be called at any time, from any goroutine.
type Proxy struct {
	listener net.Listener
	codec    func() codec
	swap     *addresses // of StartKafka
	wg       sync.WaitGroup

	mu           sync.Mutex
	target       string
	links        map[*link]struct{}
	rules        []*Rule
	requestDelay time.Duration
	replyDelay   time.Duration
	cut          bool
	closed       bool
	open         chan struct{} // closed while bytes may pass; replaced by HalfOpen
}

// Start starts a proxy before target (host:port) on a free loopback port. Close ends it.
func Start(target string) (*Proxy, error) {
	p, err := listen(target)
	if err != nil {
		return nil, err
	}
	p.codec = func() codec { return &stream{} }
	p.wg.Go(p.accept)
	return p, nil
}

// listen makes a proxy that has its address but accepts nothing yet.
func listen(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen before %s: %w", target, err)
	}
	p := &Proxy{target: target, listener: l, links: map[*link]struct{}{}, open: make(chan struct{})}
	close(p.open)
	return p, nil
}

// Addr is where clients connect instead of the target.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Target is where the proxy connects to.
func (p *Proxy) Target() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// Redirect makes another server the target, as when a name or a virtual address moves: every connection is reset, and new
// ones lead there.
//
// A proxy of StartKafka puts its own address in place of the new server's, too. The server's host must be as long as the first
// one's was.
func (p *Proxy) Redirect(target string) {
	if p.swap != nil {
		if err := p.swap.add(target, p.Addr()); err != nil {
			panic(err) // a test that asks for what the proxy cannot do
		}
	}
	p.mu.Lock()
	p.target = target
	p.mu.Unlock()
	p.reset()
}

// Conns returns how many client connections are open.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Delay adds d to the way of each request from now on; the server executes that much later. Order and bandwidth stay.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requestDelay = d
}

// DelayReplies adds d to the way of each reply from now on; the server has executed long before the client hears of it.
func (p *Proxy) DelayReplies(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replyDelay = d
}

// Cut resets every connection and each new one at once, as when a server is killed, until Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	p.cut = true
	p.mu.Unlock()
	p.reset()
}

// Reset resets every connection that is open now; new ones work.
func (p *Proxy) Reset() { p.reset() }

// HalfOpen lets connections stand, new ones too, but no byte passes in either direction until Heal: a network partition.
// What was sent meanwhile arrives then, late, as TCP would have it. Cut in between loses it.
func (p *Proxy) HalfOpen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		p.open = make(chan struct{})
	default:
	}
}

// Heal ends everything: Cut, HalfOpen and delays, and removes all rules; requests held by one go on.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.requestDelay, p.replyDelay = false, 0, 0
	p.unfreeze()
	for _, r := range p.rules {
		r.Release()
	}
	p.rules = nil
}

func (p *Proxy) unfreeze() {
	select {
	case <-p.open:
	default:
		close(p.open)
	}
}

// Close resets all connections and frees the port. It returns once all goroutines have ended; twice is once.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.unfreeze()
	for _, r := range p.rules {
		r.Release()
	}
	p.mu.Unlock()
	_ = p.listener.Close()
	p.reset()
	p.wg.Wait()
}

func (p *Proxy) reset() {
	p.mu.Lock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	p.mu.Unlock()
	for _, l := range links {
		l.abort()
	}
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // a client that gave up before we accepted
		}
		ctx, cancel := context.WithCancel(context.Background())
		l := &link{proxy: p, codec: p.codec(), client: c.(*net.TCPConn), done: ctx.Done(), cancel: cancel}
		if !p.add(l) {
			l.abort()
			continue
		}
		p.wg.Go(func() { l.serve(ctx) })
	}
}

// add registers a link unless the proxy refuses connections just now.
func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut || p.closed {
		return false
	}
	p.links[l] = struct{}{}
	return true
}

func (p *Proxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// passage returns the channel that is closed while bytes may pass.
func (p *Proxy) passage() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

func (p *Proxy) delays() (request, reply time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requestDelay, p.replyDelay
}
