package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seckillgate/seckillgate/internal/told"
)

// Crowd is the buyers of a run. Each comes at its time, asks either gateway, and asks again when it was refused for the
// moment or heard nothing, as people do. Half of them send an Idempotency-Key; some click twice. Who was promised an order
// asks what has become of it: now and again, waiting for news, or as a stream, which some leave early.
type Crowd struct {
	Gateways []string // base URLs
	Activity int64
	Buyers   int
	Length   time.Duration // over which they come
	Seed     uint64
	Book     *Book

	client  http.Client
	flight  atomic.Int64
	dropped atomic.Int64
}

// Bounds of a buyer's patience.
const (
	requestTimeout = 10 * time.Second
	tries          = 6
	// maxFlight bounds the buyers that wait at the same time; who comes to a longer queue goes home.
	maxFlight = 3000
)

// Run lets them come until over is closed: first every buyer once, then some of them again. It returns when each has its
// answer.
func (c *Crowd) Run(ctx context.Context, over <-chan struct{}) {
	c.client = http.Client{
		Timeout:   requestTimeout,
		Transport: &http.Transport{MaxIdleConnsPerHost: 512, IdleConnTimeout: 5 * time.Second},
	}
	defer c.client.CloseIdleConnections()
	var all sync.WaitGroup
	defer all.Wait()
	// Nobody asks again once the sale is over, but who has asked waits for the answer.
	patience, end := context.WithCancel(ctx)
	defer end()
	start := time.Now()
	gap := c.Length / time.Duration(c.Buyers)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for k := 0; ; k++ {
		timer.Reset(time.Until(start.Add(time.Duration(k) * gap)))
		select {
		case <-timer.C:
		case <-over:
			return
		case <-ctx.Done():
			return
		}
		n := k
		r := rand.New(rand.NewPCG(c.Seed, uint64(k)))
		if k >= c.Buyers {
			n = r.IntN(c.Buyers)
		}
		if c.flight.Load() > maxFlight {
			c.dropped.Add(1)
			continue
		}
		c.flight.Add(1)
		all.Go(func() {
			defer c.flight.Add(-1)
			c.come(ctx, patience, n, r)
		})
	}
}

// Waiting is how many buyers are at it now, and how many went home before they asked.
func (c *Crowd) Waiting() (now, dropped int64) { return c.flight.Load(), c.dropped.Load() }

// User is the n-th buyer's name.
func User(n int) string { return "buyer-" + strconv.Itoa(n) }

// come is one buyer's visit, which lasts as long as patience at most.
func (c *Crowd) come(ctx, patience context.Context, n int, r *rand.Rand) {
	user, quantity, key := User(n), int64(1), ""
	if r.IntN(10) < 3 {
		quantity = 1 + r.Int64N(3)
	}
	if r.IntN(2) == 0 {
		key = strconv.FormatUint(r.Uint64(), 36)
	}
	if r.IntN(30) == 0 { // two clicks at once
		var twin sync.WaitGroup
		defer twin.Wait()
		gateway := r.IntN(len(c.Gateways))
		twin.Go(func() { c.Buy(ctx, gateway, user, quantity, key) })
	}
	for try := range tries {
		a := c.Buy(ctx, r.IntN(len(c.Gateways)), user, quantity, key)
		if a.Accepted() {
			c.follow(patience, a, r)
			return
		}
		switch a.Answer {
		case "sold_out":
			if r.IntN(3) > 0 {
				return
			}
		case "unavailable", "too_frequent", "rate_limited", told.Unknown:
		default:
			return
		}
		least := time.Second << try // patience grows, else the crowd is the fault
		if !pause(patience, least+time.Duration(r.Int64N(int64(least)))) {
			return
		}
	}
}

// Buy asks one gateway once and writes down what it said.
func (c *Crowd) Buy(ctx context.Context, gateway int, user string, quantity int64, key string) *Attempt {
	a := &Attempt{Began: time.Now()}
	a.Record = told.Record{AtMs: a.Began.UnixMilli(), Activity: c.Activity, User: user, Quantity: quantity, Answer: told.Unknown}
	a.HTTP, a.Cause = c.post(ctx, gateway, &a.Record, key)
	a.Ended = time.Now()
	c.Book.Write(a)
	return a
}

