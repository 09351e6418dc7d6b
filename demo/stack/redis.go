package stack

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Redis is a private redis-server.
type Redis struct {
	Addr string
}

// StartRedis runs redis-server below dir, without persistence, since the truth lies in MariaDB.
func StartRedis(ctx context.Context, p *Procs, prog Program, dir string) (*Redis, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil { //nolint:gosec // below the folder that the demo was given
		return nil, fmt.Errorf("make redis folder: %w", err)
	}
	var addr string
	err := onFreePort(p, func(port int) (*Child, error) {
		addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		return p.Start(Spec{
			Name: "redis", Path: prog.Path, Env: prog.Env, Dir: dir,
			Args: []string{
				"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir,
				"--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction",
			},
		})
	}, func(c *Child) error {
		return c.Wait(ctx, 10*time.Second, func(ctx context.Context) error { return pingRedis(ctx, addr) })
	})
	if err != nil {
		return nil, err
	}
	return &Redis{Addr: addr}, nil
}

func pingRedis(ctx context.Context, addr string) error {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	var b [7]byte
	n, err := c.Read(b[:])
	if err != nil {
		return fmt.Errorf("ping %s: %w", addr, err)
	}
	if string(b[:n]) != "+PONG\r\n" {
		return fmt.Errorf("ping %s: got %q", addr, b[:n])
	}
	return nil
}

// onFreePort starts a server on a free port, and on another one should somebody have been quicker.
func onFreePort(p *Procs, start func(port int) (*Child, error), ready func(*Child) error) error {
	const tries = 3
	for i := 1; ; i++ {
		port, err := FreePort(0)
		if err != nil {
			return err
		}
		c, err := start(port)
		if err != nil {
			return err
		}
		if err = ready(c); err == nil {
			return nil
		}
		alive := c.Running()
		p.End(c, 5*time.Second)
		if alive || i == tries {
			return err
		}
		_ = os.Rename(c.Log, filepath.Join(filepath.Dir(c.Log), fmt.Sprintf("%s.try%d.log", c.Name, i)))
	}
}
