// Package load brings an activity from MySQL to Redis: before it opens, and again whenever Redis lost it or may have
// missed writes. A load is exact: stock, version and buyers are MySQL's, and a reservation stands for each order that
// Kafka has and MySQL has not yet. Meanwhile the activity is closed (state recovering).
//
// Why it is exact. The first step closes the activity in Redis; then the load waits until no reserve call that began
// before can still take effect and no gateway may still publish, so from there on everything accepted is in Kafka. Then it
// reads Kafka's end and only then takes its snapshot of MySQL: a record below that end either has a row in the snapshot or
// becomes a reservation. What MySQL commits after the snapshot comes by the binlog, which goes back to where it stood
// before the load (see follow.Tracker).
//
// Limitations: the ids of one activity's unlanded orders, and of those that the ledger kept, are held in memory.
package load
