package testenv

import "go.uber.org/goleak"

// KnownLeaks lists the goroutines that libraries start once per process and never end, for
// goleak.VerifyTestMain(m, testenv.KnownLeaks()...). Each has its reason; nothing of our own belongs here.
func KnownLeaks() []goleak.Option {
	return []goleak.Option{
		// sarama's metrics: one ticker for all meters of the process, started with the first of them.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
	}
}
