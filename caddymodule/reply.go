package caddymodule

import (
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/seckillgate/seckillgate/internal/edge"
	"github.com/seckillgate/seckillgate/internal/order"
)

// Refusals that only HTTP knows.
const (
	methodNotAllowed edge.Reason = "method_not_allowed"
	bodyTimeout      edge.Reason = "timeout"
)

var httpOnly = map[edge.Reason]struct {
	status int
	text   [2]string
}{
	methodNotAllowed: {http.StatusMethodNotAllowed, [2]string{edge.Chinese: "不支持该请求方法", edge.English: "Method not allowed"}},
	bodyTimeout:      {http.StatusRequestTimeout, [2]string{edge.Chinese: "请求超时", edge.English: "Request timed out"}},
}

var reasons = []edge.Reason{
	edge.BadRequest, edge.NoUser, edge.NotStarted, edge.NotFound, edge.SoldOut, edge.AlreadyOrdered, edge.Ended,
	edge.TooLarge, edge.TooEarly, edge.RateLimited, edge.TooFrequent, edge.Unavailable, methodNotAllowed, bodyTimeout,
}

// answer is what never changes about a refusal. A body ends in "}\n"; what some refusals add goes in front of that.
type answer struct {
	status  int
	body    [2][]byte
	text    [2]string
	outcome any // the reason, boxed once
}

// answers are made at the first request.
var answers = sync.OnceValue(func() map[edge.Reason]*answer {
	m := make(map[edge.Reason]*answer, len(reasons))
	for _, reason := range reasons {
		a := &answer{outcome: string(reason)}
		for _, lang := range []edge.Lang{edge.Chinese, edge.English} {
			text := ""
			if only, ok := httpOnly[reason]; ok {
				a.status, text = only.status, only.text[lang]
			} else {
				a.status, text = edge.HTTPStatus(reason), edge.Message(reason, lang)
			}
			a.text[lang] = text
			b := append([]byte(`{"code":`), strconv.Itoa(a.status)...)
			b = append(b, `,"reason":"`...)
			b = append(b, reason...)
			b = append(b, `","msg":`...)
			a.body[lang] = append(appendQuoted(b, text), tail...)
		}
		m[reason] = a
	}
	return m
})

// refusal is a refusal with everything that its answer may need.
type refusal struct {
	reason     edge.Reason
	detail     string // bad_request: what is wrong, in English
	activity   int64  // 0: not known, or not worth a label
	retryAfter time.Duration
	startsAtMs int64  // not_started
	orderID    string // already_ordered
	statusURL  string
	allow      string // method_not_allowed

	rate  *rateFields // rate_limited
	crowd bool        // many others are refused in the same moment
}

// fault is why a request is not let pass; the zero value is that there is nothing.
type fault struct {
	reason edge.Reason
	detail string
}

// malformed is a request that can never be answered, and why.
func malformed(detail string) fault { return fault{edge.BadRequest, detail} }

var (
	tooEarly    = fault{reason: edge.TooEarly}
	unavailable = fault{reason: edge.Unavailable}
)

// Refusals is how a handler refuses.
type Refusals struct {
	// Hand refusals to the error routes (`handle_errors`) in place of answering with JSON. They find the status in
	// {err.status_code}, the reason in {err.message} and {seckill.outcome}, and Retry-After and the like are set already.
	// Default: false.
	HandleErrors bool `json:"handle_errors,omitempty"`
}

// refuse answers with a refusal, or gives it as an error. Either is for handlers to return.
func (o Refusals) refuse(w http.ResponseWriter, r *http.Request, f fault) error {
	return o.write(w, r, refusal{reason: f.reason, detail: f.detail})
}

// write is refuse with details. It writes by itself unless told otherwise: on a path that refuses millions, an error value that
// Caddy would turn into an answer costs too much, and the answer is already known. It returns nil then.
func (o Refusals) write(w http.ResponseWriter, r *http.Request, f refusal) error {
	a := answers()[f.reason]
	if a == nil {
		a = answers()[edge.Unavailable]
	}
	note(r, f.activity, f.reason, a.outcome)
	lang := edge.Negotiate(r.Header.Get("Accept-Language"))
	if o.HandleErrors {
		return f.asError(w, r, a, lang)
	}
	f.setHeaders(w.Header())
	w.WriteHeader(a.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(f.withDetails(a.body[lang], lang))
	}
	return nil
}

// asError gives the refusal to Caddy's error routes: the headers are set, and what the body would say is in placeholders.
func (f refusal) asError(w http.ResponseWriter, r *http.Request, a *answer, lang edge.Lang) error {
	h := w.Header()
	f.setHeaders(h)
	delete(h, "Content-Type") // the error routes know what they send
	repl := replacer(r)
	repl.Set("seckill.message", a.text[lang])
	repl.Set("seckill.detail", f.detail)
	repl.Set("seckill.status_url", f.statusURL)
	if f.reason == edge.NotStarted {
		repl.Set("seckill.starts_at", f.startsAtMs)
	}
	// Not caddyhttp.Error: it asks for the call stack, which costs more than everything else here.
	return caddyhttp.HandlerError{StatusCode: a.status, Err: refused(f.reason)}
}

// refused is a refusal as an error.
type refused edge.Reason

