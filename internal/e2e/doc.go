// Package e2e plays whole sales through the product's own programs, built and run as its users run them, on real Redis,
// MySQL and Kafka: gateway, worker and syncer as processes that can be killed.
package e2e
