package redislock

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// Undoing looks at Redis at once, and again when a request has ended that was
// under way then. If requests may yet be executed it goes on after pauses that
// double from undoPause, until undoBound after the first look that was sent
// since.
const (
	undoPause = 50 * time.Millisecond
	undoBound = 15 * time.Second // beyond every default time-out of go-redis
	undoLimit = time.Second      // a look that takes longer is made once more
)

// undoing takes back in the background what a claim may have brought about: a
// ticket in the queue, a grant, or the effect of an unanswered request. The
// first look does not wait for those requests, since their connection may be
// stuck while others work. But a request that is still under way can be
// executed after it, and one that ended in an error may still lie in the socket
// of a server that stood still. So there are more looks where it is needed.
// What is not found by then ends with its TTL.
//
// It is guarded by undoings.mu, but for the first four, which do not change.
type undoing struct {
	ctx   context.Context // of the caller, without its end
	keys  lockKeys
	token lockToken
	ttl   time.Duration // of what stands there

	kept   minHold // of a release that goes on; none of an acquisition that has failed
	ticket *ticket // that may stand in the queue, or nil
	traces
	failed bool // a look had no answer, and may have freed the lock
	over   bool

	queue    *queueOfUndoings // in which it was last
	place    int              // there
	due      time.Time
	flying   int           // looks under way that are waited for
	pause    time.Duration // before the next look
	version  int           // counts what the looks under way may have missed
	since    time.Time     // when the first look was sent since then; zero: none was
	patience time.Time     // when it ends if none can be sent
}

// lifetime is how long something may stand there.
func (u *undoing) lifetime(opts *options) time.Duration {
	if u.ticket == nil {
		return u.ttl
	}
	return max(u.ttl, time.Duration(opts.queueLifetime())*time.Millisecond)
}

// changed notes that a look under way may have come too early.
func (u *undoing) changed() { u.version++ }

// isLate tells whether its time is over. It counts from a look that was sent:
// what lies unsent in this process while Redis cannot be reached is not dropped
// before its lease would have ended.
func (u *undoing) isLate(now time.Time) bool {
	if u.since.IsZero() {
		return now.After(u.patience)
	}
	return now.Sub(u.since) >= undoBound
}

// join makes another undoing of the same token a part of u. It reports false if
// that is not possible, since both have tickets.
func (u *undoing) join(other *undoing) bool {
	if u.ticket != nil && other.ticket != nil && *u.ticket != *other.ticket {
		return false
	}
	if u.ticket == nil {
		u.ticket = other.ticket
	}
	if other.kept.least > 0 {
		u.kept = other.kept
	}
	u.calls = append(u.calls, other.calls...)
	u.stands, u.lost = u.stands || other.stands, u.lost || other.lost
	if other.patience.After(u.patience) {
		u.patience = other.patience
	}
	u.changed()
	u.since, u.pause = time.Time{}, undoPause
	return true
}

// isHopeless tells whether looking again is pointless: the client is closed, or
// something stands under the keys that is not ours. Other refusals may pass in
// a moment: MISCONF with the next snapshot, OOM, NOPERM while rights are being
// changed. (What else fails may be a matter of those with whom a look has
// travelled.)
func isHopeless(err error) bool {
	return errors.Is(err, redis.ErrClosed) || wire.HasState(err, "WRONGTYPE")
}

// queueOfUndoings is a heap: the one that is due next is the first.
type queueOfUndoings []*undoing

const nowhere = -1 // the place of one that is in no queue

func (q queueOfUndoings) Len() int           { return len(q) }
func (q queueOfUndoings) Less(i, j int) bool { return q[i].due.Before(q[j].due) }

func (q queueOfUndoings) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

func (q *queueOfUndoings) Push(x any) {
	u := x.(*undoing)
	u.place = len(*q)
	*q = append(*q, u)
}

func (q *queueOfUndoings) Pop() any {
	last := len(*q) - 1
	u := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	u.place = nowhere
	return u
}
