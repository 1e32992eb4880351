package redislock

import (
	"sync"
	"time"
)

// doubts are the tokens whose release was sent and may be executed late,
// however long a connection holds it up. The handle that was released has
// ended. But a second one of the same token, made by Resume before that, would
// be trusted while somebody else gets the lock.
type doubts struct {
	mu     sync.Mutex
	until  map[string]time.Time // when the lease has ended in Redis, whatever was executed
	enough int                  // so many of them are worth looking for those that are over
}

// note adds a token whose lease lasts for ttl at most.
func (d *doubts) note(token string, ttl time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if len(d.until) >= d.enough {
		for token, until := range d.until {
			if until.Before(now) {
				delete(d.until, token)
			}
		}
		d.enough = 2*len(d.until) + 100
	}
	if d.until == nil {
		d.until = make(map[string]time.Time)
	}
	if until := now.Add(ttl + undoBound); until.After(d.until[token]) {
		d.until[token] = until
	}
}

// forget is for a token that Redis does not have any more.
func (d *doubts) forget(token string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.until, token)
}

// has tells whether a release of the token may yet be executed.
func (d *doubts) has(token string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	until, noted := d.until[token]
	return noted && time.Now().Before(until)
}
