package redislock

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// Undoing looks at Redis at once, and again when a request has ended that was under way
// then. If requests may yet be executed it goes on after pauses that double from
// undoPause, until undoBound after the first look that was sent since.
const (
	undoPause = 50 * time.Millisecond
	undoBound = 15 * time.Second // beyond every default time-out of go-redis
	undoLimit = time.Second      // a look that takes longer is made once more
)

// undo takes back in the background what a failed acquisition may have brought
// about: a ticket in the queue, a grant, or the effect of an unanswered request.
// The first look does not wait for those requests, since their connection may be
// stuck while others work. But a request that is still under way can be executed
// after it, and one that ended in an error may still lie in the socket of a server
// that stood still. So there are more looks where it is needed. What is not found
// by then ends with its TTL.
func (a *acquisition) undo(ctx context.Context) { a.takeBack(ctx, true) }

// takeBack is undo; stands says whether there can be anything but what the unanswered
// requests have brought about.
func (a *acquisition) takeBack(ctx context.Context, stands bool) {
	if a.claim != nil {
		a.claim.undo(ctx)
		return
	}
	u := &undoing{ctx: ctx, keys: a.keys, token: a.token, ttl: a.ttl, calls: slices.Clone(a.unanswered), stands: stands}
	if a.inbox != "" {
		u.ticket = a.ticketFor(a.inbox)
	}
	a.lk.undo(u)
}

// undo begins an undoing. It does not block.
func (lk *Locker) undo(u *undoing) {
	u.ctx = context.WithoutCancel(u.ctx)
	lk.undoings.add(u)
}

// undoing frees what stands in Redis under a token that is nobody's any longer. It is
// guarded by undoings.mu, but for the first four, which do not change.
type undoing struct {
	ctx   context.Context // of the caller, without its end
	keys  lockKeys
	token lockToken
	ttl   time.Duration // of what stands there

	kept   minHold      // of a release that goes on; none of an acquisition that has failed
	ticket *ticket      // that may stand in the queue, or nil
	calls  []*wire.Call // requests under way that may put something there
	stands bool         // something may stand there
	lost   bool         // a request had no reply, and may be executed at any time
	failed bool         // a look had no answer, and may have freed the lock
	over   bool

	on       *cleaner // whose queue it was in last
	place    int      // in that queue
	due      time.Time
	flying   int           // looks under way that are waited for
	pause    time.Duration // before the next look
	version  int           // counts what the looks under way may have missed
	since    time.Time     // when the first look was sent since then; zero: none was
	patience time.Time     // when it ends if none can be sent
}

// lifetime is how long something may stand there.
func (u *undoing) lifetime(lk *Locker) time.Duration {
	if u.ticket == nil {
		return u.ttl
	}
	return max(u.ttl, time.Duration(lk.queueLifetime())*time.Millisecond)
}

// note takes note of the calls that have ended.
func (u *undoing) note() {
	u.calls = slices.DeleteFunc(u.calls, func(c *wire.Call) bool {
		if c.UnderWay() {
			return false
		}
		if !c.HasReply() {
			u.lost = true
		} else if !leftNothing(c) {
			u.stands = true
		}
		return true
	})
}

func (u *undoing) underWay() bool { return slices.ContainsFunc(u.calls, (*wire.Call).UnderWay) }

// isSettled tells whether nothing can come any more.
func (u *undoing) isSettled() bool { return len(u.calls) == 0 && !u.lost }

// isVoid tells whether there is nothing to undo either.
func (u *undoing) isVoid() bool { return u.isSettled() && !u.stands }

// changed notes that a look under way may have come too early.
func (u *undoing) changed() { u.version++ }

// isLate tells whether its time is over. It counts from a look that was sent: what lies
// unsent in this process while Redis cannot be reached is not dropped before its lease
// would have ended.
func (u *undoing) isLate(now time.Time) bool {
	if u.since.IsZero() {
		return now.After(u.patience)
	}
	return now.Sub(u.since) >= undoBound
}

// join makes another undoing of the same token a part of u. It reports false if that is
// not possible, since both have tickets.
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
// something stands under the keys that is not ours. Other refusals may pass in a
// moment: MISCONF with the next snapshot, OOM, NOPERM while rights are being changed.
// (What else fails may be a matter of those with whom a look has travelled.)
func isHopeless(err error) bool {
	return errors.Is(err, redis.ErrClosed) || wire.HasState(err, "WRONGTYPE")
}

// settle looks after requests that were overtaken by the grant. One that is executed
// while the lock is held does nothing. But if it may be executed after the release,
// it may take or queue for the lock once more, under a token that is nobody's any
// longer. A lock that ends otherwise is left alone: it may have been handed to
// another process, which goes on with its token.
func (a *acquisition) settle(lock *Lock) {
	calls := a.unanswered
	whenAllDone(calls, func() {
		late := slices.ContainsFunc(calls, func(c *wire.Call) bool {
			return !askedBefore(c, lock.granted) && (lock.releasing() || !c.HasReply())
		})
		if late {
			lock.whenReleased(func() { a.undo(context.Background()) })
		}
	})
}

// whenAllDone calls f once all calls are done: at once if they are.
func whenAllDone(calls []*wire.Call, f func()) {
	var left atomic.Int32
	left.Store(int32(len(calls)))
	for _, c := range calls {
		c.WhenDone(func() {
			if left.Add(-1) == 0 {
				f()
			}
		})
	}
}
