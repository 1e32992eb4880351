package redislock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/e2e3f2a3/redislock/internal/lease"
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

// finish turns the last outcome into what the caller gets. Whoever gets an
// error gets no lock, also not one that Redis granted in a reply we did not
// see.
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

// ticket is the text of the one for an inbox.
func (a *acquisition) ticket(inbox string) string {
	switch inbox {
	case "":
		return "" // it never had one
	case a.ready.inbox:
		return a.ready.ticket
	}
	return a.ticketFor(inbox).text(a.lk.opts.prefix, &a.keys, a.token)
}

// prepareTicket formats the ticket while its goroutine is idle, so that the
// releasing goroutine does not have to.
//
// With much metadata it is not worth the memory.
func (a *acquisition) prepareTicket(inbox string) {
	if len(a.opts.metadata) > 256 {
		return
	}
	ticket := a.ticket(inbox)
	a.ready.inbox, a.ready.ticket = inbox, ticket
}

// --- waiting -----------------------------------------------------------------

// wait stands in line for the lock until it has it, ctx ends, or Redis refuses
// for good. Where nobody else holds the lock or waits, that takes one question.
func (a *acquisition) wait(ctx context.Context) (lock *Lock, err error) {
	w := &a.waiter
	w.a = a
	a.lk.lines.join(w)
	err = errInterrupted // until there is a result: a hook of the client may panic
	defer func() {
		interrupted := errors.Is(err, errInterrupted)
		if lock = a.lk.lines.leave(w, lock, err); lock != nil {
			err = nil
		}
		switch {
		case !interrupted:
		case lock != nil: // a grant that came meanwhile, which nobody gets
			lock.least = 0
			lock.startRelease(ctx, closed)
		default:
			a.claim.undo(ctx)
		}
	}()
	return w.run(ctx)
}

// run asks Redis whenever it is due, and waits for a grant in between.
func (w *waiter) run(ctx context.Context) (*Lock, error) {
	for {
		out := outcome{}
		switch g, due := w.a.lk.lines.next(w); {
		case g != nil:
			out = w.accept(*g)
		case due:
			out = w.ask(ctx)
		default:
			select {
			case <-ctx.Done():
			case <-w.wake:
				continue
			}
		}
		switch {
		case out.lock != nil:
			return out.lock, nil
		case ctx.Err() != nil:
			return nil, w.gaveUp(ctx)
		case out.err != nil:
			return nil, out.err
		}
	}
}

// accept makes a lock of a grant. If the grant comes too late, asking Redis
// will tell whether the lock is still ours.
func (w *waiter) accept(g grant) outcome {
	lock := w.lockOf(g)
	if lock == nil && g.err == nil {
		w.a.lk.lines.askAgain(w)
	}
	return outcome{lock: lock, err: g.err}
}

// lockOf is the lock of a grant, or nil if it has to be confirmed by asking:
// its lease is over, or replicas have to acknowledge it.
func (w *waiter) lockOf(g grant) *Lock {
	if w.a.lk.opts.replicas > 0 {
		return nil
	}
	if g.err != nil || lease.From(g.anchor, w.a.ttl).Remaining(time.Now()) <= 0 {
		return nil
	}
	return w.a.lk.newLock(w.a, g)
}

// ask puts the question to Redis: with a ticket if there is an inbox. A grant
// that arrives before the reply is taken, and the reply left to the background.
// The outcome has an error only if the waiting is over.
func (w *waiter) ask(ctx context.Context) outcome {
	t, expecting := w.a.lk.lines.begin(w)
	try := acquireTry{ticketing: t, alone: w.apart} // only w's own goroutine writes that
	if expecting {
		return w.askUnlessGranted(ctx, try)
	}
	r, err := w.a.claim.acquire(ctx, try)
	return w.answered(ctx, r, err)
}

// askUnlessGranted is a function of its own since its closure costs an
// allocation.
func (w *waiter) askUnlessGranted(ctx context.Context, try acquireTry) outcome {
	var g *grant
	try.wake = w.wake
	try.enough = func() bool {
		g = w.a.lk.lines.take(w)
		return g != nil
	}
	r, err := w.a.claim.acquire(ctx, try)
	if r.overtaken {
		return w.accept(*g)
	}
	return w.answered(ctx, r, err)
}

func (w *waiter) answered(ctx context.Context, r acquireReply, err error) outcome {
	out := w.a.outcome(r, err)
	out.err = wire.Ended(ctx, out.err)
	if ctx.Err() == nil {
		out.err = w.a.lk.lines.learned(w, r.sent, out)
		w.warnOfOutage()
	}
	return out
}

// warnOfOutage logs one line for each time that Redis fails while we wait.
func (w *waiter) warnOfOutage() {
	if err := w.a.lk.lines.newOutage(w.line); err != nil {
		w.reported = true
		w.a.lk.reports.warn("redislock: waiting for a lock while Redis does not serve",
			"key", w.a.keys.lock, "error", err)
	}
}

// gaveUp is the error of one whose ctx ended. Only where the last answer was
// that somebody else holds the lock it is ErrNotAcquired: an outage is not
// contention.
func (w *waiter) gaveUp(ctx context.Context) error {
	contended, outage := w.a.lk.lines.lastAnswer(w)
	switch {
	case outage != nil:
		return fmt.Errorf("%w while Redis did not serve: %w", wire.ContextError(ctx), outage)
	case contended:
		return fmt.Errorf("%w: %w", ErrNotAcquired, wire.ContextError(ctx))
	}
	return wire.ContextError(ctx)
}

// --- Resume ------------------------------------------------------------------

// errNoFence is what no script replies that was asked for the fence.
var errNoFence = wire.Unexpected("no fence")

var errResumedTooLate = fmt.Errorf("%w: its release may yet be executed", ErrReleased)

// resume makes a handle of a lock that stands in Redis already. Unlike an
// acquisition it leaves nothing to undo. departures is how many requests to
// release the token were sent before.
func (a *acquisition) resume(ctx context.Context, departures int) (lock *Lock, failure error) {
	defer func() {
		if !a.lk.handles.resumed(a.token.text, departures) && lock != nil {
			lock.endWith(&lock.released)
			a.lk.lines.lost(lock)
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

// resumed: late says that an earlier try may yet be executed, and set the lease
// to its TTL once more.
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
