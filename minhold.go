package redislock

import (
	"fmt"
	"time"
)

// How a minimal hold works. The holder has nothing to do but to send another
// script when it releases the lock: lua/keep.lua decides by the clock of the
// server how much of the minimal hold is left, and if there is any, leaves a
// mark in the place of the token, with a lease of just that. Nobody is needed
// to take it away. To those that wait, the mark is a holder as any other: they
// ask again when its lease is over.
//
// Not every release of a token is one by its holder: what undoes an acquisition
// that has failed uses the ordinary script.

// minHold is for how long a name stays taken at least.
type minHold struct {
	granted int64 // from when, by the clock of the server, us
	least   time.Duration
}

// arg is the last argument of lua/keep.lua.
func (h minHold) arg() string {
	return fmt.Sprintf("%d %d", h.granted, (h.least+time.Microsecond-1)/time.Microsecond)
}
