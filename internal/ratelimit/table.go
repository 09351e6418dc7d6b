package ratelimit

import (
	"hash/maphash"
	"strings"
	"sync"
	"time"
)

// table keeps a state S for each key, in shards, and never more of them than it has room for. A key's state is forgotten
// only when idle says that a fresh one would answer the same, so that nobody gains by making the limiter forget.
type table[S any] struct {
	now    func() time.Duration
	idle   func(s *S, now int64) bool
	seed   maphash.Seed
	shards []tableShard[S] // a power of two
}

type tableShard[S any] struct {
	mu   sync.RWMutex
	m    map[string]*slot[S]
	ring []*slot[S] // every slot of m, for the hand that looks for idle ones
	hand int
	room int
}

// slot is a key's place. Its lock guards the state; it is never held while a shard's lock is taken.
type slot[S any] struct {
	mu    sync.Mutex
	gone  bool // taken out of its shard: whoever still finds it has to look again
	key   string
	state S
}

func newTable[S any](keys int, now func() time.Duration, idle func(*S, int64) bool) *table[S] {
	n := shardsFor(keys)
	t := &table[S]{now: now, idle: idle, seed: maphash.MakeSeed(), shards: make([]tableShard[S], n)}
	for i := range t.shards {
		t.shards[i].m = map[string]*slot[S]{}
		t.shards[i].room = roomOf(i, n, keys)
	}
	return t
}

// shardsFor is how many shards so many keys are spread over, and roomOf how many of them shard i may hold.
func shardsFor(keys int) int {
	n := 1
	for n < 256 && n*2*keysPerShard <= keys {
		n *= 2
	}
	return n
}

func roomOf(i, shards, keys int) int {
	room := keys / shards
	if i < keys%shards {
		room++
	}
	return room
}

// acquire gives the key's slot, locked, or nil if there is no room for a new one. The time is read under the lock, so that
// it never goes backwards from one holder of a slot to the next.
func (t *table[S]) acquire(key string) (*slot[S], int64) {
	sh := &t.shards[maphash.String(t.seed, key)&uint64(len(t.shards)-1)]
	for {
		sh.mu.RLock()
		s := sh.m[key]
		sh.mu.RUnlock()
		if s == nil {
			if s = t.add(sh, key); s == nil {
				return nil, int64(t.now())
			}
		}
		s.mu.Lock()
		if !s.gone {
			return s, int64(t.now())
		}
		s.mu.Unlock()
	}
}

// add makes a slot for a new key, in the place of an idle one if there is no room. Nil: there is none.
func (t *table[S]) add(sh *tableShard[S], key string) *slot[S] {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if s := sh.m[key]; s != nil {
		return s
	}
	// The caller's string may be a part of something larger.
	s := &slot[S]{key: strings.Clone(key)}
	if len(sh.ring) < sh.room {
		sh.ring = append(sh.ring, s)
		sh.m[s.key] = s
		return s
	}
	now := int64(t.now())
	for range min(handSteps, len(sh.ring)) {
		i := sh.hand
		sh.hand = (sh.hand + 1) % len(sh.ring)
		if old := sh.ring[i]; t.retire(old, now) {
			delete(sh.m, old.key)
			sh.ring[i] = s
			sh.m[s.key] = s
			return s
		}
	}
	return nil
}

// retire marks an idle slot as gone. One that somebody holds is in use.
func (t *table[S]) retire(s *slot[S], now int64) bool {
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	s.gone = t.idle(&s.state, now)
	return s.gone
}

// Len is how many keys are held.
func (t *table[S]) Len() int {
	n := 0
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.RLock()
		n += len(sh.ring)
		sh.mu.RUnlock()
	}
	return n
}
