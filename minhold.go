package redislock

import (
	"fmt"
	"time"
)

// How a minimal hold works. The holder has nothing to do but to send another script when
// it releases the lock: lua/keep.lua decides by the clock of the server how much of the
// minimal hold is left, and if there is any, leaves a mark in the place of the token, with
// a lease of just that. Nobody is needed to take it away. To those that wait, the mark is
// a holder as any other: they ask again when its lease is over.
//
// Not every release of a token is one by its holder: what undoes an acquisition that has
// failed uses the ordinary script.

// minHold is for how long a name stays taken at least.
type minHold struct {
	granted int64 // from when, by the clock of the server, us
	least   time.Duration
}

// arg is the last argument of lua/keep.lua.
func (h minHold) arg() string {
	return fmt.Sprintf("%d %d", h.granted, (h.least+time.Microsecond-1)/time.Microsecond)
}

// minHold is that of l, from the grant. A fence is never below the time at which it was
// minted, and above only if the clock was set back. What else is known of the time of the
// grant may be too late, if the lock was found to be granted by asking, or 0, if it was
// adopted.
func (l *Lock) minHold() minHold {
	granted := l.fence
	if l.granted > 0 {
		granted = min(granted, l.granted)
	}
	return minHold{granted: granted, least: l.least}
}
