// Package loadgen plays the buyers of a sale against a running gateway and measures what they see.
//
// In an open loop requests are due at a fixed rate whatever the gateway does, as in a real rush, and a request's latency
// counts from the moment it was due. A gateway that stalls thus cannot hide behind a client that waits for it
// (coordinated omission). In a closed loop a fixed number of buyers ask one after the other, each as fast as it is answered.
package loadgen

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/seckillgate/seckillgate/internal/told"
)

// Buyer is who asks.
type Buyer struct {
	User   string      // as the gateway will know the buyer
	Header http.Header // what proves it: a cookie, a token
}

// Config says what to play. Either Rate or Concurrency decides the kind of loop.
type Config struct {
	// Target is the gateway, "http://127.0.0.1:8080".
	Target string
	// Prefix of the sale's routes. Default: /seckill.
	Prefix string
	// Activity to buy in.
	Activity int64

	// Identify gives the n-th buyer, n from First on. It is called from one goroutine at a time.
	Identify func(n int) (Buyer, error)
	// First is the number of the first buyer. Default: 0.
	First int
	// Buyers is how many there are; they take turns. Default: as many as there are requests.
	Buyers int
	// Quantity of the n-th buyer's order. Default: 1.
	Quantity func(n int) int64

	// Rate is the open loop's requests per second. 0: a closed loop.
	Rate float64
	// Concurrency is the number of buyers who ask at the same time in a closed loop. Default: 64.
	Concurrency int
	// MaxInFlight bounds the open requests of an open loop; a request that has to wait for a place is late, and measured so.
	// Default: 4096.
	MaxInFlight int

	// Requests ends the run after so many. 0: no such end.
	Requests int
	// Duration ends the run after so long. 0: no such end.
	Duration time.Duration
	// Timeout of one request. Default: 10 s. What it cuts off is unknown, not refused.
	Timeout time.Duration
	// Follow is how long to ask after accepted orders once the rush is over, until each has landed or failed. Default: 0,
	// not at all.
	Follow time.Duration

	// Told gets a record of each request. Default: none.
	Told *told.Writer
}

func (c *Config) setDefaults() {
	if c.Prefix == "" {
		c.Prefix = "/seckill"
	}
	if c.Concurrency == 0 {
		c.Concurrency = 64
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 4096
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Quantity == nil {
		c.Quantity = func(int) int64 { return 1 }
	}
}

// Validate says what is wrong with the configuration.
func (c *Config) Validate() error {
	u, err := url.Parse(c.Target)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("target %q: want the gateway's address, such as http://127.0.0.1:8080", c.Target)
	case c.Activity <= 0:
		return fmt.Errorf("activity %d: want a positive id", c.Activity)
	case c.Identify == nil:
		return errors.New("identify: no buyers given")
	case c.Rate < 0 || c.Concurrency < 0 || c.MaxInFlight < 0 || c.Buyers < 0:
		return fmt.Errorf("rate %g, concurrency %d, max in flight %d, buyers %d: want none below zero", c.Rate, c.Concurrency,
			c.MaxInFlight, c.Buyers)
	case c.Requests <= 0 && c.Duration <= 0:
		return fmt.Errorf("requests %d and duration %s: one of them must end the run", c.Requests, c.Duration)
	}
	return nil
}
