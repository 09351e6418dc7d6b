// Package binlog turns MySQL's binary log into transactions of the three tables that the product watches. It never
// guesses: a value that it cannot read for certain becomes a doubt, which names the row to be read again from MySQL, and
// whatever makes the log itself untrustworthy (changed columns, TRUNCATE, a purged position) ends the stream with
// ErrLoadAgain.
//
// How a row's columns are known: the log carries values by position, without names, and the library takes the names from
// the table as it is now, which need not be as it was then. So every position is kept with a fingerprint of the tables'
// columns (Position.Schema). A stream starts only if the columns are still those that its position was kept with, and ends
// at the first DDL of a watched table. Between the two nothing can have changed. A statement that the library's parser does
// not know is held against the columns as they are now.
//
// Limitations: statement-based binlog is refused. Rows of an XA transaction are read again from MySQL rather than taken
// from the log, since the log has them before they are committed. Two statements that the parser does not know, of which the
// second puts two columns of one type back to where the first took them from, both before the stream sees the first, go
// unnoticed. A server that was restored from an older state and has since written more transactions than it lost cannot be
// told from its former self by MariaDB's GTIDs; comparing finds it by the version.
package binlog
