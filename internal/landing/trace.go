package landing

import (
	"context"

	"github.com/IBM/sarama"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// tracer is a no-op until the process sets a provider (internal/tracing).
var tracer = otel.Tracer("github.com/seckillgate/seckillgate/internal/landing")

// headers are a Kafka message's, as the W3C's trace context looks for them.
type headers []*sarama.RecordHeader

// Get finds a header.
func (h headers) Get(key string) string {
	for _, x := range h {
		if string(x.Key) == key {
			return string(x.Value)
		}
	}
	return ""
}

// Set is of no use here.
func (h headers) Set(string, string) {}

// Keys lists the headers.
func (h headers) Keys() []string {
	keys := make([]string, len(h))
	for i, x := range h {
		keys[i] = string(x.Key)
	}
	return keys
}

// traceOf is the request of the buyer that a message came from, where the gateway was told of a trace.
func traceOf(m *sarama.ConsumerMessage) trace.SpanContext {
	if len(m.Headers) == 0 {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), headers(m.Headers)))
}

// span begins the span of a batch. A batch has many parents, so it is a trace of its own with a link to each of them; a batch of
// one order goes on with that order's trace.
func span(ctx context.Context, records []Record) (context.Context, trace.Span) {
	var links []trace.Link
	for i := range records {
		if records[i].Trace.IsValid() {
			links = append(links, trace.Link{SpanContext: records[i].Trace})
		}
	}
	if len(records) == 1 && len(links) == 1 {
		ctx = trace.ContextWithRemoteSpanContext(ctx, links[0].SpanContext)
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(links...)}
	if len(records) > 0 {
		options = append(options, trace.WithAttributes(
			attribute.String("messaging.system", "kafka"), attribute.String("messaging.destination.name", records[0].Topic),
			attribute.Int("messaging.destination.partition.id", int(records[0].Partition)),
			attribute.Int64("messaging.kafka.offset", records[0].Offset), attribute.Int("messaging.batch.message_count", len(records))))
	}
	return tracer.Start(ctx, "land", options...) //nolint:spancheck // the caller ends it
}

// ended ends a span with its outcome.
func ended(s trace.Span, err error) {
	if err != nil {
		s.RecordError(err)
		s.SetStatus(codes.Error, "abandoned")
	}
	s.End()
}
