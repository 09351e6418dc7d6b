package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

// mostPerBroker bounds one broker's chance to answer a metadata request, so that a dead one does not use up the caller's time.
const mostPerBroker = 2 * time.Second

// cluster knows the topics' leaders, and asks the brokers again when told to. Addresses are resolved at every dial: brokers may
// change their addresses behind their names.
type cluster struct {
	connector
	bootstrap []string

	turn chan struct{} // holds one token: one request at a time; guards conn and next
	conn *conn
	next int // where in the list of addresses to begin, so that a dead one is not asked first for ever

	mu         sync.RWMutex
	brokers    map[int32]string
	controller int32
	topics     map[string]*topicInfo
}

// topicInfo is what a metadata answer said of a topic. It is not changed once published.
type topicInfo struct {
	at         time.Time
	err        error
	partitions []partitionInfo // index is the partition
}

type partitionInfo struct {
	leader        int32 // -1: none
	addr          string
	replicas, isr int
}

func newCluster(cfg Config) (*cluster, error) {
	conf, err := cfg.Sarama()
	if err != nil {
		return nil, err
	}
	return &cluster{
		connector: newConnector(conf),
		bootstrap: slices.Clone(cfg.Brokers),
		turn:      make(chan struct{}, 1),
		topics:    map[string]*topicInfo{},
	}, nil
}

// topic is the last answer about a topic, or nil.
func (c *cluster) topic(name string) *topicInfo {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.topics[name]
}

// known gives what is known about a topic since a point in time, and asks the brokers if that is nothing.
func (c *cluster) known(ctx context.Context, name string, since time.Time) (*topicInfo, error) {
	if t := c.topic(name); t != nil && t.at.After(since) {
		return t, t.err
	}
	if err := c.refresh(ctx, since, name); err != nil {
		return nil, err
	}
	t := c.topic(name)
	if t == nil {
		return nil, fmt.Errorf("topic %q: %w", name, sarama.ErrIncompleteResponse)
	}
	return t, t.err
}

// leader gives the address of a partition's leader, as known since a point in time.
func (c *cluster) leader(ctx context.Context, name string, partition int32, since time.Time) (string, error) {
	t, err := c.known(ctx, name, since)
	if err != nil {
		return "", err
	}
	if err := t.leaderless(name, partition); err != nil {
		return "", err
	}
	return t.partitions[partition].addr, nil
}

// leaderless is the error for a partition that nobody leads, else nil.
func (t *topicInfo) leaderless(name string, partition int32) error {
	if int(partition) >= len(t.partitions) {
		return fmt.Errorf("topic %q has no partition %d: %w", name, partition, sarama.ErrUnknownTopicOrPartition)
	}
	if t.partitions[partition].addr == "" {
		return fmt.Errorf("topic %q partition %d has no leader: %w", name, partition, sarama.ErrLeaderNotAvailable)
	}
	return nil
}

// refresh asks brokers for the topics' metadata until one answers. It does nothing if another caller just did the same.
func (c *cluster) refresh(ctx context.Context, since time.Time, topics ...string) error {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("kafka metadata: %w", context.Cause(ctx))
	}
	defer func() { <-c.turn }()

	fresh := func(name string) bool { t := c.topic(name); return t != nil && t.at.After(since) }
	if len(topics) > 0 && !slices.ContainsFunc(topics, func(n string) bool { return !fresh(n) }) {
		return nil
	}
	return c.each(ctx, func(ctx context.Context, conn *conn) error {
		at := time.Now()
		var resp *sarama.MetadataResponse
		err := conn.do(ctx, func(b *sarama.Broker) (err error) {
			req := sarama.NewMetadataRequest(c.conf.Version, topics)
			req.AllowAutoTopicCreation = false
			resp, err = b.GetMetadata(req)
			return err
		})
		if err == nil && len(resp.Brokers) == 0 {
			err = fmt.Errorf("broker %s: knows no brokers yet", conn.addr)
		}
		if err == nil {
			c.learn(resp, at)
		}
		return err
	})
}

