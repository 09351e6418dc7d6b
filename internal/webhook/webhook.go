// Package webhook tells the shop over HTTP what became of an order. Requests follow the Standard Webhooks specification, so that a
// shop can verify them with any of its libraries; docs/webhook.md says what the shop must do.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/seckillgate/seckillgate/internal/order"
	"github.com/seckillgate/seckillgate/internal/outbox"
	"github.com/seckillgate/seckillgate/internal/store"
)

// Headers of a request, by the Standard Webhooks specification.
const (
	HeaderID        = "webhook-id"        // the same in every try of one event
	HeaderTimestamp = "webhook-timestamp" // of this try, in seconds since 1970
	HeaderSignature = "webhook-signature" // "v1," and the signature; several, one for each secret, separated by blanks
)

// Config says where the shop listens. The zero value of each field means its default.
type Config struct {
	// URL is where requests are posted to: http or https, without a password in it. Empty: nobody is told. Default: empty.
	URL string `yaml:"url"`
	// Secrets sign every request: "whsec_" and 24 to 64 bytes in base64. Two while the shop changes from one to the other: a
	// request then has the signatures of both.
	Secrets []string `yaml:"secrets" secret:"true"`
	// CAFile is a PEM file of the authorities to trust in place of the system's.
	CAFile string `yaml:"ca_file"`
	// Timeout bounds one request, the reading of its answer included. Default: 10s.
	Timeout time.Duration `yaml:"timeout"`
	// Parallel is how many requests are under way at once; those about one order come one after the other. Default: 16.
	Parallel int `yaml:"parallel"`
	// RetryMin and RetryMax bound the pause before an event is told again; it doubles from the first to the second. Defaults:
	// 1s and 5m.
	RetryMin time.Duration `yaml:"retry_min"`
	RetryMax time.Duration `yaml:"retry_max"`
}

// Enabled says whether a shop listens at all.
func (c *Config) Enabled() bool { return c.URL != "" }

// SetDefaults fills in what is not set.
func (c *Config) SetDefaults() {
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Parallel == 0 {
		c.Parallel = 16
	}
	if c.RetryMin == 0 {
		c.RetryMin = time.Second
	}
	if c.RetryMax == 0 {
		c.RetryMax = 5 * time.Minute
	}
}

//nolint:gosec // G101: how to make one, not one
const howToMakeSecrets = `make one by: echo "whsec_$(openssl rand -base64 32)"`

// Validate refuses values that cannot work. It expects defaults to be filled in. Its messages begin with the key, and none of them
// repeats a secret.
func (c *Config) Validate() error {
	switch {
	case c.Timeout < 100*time.Millisecond || c.Timeout > 5*time.Minute:
		return fmt.Errorf("timeout: %s: want 100ms to 5m", c.Timeout)
	case c.Parallel < 1 || c.Parallel > 1000:
		return fmt.Errorf("parallel: %d: want 1 to 1000", c.Parallel)
	case c.RetryMin < 10*time.Millisecond || c.RetryMin > c.RetryMax:
		return fmt.Errorf("retry_min: %s: want at least 10ms and not more than webhook.retry_max, which is %s", c.RetryMin, c.RetryMax)
	}
	if _, err := c.keys(); err != nil {
		return err
	}
	if !c.Enabled() {
		return nil
	}
	u, err := url.Parse(c.URL)
	switch {
	case err != nil: // its message repeats the URL, which may hold a password
		return errors.New("url: it is not a URL: want https://host/path")
	case u.User != nil:
		return fmt.Errorf("url: %s: it holds a user or a password, which logs would show: leave it out, the signature proves who sends", place(u))
	case u.Scheme != "https" && u.Scheme != "http" || u.Host == "":
		return fmt.Errorf("url: %s: want https://host/path", place(u))
	case len(c.Secrets) == 0:
		return errors.New("secrets: none given: the shop could not tell these requests from forged ones; " + howToMakeSecrets)
	}
	_, err = c.pool()
	return err
}

