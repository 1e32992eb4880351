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
	looked  time.Time // since when timers are late by as much as the wall clock has gained on the other
	ticking bool
}

const (
	clockPause = time.Second
	// clockLeap is how much the wall clock may gain on the other until timers are set
	// anew. It is a part of the 2 ms of clockMargin.
	clockLeap = time.Millisecond
)

// watch begins to look after a lock, before its timer is set. It goes on ticking for a
// while when all have ended, so that short-lived ones need not start it each time.
func (c *clocks) watch(l *Lock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		c.held = make(map[*Lock]struct{})
	}
	c.held[l] = struct{}{}
	now := time.Now()
	if !c.ticking || c.gained(now) < 0 {
		c.looked = now
	}
	if !c.ticking {
		c.ticking = true
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

// gained is how much the wall clock has gained on the other.
func (c *clocks) gained(now time.Time) time.Duration {
	return now.Round(0).Sub(c.looked.Round(0)) - now.Sub(c.looked) // Round(0): by the wall clock
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
	gained := c.gained(now)
	if gained >= clockLeap {
		for l := range c.held {
			locks = append(locks, l)
		}
	}
	// If it was set back, what it gains counts from there: for the timers that are set
	// from now on. Those that are set already end no later than by the monotonic clock.
	if gained < 0 || locks != nil {
		c.looked = now
	}
	return locks
}
