package loadgen

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/told"
)

// client speaks the gateway's HTTP contract.
type client struct {
	http     *http.Client
	buyURL   string
	base     string
	activity int64
	timeout  time.Duration
}

func newClient(c *Config) *client {
	conns := max(c.Concurrency, 256)
	if c.Rate > 0 {
		conns = c.MaxInFlight
	}
	base := strings.TrimRight(c.Target, "/")
	return &client{
		http: &http.Client{
			Transport: &http.Transport{
				DialContext:         (&net.Dialer{Timeout: c.Timeout}).DialContext,
				MaxIdleConns:        conns,
				MaxIdleConnsPerHost: conns,
				IdleConnTimeout:     30 * time.Second,
			},
			// A redirect to a login page is an answer, and not an order.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		base: base, activity: c.Activity, timeout: c.Timeout,
		buyURL: base + c.Prefix + "/" + strconv.FormatInt(c.Activity, 10) + "/orders",
	}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// answer is the union of the contract's JSON answers.
type answer struct {
	OrderID   string `json:"order_id"`
	Status    string `json:"status"`
	StatusURL string `json:"status_url"`
	Reason    string `json:"reason"`
}

// maxAnswer bounds how much of an answer is read, in bytes.
const maxAnswer = 1 << 16

// buy sends one request and says what the buyer was told, and where the order's status is. A record that is unknown names
// the cause.
func (c *client) buy(ctx context.Context, b Buyer, quantity int64) (rec told.Record, statusURL string) {
	rec = told.Record{
		AtMs: time.Now().UnixMilli(), Activity: c.activity, User: b.User, Quantity: quantity, Answer: told.Unknown,
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	body := fmt.Appendf(nil, `{"quantity":%d}`, quantity)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.buyURL, bytes.NewReader(body))
	if err != nil {
		rec.Cause = cause(err)
		return rec, ""
	}
	req.Header = b.Header.Clone()
	if req.Header == nil {
		req.Header = http.Header{}
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		rec.Cause = cause(err)
		return rec, ""
	}
	a, ok := read(resp)
	rec.HTTP = resp.StatusCode
	switch {
	case ok && resp.StatusCode == http.StatusAccepted && a.OrderID != "":
		rec.Answer, rec.OrderID = a.Status, a.OrderID
		return rec, c.statusURL(a)
	case ok && a.Reason != "":
		rec.Answer, rec.OrderID = a.Reason, a.OrderID
	default:
		// Not the gateway's JSON: somebody else's page. Nobody knows what happened.
		rec.Cause = "http " + strconv.Itoa(resp.StatusCode)
	}
	return rec, ""
}

// cause names a failed request's innermost error: the outer ones hold ports, which differ from request to request.
func cause(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "connection closed"
	}
	return err.Error()
}

// statusURL makes the status URL of an answer absolute.
func (c *client) statusURL(a answer) string {
	if a.StatusURL == "" {
		return c.buyURL + "/" + a.OrderID
	}
	if strings.HasPrefix(a.StatusURL, "/") {
		return c.base + a.StatusURL
	}
	return a.StatusURL
}

// status asks once, waiting up to d for a final status. It gives "" while there is none, or no answer.
func (c *client) status(ctx context.Context, b Buyer, url string, d time.Duration) (status, reason string) {
	ctx, cancel := context.WithTimeout(ctx, d+c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"?wait="+d.String(), nil)
	if err != nil {
		return "", ""
	}
	if b.Header != nil {
		req.Header = b.Header.Clone()
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return "", ""
	}
	a, ok := read(resp)
	if !ok || resp.StatusCode != http.StatusOK {
		return "", ""
	}
	if a.Status == order.Queued.Word() || a.Status == order.Processing.Word() {
		return "", ""
	}
	return a.Status, a.Reason
}

func read(resp *http.Response) (answer, bool) {
	defer resp.Body.Close()
	var a answer
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil || json.Unmarshal(b, &a) != nil {
		return answer{}, false
	}
	return a, true
}
