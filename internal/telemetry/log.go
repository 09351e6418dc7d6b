// Package telemetry holds what every process shows of itself: its log, its health, its metrics, and its state to systemd.
package telemetry

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Log says what is logged and how.
type Log struct {
	// Level is debug, info, warn or error. Default: info.
	Level string `yaml:"level"`
	// Format is json or console. Default: json.
	Format string `yaml:"format"`
}

// SetDefaults fills what is empty.
func (l *Log) SetDefaults() {
	if l.Level == "" {
		l.Level = "info"
	}
	if l.Format == "" {
		l.Format = "json"
	}
}

// Validate checks both words.
func (l *Log) Validate() error {
	switch l.Level {
	case "debug", "info", "warn", "error":
	default:
		return fmt.Errorf("level: %q is unknown: use debug, info, warn or error", l.Level)
	}
	if l.Format != "json" && l.Format != "console" {
		return fmt.Errorf("format: %q is unknown: use json or console", l.Format)
	}
	return nil
}

// Logger builds the process's logger; it writes to standard error. Bursts of one message are sampled: of each second's lines that
// are alike, the first 100 and then every 100th.
func (l Log) Logger() (*zap.Logger, error) {
	l.SetDefaults()
	if err := l.Validate(); err != nil {
		return nil, fmt.Errorf("log.%w", err)
	}
	level, err := zapcore.ParseLevel(l.Level)
	if err != nil {
		return nil, fmt.Errorf("log.level: %w", err)
	}
	conf := zap.NewProductionEncoderConfig()
	conf.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	conf.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(conf)
	if l.Format == "console" {
		conf.EncodeTime = zapcore.TimeEncoderOfLayout("2006-01-02T15:04:05.000Z0700")
		conf.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(conf)
	}
	core := zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), level)
	if level > zapcore.DebugLevel {
		core = zapcore.NewSamplerWithOptions(core, time.Second, 100, 100)
	}
	return zap.New(core, zap.AddStacktrace(zapcore.DPanicLevel)), nil
}
