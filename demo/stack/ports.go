package stack

import (
	"context"
	"errors"
	"net"
	"strconv"
	"time"
)

// FreePort gives a loopback port that nobody listens on: the preferred one if it is free (0: none preferred). Somebody
// may take it before it is used; whoever needs to be sure tries again with another.
func FreePort(preferred int) (int, error) {
	for _, port := range []int{preferred, 0} {
		// A listener on all addresses lets a second one bind to 127.0.0.1 on some systems: ask whether anybody
		// answers first.
		if port != 0 && answers(port) {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		got := l.Addr().(*net.TCPAddr).Port
		return got, l.Close()
	}
	return 0, errors.New("find a free port on 127.0.0.1: none can be bound")
}

func answers(port int) bool {
	d := net.Dialer{Timeout: 200 * time.Millisecond}
	c, err := d.DialContext(context.Background(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
