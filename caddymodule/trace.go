package caddymodule

import (
	"net/http"
	"strings"
)

// maxTracestate bounds what an outsider may have carried along; the specification lets longer ones be dropped.
const maxTracestate = 512

// traceContext is the W3C trace context of a request, for the record of its order. Where Caddy's own `tracing` stands in
// front, it has put its span in the place of the client's.
func traceContext(h http.Header) map[string]string {
	parent := h.Get("Traceparent")
	if !validTraceparent(parent) {
		return nil
	}
	carried := map[string]string{"traceparent": parent}
	if state := strings.Join(h["Tracestate"], ","); state != "" && len(state) <= maxTracestate && isPrintable(state) {
		carried["tracestate"] = state
	}
	return carried
}

// validTraceparent reads version-traceid-parentid-flags, in lower-case hexadecimal digits.
func validTraceparent(s string) bool {
	if len(s) != 55 || s[:2] == "ff" {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case i == 2 || i == 35 || i == 52:
			if c != '-' {
				return false
			}
		case c < '0' || c > 'f' || c > '9' && c < 'a':
			return false
		}
	}
	return strings.Trim(s[3:35], "0") != "" && strings.Trim(s[36:52], "0") != ""
}

// isPrintable says whether a text is of printable ASCII.
func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
