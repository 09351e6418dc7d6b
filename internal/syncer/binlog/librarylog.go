package binlog

import (
	"context"
	"log/slog"
	"regexp"
	"strings"

	"go.uber.org/zap"
)

// libraryLog receives the log of the binlog library. What it calls information is our debug. One of its records is more
// than a log line: a statement that its parser does not know is logged and passed over, with no callback, while it may
// have changed the columns of a watched table (MariaDB's ALTER ONLINE TABLE). The record is written from the stream's own
// goroutine before the next event is handled, so acting on it here is in time. TestUnparsedDDL holds the library to it.
type libraryLog struct {
	log      *zap.Logger
	unparsed func(query string)
	attrs    []slog.Attr
}

func newLibraryLog(log *zap.Logger, unparsed func(query string)) *slog.Logger {
	return slog.New(&libraryLog{log: log, unparsed: unparsed})
}

func (l *libraryLog) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo
}

func (l *libraryLog) Handle(_ context.Context, r slog.Record) error {
	fields := make([]zap.Field, 0, r.NumAttrs()+len(l.attrs))
	query, isQuery := "", false
	add := func(a slog.Attr) bool {
		if a.Key == "query" {
			query, isQuery = a.Value.String(), true
		}
		fields = append(fields, zap.String(a.Key, a.Value.String()))
		return true
	}
	for _, a := range l.attrs {
		add(a)
	}
	r.Attrs(add)
	if r.Level >= slog.LevelError && isQuery {
		l.unparsed(query)
	}
	// Its errors come back as returned errors too, and are reported where they are handled.
	l.log.Debug("binlog library: "+r.Message, fields...)
	return nil
}

func (l *libraryLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &libraryLog{log: l.log, unparsed: l.unparsed, attrs: append(append([]slog.Attr{}, l.attrs...), attrs...)}
}

func (l *libraryLog) WithGroup(string) slog.Handler { return l }

// harmless are statements that the library's parser does not know and that never change a table's columns.
var harmless = regexp.MustCompile(`(?is)^\s*(/\*.*?\*/\s*|#[^\n]*\n\s*|--[^\n]*\n\s*)*` +
	`(GRANT|REVOKE|ANALYZE|FLUSH|SET|COMMIT|ROLLBACK|SAVEPOINT|XA|` +
	`(CREATE|DROP|ALTER)\s+(OR\s+REPLACE\s+)?(DEFINER\s*=\s*\S+\s+)?(AGGREGATE\s+)?(TRIGGER|PROCEDURE|FUNCTION|EVENT|USER|ROLE|SEQUENCE|SERVER|PACKAGE))\b`)

// verdict says what a statement that was not parsed may have done to a watched table.
type verdict int

const (
	unconcerned verdict = iota
	columnsOnly         // changed its columns, if anything
	emptying            // taken its rows away
)

// drops are the clauses of ALTER TABLE that may do the same.
var drops = regexp.MustCompile(`(?is)\b((DROP|TRUNCATE|EXCHANGE)\s+PARTITION|(DISCARD|IMPORT)\s+TABLESPACE)\b`)

// drains are the statements that may take rows away without changing a column.
var drains = regexp.MustCompile(`(?is)^\s*(/\*.*?\*/\s*|#[^\n]*\n\s*|--[^\n]*\n\s*)*(TRUNCATE|DROP|RENAME|CREATE\s+OR\s+REPLACE)\b`)

func (h *handler) judge(query string) verdict {
	if harmless.MatchString(query) {
		return unconcerned
	}
	q := strings.ToLower(query)
	for _, t := range h.stream.tables.names() {
		if strings.Contains(q, strings.ToLower(t)) {
			if drains.MatchString(query) || drops.MatchString(query) {
				return emptying
			}
			return columnsOnly
		}
	}
	return unconcerned
}
