package kafka

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
)

// connector opens connections to brokers.
type connector struct {
	conf *sarama.Config
	dial func(ctx context.Context, network, addr string) (net.Conn, error) // replaced by tests
}

func newConnector(conf *sarama.Config) connector {
	d := &net.Dialer{Timeout: conf.Net.DialTimeout, KeepAlive: conf.Net.KeepAlive}
	return connector{conf: conf, dial: d.DialContext}
}

// conn is one connection to one broker with one request at a time. The library bounds a request only by fixed timeouts per
// read; here the end of a context closes the socket, so that each request has a deadline of its own.
type conn struct {
	addr   string
	broker *sarama.Broker
	raw    atomic.Pointer[net.Conn]
	broken atomic.Bool
}

// dialFunc is the shape in which the library takes a dialer.
type dialFunc func(network, addr string) (net.Conn, error)

// Dial implements the library's proxy dialer.
func (f dialFunc) Dial(network, addr string) (net.Conn, error) { return f(network, addr) }

// open dials, negotiates versions and authenticates.
func (k connector) open(ctx context.Context, addr string) (*conn, error) {
	c := &conn{addr: addr}
	conf := *k.conf
	conf.Net.Proxy.Enable = true
	conf.Net.Proxy.Dialer = dialFunc(func(network, addr string) (net.Conn, error) {
		raw, err := k.dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c.raw.Store(&raw)
		if ctx.Err() != nil {
			c.abort()
		}
		return raw, nil
	})
	c.broker = sarama.NewBroker(addr)
	if err := c.broker.Open(&conf); err != nil {
		return nil, fmt.Errorf("broker %s: %w", addr, err)
	}
	err := c.do(ctx, func(b *sarama.Broker) error {
		ok, err := b.Connected()
		if err == nil && !ok {
			err = sarama.ErrNotConnected
		}
		return err
	})
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// do runs one request. After an error the connection is of no more use.
func (c *conn) do(ctx context.Context, request func(*sarama.Broker) error) error {
	stop := context.AfterFunc(ctx, c.abort)
	err := request(c.broker)
	stop()
	if err == nil {
		return nil
	}
	c.broken.Store(true)
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("broker %s: %w (%w)", c.addr, cause, err)
	}
	return fmt.Errorf("broker %s: %w", c.addr, err)
}

// abort closes the socket under a running request, and throws away what the kernel has not sent yet: what was given up must not
// reach a broker later than it has to.
func (c *conn) abort() {
	c.broken.Store(true)
	raw := c.raw.Load()
	if raw == nil {
		return
	}
	if tcp, ok := (*raw).(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = (*raw).Close()
}

// close ends the connection, on which no request may be running; c may be nil.
func (c *conn) close() {
	if c == nil {
		return
	}
	if c.broken.Load() {
		c.abort()
	}
	_ = c.broker.Close()
}

// usable says whether a request may be tried on c; c may be nil.
func (c *conn) usable() bool { return c != nil && !c.broken.Load() }

// share gives a part of the time that ctx has left, but no less than a little and no more than most.
func share(ctx context.Context, parts int, most time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return most
	}
	return min(most, max(time.Until(deadline)/time.Duration(max(parts, 1)), 20*time.Millisecond))
}
