package faultproxy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strconv"
	"sync"
)

// codec splits the two streams of one link into what rules look at. requests and replies are each called by one
// goroutine, forget by either.
type codec interface {
	requests(data []byte) []piece
	replies(data []byte) []piece
	forget()
}

// piece is a part of a stream.
type piece struct {
	data []byte // what is forwarded
	seen []byte // what rules see of it
	id   int32  // which request or reply it is, where the protocol tells; else 0
}

// stream is the codec for protocols in which a client waits for its reply before it sends on, as Redis and MySQL
// clients do. It needs no knowledge of them: a request is all that was sent since the last reply.
type stream struct {
	mu      sync.Mutex
	unheard []byte
}

// maxUnheard bounds what is kept for rules to look at; the rest of a larger request passes unseen.
const maxUnheard = 1 << 20

func (s *stream) requests(data []byte) []piece {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unheard) < maxUnheard {
		s.unheard = append(s.unheard, data...)
	}
	return []piece{{data: data, seen: s.unheard}}
}

func (s *stream) replies(data []byte) []piece {
	s.forget()
	return []piece{{data: data}}
}

func (s *stream) forget() {
	s.mu.Lock()
	s.unheard = nil
	s.mu.Unlock()
}

// StartKafka starts a proxy before each of the given brokers (host:port, as they advertise themselves). Kafka tells its
// clients where its brokers are, so a plain proxy would be left after the first exchange: these put each other's
// addresses in place of the brokers' in every reply. Rules see single requests, and requests in flight at once are told
// apart. TLS is not supported.
func StartKafka(brokers ...string) ([]*Proxy, error) {
	var proxies []*Proxy
	fail := func(err error) ([]*Proxy, error) {
		for _, p := range proxies {
			_ = p.listener.Close()
		}
		return nil, err
	}
	swap := &addresses{to: map[string][]byte{}}
	for _, broker := range brokers {
		p, err := listen(broker)
		if err != nil {
			return fail(err)
		}
		proxies = append(proxies, p)
		if err := swap.add(broker, p.Addr()); err != nil {
			return fail(err)
		}
	}
	for _, p := range proxies {
		p.swap = swap
		p.codec = func() codec { return &kafka{swap: swap} }
		p.wg.Go(p.accept)
	}
	return proxies, nil
}

// Keys of Kafka requests, for KafkaRequest.
const (
	KafkaProduce      int16 = 0
	KafkaFetch        int16 = 1
	KafkaMetadata     int16 = 3
	KafkaOffsetCommit int16 = 8
	KafkaJoinGroup    int16 = 11
	KafkaHeartbeat    int16 = 12
)

// KafkaRequest matches requests of one kind, with a proxy of StartKafka or NewKafka.
func KafkaRequest(key int16) func(request []byte) bool {
	return func(request []byte) bool {
		return len(request) >= 6 && int16(binary.BigEndian.Uint16(request[4:])) == key
	}
}

// kafka is the codec for Kafka's protocol: each message has its length in front, and a correlation id that the reply
// repeats.
type kafka struct {
	swap               *addresses
	toServer, toCaller []byte // incomplete messages
}

func (k *kafka) requests(data []byte) []piece {
	k.toServer = append(k.toServer, data...)
	var out []piece
	for {
		// length, api key (2), api version (2), correlation id
		frame, id := next(&k.toServer, 8)
		if frame == nil {
			return out
		}
		out = append(out, piece{frame, frame, id})
	}
}

func (k *kafka) replies(data []byte) []piece {
	k.toCaller = append(k.toCaller, data...)
	var out []piece
	for {
		frame, id := next(&k.toCaller, 4)
		if frame == nil {
			return out
		}
		k.swap.apply(frame)
		out = append(out, piece{frame, nil, id})
	}
}

func (k *kafka) forget() {}

// next takes one whole message from the front of buf and returns it with its correlation id, which stands at the given
// place. Ids are moved by one, since 0 is an id to Kafka and "none" to us.
func next(buf *[]byte, place int) ([]byte, int32) {
	b := *buf
	if len(b) < 4 {
		return nil, 0
	}
	size := 4 + int(binary.BigEndian.Uint32(b))
	if len(b) < size {
		return nil, 0
	}
	frame := b[:size:size]
	*buf = b[size:]
	if size < place+4 {
		return frame, 0
	}
	id := int32(binary.BigEndian.Uint32(frame[place:])) + 1
	return frame, id
}

// addresses maps a broker's address to its proxy's, both as they stand in Kafka's replies: the host's letters, then the
// port in four bytes. Both are of one length, so that a reply keeps its own.
type addresses struct {
	mu sync.RWMutex
	to map[string][]byte
}

func (a *addresses) add(broker, proxy string) error {
	from, err := wire(broker)
	if err != nil {
		return err
	}
	to, err := wire(proxy)
	if err != nil {
		return err
	}
	if len(from) != len(to) {
		return fmt.Errorf("broker %s: its host must be as long as 127.0.0.1 (or localhost) to be replaced in replies", broker)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.to[string(from)] = to
	return nil
}

func (a *addresses) apply(frame []byte) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for from, to := range a.to {
		for rest := frame; ; {
			i := bytes.Index(rest, []byte(from))
			if i < 0 {
				break
			}
			copy(rest[i:], to)
			rest = rest[i+len(to):]
		}
	}
}

func wire(address string) ([]byte, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", address, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port of %q: %w", address, err)
	}
	return binary.BigEndian.AppendUint32([]byte(host), uint32(n)), nil
}
