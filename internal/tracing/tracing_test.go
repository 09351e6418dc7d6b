package tracing

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.KnownLeaks()...) }

// unset leaves none of the variables but those that a test sets.
func unset(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		"OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL",
	} {
		t.Setenv(name, "")
	}
}

// TestAddressOfTheCollector: what can never be one is refused at the start, with the variable, its value and the remedy.
func TestAddressOfTheCollector(t *testing.T) {
	const (
		general = "OTEL_EXPORTER_OTLP_ENDPOINT"
		traces  = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	)
	for _, c := range []struct {
		env  map[string]string
		want string // "" where it is right
	}{
		{map[string]string{general: "foo"}, general + `: "foo" is not the address of a collector: write it with its scheme, such as http://collector:4318`},
		{map[string]string{general: "collector:4318"}, general + `: "collector:4318"`},
		{map[string]string{general: "ftp://collector"}, general},
		{map[string]string{general: "http://"}, general},
		{map[string]string{general: "http://collector:99999"}, general},
		{map[string]string{general: "http://col lector"}, general},
		{map[string]string{general: "http//collector:4318"}, general},
		{map[string]string{general: "http://user:hidden@"}, `"http://user:***@"`},
		{map[string]string{traces: "foo", general: "http://collector:4318"}, traces + `: "foo"`},
		{map[string]string{traces: "http://collector:4318/v1/traces", general: "foo"}, ""},
		{map[string]string{general: "foo", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, general},
		{map[string]string{general: "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ""},
		{map[string]string{general: "https://[::1]:4318/base"}, ""},
		{map[string]string{general: "http://collector"}, ""},
		{map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, ""},
		{map[string]string{general: "foo", "OTEL_TRACES_EXPORTER": "console"}, ""},
		{map[string]string{general: "foo", "OTEL_TRACES_EXPORTER": "none"}, ""},
		{map[string]string{general: "foo", "OTEL_SDK_DISABLED": "true"}, ""},
		{nil, ""},
	} {
		unset(t)
		for k, v := range c.env {
			t.Setenv(k, v)
		}
		if err := Check(); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v, want %q", c.env, err, c.want)
		}
		if c.want == "" {
			continue
		}
		if stop, err := Start(t.Context(), "test", "v0"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: start: %v, want %q", c.env, err, c.want)
			if stop != nil {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_ = stop(ctx)
				cancel()
			}
		}
	}
}
