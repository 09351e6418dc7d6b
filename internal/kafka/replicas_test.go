package kafka

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"

	"github.com/seckillgate/seckillgate/internal/testenv"
)

// TestE30ThreeBrokers: an acknowledgement is worth what it says, whichever broker goes.
func TestE30ThreeBrokers(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartKafka(t, 3)
	cfg := Config{Brokers: testenv.Addrs(nodes), Topics: Topics{Orders: "orders", DeadLetters: "dlq", Results: "results"}}
	admin := newAdmin(t, cfg)
	found, err := admin.EnsureTopics(t.Context(), TopicOptions{Create: true, Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Level == Unsafe {
			t.Errorf("a topic that was made here may lose orders: %+v", f)
		}
	}
	b := &bundle{t: t, topic: cfg.Topics.Orders, cfg: cfg, admin: admin}
	t.Run("the leader dies", func(t *testing.T) { b.leaderDies(t, nodes) })
	t.Run("two of three are away", func(t *testing.T) { b.twoAway(t, nodes) })
}

// leaderDies: the leader is killed in the middle of the flood, twice. What was acknowledged is there.
func (b *bundle) leaderDies(t *testing.T, nodes []*testenv.Broker) {
	b = &bundle{t: t, topic: b.topic, cfg: b.cfg, p: newProducer(t, b.cfg, ProducerOptions{}), admin: b.admin}
	b.mustPublish(1)

	var accepted sync.Map // order id: its acknowledgement
	var n, refused atomic.Int64
	var buyers sync.WaitGroup
	stop := make(chan struct{})
	end := sync.OnceFunc(func() { close(stop); buyers.Wait() })
	defer end()
	for range 8 {
		buyers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				o, ack, _, err := b.publish(1)
				if err != nil {
					refused.Add(1) // or unknown; neither was promised anything
					pause(t.Context(), 10*time.Millisecond)
					continue
				}
				accepted.Store(o.ID, ack)
				n.Add(1)
			}
		})
	}
	for round := range 2 {
		before := n.Load()
		testenv.Eventually(t, time.Minute, "orders are accepted", func() bool { return n.Load() > before+200 })
		leader := b.leader(nodes)
		leader.Kill()
		before = n.Load()
		testenv.Eventually(t, time.Minute, fmt.Sprintf("another broker accepts orders, round %d", round), func() bool { return n.Load() > before+200 })
		leader.Restart()
		testenv.Eventually(t, 2*time.Minute, "all three have all of it again", func() bool { return len(b.inSync(nodes)) == 3 })
	}
	end()

	high, err := b.admin.HighWater(t.Context(), b.topic)
	if err != nil {
		t.Fatal(err)
	}
	copies := b.log()
	accepted.Range(func(id, ack any) bool {
		if copies[id.(string)] != 1 || ack.(Ack).Offset >= high[0] {
			t.Errorf("order %s was acknowledged as %+v and is in the topic %d times", id, ack, copies[id.(string)])
		}
		return true
	})
	t.Logf("%d orders acknowledged, %d refused or unknown, over two deaths of the leader", n.Load(), refused.Load())
}

// twoAway: with two of three brokers away nothing is acknowledged, whatever the one that is left would take.
func (b *bundle) twoAway(t *testing.T, nodes []*testenv.Broker) {
	p := newProducer(t, b.cfg, second)
	b = &bundle{t: t, topic: b.topic, cfg: b.cfg, p: p, admin: b.admin}
	b.mustPublish(1)
	leader := b.leader(nodes)
	each := func(do func(*testenv.Broker)) {
		for _, k := range nodes {
			if k != leader {
				do(k)
			}
		}
	}
	each(func(k *testenv.Broker) { k.Pause() })
	for range 3 {
		if _, ack, _, err := b.publish(1); err == nil {
			t.Errorf("acknowledged as %+v by a broker that is alone", ack)
		}
	}
	b.eventually("health is red", func() bool { return p.Healthy() != nil })
	each(func(k *testenv.Broker) { k.Resume() })
	testenv.Eventually(t, time.Minute, "orders are accepted again", func() bool {
		_, _, _, err := b.publish(1)
		return err == nil
	})
}

// leader is the broker that the only partition's records go to.
func (b *bundle) leader(nodes []*testenv.Broker) *testenv.Broker {
	b.t.Helper()
	var leader *testenv.Broker
	testenv.Eventually(b.t, time.Minute, "the partition has a leader", func() bool {
		p := b.partition(nodes)
		if p == nil || p.Leader < 1 {
			return false
		}
		leader = nodes[p.Leader-1]
		return true
	})
	return leader
}

// inSync are the brokers that have every record of the partition.
func (b *bundle) inSync(nodes []*testenv.Broker) []int32 {
	b.t.Helper()
	if p := b.partition(nodes); p != nil {
		return p.Isr
	}
	return nil
}

// partition is what the cluster says of it, nil while it does not.
func (b *bundle) partition(nodes []*testenv.Broker) *sarama.PartitionMetadata {
	b.t.Helper()
	conf, err := b.cfg.Sarama()
	if err != nil {
		b.t.Fatal(err)
	}
	conf.Metadata.Full = true
	admin, err := sarama.NewClusterAdmin(testenv.Addrs(nodes), conf)
	if err != nil {
		return nil
	}
	defer admin.Close()
	topics, err := admin.DescribeTopics([]string{b.topic})
	if err != nil || len(topics) != 1 || len(topics[0].Partitions) != 1 {
		return nil
	}
	return topics[0].Partitions[0]
}
