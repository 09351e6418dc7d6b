package caddymodule

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/seckillgate/seckillgate/internal/gate"
	"github.com/seckillgate/seckillgate/internal/kafka"
	"github.com/seckillgate/seckillgate/internal/redisconn"
)

// sharedPool keeps the clients of every configuration that is loaded, by a hash of what they were made from.
var sharedPool = caddy.NewUsagePool()

// settings are everything that the shared clients are made from.
type settings struct {
	Redis          redisconn.Config `json:"redis"`
	Kafka          kafka.Config     `json:"kafka"`
	RequestTimeout time.Duration    `json:"request_timeout"`
	PublishTimeout time.Duration    `json:"publish_timeout"`
	DrainTimeout   time.Duration    `json:"drain_timeout"`
	MaxBatch       int              `json:"max_batch"`
	MaxQueue       int              `json:"max_queue"`
	MaxOpen        int              `json:"max_open"`
	MaxWaiters     int              `json:"max_waiters"`
}

const (
	defaultPublishTimeout = 2 * time.Second
	defaultDrainTimeout   = 10 * time.Second

	firstLook = time.Second
)

func (c *settings) validate() error {
	if c.PublishTimeout == 0 {
		c.PublishTimeout = defaultPublishTimeout
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = defaultDrainTimeout
	}
	if err := c.Redis.Validate(); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	if _, err := c.Kafka.Sarama(); err != nil {
		return err
	}
	if c.PublishTimeout < kafka.MinBudget {
		return fmt.Errorf("publish_timeout %s is too short: use at least %s", c.PublishTimeout, kafka.MinBudget)
	}
	for name, n := range map[string]int{
		"max_batch": c.MaxBatch, "max_queue": c.MaxQueue, "max_open": c.MaxOpen, "max_waiters": c.MaxWaiters,
	} {
		if n < 0 {
			return fmt.Errorf("%s %d is negative", name, n)
		}
	}
	return nil
}

// key hashes the settings, passwords included: a changed password makes new clients.
func (c *settings) key() (string, error) {
	raw, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}

// shared is what the handlers of one or more configurations have in common. It makes its clients at the first use, and
// closes them when the last configuration has gone and its requests are through.
type shared struct {
	settings settings
	log      *liveLogger
	build    func(settings, *zap.Logger) (backend, error)

	ready  atomic.Pointer[backendBox] // set once the clients run
	mu     sync.Mutex
	err    error
	closed bool
	apps   []*App        // of the configurations that run with it, the newest last
	told   chan struct{} // closed when there is no more news to tell

	buying  users // requests that reserve or touch Redis for a moment
	waiting users // requests that follow an order
}

type backendBox struct{ backend }

// newBackend is what makes the clients; tests put a fake in its place.
var newBackend = makeCore

func newShared(c settings, log *zap.Logger) *shared {
	return &shared{settings: c, log: newLiveLogger(log), build: newBackend}
}

var errClosed = errors.New("seckill: this configuration has been replaced and its clients are closed")

// get gives the clients; the first call makes them and starts their background work. They are left a moment for their first
// look at the sales, so that the first buyers do not hear 503 from a gateway that merely has not looked yet.
func (s *shared) get() (backend, error) {
	if b := s.ready.Load(); b != nil {
		return b.backend, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if b := s.ready.Load(); b != nil {
		return b.backend, nil
	}
	if s.err != nil {
		return nil, s.err
	}
	b, err := s.build(s.settings, s.log.logger())
	if err != nil {
		s.err = err
		return nil, err
	}
	select {
	case <-b.looked():
	case <-time.After(firstLook):
	}
	allFigures.begin(b)
	s.told = make(chan struct{})
	go s.tell(b.changes())
	s.ready.Store(&backendBox{b})
	return b, nil
}

// start makes an app the one that logs, and tells events, for the clients; stop makes it the one before again.
func (s *shared) start(a *App) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apps = append(s.apps, a)
	s.log.use(a.log)
}

func (s *shared) stop(a *App) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apps = slices.DeleteFunc(s.apps, func(x *App) bool { return x == a })
	if n := len(s.apps); n > 0 {
		s.log.use(s.apps[n-1].log)
	}
}

// tell has the running configuration tell of each change.
func (s *shared) tell(changes <-chan gate.Change) {
	defer close(s.told)
	for c := range changes {
		s.mu.Lock()
		var a *App
		if n := len(s.apps); n > 0 {
			a = s.apps[n-1]
		}
		s.mu.Unlock()
		if a != nil {
			a.emit(c)
		}
	}
}

// enter gives the clients to a request that u counts; it must call u.leave when done, if the error is nil.
func (s *shared) enter(u *users) (backend, error) {
	u.enter()
	b, err := s.get()
	if err != nil {
		u.leave()
	}
	return b, err
}

// Destruct closes the clients. Caddy calls it without waiting for requests of the old configuration, so those in work are
// waited for first: a client closed under them would lose what they have reserved.
func (s *shared) Destruct() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.settings.DrainTimeout)
	defer cancel()
	half, cancelHalf := context.WithTimeout(ctx, s.settings.DrainTimeout/2)
	defer cancelHalf()
	s.buying.wait(half)

	s.mu.Lock()
	s.closed = true
	b := s.ready.Swap(nil)
	s.mu.Unlock()
	if b == nil {
		return nil
	}
	err := b.drain(ctx)
	s.buying.wait(ctx)
	s.waiting.wait(ctx)
	allFigures.end(b.backend)
	err = errors.Join(err, b.close())
	select {
	case <-s.told:
	case <-ctx.Done(): // an event handler that takes its time
	}
	return err
}

// users counts requests.
type users struct {
	n    atomic.Int64
	mu   sync.Mutex
	idle chan struct{} // closed at the next moment without users; nil while nobody waits for it
}

func (u *users) enter() { u.n.Add(1) }

func (u *users) leave() {
	if u.n.Add(-1) > 0 {
		return
	}
	u.mu.Lock()
	if u.idle != nil {
		close(u.idle)
		u.idle = nil
	}
	u.mu.Unlock()
}

// wait waits for a moment without users, at most until ctx ends.
func (u *users) wait(ctx context.Context) {
	u.mu.Lock()
	if u.n.Load() == 0 {
		u.mu.Unlock()
		return
	}
	if u.idle == nil {
		u.idle = make(chan struct{})
	}
	idle := u.idle
	u.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}
