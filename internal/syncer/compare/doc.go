// Package compare holds Redis against MySQL and mends what differs, one kind of difference by one kind of repair, each of
// them safe beside a running sale:
//
//   - The stock is compared at its version. Redis behind: settle. Equal versions and different stock: somebody changed the
//     row without its version, the stock is set by compare-and-set. Redis ahead: MySQL lost commits, its row is moved past
//     Redis' version and settled, and an alarm names the command that lands the lost orders again.
//   - Buyers are checked both ways: a buyer whose order is dead, or nowhere, is freed; a live order's buyer is added.
//   - The sweep looks after old reservations: what MySQL has is settled, what provably nobody will ever publish is
//     published again with its own order id.
//
// Redis is read first and MySQL afterwards, so that "Redis ahead" is proof. But the binlog shows a transaction before
// others can see it, and Redis may have it from there: so before anything is concluded from what MySQL does not have, the
// inventory row is locked once, which is possible only when the transaction can be seen.
//
// Pending is never written: it is the sum of the ledger, whose entries are settled one by one.
//
// Limitations: a reservation that was published, whose record was lost by Kafka, and whose partition still counts as not
// landed (a topic that lost all its records and was never consumed) is left alone.
package compare
