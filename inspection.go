package redislock

import (
	"context"
	"fmt"
	"time"

	"github.com/e2e3f2a3/redislock/internal/lease"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

// errNoFence is what no script replies that was asked for the fence.
var errNoFence = wire.Unexpected("no fence")

var errResumedTooLate = fmt.Errorf("%w: its release may yet be executed", ErrReleased)

// resume makes a handle of a lock that stands in Redis already. Unlike an
// acquisition it leaves nothing to undo.
func (a *acquisition) resume(ctx context.Context) (lock *Lock, failure error) {
	defer func() {
		if !a.lk.handles.resumed(a.token.text) && lock != nil {
			lock.endWith(&lock.released)
			lock, failure = nil, a.failed(errResumedTooLate)
		}
	}()
	late := false
	var r extendReply
	err := wire.Repeat(ctx, func(alone bool) (enough bool, err error) {
		r, err = a.claim.extend(ctx, extendTry{ttl: a.ttl, fenced: true, alone: alone})
		late = late || wire.MaybeLate(err)
		return false, err
	})
	if err != nil {
		return nil, a.failed(wire.Ended(ctx, err))
	}
	return a.resumed(r, late)
}

// resumed: late says that an earlier try may yet be executed, and set the lease to
// its TTL once more.
func (a *acquisition) resumed(r extendReply, late bool) (*Lock, error) {
	switch {
	case !r.held:
		return nil, a.failed(ErrNotHeld)
	case r.fence == 0: // it was asked for
		return nil, a.failed(errNoFence)
	case lease.From(r.sent, a.ttl).Remaining(time.Now()) <= 0:
		return nil, a.failed(errLate)
	}
	lock := a.lk.newLock(a, grant{fence: r.fence, anchor: r.sent})
	if late {
		lock.term.MayBeCutTo(a.ttl)
	}
	a.lk.lines.held(lock)
	return lock, nil
}

func (r inspectReply) ttl() time.Duration {
	if r.left < 0 {
		return -1
	}
	return time.Duration(min(r.left, milliseconds(maxLease))) * time.Millisecond
}

func (r inspectReply) info() Info {
	if r.left == -2 {
		return Info{Fence: r.fence, Waiters: int(r.queue)}
	}
	v := parseValue(r.value)
	return Info{Held: true, Token: v.token, Metadata: v.metadata, TTL: r.ttl(), Fence: r.fence, Waiters: int(r.queue)}
}

func (r inspectReply) heldBy(token string) bool { return parseValue(r.value).token == token }
