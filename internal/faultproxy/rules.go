package faultproxy

import (
	"bytes"
	"sync"
)

// Rule is a fault for the first n requests that match. It is in force from the call that made it until it has fired n
// times or Heal removes it. Of several rules the oldest that matches fires, and only that one.
type Rule struct {
	match  func(request []byte) bool
	action action

	mu    sync.Mutex
	left  int
	fired int
	seen  chan struct{} // closed at the first firing
	spent chan struct{} // closed at the last firing

	release sync.Once
	free    chan struct{} // closed by Release
}

type action int

const (
	forward action = iota
	withhold
	closeAfter
	closeBefore
	hold
)

// WithholdReply lets the first n requests that match reach the server, which executes them, but not a byte comes back on
// that connection from then on. The connection stays open: the client runs into its own time-out. It may go on sending.
//
// match sees all that the client has sent since the last reply, so that a request in several packets is seen whole; with
// a proxy of StartKafka it sees one request at a time.
func (p *Proxy) WithholdReply(match func(request []byte) bool, n int) *Rule {
	return p.rule(match, n, withhold)
}

// CloseAfter lets the first n requests that match reach the server, waits for the first byte of its reply, which proves
// that it has executed, and resets the connection without handing it on.
func (p *Proxy) CloseAfter(match func(request []byte) bool, n int) *Rule {
	return p.rule(match, n, closeAfter)
}

// CloseBefore resets the connection before the first n requests that match reach the server: they are never executed,
// which the client cannot know.
func (p *Proxy) CloseBefore(match func(request []byte) bool, n int) *Rule {
	return p.rule(match, n, closeBefore)
}

// Hold keeps the first n requests that match, and what follows on their connections, until Release or Heal. They then
// reach the server even when their client has long given up: a copy that was stuck somewhere and arrives late.
func (p *Proxy) Hold(match func(request []byte) bool, n int) *Rule {
	return p.rule(match, n, hold)
}

func (p *Proxy) rule(match func([]byte) bool, n int, a action) *Rule {
	r := &Rule{
		match: match, action: a, left: n,
		seen: make(chan struct{}), spent: make(chan struct{}), free: make(chan struct{}),
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

// Fired returns how many requests the rule has caught so far.
func (r *Rule) Fired() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fired
}

// Seen is closed once the rule has caught its first request.
func (r *Rule) Seen() <-chan struct{} { return r.seen }

// Spent is closed once the rule has caught its last request.
func (r *Rule) Spent() <-chan struct{} { return r.spent }

// Release lets go what a Hold rule keeps, and ends it: later requests pass.
func (r *Rule) Release() {
	r.release.Do(func() {
		r.mu.Lock()
		r.left = 0
		r.mu.Unlock()
		close(r.free)
	})
}

// take counts one more catch if the rule still stands.
func (r *Rule) take(request []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left <= 0 || !r.match(request) {
		return false
	}
	r.left--
	r.fired++
	if r.fired == 1 {
		close(r.seen)
	}
	if r.left == 0 {
		close(r.spent)
	}
	return true
}

// caught returns the rule that this request meets, nil for none.
func (p *Proxy) caught(request []byte) *Rule {
	p.mu.Lock()
	rules := p.rules
	p.mu.Unlock()
	for _, r := range rules {
		if r.take(request) {
			return r
		}
	}
	return nil
}

// Any matches every request.
func Any([]byte) bool { return true }

// Contains matches requests that contain all the given words, whatever their case: Contains("EVALSHA", "{7}"),
// Contains("commit").
func Contains(words ...string) func(request []byte) bool {
	want := make([][]byte, len(words))
	for i, w := range words {
		want[i] = bytes.ToLower([]byte(w))
	}
	return func(request []byte) bool {
		lower := bytes.ToLower(request)
		for _, w := range want {
			if !bytes.Contains(lower, w) {
				return false
			}
		}
		return true
	}
}
