// Package lease says how long this process may trust what a server has granted
// it for a time. It knows nothing of locks or of Redis.
package lease

import "time"

// Lease is how long this process may trust a grant: a little shorter than the
// time for which the server keeps it, and counted from before the request was
// sent, so that it is over here before it is over there, however long the
// reply took.
type Lease struct {
	until time.Time // carries both a wall clock and a monotonic clock reading
}

// Margin allows, in a time of length d, for clocks that run at different speed
// (1 %) and for the resolution of the server's (2 ms).
func Margin(d time.Duration) time.Duration {
	return d/100 + 2*time.Millisecond
}

// From is the lease of a grant for ttl whose request was sent at sent.
func From(sent time.Time, ttl time.Duration) Lease {
	return Lease{until: sent.Add(ttl - Margin(ttl))}
}

// Until is when the lease ends.
func (l Lease) Until() time.Time { return l.until }

// Remaining is how long the lease is still valid. Wall clock and monotonic
// clock must both agree, so the smaller counts: the monotonic clock stands
// still while a machine is suspended, the wall clock may be set back.
func (l Lease) Remaining(now time.Time) time.Duration {
	wall := l.until.Round(0).Sub(now.Round(0)) // Round(0) strips the monotonic reading
	return min(l.until.Sub(now), wall)
}