// any puts a request to whichever broker answers.
func (c *cluster) any(ctx context.Context, request func(context.Context, *conn) error) error {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-c.turn }()
	return c.each(ctx, request)
}

// each asks one broker after the other until one answers. The caller holds the turn.
func (c *cluster) each(ctx context.Context, request func(context.Context, *conn) error) error {
	var errs []error
	addrs := c.addresses()
	for i := range addrs {
		at := (i + c.next) % len(addrs)
		err := c.on(ctx, addrs[at], share(ctx, len(addrs)-i, mostPerBroker), request)
		if err == nil {
			c.next = at
			return nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil || hopeless(err) {
			break
		}
	}
	c.next = (c.next + 1) % len(addrs)
	return fmt.Errorf("no kafka broker answers: %w", errors.Join(errs...))
}

// on puts a request to one broker, over the last connection if that is to the same one.
func (c *cluster) on(ctx context.Context, addr string, atMost time.Duration, request func(context.Context, *conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for {
		reused := c.conn.usable() && c.conn.addr == addr
		if !reused {
			c.conn.close()
			var err error
			if c.conn, err = c.open(ctx, addr); err != nil {
				return err
			}
		}
		err := request(ctx, c.conn)
		// An idle connection may have been closed by the other side: once more on a new one.
		if err == nil || !reused || ctx.Err() != nil || c.conn.usable() {
			return err
		}
	}
}

// addresses lists the bootstrap addresses and then every other broker that was ever known, in a stable order.
func (c *cluster) addresses() []string {
	out := slices.Clone(c.bootstrap)
	c.mu.RLock()
	defer c.mu.RUnlock()
	ids := make([]int32, 0, len(c.brokers))
	for id := range c.brokers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if a := c.brokers[id]; !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

func (c *cluster) learn(resp *sarama.MetadataResponse, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.brokers = make(map[int32]string, len(resp.Brokers))
	for _, b := range resp.Brokers {
		c.brokers[b.ID()] = b.Addr()
	}
	c.controller = resp.ControllerID
	for _, t := range resp.Topics {
		info := &topicInfo{at: at}
		switch t.Err {
		case sarama.ErrNoError, sarama.ErrLeaderNotAvailable:
		case sarama.ErrUnknownTopicOrPartition:
			info.err = topicMissing(t.Name)
		case sarama.ErrTopicAuthorizationFailed:
			info.err = c.denied("Describe", "topic", t.Name, t.Err)
		default:
			info.err = fmt.Errorf("topic %q: %w", t.Name, t.Err)
		}
		if info.err == nil && len(t.Partitions) == 0 {
			info.err = fmt.Errorf("topic %q: %w", t.Name, sarama.ErrLeaderNotAvailable)
		}
		info.partitions = make([]partitionInfo, len(t.Partitions))
		for i := range info.partitions {
			info.partitions[i].leader = -1
		}
		for _, p := range t.Partitions {
			if p.ID < 0 || int(p.ID) >= len(info.partitions) {
				continue
			}
			info.partitions[p.ID] = partitionInfo{p.Leader, c.brokers[p.Leader], len(p.Replicas), len(p.Isr)}
		}
		c.topics[t.Name] = info
	}
}

// close ends the metadata connection. No refresh may run.
func (c *cluster) close() {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	c.conn.close()
	c.conn = nil
}

// at puts a request to the one broker that can answer it.
func (c *cluster) at(ctx context.Context, addr string, request func(context.Context, *conn) error) error {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-c.turn }()
	return c.on(ctx, addr, share(ctx, 1, c.conf.Net.ReadTimeout), request)
}

// size is the number of brokers, and the address of the one that takes changes.
func (c *cluster) size() (brokers int, controller string) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	controller = c.brokers[c.controller]
	if controller == "" {
		controller = c.bootstrap[0]
	}
	return len(c.brokers), controller
}
