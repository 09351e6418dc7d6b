// Package tracing sends spans where OpenTelemetry's own environment variables say, and nowhere where they say nothing.
package tracing

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/seckillgate/seckillgate/internal/config"
)

// Enabled says whether the environment names a place for spans: OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, without OTEL_SDK_DISABLED.
func Enabled() bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	for _, name := range []string{"OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		if os.Getenv(name) != "" {
			return true
		}
	}
	return false
}

// Check refuses a place for spans that can never work. The library takes nearly every text for an address, and then every span is
// lost in silence.
func Check() error {
	if exporter := os.Getenv("OTEL_TRACES_EXPORTER"); !Enabled() || exporter != "" && exporter != "otlp" {
		return nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"} { // the first one wins
		text := os.Getenv(name)
		if text == "" {
			continue
		}
		u, err := url.Parse(text)
		if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && portOK(u.Port()) {
			return nil
		}
		return fmt.Errorf("%s: %q is not the address of a collector: write it with its scheme, such as http://collector:4318 (:4317 with OTEL_EXPORTER_OTLP_PROTOCOL=grpc), or unset it to trace nothing",
			name, config.Redact(text))
	}
	return nil // the library's own default, on this machine
}

func portOK(port string) bool {
	if port == "" {
		return true
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// Start makes this process trace, where Enabled. All else comes from the standard variables too: OTEL_EXPORTER_OTLP_PROTOCOL,
// OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME, … The caller calls stop at its end, which sends what is left.
func Start(ctx context.Context, service, version string) (stop func(context.Context) error, err error) {
	if !Enabled() {
		return func(context.Context) error { return nil }, nil
	}
	if err := Check(); err != nil {
		return nil, err
	}
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("tracing, as the OTEL_ variables have it: %w", err)
	}
	res, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", service), attribute.String("service.version", version)), resource.WithFromEnv(), resource.WithTelemetrySDK())
	if err != nil {
		return nil, fmt.Errorf("tracing, as the OTEL_ variables have it: %w", err)
	}
	provider := trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithResource(res))
	otel.SetTracerProvider(provider)
	return provider.Shutdown, nil
}
