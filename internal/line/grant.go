package line

import (
	"strconv"
	"strings"
	"time"

	"github.com/e2e3f2a3/redislock/internal/lease"
)

// Grant says that the lock was handed to a ticket.
type Grant struct {
	Fence  int64
	Server int64     // time of the server when it granted, us
	Anchor time.Time // the lease counts from here, on our clock
	Err    error     // instead of a grant: why there will be none
}

// ParseGrant reads "token fence time", as published by a script. The fence is 0
// in what is published to a ticket that was passed over: its process is to ask
// again.
func ParseGrant(payload string) (token string, g Grant, ok bool) {
	fields := strings.Fields(payload)
	if len(fields) != 3 {
		return "", g, false
	}
	var errFence, errTime error
	g.Fence, errFence = strconv.ParseInt(fields[1], 10, 64)
	g.Server, errTime = strconv.ParseInt(fields[2], 10, 64)
	return fields[0], g, errFence == nil && errTime == nil && g.Fence >= 0
}

// registration is a moment known on two clocks: our own, before a request was
// sent, and the server's, when it executed it.
type registration struct {
	sent   time.Time
	server int64 // us; 0: the request has no reply yet
}

// plausible tells whether a grant can be the answer to what is registered:
// minted by our scripts (a fence is never below the time), after the
// registration, and not in the future. Else the server's clock was set, or
// somebody publishes nonsense.
func plausible(g Grant, r registration, arrived time.Time) bool {
	if g.Fence < g.Server {
		return false
	}
	passed := time.Duration(g.Server-r.server) * time.Microsecond
	here := arrived.Sub(r.sent)
	return r.server == 0 || passed > 0 && passed <= here+lease.Margin(here)
}

// anchorOf is the moment from which the lease of a pushed grant counts.
//
// When a push arrives its lease has been running for a time we cannot know: the
// message may have been on its way for long. What we know is a moment on both
// clocks, the registration, at the latest one poll interval ago. The server
// executed the registration after we had sent it, and granted as much later as
// its clock says. So in our time the grant was not before
//
//	sent + (granted - registered)
//
// and a lease counted from there ends here no later than there. This trusts
// that the server's clock does not run faster than ours between the two, which
// is what the expiry of a key relies on as well: a clock that jumps ahead ends
// the lease in Redis early, by as much. For clocks that drift apart, a
// thousandth of the time between is given away; and the anchor is never later
// than the arrival.
//
// While the registration itself is unanswered, its time on the server is
// unknown, and the lease counts from when the first ticket was sent: no grant
// can be older.
func anchorOf(g Grant, r registration, arrived time.Time) time.Time {
	passed := time.Duration(0)
	if r.server > 0 && g.Server > r.server {
		passed = time.Duration(g.Server-r.server) * time.Microsecond
		passed -= passed / 1000
	}
	anchor := r.sent.Add(passed)
	// The clock by which it is older counts: the monotonic one stands still
	// while the machine is suspended.
	age := max(0, arrived.Sub(anchor), arrived.Round(0).Sub(anchor.Round(0)))
	return arrived.Add(-age)
}