func (e refused) Error() string { return string(e) }

// setHeaders sets what a refusal says in headers.
func (f refusal) setHeaders(h http.Header) {
	// One allocation for all values. They are made per answer, since other handlers may change header values in place.
	v := [6]string{"application/json", "no-store"}
	vals := v[:]
	h["Content-Type"], h["Cache-Control"] = vals[0:1:1], vals[1:2:2]
	if needsRetryAfter(f.reason) {
		// What is unavailable is so for everybody.
		seconds := retrySeconds(f.retryAfter, f.crowd || f.reason == edge.Unavailable)
		vals[2] = strconv.FormatInt(seconds, 10)
		h["Retry-After"] = vals[2:3:3]
		if f.rate != nil {
			vals[4], vals[5] = f.rate.policy, f.rate.remaining(seconds)
			h[policyField], h[rateLimitField] = vals[4:5:5], vals[5:6:6]
		}
	}
	if f.allow != "" {
		vals[3] = f.allow
		h["Allow"] = vals[3:4:4]
	}
}

const tail = "}\n"

// startBody is a body that says when a sale starts.
type startBody struct {
	startsAtMs int64
	body       []byte
}

// lastStart is the last of them, by language: before a start the whole crowd gets the same one.
var lastStart [2]atomic.Pointer[startBody]

// withDetails gives the body with what only some refusals say.
func (f refusal) withDetails(body []byte, lang edge.Lang) []byte {
	onlyStart := f.reason == edge.NotStarted && f.orderID == "" && f.detail == ""
	if onlyStart {
		if last := lastStart[lang].Load(); last != nil && last.startsAtMs == f.startsAtMs {
			return last.body
		}
	} else if f.reason != edge.NotStarted && f.orderID == "" && f.detail == "" {
		return body
	}
	b := make([]byte, 0, len(body)+160)
	b = append(b, body[:len(body)-len(tail)]...)
	if f.reason == edge.NotStarted {
		b = append(b, `,"starts_at":`...)
		b = strconv.AppendInt(b, f.startsAtMs, 10)
	}
	if f.orderID != "" {
		b = append(b, `,"order_id":`...)
		b = appendQuoted(b, f.orderID)
		b = append(b, `,"status_url":`...)
		b = appendQuoted(b, f.statusURL)
	}
	if f.detail != "" {
		b = append(b, `,"detail":`...)
		b = appendQuoted(b, f.detail)
	}
	b = append(b, tail...)
	if onlyStart {
		lastStart[lang].Store(&startBody{f.startsAtMs, b})
	}
	return b
}

func needsRetryAfter(reason edge.Reason) bool {
	return reason == edge.RateLimited || reason == edge.TooFrequent || reason == edge.Unavailable
}

// accept answers 202 for an order that stands.
func accept(w http.ResponseWriter, r *http.Request, statusURL string, out edge.Outcome) error {
	word := out.Status.Word()
	note(r, out.Activity, edge.Accepted, word)
	b := make([]byte, 0, 256)
	b = append(b, `{"code":202,"order_id":`...)
	b = appendQuoted(b, out.OrderID)
	b = append(b, `,"status":`...)
	b = appendQuoted(b, word)
	if out.StatusReason != "" {
		b = append(b, `,"reason":`...)
		b = appendQuoted(b, out.StatusReason)
	}
	b = append(b, `,"status_url":`...)
	b = appendQuoted(b, statusURL)
	b = append(b, '}', '\n')
	writeJSON(w, r, http.StatusAccepted, b)
	return nil
}

// orderJSON is an order as its buyer sees it.
type orderJSON struct {
	OrderID  string `json:"order_id"`
	Activity int64  `json:"activity_id"`
	Item     int64  `json:"item_id"`
	Quantity int64  `json:"quantity"`
	Status   string `json:"status"`
	Reason   string `json:"reason"`
	Position *int64 `json:"position,omitempty"` // queued orders, where it is known
}

func viewJSON(v edge.OrderView) []byte {
	o := orderJSON{
		OrderID: v.OrderID, Activity: v.Activity, Item: v.Item, Quantity: v.Quantity,
		Status: v.Status.Word(), Reason: v.Reason,
	}
	if v.Status == order.Queued && v.Position >= 0 {
		o.Position = &v.Position
	}
	b, err := json.Marshal(o)
	if err != nil { // numbers and strings only
		panic(err)
	}
	return b
}

func writeJSON(w http.ResponseWriter, r *http.Request, status int, b []byte) {
	h := w.Header()
	v := []string{"application/json", "no-store"} // per answer, since other handlers may change header values in place
	h["Content-Type"], h["Cache-Control"] = v[0:1:1], v[1:2:2]
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(b) //nolint:gosec // G705: JSON, and said to be JSON
	}
}

// appendQuoted appends s as a JSON string.
func appendQuoted(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			quoted, err := json.Marshal(s)
			if err != nil {
				panic(err)
			}
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// isEarly says whether the request came as TLS early data, which anyone who recorded it can send again: to this server, or to one in
// front of it that says so by an Early-Data header, which has no value but yes (RFC 8470).
func isEarly(r *http.Request) bool {
	if r.TLS != nil && !r.TLS.HandshakeComplete {
		return true
	}
	_, told := r.Header["Early-Data"]
	return told
}
