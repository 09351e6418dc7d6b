package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"
)

// Errors that are decisions: trying again gives the same answer.
var (
	// ErrNoInventory: the item has no row in the inventory table. A shop that writes the row anew (DELETE, then INSERT) makes it
	// missing for a moment, so look again for some seconds before an order is refused for it.
	ErrNoInventory = errors.New("no inventory row")
	// ErrNoStock: the item's stock is NULL, negative, a fraction or 2^53 and more, so that nobody knows how much there is to sell.
	// It is no decision: the shop writes a number, and the same call goes well.
	ErrNoStock = errors.New("the stock is not a whole number from 0 on and below 2^53: set it to one")
	// ErrNoActivity: the activity table has no such row.
	ErrNoActivity = errors.New("no such activity")
	// ErrActivityExists: CreateActivity met a row with the same id.
	ErrActivityExists = errors.New("activity exists already")
	// ErrOverlap: another activity of the same item, not closed, runs at the same time.
	ErrOverlap = errors.New("activities of one item overlap")
	// ErrClosed: the activity is closed and was to stay so.
	ErrClosed = errors.New("activity is closed")
	// ErrInvalid: an argument can never be right.
	ErrInvalid = errors.New("invalid argument")
	// ErrSchema: the schema is missing, half-made, made by a newer build or not this product's.
	ErrSchema = errors.New("schema")
	// ErrStockNotReturned: orders that died would have given back other units than they held, so the transaction was undone.
	ErrStockNotReturned = errors.New("stock of dead orders is not returned")
	// ErrLockLost: a Locked row was not locked throughout.
	ErrLockLost = errors.New("inventory lock lost")
)

// ErrRowRefused says that MySQL, or the contract of an order, refuses one order of a batch for good: bad data, not bad luck.
// Nothing of the batch was written.
type ErrRowRefused struct {
	Index int // of the order in the slice given to Land
	Err   error
}

// Error names the position and the cause.
func (e *ErrRowRefused) Error() string {
	return fmt.Sprintf("order %d of the batch is refused for good: %v", e.Index, e.Err)
}

// Unwrap gives the cause.
func (e *ErrRowRefused) Unwrap() error { return e.Err }

// ErrUnsold names the orders of a batch that cannot be decided, since nobody knows what there is to sell. It wraps ErrNoInventory or
// ErrNoStock. The others of the batch need no stock: they have a row, or their buyer has another order, or they are patient. Nothing of
// the batch was written.
type ErrUnsold struct {
	Orders []string
	Err    error
}

// Error is the cause.
func (e *ErrUnsold) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *ErrUnsold) Unwrap() error { return e.Err }

// IsTransient says that an error may pass by itself or by an operator's hand (network, locks, read-only, too many
// connections, a missing privilege or table), so that the same call is worth repeating. Only what is provably a decision is
// not transient: unknown is never "no".
func IsTransient(err error) bool {
	if err == nil {
		return false
	}
	for _, decided := range []error{ErrNoInventory, ErrNoActivity, ErrActivityExists, ErrOverlap, ErrClosed, ErrInvalid, ErrLockLost} {
		if errors.Is(err, decided) {
			return false
		}
	}
	var row *ErrRowRefused
	return !errors.As(err, &row)
}

// MySQL's error numbers that this package tells apart.
const (
	errDuplicate      = 1062
	errLockTimeout    = 1205
	errDeadlock       = 1213
	errNoSuchThread   = 1094
	errSyntax         = 1064
	errDatabaseDenied = 1044
	errTableDenied    = 1142
	errColumnDenied   = 1143
	errNoTable        = 1146
	errNoIndex        = 1176
	errDefiner        = 1449
	errNeedSuper      = 1419
	errChecksum       = 1020 // record has changed since last read (MariaDB, snapshot isolation)
	errSignal         = 1644
	errCheckMariaDB   = 4025
	errCheckMySQL     = 3819
	errPacketTooLong  = 1153
)

func number(err error) uint16 {
	var m *mysql.MySQLError
	if errors.As(err, &m) {
		return m.Number
	}
	return 0
}

// migrateFirst gives the error of a missing table its remedy.
func migrateFirst(err error) error {
	if number(err) != errNoTable || errors.Is(err, ErrSchema) {
		return err
	}
	return fmt.Errorf("%w: %w: run seckill-worker migrate", ErrSchema, err)
}

// refusesRow says that a statement failed for the data of a row alone.
func refusesRow(err error) bool {
	switch number(err) {
	case 1048, // column cannot be null
		1264, // out of range
		1265, // truncated
		1292, // incorrect value
		1300, // invalid character string
		1366, // incorrect string or integer value
		1406, // too long
		3140, // invalid JSON
		errCheckMySQL, errCheckMariaDB, errSignal, errPacketTooLong:
		return true
	}
	return errors.Is(err, mysql.ErrPktTooLarge)
}

// IsContention says that a call was given back because of deadlocks or lock timeouts: a smaller transaction, which holds fewer locks
// for a shorter time, has better chances.
func IsContention(err error) bool { return lostRace(err) }

// lostRace says that another session was in the way, and that the whole transaction can be tried again at once.
func lostRace(err error) bool {
	switch number(err) {
	case errLockTimeout, errDeadlock, errChecksum:
		return true
	}
	return false
}

// lostConnection says that the connection is of no more use, so that the server ends its transaction.
func lostConnection(err error) bool {
	if err == nil {
		return false
	}
	var m *mysql.MySQLError
	if errors.As(err, &m) {
		switch m.Number {
		case 1053, 1317, 1927, 4031: // shutdown, interrupted, killed, idle too long
			return true
		}
		return false
	}
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn) ||
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}
