package stack

import (
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kfake"
)

// Kafka is a broker inside this process: franz-go's kfake, which keeps its log in a folder.
type Kafka struct {
	Brokers []string

	cluster *kfake.Cluster
}

// StartKafka runs the embedded broker on a free port, keeps its log below dir, and makes the topics.
func StartKafka(dir string, partitions int32, topics ...string) (*Kafka, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make kafka folder: %w", err)
	}
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1), kfake.ClusterID("seckill-demo"), kfake.DataDir(dir),
		kfake.SeedTopics(partitions, topics...), kfake.DefaultNumPartitions(int(partitions)),
	)
	if err != nil {
		return nil, fmt.Errorf("start embedded kafka: %w", err)
	}
	return &Kafka{Brokers: cluster.ListenAddrs(), cluster: cluster}, nil
}

// Stop ends the broker.
func (k *Kafka) Stop() { k.cluster.Close() }
