package redislock

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// acquisition is one call of Acquire or TryAcquire: one token, however many
// requests it takes. The token is what makes repeating a request harmless.
type acquisition struct {
	lk   *Locker
	op   string // for errors
	name string
	opts acquireOptions
	subject
	claim claim

	inbox string                         // the one in the last ticket
	ready struct{ inbox, ticket string } // a ticket that is made already

	waiter waiter // of Acquire
}

// newAcquisition checks everything that can be checked without traffic.
func (lk *Locker) newAcquisition(ctx context.Context, op, name string, ttl time.Duration, opts acquireOptions) (*acquisition, error) {
	keys, err := lk.keysFor(name)
	a := &acquisition{lk: lk, op: op, name: name, opts: opts}
	a.subject = subject{keys: keys, ttl: min(ttl, maxLease), metadata: opts.metadata}
	if err == nil {
		err = checkTTL(ttl)
	}
	if err == nil {
		err = opts.check()
	}
	if err == nil && ctx.Err() != nil {
		err = wire.ContextError(ctx)
	}
	if err != nil {
		return nil, a.failed(err)
	}
	a.token = newLockToken(uuid.NewString())
	a.claim = lk.backend.claim(a.subject)
	return a, nil
}

func (a *acquisition) failed(err error) error {
	return &Error{Op: a.op, Key: a.keys.lock, Err: err}
}

// outcome is what one request came to: a lock, or that somebody else holds it,
// or an error.
type outcome struct {
	lock   *Lock
	left   time.Duration // of the other holder's lease; negative without an end
	server int64         // time of the server, us
	queued bool          // our ticket stands in the queue
	err    error

	opposed bool // of a failure: somebody else has a part of the servers
}

// outcome makes a lock of a reply that grants it.
func (a *acquisition) outcome(r acquireReply, err error) outcome {
	switch {
	case err != nil:
		return outcome{err: err, opposed: r.opposed}
	case !r.acquired:
		return outcome{left: r.left, server: r.server, queued: r.queued}
	}
	return outcome{lock: a.lk.newLock(a, grant{fence: r.fence, server: r.server, anchor: r.sent})}
}

// first tries until there is an answer, or a failure that repeating does not
// mend, or it failed a few times.
func (a *acquisition) first(ctx context.Context) (out outcome) {
	returned := false // a hook of the client may panic
	defer func() {
		if !returned {
			a.claim.undo(ctx)
		}
	}()
	_ = wire.Repeat(ctx, func(alone bool) (enough bool, err error) {
		r, err := a.claim.acquire(ctx, acquireTry{alone: alone, brief: true})
		out = a.outcome(r, err)
		return !worthRepeating(err) || r.final, err
	})
	out.err = wire.Ended(ctx, out.err)
	returned = true
	return out
}

// worthRepeating leaves READONLY out: as the first answer it says that the
// client is connected to a replica, which the caller should hear at once.
func worthRepeating(err error) bool {
	return wire.IsTransient(err) && !wire.HasState(err, "READONLY")
}

// finish turns the last outcome into what the caller gets. Whoever gets an error
// gets no lock, also not one that Redis granted in a reply we did not see.
func (a *acquisition) finish(ctx context.Context, lock *Lock, err error) (*Lock, error) {
	if err == nil {
		a.claim.granted(lock.granted)
		return lock, nil
	}
	a.claim.undo(ctx)
	var stray *wire.StrayError
	if a.waiter.reported || errors.As(err, &stray) {
		a.lk.reports.wait(ctx)
	}
	return nil, a.failed(err)
}
