package bench

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Request is what every connection sends, again and again, and what must come back.
type Request struct {
	// Text is a whole HTTP/1.1 request. Each Serial in it is overwritten with a number that no other request has.
	Text string
	// Status is the status code that every answer must have, and Contains a piece of its body, if not empty. Any other answer
	// ends the run: a gateway that fails fast must not look fast.
	Status   int
	Contains string
}

// Serial stands in a Request for a number of its own.
const Serial = "{serial-number}"

// serials are given to connections in such portions.
const serials = 1_000_000_000

var nextSerial atomic.Int64

// Load keeps connections to one address busy: each sends its next request as soon as it has the answer to the one before.
// It speaks just enough HTTP/1.1, makes no garbage and does nothing twice, since it shares the machine with what it loads.
type Load struct {
	req   Request
	conns []*conn
}

// Dial opens connections.
func Dial(addr string, n int, req Request) (*Load, error) {
	l := &Load{req: req}
	for range n {
		c, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", addr)
		if err != nil {
			l.Close()
			return nil, fmt.Errorf("open %d connections: %w", n, err)
		}
		l.conns = append(l.conns, newConn(c, req))
	}
	return l, nil
}

// Close closes the connections.
func (l *Load) Close() {
	for _, c := range l.conns {
		_ = c.Conn.Close()
	}
}

// Run sends requests for so long and gives how many were answered per second.
func (l *Load) Run(d time.Duration) (float64, error) {
	var wg sync.WaitGroup
	errs := make([]error, len(l.conns))
	began := time.Now()
	end := began.Add(d)
	var answered int64
	for i, c := range l.conns {
		wg.Go(func() {
			n, err := c.run(&l.req, end)
			atomic.AddInt64(&answered, n)
			errs[i] = err
		})
	}
	wg.Wait()
	for _, err := range errs { // they are all alike
		if err != nil {
			return 0, err
		}
	}
	return float64(answered) / time.Since(began).Seconds(), nil
}

type conn struct {
	net.Conn

	out    []byte
	at     []int // where the serial numbers stand in out
	serial int64
	in     []byte
}

func newConn(c net.Conn, req Request) *conn {
	k := &conn{Conn: c, out: []byte(req.Text), in: make([]byte, 4096), serial: serials * nextSerial.Add(1)}
	for from := 0; ; {
		i := bytes.Index(k.out[from:], []byte(Serial))
		if i < 0 {
			return k
		}
		k.at = append(k.at, from+i)
		from += i + len(Serial)
	}
}

// run sends one request after the other until the end.
func (c *conn) run(req *Request, end time.Time) (answered int64, err error) {
	// An answer that never comes must not hang the run.
	if err := c.SetDeadline(end.Add(10 * time.Second)); err != nil {
		return 0, err
	}
	for n := 0; ; n++ {
		if n%16 == 0 && !time.Now().Before(end) {
			return answered, nil
		}
		c.number()
		if _, err := c.Write(c.out); err != nil {
			return answered, err
		}
		if err := c.answer(req); err != nil {
			return answered, err
		}
		answered++
	}
}

// number gives the request its serial number.
func (c *conn) number() {
	if len(c.at) == 0 {
		return
	}
	c.serial++
	for _, at := range c.at {
		n := c.serial
		for i := at + len(Serial) - 1; i >= at; i-- {
			c.out[i] = byte('0' + n%10)
			n /= 10
		}
	}
}

var (
	headEnd  = []byte("\r\n\r\n")
	lengthIs = []byte("\r\nContent-Length: ")
)

// answer reads an answer and checks it.
func (c *conn) answer(req *Request) error {
	have, want, body := 0, -1, 0
	for want < 0 || have < want {
		if have == len(c.in) {
			return fmt.Errorf("an answer is longer than %d bytes", len(c.in))
		}
		n, err := c.Read(c.in[have:])
		if err != nil {
			return fmt.Errorf("after %d bytes of an answer: %w", have, err)
		}
		have += n
		if want >= 0 {
			continue
		}
		end := bytes.Index(c.in[:have], headEnd)
		if end < 0 {
			continue
		}
		body = end + len(headEnd)
		length := 0
		if i := bytes.Index(c.in[:end+2], lengthIs); i >= 0 {
			for _, d := range c.in[i+len(lengthIs) : end+2] {
				if d < '0' || d > '9' {
					break
				}
				length = 10*length + int(d-'0')
			}
		}
		want = body + length
	}
	if got, ok := status(c.in[:have]); !ok || got != req.Status || have != want ||
		req.Contains != "" && !bytes.Contains(c.in[body:have], []byte(req.Contains)) {
		return fmt.Errorf("want status %d and %q, got:\n%s", req.Status, req.Contains, c.in[:min(have, 512)])
	}
	return nil
}

// status reads the three digits behind "HTTP/1.1 ".
func status(answer []byte) (int, bool) {
	const at = len("HTTP/1.1 ")
	if len(answer) < at+3 {
		return 0, false
	}
	n, err := strconv.Atoi(string(answer[at : at+3]))
	return n, err == nil
}
