package caddymodule

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/payload"
)

const (
	// defaultMaxBody is plenty for an order with 1 KiB of extra. maxMaxBody bounds what may be configured, since bodies are
	// held in memory.
	defaultMaxBody = 4 << 10
	maxMaxBody     = 1 << 20
)

// bodyTime bounds the whole body. A body of a few kilobytes that takes longer comes from a client that only wants to hold
// a goroutine. A variable for tests.
var bodyTime = 10 * time.Second

// body is a request's body, read in full. It takes the place of the request's own, so that whoever comes next can read
// it again; a nil body is none.
type body struct {
	bytes.Reader

	raw         []byte
	contentType string
	coded       bool // compressed, or says so
	parsed      bool
	fields      payload.Fields
	err         error
}

// Close implements io.Closer.
func (b *body) Close() error { return nil }

// readBody reads the body in full, unless an earlier handler has done so already. Nothing may be reserved before.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) (*body, fault) {
	if b, ok := r.Body.(*body); ok {
		b.Reset(b.raw)
		return b, fault{}
	}
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 { // unknown is -1
		return &body{}, fault{}
	}
	if limit == 0 {
		limit = defaultMaxBody
	}
	if r.ContentLength > limit {
		return nil, fault{reason: edge.TooLarge}
	}
	rc := http.NewResponseController(w)
	// Not every server can; Caddy's own timeouts stand in then.
	bounded := rc.SetReadDeadline(time.Now().Add(bodyTime)) == nil
	raw, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if bounded {
		_ = rc.SetReadDeadline(time.Time{})
	}
	switch {
	case errors.As(err, new(*http.MaxBytesError)), int64(len(raw)) > limit:
		return nil, fault{reason: edge.TooLarge}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fault{reason: bodyTimeout}
	case err != nil: // cut off, or not as long as its Content-Length says
		return nil, malformed("the body ended early")
	}
	b := &body{raw: raw, contentType: r.Header.Get("Content-Type")}
	coding := r.Header.Get("Content-Encoding")
	b.coded = len(raw) > 0 && coding != "" && !strings.EqualFold(coding, "identity")
	b.Reset(raw)
	r.Body = b
	return b, fault{}
}

func (b *body) parse() error {
	if !b.parsed {
		if b.err = b.plain(); b.err == nil {
			b.fields, b.err = payload.ParseFields(b.contentType, b.raw)
		}
		b.parsed = true
	}
	return b.err
}

// plain refuses a body that would have to be decoded first: unpacking has no bound, and who comes next may read it differently.
func (b *body) plain() error {
	if b.coded {
		return &payload.Error{Text: "the body has a Content-Encoding: send it without"}
	}
	return nil
}

// order reads the body as that of the contract's own purchase call.
func (b *body) order() (payload.Order, error) {
	if err := b.plain(); err != nil {
		return payload.Order{}, err
	}
	return payload.ParseOrder(b.contentType, b.raw)
}

// text gives a field as text, "" when the body has no such field.
func (b *body) text(path string) (string, error) {
	if err := b.parse(); err != nil {
		return "", err
	}
	return b.fields.Text(path)
}

// json gives a field as compact JSON.
func (b *body) json(path string) (json.RawMessage, error) {
	if err := b.parse(); err != nil {
		return nil, err
	}
	return b.fields.JSON(path)
}
