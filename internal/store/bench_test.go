package store

import (
	"fmt"
	"testing"

	"github.com/seckillgate/seckillgate/internal/order"
)

// BenchmarkLand lands orders of one hot row, one by one and in batches. The servers of `make services` are durable.
func BenchmarkLand(b *testing.B) {
	for _, size := range []int{1, 50, 500} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			s := setup(b, 1<<40)
			batches := make([][]*order.Order, b.N)
			for i := range batches {
				batches[i] = s.orders(size, 1)
			}
			b.ResetTimer()
			for _, orders := range batches {
				s.land(orders...)
			}
			b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "orders/s")
		})
	}
}
