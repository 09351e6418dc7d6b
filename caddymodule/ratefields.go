package caddymodule

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/seckillgate/seckillgate/internal/ratelimit"
)

// rateFields are the fields RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers, as far as they are known
// before a request comes. A refusal tells that nothing remains (r=0), and for how many seconds (t).
type rateFields struct {
	policy string
	prefix string
	soon   [64]string // RateLimit by its seconds: a flood is refused without building text
}

func newRateFields(a ratelimit.Algorithm, limit int64, window time.Duration) rateFields {
	name := `"` + string(a) + `"`
	f := rateFields{policy: name + ";q=" + strconv.FormatInt(limit, 10), prefix: name + ";r=0;t="}
	if window%time.Second == 0 { // the field has whole seconds, and may leave the window out
		f.policy += ";w=" + strconv.FormatInt(int64(window/time.Second), 10)
	}
	for i := range f.soon {
		f.soon[i] = f.prefix + strconv.Itoa(i)
	}
	return f
}

// Go's spelling of the names on the wire.
var (
	policyField    = http.CanonicalHeaderKey("RateLimit-Policy")
	rateLimitField = http.CanonicalHeaderKey("RateLimit")
)

// remaining is the RateLimit field. Its time is that of Retry-After: the draft wants them not to disagree.
func (f *rateFields) remaining(seconds int64) string {
	if seconds >= 0 && seconds < int64(len(f.soon)) {
		return f.soon[seconds]
	}
	return f.prefix + strconv.FormatInt(seconds, 10)
}

// retrySeconds rounds up: a client that comes back a moment too early is refused again. A crowd that is refused in one
// moment is spread over as long again as it has to wait, three seconds at least and a minute at most, so that it does not
// come back in one moment.
func retrySeconds(d time.Duration, crowd bool) int64 {
	s := max(int64((d+time.Second-1)/time.Second), 1)
	if crowd {
		s += rand.Int64N(min(max(s, 2), 60) + 1)
	}
	return s
}
