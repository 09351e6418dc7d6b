// Package invariant judges whether a sale kept its promises. It reads an activity's end state from Redis, MySQL and Kafka
// and, where there is a record of it, what the buyers were told, and checks the four invariants:
//
//	I1  no oversell: what live orders took and what is left make the units put on sale, and stock is never negative
//	I2  nothing leaks: Redis has MySQL's stock, and nothing is reserved any more
//	I3  a buyer has at most one live order, and Redis knows exactly the buyers who have one
//	I4  nothing is lost: every accepted order has exactly one row in MySQL, and no refused one has any
//
// Reading (Gather) and judging (Judge) are apart, so that the judgement is a pure function.
package invariant

import (
	"github.com/seckillgate/seckillgate/internal/ledger"
	"github.com/seckillgate/seckillgate/internal/told"
)

// State is everything that the invariants speak of, read as nearly at one time as three systems allow.
type State struct {
	Activity ledger.Activity // MySQL's row

	// MySQL.
	Inventory bool // there is a stock row for the activity's item
	Stock     int64
	Version   int64
	Orders    []ledger.Outcome // every row of the activity, dead ones included

	// Redis.
	Redis  ledger.Snapshot
	Ledger []ledger.Entry    // reservations not yet settled
	Buyers map[string]string // user: order id

	// Kafka.
	Published  map[string]int // order id: number of its records
	Unreadable int            // records of the orders topic that are not valid orders
	Expired    int64          // records that retention removed before they could be read
	Behind     int64          // records that the workers had not landed when reading ended

	Told []told.Record // what buyers were told; nil: there is no record of it
}

// Options of a check.
type Options struct {
	// Units is the initial stock plus all restocks of the sale. 0: not known; I1 then checks less.
	Units int64
	// ToldRecords says that Told is a record of this sale, even if it is empty.
	ToldRecords bool
	// Complete says that Told has every request that its buyers ever made in this activity. An order that stood in a buyer's
	// way (already_ordered) must then be one that the buyer was told of, or may have made by a request without an answer; and
	// a buyer who was only ever refused must have no order at all, not even a failed one.
	Complete bool
}
