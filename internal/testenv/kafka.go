package testenv

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
)

// Topic creates a topic with a unique name that starts with the given one, on the shared broker, and returns that name.
// It is deleted when the test ends.
func Topic(t testing.TB, name string, partitions int32) string {
	t.Helper()
	topic := name + "-" + unique()
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}
	admin := kafkaAdmin(t)
	defer admin.Close()
	if err := admin.CreateTopic(topic, detail, false); err != nil {
		t.Fatalf("create topic %s with %d partitions: %v", topic, partitions, err)
	}
	t.Cleanup(func() {
		admin := kafkaAdmin(t)
		defer admin.Close()
		if err := admin.DeleteTopic(topic); err != nil && !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
			t.Logf("delete topic %s: %v", topic, err)
		}
	})
	// The controller has it; a broker learns of it a moment later, and a client that asks too early waits long.
	Eventually(t, 15*time.Second, "topic "+topic+" has a leader for each partition", func() bool {
		found, err := admin.DescribeTopics([]string{topic})
		if err != nil || len(found) != 1 || len(found[0].Partitions) != int(partitions) {
			return false
		}
		for _, p := range found[0].Partitions {
			if p.Leader < 0 || !errors.Is(p.Err, sarama.ErrNoError) {
				return false
			}
		}
		return true
	})
	return topic
}

func kafkaAdmin(t testing.TB) sarama.ClusterAdmin {
	t.Helper()
	brokers := Brokers(t)
	cfg := sarama.NewConfig()
	cfg.ClientID = "seckill-test"
	cfg.Admin.Timeout = 15 * time.Second
	admin, err := sarama.NewClusterAdmin(brokers, cfg)
	if err != nil {
		t.Fatalf("connect to Kafka at %s: %v", strings.Join(brokers, ","), err)
	}
	return admin
}
