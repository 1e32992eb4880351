package redislock

import (
	"sync"
	"time"
)

// clocks sees to it that no lock outlives a suspension of the machine. Timers run by the
// monotonic clock, which stands still then, so that a lock's own timer would end it too
// late; the wall clock tells. One look at the two clocks once a second does for all the
// locks of a Locker.
type clocks struct {
	mu      sync.Mutex
	held    map[*Lock]struct{}
	looked  time.Time // when the timers of all of them agreed with both clocks last
	ticking bool
}

const (
	clockPause = time.Second
	// clockLeap is how much the wall clock may gain on the other until timers are set
	// anew. It is a part of the 2 ms of clockMargin.
	clockLeap = time.Millisecond
)

// watch begins to look after a lock, before its timer is set. Locks that are held for a
// moment only find it ticking.
func (c *clocks) watch(l *Lock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		c.held = make(map[*Lock]struct{})
	}
	c.held[l] = struct{}{}
	if !c.ticking {
		c.ticking = true
		c.looked = time.Now()
		time.AfterFunc(clockPause, func() { c.tick(time.Now()) })
	}
}

// forget is for a lock that has ended.
func (c *clocks) forget(l *Lock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, l)
}

func (c *clocks) tick(now time.Time) {
	for _, l := range c.overtaken(now) {
		l.look()
	}
}

// overtaken is all locks, if the wall clock has leapt forward, and else none. It goes on
// ticking while there are any.
func (c *clocks) overtaken(now time.Time) (locks []*Lock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ticking = len(c.held) > 0; !c.ticking {
		return nil
	}
	time.AfterFunc(clockPause, func() { c.tick(time.Now()) })
	gained := now.Round(0).Sub(c.looked.Round(0)) - now.Sub(c.looked) // Round(0): by the wall clock
	if gained < clockLeap {
		return nil
	}
	c.looked = now
	for l := range c.held {
		locks = append(locks, l)
	}
	return locks
}
