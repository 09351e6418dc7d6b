package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

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

// Unpaid orders of one item, with the triggers and without, in transactions of the default size.
func BenchmarkExpire(b *testing.B) {
	for name, without := range map[string]bool{"triggers": false, "no triggers": true} {
		for _, size := range []int{1, 500} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				s := setup(b, 1<<40, func(c *Config) { c.NoTriggers = without })
				all := s.orders(b.N*size, 1)
				for part := range slices.Chunk(all, 1000) {
					s.land(part...)
				}
				s.age(window + time.Second)
				b.ResetTimer()
				for part := range slices.Chunk(all, size) {
					s.expire(part...)
				}
				b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "orders/s")
			})
		}
	}
}
