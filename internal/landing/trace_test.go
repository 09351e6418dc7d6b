package landing

import (
	"testing"

	"github.com/IBM/sarama"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// TestTrace: a batch is linked to the buyers' requests, a batch of one goes on with its trace, and what has no trace, or a broken one, has none.
func TestTrace(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	provider := trace.NewTracerProvider(trace.WithSyncer(spans))
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(provider)
	defer otel.SetTracerProvider(before)
	const one, two = "0af7651916cd43dd8448eb211c80319c", "1af7651916cd43dd8448eb211c80319c"
	b := onFakes(t)
	record := func(header string) Record {
		r := b.record(b.order())
		m := &sarama.ConsumerMessage{Headers: []*sarama.RecordHeader{{Key: []byte("x"), Value: []byte("y")}, {Key: []byte("traceparent"), Value: []byte(header)}}}
		r.Trace = traceOf(m)
		return r
	}
	b.mustLand(record("00-"+one+"-b7ad6b7169203331-01"), record(""), record("00-"+two+"-b7ad6b7169203331-01"), record("nonsense"))
	b.mustLand(record("00-" + one + "-b7ad6b7169203331-01"))
	if traceOf(&sarama.ConsumerMessage{}).IsValid() {
		t.Error("a trace out of nothing")
	}
	var lands, settles int
	for _, s := range spans.GetSpans() {
		switch s.Name {
		case "land":
			if lands++; lands == 1 {
				if len(s.Links) != 2 || s.Links[0].SpanContext.TraceID().String() != one || s.Links[1].SpanContext.TraceID().String() != two || s.Parent.IsValid() {
					t.Errorf("links %+v, parent %+v", s.Links, s.Parent)
				}
			} else if s.SpanContext.TraceID().String() != one {
				t.Errorf("a batch of one has trace %s", s.SpanContext.TraceID())
			}
		case "settle", "mysql transaction":
			settles++
			if !s.Parent.IsValid() {
				t.Errorf("span %s stands alone", s.Name)
			}
		}
	}
	if lands != 2 || settles != 4 {
		t.Errorf("%d spans of batches and %d of their steps", lands, settles)
	}
}
