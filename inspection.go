package redislock

import (
	"context"
	"fmt"
	"time"

	"github.com/e2e3f2a3/redislock/internal/lease"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

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
	r := a.lk.extendRequest(&a.keys, a.token, a.ttl, "set", a.claim)
	late := false
	var c *wire.Call
	var reply string
	err := wire.Repeat(ctx, func(alone bool) (enough bool, err error) {
		r.Alone = alone
		c, reply, err = a.lk.conn.Ask(ctx, r)
		late = late || wire.MaybeLate(err)
		return false, err
	})
	if err != nil {
		return nil, a.failed(wire.Ended(ctx, err))
	}
	return a.resumed(c, reply, late)
}

// resumed: late says that an earlier try may yet be executed, and set the lease to
// its TTL once more.
func (a *acquisition) resumed(c *wire.Call, reply string, late bool) (*Lock, error) {
	extended, err := parseExtend(reply)
	switch {
	case err != nil:
		return nil, a.failed(err)
	case !extended.held:
		return nil, a.failed(ErrNotHeld)
	case extended.fence == 0: // it was asked for
		return nil, a.failed(wire.Unexpected(reply))
	case lease.From(c.Sent, a.ttl).Remaining(time.Now()) <= 0:
		return nil, a.failed(errLate)
	}
	lock := a.lk.newLock(a, grant{fence: extended.fence, anchor: c.Sent})
	if late {
		lock.term.MayBeCutTo(a.ttl)
	}
	a.lk.lines.held(lock)
	return lock, nil
}

// inspect reads what stands under the keys of one lock, or under the first of them.
func (lk *Locker) inspect(ctx context.Context, keys []any) (r inspectReply, err error) {
	_, reply, err := lk.conn.Persist(ctx, inspectScript.Request(lk.replyLimit(0), keys))
	if err != nil {
		return r, err
	}
	return parseInspect(reply)
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
