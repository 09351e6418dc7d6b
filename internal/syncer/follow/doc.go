// Package follow carries the binlog's transactions to Redis and keeps track of how far it has come.
//
// What it applies is settled by version, so repeating a stretch of the log changes nothing; that is what makes it safe to
// keep the position late, to start from an old one, and to rewind after a load.
package follow
