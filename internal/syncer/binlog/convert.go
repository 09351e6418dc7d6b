package binlog

import (
	"errors"
	"fmt"
	"math"
)

// errDoubt is the kind of every error that says: this value is not known for certain, read the row from MySQL.
var errDoubt = errors.New("in doubt")

// maxInteger is the largest integer that Redis' scripts can hold exactly.
const maxInteger = 1 << 53

// integer reads a non-negative integer of whatever kind the binlog delivers for TINYINT to BIGINT, signed or not. nil (a
// column that a minimal row image left out, or NULL), negative numbers, decimals, floats and text are doubts: none of them
// is ever taken for 0.
func integer(v any) (int64, error) {
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
			return 0, fmt.Errorf("%w: %d does not fit in 63 bits", errDoubt, x)
		}
		n = int64(x)
	case uint:
		if uint64(x) > math.MaxInt64 {
			return 0, fmt.Errorf("%w: %d does not fit in 63 bits", errDoubt, x)
		}
		n = int64(x)
	case nil:
		return 0, fmt.Errorf("%w: NULL or not in the row image", errDoubt)
	default:
		return 0, fmt.Errorf("%w: %T is not an integer", errDoubt, v)
	}
	if n < 0 {
		return 0, fmt.Errorf("%w: %d is negative", errDoubt, n)
	}
	if n > maxInteger {
		return 0, fmt.Errorf("%w: %d is above 2^53", errDoubt, n)
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
