package order_test

import (
	"testing"

	"github.com/seckillgate/seckillgate/internal/order"
)

func TestStatusOfAColumn(t *testing.T) {
	t.Parallel()
	for _, column := range []any{"CANCELLED", "CANCELLED  ", []byte("CANCELLED ")} {
		var s order.Status
		if err := s.Scan(column); err != nil || s != order.Cancelled {
			t.Errorf("%q is read as %q, %v", column, s, err)
		}
	}
	for _, column := range []any{nil, int64(1)} {
		var s order.Status
		if err := s.Scan(column); err == nil {
			t.Errorf("%v is read as %q, want an error", column, s)
		}
	}
}
