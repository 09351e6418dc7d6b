package telemetry

import (
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry is a Prometheus registry with the Go, process and seckillgate_build_info collectors. component names the process.
func NewRegistry(component string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	version, revision := Version()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "seckillgate_build_info",
		Help: "Always 1; the labels say what is running.",
		ConstLabels: prometheus.Labels{
			"component": component, "version": version, "revision": revision, "goversion": runtime.Version(),
		},
	})
	info.Set(1)
	r.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Version is the version of this build and the revision of its source, as far as the Go tool recorded them.
func Version() (version, revision string) {
	version, revision = "unknown", "unknown"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version, revision
	}
	if info.Main.Version != "" {
		version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	return version, revision
}
