package redislock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/e2e3f2a3/redislock/internal/lease"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

// acquisition is one call of Acquire or TryAcquire: one token, however many
// requests it takes. The token is what makes repeating a request harmless.
type acquisition struct {
	lk    *Locker
	op    string // for errors
	name  string
	keys  lockKeys
	ttl   time.Duration
	opts  acquireOptions
	token lockToken
	claim *claim // on a quorum: what the token may have on which node

	// unanswered are the requests that may have been, or may yet be, executed
	// without our having seen the reply.
	unanswered []*wire.Call
	// queued says that a ticket may stand in the queue.
	queued bool
	inbox  string                         // the one in the last ticket
	ready  struct{ inbox, ticket string } // a ticket that is made already

	waiter waiter // of Acquire
}

// newAcquisition checks everything that can be checked without traffic.
func (lk *Locker) newAcquisition(ctx context.Context, op, name string, ttl time.Duration, opts acquireOptions) (*acquisition, error) {
	keys, err := lk.keysFor(name)
	a := &acquisition{lk: lk, op: op, name: name, keys: keys, ttl: min(ttl, maxLease), opts: opts}
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
	a.claim = lk.newClaim(a)
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
}

// try makes one request, without a ticket.
func (a *acquisition) try(ctx context.Context, alone bool) outcome {
	r := a.request(ticketing{})
	r.Alone = alone
	c, reply, err := a.lk.conn.Ask(ctx, r)
	return a.outcome(c, reply, err)
}

// value is what the lock key will hold.
func (a *acquisition) value() string {
	if a.opts.metadata == "" {
		return a.token.text
	}
	return a.token.text + " " + a.opts.metadata
}

// valueArg is the same as an argument of a command.
func (a *acquisition) valueArg() any {
	if a.opts.metadata == "" {
		return a.token.arg
	}
	return a.value()
}

func (a *acquisition) request(t ticketing) wire.Request {
	value := a.valueArg()
	limit, ttl, retention := a.lk.replyLimit(a.ttl), milliseconds(a.ttl), a.lk.fenceRetention(a.ttl)
	var r wire.Request
	if t.ticket == "" {
		r = acquireScript.Request(limit, a.keys.all(), a.token.arg, value, ttl, retention)
	} else {
		r = acquireScript.Request(limit, a.keys.all(), a.token.arg, value, ttl, retention, t.ticket, a.lk.queueLifetime(), t.place, t.stale)
	}
	r.Note, r.Departure, r.Acknowledged = a.claim.note(a.ttl), wire.Unobserved{}, isAcquired
	return r
}

// isAcquired tells whether a reply has something that replicas have to acknowledge.
func isAcquired(reply string) (bool, error) {
	r, err := parseAcquire(reply)
	return r.acquired, err
}

func (a *acquisition) outcome(c *wire.Call, reply string, err error) outcome {
	var r acquireReply
	if err == nil {
		if r, err = parseAcquire(reply); err != nil {
			a.doubt(c)
		}
	} else if wire.MaybeExecuted(err) {
		a.doubt(c)
	}
	switch {
	case err != nil:
		return outcome{err: err}
	case !r.acquired:
		return outcome{left: r.left, server: r.server, queued: r.queued}
	case lease.From(c.Sent, a.ttl).Remaining(time.Now()) <= 0:
		a.doubt(c) // it stands in Redis, and must not stay
		return outcome{err: errLate}
	}
	return outcome{lock: a.lk.newLock(a, grant{fence: r.fence, server: r.server, anchor: c.Sent})}
}

// doubt notes that the outcome of c is not known. Of those that have ended and may have
// left something, one that was answered and one that was not stand for all, so that a
// long outage does not fill the memory.
func (a *acquisition) doubt(c *wire.Call) { a.unanswered = withDoubtful(a.unanswered, c) }

func withDoubtful(calls []*wire.Call, c *wire.Call) []*wire.Call {
	var answered, lost bool
	return slices.DeleteFunc(append(calls, c), func(c *wire.Call) bool {
		if c.UnderWay() {
			return false
		}
		seen := &lost
		if c.HasReply() {
			if leftNothing(c) {
				return true
			}
			seen = &answered
		}
		again := *seen
		*seen = true
		return again
	})
}

// leftNothing tells whether a call that was answered has left nothing in Redis: neither
// lock nor ticket.
func leftNothing(c *wire.Call) bool {
	if c.Err != nil {
		return !errors.Is(c.Err, ErrNotReplicated)
	}
	var n [4]int64 // in all replies the first says whether there is something, and the last of four whether it is queued
	_, err := integers(c.Reply, n[:])
	return err == nil && n[0] == 0 && n[3] == 0
}

// askedBefore tells whether the request is a question that is known to have been
// executed before a time of the server.
func askedBefore(c *wire.Call, server int64) bool {
	if c.Request.Script != acquireScript || c.Err != nil {
		return false
	}
	r, err := parseAcquire(c.Reply)
	return err == nil && r.server < server
}

// first tries until there is an answer, or a failure that repeating does not
// mend, or it failed a few times.
func (a *acquisition) first(ctx context.Context) (out outcome) {
	returned := false // a hook of the client may panic
	defer func() {
		if !returned {
			a.undo(ctx)
		}
	}()
	a.claim.limit(a.ttl)
	_ = wire.Repeat(ctx, func(alone bool) (enough bool, err error) {
		out = a.try(ctx, alone)
		return !worthRepeating(out.err) || a.claim.spent(), out.err
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
		if len(a.unanswered) > 0 && a.claim == nil {
			a.settle(lock)
		}
		return lock, nil
	}
	stands := errors.Is(err, ErrNotReplicated) && a.claim == nil && !a.giveBack(ctx)
	if stands || a.queued || len(a.unanswered) > 0 || a.claim != nil {
		a.takeBack(ctx, stands || a.queued)
	}
	var stray *wire.StrayError
	if a.waiter.reported || errors.As(err, &stray) {
		a.lk.reports.wait(ctx)
	}
	return nil, a.failed(err)
}

// giveBack frees a lock that too few replicas have, so that nothing is left when the
// caller hears of it.
func (a *acquisition) giveBack(ctx context.Context) bool {
	bounded, cancel := context.WithTimeout(ctx, undoLimit)
	defer cancel()
	_, _, err := a.lk.conn.Ask(bounded, a.lk.releaseRequest(&a.keys, a.token, a.ticket(a.inbox), undoLimit))
	return err == nil
}
