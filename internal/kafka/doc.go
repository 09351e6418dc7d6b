// Package kafka is everything that the product does with Kafka but for consuming in a group: the configuration that all parts
// share, a producer whose answers can be trusted, topics, offsets and bounded reads.
package kafka
