package faultproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// link is one client's connection and the one to the server that serves it.
type link struct {
	proxy  *Proxy
	codec  codec
	client *net.TCPConn
	done   <-chan struct{} // closed by abort
	cancel func()
	once   sync.Once

	mu     sync.Mutex
	server *net.TCPConn
	trap   trap
	mute   bool // a trap of WithholdReply has sprung: replies go nowhere from now on
}

// trap is what a rule has laid for a reply.
type trap struct {
	action action // withhold or closeAfter; forward when there is none
	id     int32  // the reply that springs it; 0 for the next one, whichever it is
}

const (
	chunkSize  = 64 << 10
	queueDepth = 64
)

// chunk is a piece of the stream on its way, to be delivered at due.
type chunk struct {
	data []byte
	due  time.Time
}

func (l *link) serve(ctx context.Context) {
	defer l.proxy.remove(l)
	defer l.abort()
	// A partition swallows the handshake with the server as well.
	if !l.wait(l.proxy.passage()) {
		return
	}
	dialer := net.Dialer{Timeout: 10 * time.Second}
	c, err := dialer.DialContext(ctx, "tcp", l.proxy.Target())
	if err != nil {
		return
	}
	if !l.attach(c.(*net.TCPConn)) {
		return
	}
	var wg sync.WaitGroup
	// A client that resets may have been heard; a server that resets takes its connection along.
	wg.Go(func() { _ = l.pump(l.client, l.server, l.request) })
	wg.Go(func() {
		if err := l.pump(l.server, l.client, l.reply); !errors.Is(err, io.EOF) {
			l.abort()
		}
	})
	wg.Wait()
}

func (l *link) attach(server *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.done:
		_ = server.Close()
		return false
	default:
		l.server = server
		return true
	}
}

// abort resets both connections, whatever is still on its way.
func (l *link) abort() {
	l.once.Do(func() {
		l.cancel()
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, c := range []*net.TCPConn{l.client, l.server} {
			if c != nil {
				_ = c.SetLinger(0) // RST, not FIN
				_ = c.Close()
			}
		}
	})
}

// wait waits for ready; false when the link ends first.
func (l *link) wait(ready <-chan struct{}) bool {
	select {
	case <-ready:
		return true
	case <-l.done:
		return false
	}
}

// pump carries one direction. inspect splits what was read into what is to be delivered, and says when to end. A
// delay must not lower the bandwidth, so reading and delivering go on side by side. It returns what ended the reading.
func (l *link) pump(from, to *net.TCPConn, inspect func([]byte) ([]chunk, bool)) error {
	queue := make(chan chunk, queueDepth)
	var delivered sync.WaitGroup
	delivered.Go(func() { l.deliver(to, queue) })
	defer delivered.Wait()
	defer close(queue)

	buf := make([]byte, chunkSize)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			chunks, ok := inspect(append([]byte(nil), buf[:n]...))
			if !ok {
				l.abort()
				return net.ErrClosed
			}
			for _, c := range chunks {
				select {
				case queue <- c:
				case <-l.done:
					return net.ErrClosed
				}
			}
		}
		if err != nil {
			return err // what was read before it is still delivered, then the end
		}
	}
}

// deliver writes what pump has read, when it is due and the link is not frozen, and closes the direction at its end.
func (l *link) deliver(to *net.TCPConn, queue <-chan chunk) {
	for c := range queue {
		if d := time.Until(c.due); d > 0 && !l.pause(d) {
			break
		}
		if !l.wait(l.proxy.passage()) {
			break
		}
		if _, err := to.Write(c.data); err != nil {
			// The system of a client that is gone answers a server that goes on talking by a reset. Without it the server
			// talks to nobody for ever: a binlog that nobody reads any more.
			if to == l.client {
				l.abort()
			}
			break
		}
	}
	for range queue { // emptied, so that pump never blocks on a direction that is over
	}
	if l.wait(l.proxy.passage()) {
		_ = to.CloseWrite()
	}
}

func (l *link) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.done:
		return false
	}
}

// request decides what becomes of bytes from the client. It may block (Hold).
func (l *link) request(data []byte) ([]chunk, bool) {
	delay, _ := l.proxy.delays()
	due := time.Now().Add(delay)
	var out []chunk
	for _, p := range l.codec.requests(data) {
		if !l.judge(p) {
			return nil, false
		}
		out = append(out, chunk{p.data, due})
	}
	return out, true
}

// judge applies the rule that a request meets, if any; false means that the link ends before the request is forwarded.
func (l *link) judge(p piece) bool {
	r := l.proxy.caught(p.seen)
	if r == nil {
		return true
	}
	l.codec.forget() // caught once: what is sent next is another request
	switch r.action {
	case closeBefore:
		return false
	case hold:
		return l.wait(r.free)
	case withhold, closeAfter:
		l.mu.Lock()
		l.trap = trap{r.action, p.id}
		l.mu.Unlock()
	case forward:
	}
	return true
}

// reply decides what becomes of bytes from the server.
func (l *link) reply(data []byte) ([]chunk, bool) {
	_, delay := l.proxy.delays()
	due := time.Now().Add(delay)
	var out []chunk
	for _, p := range l.codec.replies(data) {
		switch l.spring(p.id) {
		case closeAfter:
			return nil, false
		case withhold:
		default:
			out = append(out, chunk{p.data, due})
		}
	}
	return out, true
}

// spring says what becomes of a reply.
func (l *link) spring(id int32) action {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mute {
		return withhold
	}
	if l.trap.action == forward || l.trap.id != 0 && l.trap.id != id {
		return forward
	}
	l.mute = l.trap.action == withhold
	return l.trap.action
}
