package lease

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Clocks sees to it that no term outlives a suspension of the machine. Timers
// run by the monotonic clock, which stands still then, so that a term's own
// timer would fire too late; the wall clock tells. So all terms are checked
// once a second, by one timer. Checking them only when the two clocks have
// parted was rejected: it saves a third of a percent of a core with ten
// thousand terms, and has to know what became of the clocks since each timer
// was set.
//
// The zero value is ready for use.
type Clocks struct {
	// Now is the current time by both clocks; nil stands for [time.Now]. It is
	// for tests, which cannot suspend the machine. It must not change while
	// there are terms.
	Now func() time.Time

	mu      sync.Mutex
	terms   map[*Term]struct{}
	ticking bool
}

// clockPause is the time between two checks.
const clockPause = time.Second

func (c *Clocks) now() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now()
}

// Watched is the number of terms that have not ended.
func (c *Clocks) Watched() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.terms)
}

// watch begins to look after a term, before its timer is set.
func (c *Clocks) watch(t *Term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.terms == nil {
		c.terms = make(map[*Term]struct{})
	}
	c.terms[t] = struct{}{}
	if !c.ticking {
		c.ticking = true
		time.AfterFunc(clockPause, c.tick)
	}
}

// forget is for a term that has ended.
func (c *Clocks) forget(t *Term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.terms, t)
}

// tick has all terms checked. No mutex is held meanwhile: a term that is over
// ends, and is forgotten.
func (c *Clocks) tick() {
	for _, t := range c.due() {
		t.check()
	}
}

// due lists the terms, and sets the timer for the next time if there are any.
// It goes on ticking for a while when all have ended, so that short-lived terms
// need not start it each time.
func (c *Clocks) due() []*Term {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ticking = len(c.terms) > 0; !c.ticking {
		return nil
	}
	time.AfterFunc(clockPause, c.tick)
	return slices.Collect(maps.Keys(c.terms))
}
