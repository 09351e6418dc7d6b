package binlog

import (
	"errors"
	"fmt"
	"math"

	"github.com/seckillgate/seckillgate/internal/ledger"
)

// errDoubt is the kind of every error that says: this value is not known for certain, read the row from MySQL.
var errDoubt = errors.New("in doubt")

// errForeign is the kind of a doubt about a key that is there and that none of ours can have.
var errForeign = fmt.Errorf("%w: does not fit in 63 bits", errDoubt)

// integer reads a non-negative integer that Redis' scripts can count with: a stock, a version, a time, a quantity. Anything
// else is a doubt, and never taken for 0.
func integer(v any) (int64, error) {
	n, err := key(v)
	switch {
	case err != nil:
		return 0, err
	case n < 0:
		return 0, fmt.Errorf("%w: %d is negative", errDoubt, n)
	case n > ledger.MaxNumber:
		return 0, fmt.Errorf("%w: %d is not below 2^53", errDoubt, n)
	}
	return n, nil
}

// key reads an integer of whatever kind the binlog delivers for TINYINT to BIGINT, signed or not: the inventory is the shop's,
// whose ids may be negative, or as large as a snowflake. nil (a column that a minimal row image left out, or NULL), decimals,
// floats and text are doubts; what is too large for a BIGINT is errForeign.
func key(v any) (int64, error) {
	var n int64
	switch x := v.(type) {
	case int8:
		n = int64(x)
	case int16:
		n = int64(x)
	case int32:
		n = int64(x)
	case int64:
		n = x
	case int:
		n = int64(x)
	case uint8:
		n = int64(x)
	case uint16:
		n = int64(x)
	case uint32:
		n = int64(x)
	case uint64:
		if x > math.MaxInt64 {
			return 0, fmt.Errorf("%w: %d", errForeign, x)
		}
		n = int64(x)
	case uint:
		if uint64(x) > math.MaxInt64 {
			return 0, fmt.Errorf("%w: %d", errForeign, x)
		}
		n = int64(x)
	case nil:
		return 0, fmt.Errorf("%w: NULL or not in the row image", errDoubt)
	default:
		return 0, fmt.Errorf("%w: %T is not an integer", errDoubt, v)
	}
	return n, nil
}

// text reads a CHAR, VARCHAR or TEXT.
func text(v any) (string, error) {
	switch x := v.(type) {
	case string:
		return x, nil
	case []byte:
		return string(x), nil
	case nil:
		return "", fmt.Errorf("%w: NULL or not in the row image", errDoubt)
	}
	return "", fmt.Errorf("%w: %T is not text", errDoubt, v)
}

// optionalText reads a column in which NULL means "".
func optionalText(v any) (string, error) {
	if v == nil {
		return "", nil
	}
	return text(v)
}
