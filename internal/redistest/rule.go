package redistest

import (
	"slices"
	"sync"
	"sync/atomic"
)

// forever is the number of times that Always applies.
const forever = -1

// Rule is a fault that waits for its request. Its methods are safe for
// concurrent use and never block.
type Rule struct {
	match    Match
	action   Action
	book     *book
	left     int // how often it still applies; guarded by book.mu
	applied  atomic.Int64
	hit      chan struct{}
	released chan struct{}
	hitOnce  sync.Once
	freeOnce sync.Once
}

// Hit returns a channel that is closed when the rule has first been applied:
// with SwallowReply, DropReply and HoldReply when the server's reply has come,
// and so the request is known to be executed; else when the request has come.
func (r *Rule) Hit() <-chan struct{} { return r.hit }

// Count returns how often the rule has been applied, counted when Hit would be.
func (r *Rule) Count() int { return int(r.applied.Load()) }

// Release lets go what Hold and HoldReply keep. From then on the rule still
// counts but holds no more.
func (r *Rule) Release() { r.freeOnce.Do(func() { close(r.released) }) }

// Remove ends the rule for requests that come later. What it holds it goes on
// holding, until Release.
func (r *Rule) Remove() { r.book.remove(r) }

func (r *Rule) apply() {
	r.applied.Add(1)
	r.hitOnce.Do(func() { close(r.hit) })
}

// book keeps a relay's rules, and the requests it has seen.
type book struct {
	mu        sync.Mutex
	seen      [][]string
	observers []func([]string)
	rules     []*Rule
}

func (b *book) add(match Match, action Action, times int) *Rule {
	r := &Rule{
		match: match, action: action, book: b, left: times,
		hit: make(chan struct{}), released: make(chan struct{}),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rules = append(b.rules, r)
	return r
}

func (b *book) remove(r *Rule) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rules = slices.DeleteFunc(b.rules, func(other *Rule) bool { return other == r })
}

func (b *book) observe(f func([]string)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.observers = append(b.observers, f)
}

// enter notes a request and returns the rule for it, or nil: the oldest that
// matches.
func (b *book) enter(args []string) *Rule {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = append(b.seen, args)
	for _, observe := range b.observers {
		observe(args)
	}
	for _, r := range b.rules {
		if r.left != 0 && r.match(args) {
			if r.left > 0 {
				r.left--
			}
			return r
		}
	}
	return nil
}

func (b *book) count(match Match) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, args := range b.seen {
		if match(args) {
			n++
		}
	}
	return n
}

func (b *book) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = nil
}