// keys decodes the secrets.
func (c *Config) keys() (keys [][]byte, err error) {
	for i, s := range c.Secrets {
		text, ok := strings.CutPrefix(s, "whsec_")
		key, err := base64.StdEncoding.DecodeString(text)
		if !ok || err != nil || len(key) < 24 || len(key) > 64 {
			return nil, fmt.Errorf("secrets: number %d is not \"whsec_\" and 24 to 64 bytes in base64: %s", i+1, howToMakeSecrets)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func (c *Config) pool() (*x509.CertPool, error) {
	if c.CAFile == "" {
		return nil, nil //nolint:nilnil // no pool of its own means the system's
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("ca_file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("ca_file: %s holds no PEM certificate", c.CAFile)
	}
	return pool, nil
}

// place is a URL without what may be secret in it.
func place(u *url.URL) string { return u.Scheme + "://" + u.Host + u.EscapedPath() }

// Place is where requests go, without a query, which may hold a token. It is for logs.
func (c *Config) Place() string {
	u, err := url.Parse(c.URL)
	if err != nil {
		return ""
	}
	return place(u)
}

// Client posts events. It implements outbox.Listener.
type Client struct {
	cfg  Config
	keys [][]byte
	http *http.Client
	now  func() time.Time
}

// New checks the configuration and does not dial.
func New(cfg Config) (*Client, error) {
	cfg.SetDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("webhook.%w", err)
	}
	keys, err := cfg.keys()
	if err != nil {
		return nil, err
	}
	pool, err := cfg.pool()
	if err != nil {
		return nil, err
	}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		MaxIdleConnsPerHost: cfg.Parallel, MaxIdleConns: cfg.Parallel, MaxConnsPerHost: cfg.Parallel, IdleConnTimeout: 30 * time.Second,
		TLSHandshakeTimeout: cfg.Timeout, MaxResponseHeaderBytes: 64 << 10,
	}
	return &Client{cfg: cfg, keys: keys, now: time.Now, http: &http.Client{
		Transport: t, Timeout: cfg.Timeout,
		// What is signed is meant for this endpoint and no other.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Pace is how the outbox is to tell this listener.
func (c *Client) Pace() outbox.Pace {
	return outbox.Pace{Parallel: c.cfg.Parallel, RetryMin: c.cfg.RetryMin, RetryMax: c.cfg.RetryMax}
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// message is the body of a request.
type message struct {
	Type      string `json:"type"`      // "order." and the status in lower case
	Timestamp string `json:"timestamp"` // when it happened, by MySQL's clock: RFC 3339 in UTC
	Data      data   `json:"data"`
}

// data is what became of the order: the same as on the results topic, and two things more.
type data struct {
	order.Result
	// Sequence grows with every event of one order.
	Sequence int64           `json:"sequence"`
	Extra    json.RawMessage `json:"extra,omitempty"`
}

// body encodes an event. It is the same in every try.
func body(e store.Event) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(message{
		Type: "order." + e.Status.Word(), Timestamp: time.UnixMilli(e.AtMs).UTC().Format("2006-01-02T15:04:05.000Z07:00"),
		Data: data{Result: e.Result, Sequence: e.Seq, Extra: e.Extra},
	})
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// sign gives the signatures of a request, one for each key.
func sign(keys [][]byte, id, timestamp string, body []byte) string {
	all := make([]string, len(keys))
	for i, k := range keys {
		m := hmac.New(sha256.New, k)
		m.Write([]byte(id + "." + timestamp + "."))
		m.Write(body)
		all[i] = "v1," + base64.StdEncoding.EncodeToString(m.Sum(nil))
	}
	return strings.Join(all, " ")
}

// Deliver posts one event. Any 2xx means that the shop has it. Its errors name neither a secret nor a query.
func (c *Client) Deliver(ctx context.Context, e store.Event) error {
	payload, err := body(e)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.cfg.URL, bytes.NewReader(payload))
	if err != nil {
		return errors.New("webhook.url cannot be posted to")
	}
	id, timestamp := e.ID+"."+strconv.FormatInt(e.Seq, 10), strconv.FormatInt(c.now().Unix(), 10)
	req.Header.Set(HeaderID, id)
	req.Header.Set(HeaderTimestamp, timestamp)
	req.Header.Set(HeaderSignature, sign(c.keys, id, timestamp, payload))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "seckillgate-webhook/1")
	res, err := c.http.Do(req)
	if err != nil {
		var whole *url.Error // repeats the URL
		if errors.As(err, &whole) {
			err = whole.Err
		}
		return fmt.Errorf("post to %s: %w", c.cfg.Place(), err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10)) // so that the connection can be used again
	if res.StatusCode/100 == 2 {
		return nil
	}
	err = fmt.Errorf("post to %s: answered %s, want 2xx", c.cfg.Place(), res.Status)
	if n, e := strconv.Atoi(res.Header.Get("Retry-After")); e == nil && n > 0 {
		return &outbox.Later{After: time.Duration(n) * time.Second, Err: err}
	}
	return err
}
