package redislock

import "time"

// lease is how long this process may trust a lock: a little shorter than the
// time for which the server keeps the key, and counted from before the request
// was sent, so that it is over here before it is over there, however long the
// reply took.
type lease struct {
	until time.Time // carries both a wall clock and a monotonic clock reading
}

// clockMargin allows for clocks that run at different speed (1 % of the lease)
// and for the resolution of the server's (2 ms).
func clockMargin(ttl time.Duration) time.Duration {
	return ttl/100 + 2*time.Millisecond
}

func leaseFrom(sent time.Time, ttl time.Duration) lease {
	return lease{until: sent.Add(ttl - clockMargin(ttl))}
}

// left is how long the lease is still valid. Wall clock and monotonic clock must
// both agree, so the smaller counts: the monotonic clock stands still while a
// machine is suspended, the wall clock may be set back.
func (l lease) left(now time.Time) time.Duration {
	wall := l.until.Round(0).Sub(now.Round(0)) // Round(0) strips the monotonic reading
	return min(l.until.Sub(now), wall)
}