type answer struct {
	OrderID string `json:"order_id"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
}

func (c *Crowd) post(ctx context.Context, gateway int, rec *told.Record, key string) (status int, cause string) {
	url := fmt.Sprintf("%s/seckill/%d/orders", c.Gateways[gateway], c.Activity)
	body := fmt.Appendf(nil, `{"quantity":%d}`, rec.Quantity)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-User", rec.User)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	status, a, err := c.do(req)
	switch {
	case err != nil:
		return 0, err.Error()
	case status == http.StatusAccepted && a.OrderID != "":
		rec.Answer, rec.OrderID = a.Status, a.OrderID
	case a.Reason != "":
		rec.Answer, rec.OrderID = a.Reason, a.OrderID
	default:
		return status, "http " + strconv.Itoa(status)
	}
	return status, ""
}

// errNotJSON: the answer is not the gateway's.
var errNotJSON = errors.New("the answer is not JSON")

func (c *Crowd) do(req *http.Request) (int, answer, error) {
	var a answer
	resp, err := c.client.Do(req)
	if err != nil {
		return 0, a, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return 0, a, err
	}
	if len(b) > 0 && json.Unmarshal(b, &a) != nil && resp.StatusCode == http.StatusAccepted {
		return 0, a, errNotJSON
	}
	return resp.StatusCode, a, nil
}

// Status asks for an order as its buyer: the word of its status, or "" with the HTTP status where there is none.
func (c *Crowd) Status(ctx context.Context, gateway int, user, id string) (word string, status int, err error) {
	url := fmt.Sprintf("%s/seckill/%d/orders/%s", c.Gateways[gateway], c.Activity, id)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", 0, err
	}
	req.Header.Set("X-User", user)
	status, a, err := c.do(req)
	return a.Status, status, err
}

// followed is how long a buyer looks after an order at most.
const followed = 8 * time.Second

// follow is a buyer who asks after an order, by any gateway.
func (c *Crowd) follow(patience context.Context, a *Attempt, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(patience, followed)
	defer cancel()
	switch r.IntN(4) {
	case 0: // believes what was said
	case 1:
		for range 3 {
			c.ask(ctx, r.IntN(len(c.Gateways)), a, "")
			if !pause(ctx, 200*time.Millisecond+time.Duration(r.Int64N(int64(2*time.Second)))) {
				return
			}
		}
	case 2:
		c.ask(ctx, r.IntN(len(c.Gateways)), a, "?wait=5s")
	default:
		if r.IntN(3) == 0 {
			var leave context.CancelFunc
			ctx, leave = context.WithTimeout(ctx, time.Duration(r.Int64N(int64(time.Second))))
			defer leave()
		}
		c.stream(ctx, r.IntN(len(c.Gateways)), a)
	}
}

// ask asks once after an order.
func (c *Crowd) ask(ctx context.Context, gateway int, a *Attempt, query string) {
	if word, status, err := c.Status(ctx, gateway, a.User, a.OrderID+query); err == nil {
		c.Book.Hear(a, status, word)
	}
}

// stream hears of an order until it is final, or ctx or the stream ends.
func (c *Crowd) stream(ctx context.Context, gateway int, a *Attempt) {
	url := fmt.Sprintf("%s/seckill/%d/orders/%s", c.Gateways[gateway], c.Activity, a.OrderID)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return
	}
	req.Header.Set("X-User", a.User)
	req.Header.Set("Accept", "text/event-stream")
	resp, err := c.client.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		c.Book.Hear(a, resp.StatusCode, "")
		return
	}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		var event answer
		if data, is := strings.CutPrefix(lines.Text(), "data: "); is && json.Unmarshal([]byte(data), &event) == nil {
			c.Book.Hear(a, resp.StatusCode, event.Status)
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
