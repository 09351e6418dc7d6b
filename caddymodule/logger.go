package caddymodule

import (
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// liveLogger is a logger for what outlives a reload. Each configuration closes its own log writers when it goes, so the
// shared clients must not keep the logger of the configuration that happened to make them.
type liveLogger struct{ current *atomic.Pointer[zap.Logger] }

func newLiveLogger(log *zap.Logger) *liveLogger {
	l := &liveLogger{current: new(atomic.Pointer[zap.Logger])}
	l.current.Store(log)
	return l
}

func (l *liveLogger) use(log *zap.Logger) { l.current.Store(log) }

func (l *liveLogger) logger() *zap.Logger { return zap.New(liveCore{current: l.current}) }

type liveCore struct {
	current *atomic.Pointer[zap.Logger]
	fields  []zapcore.Field
}

func (c liveCore) Enabled(level zapcore.Level) bool { return c.current.Load().Core().Enabled(level) }

func (c liveCore) With(fields []zapcore.Field) zapcore.Core {
	all := make([]zapcore.Field, 0, len(c.fields)+len(fields))
	return liveCore{current: c.current, fields: append(append(all, c.fields...), fields...)}
}

func (c liveCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c liveCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	log := c.current.Load()
	e.LoggerName = log.Name()
	if ce := log.Core().Check(e, nil); ce != nil {
		ce.Write(append(append([]zapcore.Field(nil), c.fields...), fields...)...)
	}
	return nil
}

func (c liveCore) Sync() error { return nil }
