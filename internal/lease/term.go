package lease

import (
	"sync"
	"time"
)

// Term is the life of one lease on this process's clocks: until when it is
// trusted, and its single end, with a cause. It may be renewed and extended,
// and is never trusted for longer than the server is known to keep the grant.
//
// The methods are safe for concurrent use once Start has returned.
type Term struct {
	clocks *Clocks
	check  func() // see Start

	mu        sync.Mutex
	lease     Lease
	ttl       time.Duration // what it is renewed with
	confirmed time.Time     // when the request was sent that set the lease last
	floor     time.Duration // the shortest TTL that an unanswered extension may still set; 0: none
	epoch     int           // counts extensions: a renewal that overlaps one proves nothing
	failure   error         // why the last renewal failed
	expiry    *time.Timer   // fires when the lease ends
	ending    ending
}

// Start begins the term with a grant for ttl, whose request was sent at sent.
// check is called when the lease may be over, by a timer and once a second by
// clocks, in a goroutine of its own or together with those of other terms: it
// calls Check, and must not block.
func (t *Term) Start(clocks *Clocks, sent time.Time, ttl time.Duration, check func()) {
	t.mu.Lock() // the timer may fire before it is assigned
	defer t.mu.Unlock()
	t.clocks, t.check = clocks, check
	t.confirm(sent, ttl)
	clocks.watch(t)
	t.expiry = time.AfterFunc(t.remaining(), check)
}

// Check tells whether the lease is over. If not, the timer is set for when it
// is.
func (t *Term) Check() (over bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if over = t.remaining() <= 0; !over {
		t.reset()
	}
	return over
}

// Retire stops what looks after a term that has ended.
func (t *Term) Retire() {
	t.expiry.Stop()
	t.clocks.forget(t)
}

func (t *Term) remaining() time.Duration { return t.lease.Remaining(t.clocks.now()) }

// Remaining is how long the lease is still valid; it may be negative.
func (t *Term) Remaining() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.remaining()
}

// Expired tells whether the lease is over.
func (t *Term) Expired() bool { return t.Remaining() <= 0 }

// Until is when the lease ends.
func (t *Term) Until() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lease.until
}

// TTL is what the lease is renewed with.
func (t *Term) TTL() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ttl
}

// trusted is for how long a grant for ttl is trusted: an extension whose reply
// was lost may be executed late and cut the lease down to its own TTL.
func (t *Term) trusted(ttl time.Duration) time.Duration {
	if t.floor > 0 {
		return min(ttl, t.floor)
	}
	return ttl
}

// confirm notes that the server has set the lease to ttl with a request sent at
// sent.
func (t *Term) confirm(sent time.Time, ttl time.Duration) {
	t.ttl, t.confirmed = ttl, sent
	t.lease = From(sent, t.trusted(ttl))
}

// reset sets the timer for the end of the lease.
func (t *Term) reset() {
	if !t.ending.final() {
		t.expiry.Reset(t.remaining())
	}
}

// Shorten trusts no more than ttl from now on, before that is asked for: the
// reply may be late or lost.
func (t *Term) Shorten(ttl time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.epoch++
	t.ttl = min(t.ttl, ttl)
	if shorter := From(t.clocks.now(), ttl); shorter.until.Before(t.lease.until) {
		t.lease = shorter
		t.reset()
	}
}

// MayBeCutTo notes that an extension to ttl may yet be executed, at any time.
func (t *Term) MayBeCutTo(ttl time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.floor = t.trusted(ttl)
}

// SetFloor replaces all that is known by MayBeCutTo.
func (t *Term) SetFloor(floor time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.floor = floor
}

// Extended notes that the server has set the lease to ttl, by an extension sent
// at sent. It reports false if the term has ended meanwhile.
func (t *Term) Extended(sent time.Time, ttl time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ending.cause != nil {
		return false
	}
	t.epoch++
	t.failure = nil
	t.confirm(sent, ttl)
	t.reset()
	return true
}

// Renewal is an attempt to renew a lease.
type Renewal struct {
	TTL       time.Duration // what to ask for
	Remaining time.Duration // of the lease
	epoch     int
}

// BeginRenewal begins an attempt.
func (t *Term) BeginRenewal() Renewal {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Renewal{TTL: t.ttl, Remaining: t.remaining(), epoch: t.epoch}
}

// Renewed notes that an attempt has failed with err or, if err is nil, that the
// server has renewed the lease with a request sent at sent. If an extension has
// begun meanwhile, the server may have executed the two in either order, and
// only the extension counts.
func (t *Term) Renewed(r Renewal, sent time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ending.cause != nil || r.epoch != t.epoch {
		return
	}
	t.failure = err
	if err != nil {
		return
	}
	t.confirm(sent, r.TTL)
	t.reset()
}

// Confirmed is when the request was sent that set the lease last, and for how
// long that is trusted. The error is why the last renewal failed, if it did.
func (t *Term) Confirmed() (sent time.Time, trusted time.Duration, failure error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.confirmed, t.trusted(t.ttl), t.failure
}
