package caddymodule

import (
	"net/http"
	"strings"
	"testing"
)

const (
	aTrace = "0af7651916cd43dd8448eb211c80319c"
	aSpan  = "b7ad6b7169203331"
)

// An order carries its request's trace on to Kafka: the client's, or the span that Caddy's tracing has made of it.
func TestTraceGoesOn(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "none") // spans are made, and sent nowhere
	f := newFake()
	at := run(t, f,
		"handle /traced/* {\n tracing {\n span buy\n}\n uri strip_prefix /traced\n seckill {\n user {header.X-User}\n}\n}",
		"handle {\n seckill {\n user {header.X-User}\n}\n}")
	headers := func(path string, headers ...string) map[string]string {
		t.Helper()
		res := request(t, "POST", at+path, "", append(headers, "X-User", "bob")...)
		orders, _ := f.calls()
		if res.status != 202 || len(orders) != 1 {
			t.Fatalf("%s: got %d %s", path, res.status, res.body)
		}
		return orders[0].Headers
	}
	const parent = "00-" + aTrace + "-" + aSpan + "-01"
	if got := headers("/seckill/1/orders"); got != nil {
		t.Errorf("without a trace: got %v", got)
	}
	if got := headers("/seckill/1/orders", "Traceparent", parent, "Tracestate", "shop=1"); got["traceparent"] != parent || got["tracestate"] != "shop=1" {
		t.Errorf("without tracing: got %v", got)
	}
	got := headers("/traced/seckill/1/orders", "Traceparent", parent, "Tracestate", "shop=1")
	if !strings.HasPrefix(got["traceparent"], "00-"+aTrace+"-") || got["traceparent"] == parent || got["tracestate"] != "shop=1" {
		t.Errorf("with tracing: got %v, want a span of the client's trace", got)
	}
	if got := headers("/traced/seckill/1/orders"); !validTraceparent(got["traceparent"]) || strings.Contains(got["traceparent"], aTrace) {
		t.Errorf("with tracing, and no trace from the client: got %v", got)
	}
}

func TestTraceContext(t *testing.T) {
	for parent, valid := range map[string]bool{
		"00-" + aTrace + "-" + aSpan + "-00":                   true,
		"cc-" + aTrace + "-" + aSpan + "-01":                   true, // a version to come, as far as this one knows it
		"ff-" + aTrace + "-" + aSpan + "-01":                   false,
		"00-" + aTrace + "-" + aSpan + "-01-x":                 false,
		"00-" + aTrace + "-" + aSpan:                           false,
		"00-" + strings.ToUpper(aTrace) + "-" + aSpan + "-01":  false,
		"00-" + strings.Repeat("0", 32) + "-" + aSpan + "-01":  false,
		"00-" + aTrace + "-" + strings.Repeat("0", 16) + "-01": false,
		"00_" + aTrace + "-" + aSpan + "-01":                   false,
		"00-" + aTrace[1:] + "\n-" + aSpan + "-01":             false,
		"00-" + aTrace[1:] + ":-" + aSpan + "-01":              false,
		"": false,
	} {
		got := traceContext(http.Header{"Traceparent": {parent}, "Tracestate": {"a=1", "b=2"}})
		if !valid {
			if got != nil {
				t.Errorf("%q: got %v", parent, got)
			}
		} else if got["traceparent"] != parent || got["tracestate"] != "a=1,b=2" {
			t.Errorf("%q: got %v", parent, got)
		}
	}
	for _, state := range []string{"", "a=\x01", "a=é", strings.Repeat("x", maxTracestate+1)} {
		got := traceContext(http.Header{"Traceparent": {"00-" + aTrace + "-" + aSpan + "-01"}, "Tracestate": {state}})
		if _, ok := got["tracestate"]; ok || len(got) != 1 {
			t.Errorf("%q: got %v", state, got)
		}
	}
}

func FuzzTraceContext(f *testing.F) {
	f.Add("00-"+aTrace+"-"+aSpan+"-01", "shop=1")
	f.Add("", "\x00")
	f.Fuzz(func(t *testing.T, parent, state string) {
		got := traceContext(http.Header{"Traceparent": {parent}, "Tracestate": {state}})
		for name, value := range got {
			if !isPrintable(value) || len(value) > maxTracestate || name == "traceparent" && (value != parent || len(value) != 55) {
				t.Errorf("%s: %q", name, value)
			}
		}
	})
}
