// Package crashpoint lets a test kill a process at a named step, the way `kill -9` or a power cut would, so that "killed
// between COMMIT and settle" is a case that runs and not one that is hoped for. In a normal build Here is an empty
// function; it does something only in a binary built with the tag `crashpoints`.
//
// The names in use, in the order in which an order meets them:
//
//	after_reserve         the gateway reserved and has not published
//	after_publish         Kafka acknowledged and the buyer has not heard
//	before_insert         a transaction is open and nothing is written in it
//	after_insert          the order rows are inserted and the stock is not lowered
//	after_update          the stock is lowered and not read back
//	before_commit         all of a transaction is done but its COMMIT
//	after_commit          MySQL committed and Redis has not heard
//	mid_settle            Redis has settled some slices of a batch and not the others
//	after_settle          Redis has settled and the offset is not marked
//	after_dead_letter     a record is set aside and its order has no row
//	after_record          a refused order has its row and Redis has not heard
//	after_mark            the offset is marked and perhaps not committed
//	after_deliver         a listener has an event of the outbox, which is still there
//	after_told            events are out of the outbox
//	after_row             the syncer applied a row event
//	before_save_position  the syncer is about to keep its binlog position
package crashpoint

// Env names the step to die at: NAME, or NAME:N for the Nth time that the step is reached. Default: none.
const Env = "SECKILL_CRASH_AT"
