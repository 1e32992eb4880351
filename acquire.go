package redislock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/e2e3f2a3/redislock/internal/lease"
	"github.com/e2e3f2a3/redislock/internal/line"
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

	waiter   line.Waiter // of Acquire
	reported bool        // there is something in the log
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

// outcome is what the requests of an acquisition have come to so far: a lock,
// or an error, or neither: somebody else holds it.
type outcome struct {
	lock *Lock
	err  error
}

// outcome makes a lock of a reply that grants it.
func (a *acquisition) outcome(r acquireReply, err error) outcome {
	if err != nil || !r.acquired {
		return outcome{err: err}
	}
	return outcome{lock: a.lk.newLock(a, line.Grant{Fence: r.fence, Server: r.server, Anchor: r.sent})}
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
	if a.reported || errors.As(err, &stray) {
		a.lk.reports.wait(ctx)
	}
	return nil, a.failed(err)
}

// ticket is the text of the one for an inbox.
func (a *acquisition) ticket(inbox string) string {
	return a.ticketFor(inbox).text(a.lk.opts.prefix, &a.keys, a.token)
}

// mostPrepared is how much metadata a ticket may have that is kept in memory
// while its goroutine waits.
const mostPrepared = 256

// prepareTicket formats the ticket while its goroutine is idle, so that the
// releasing goroutine does not have to.
func (a *acquisition) prepareTicket(inbox string) {
	if inbox != "" && len(a.opts.metadata) <= mostPrepared {
		a.lk.lines.Prepare(&a.waiter, inbox, a.ticket(inbox))
	}
}

// bringing makes it a [successor].
func (a *acquisition) bringing(inbox, ticket string) handOver {
	if ticket == "" {
		ticket = a.ticket(inbox)
	}
	return handOver{to: a.claim, inbox: inbox, ticket: ticket, ttl: a.ttl}
}

func (a *acquisition) undo(ctx context.Context) { a.claim.undo(ctx) }

// --- waiting -----------------------------------------------------------------

// wait stands in line for the lock until it has it, ctx ends, or Redis refuses
// for good. Where nobody else holds the lock or waits, that takes one question.
func (a *acquisition) wait(ctx context.Context) (lock *Lock, err error) {
	w := &a.waiter
	w.Owner, w.Key, w.Token, w.TTL = a, a.keys.lock, a.token.text, a.ttl
	w.Asks = a.lk.opts.replicas > 0
	a.prepareTicket(a.lk.lines.Join(w))
	err = errInterrupted // until there is a result: a hook of the client may panic
	defer func() {
		interrupted := errors.Is(err, errInterrupted)
		if lock = a.leave(lock, err); lock != nil {
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
	return a.run(ctx)
}

// leave takes the waiter out of its line, with the lock, or with nil and why. A
// grant that came before is a lock as well.
func (a *acquisition) leave(lock *Lock, err error) *Lock {
	if late := a.lk.lines.Leave(&a.waiter, lock != nil, err, isOwn(err)); late != nil {
		lock = a.lk.newLock(a, *late)
	}
	if lock != nil {
		lock.recheck()
	}
	return lock
}

// isOwn tells whether a failure says nothing about the others in a line, and
// was no failure of Redis: it is due to the ctx or to the TTL of the caller
// that failed, or a panic.
func isOwn(err error) bool {
	if err == nil {
		return false // most often; errors.As would allocate
	}
	var stray *wire.StrayError
	return wire.IsContextError(err) || errors.Is(err, errLate) || errors.Is(err, errInterrupted) || errors.As(err, &stray)
}

// run asks Redis whenever it is due, and waits for a grant in between.
func (a *acquisition) run(ctx context.Context) (*Lock, error) {
	for {
		out := outcome{}
		switch g, due := a.lk.lines.Next(&a.waiter); {
		case g != nil:
			out = a.accept(*g)
		case due:
			out = a.ask(ctx)
		default:
			select {
			case <-ctx.Done():
			case <-a.waiter.Wake():
				continue
			}
		}
		switch {
		case out.lock != nil:
			return out.lock, nil
		case ctx.Err() != nil:
			return nil, a.gaveUp(ctx)
		case out.err != nil:
			return nil, out.err
		}
	}
}

// accept makes a lock of a grant. If the grant comes too late, asking Redis
// will tell whether the lock is still ours.
func (a *acquisition) accept(g line.Grant) outcome {
	if a.waiter.Counts(g, time.Now()) {
		return outcome{lock: a.lk.newLock(a, g)}
	}
	if g.Err == nil {
		a.lk.lines.AskAgain(&a.waiter)
	}
	return outcome{err: g.Err}
}

// ask puts the question to Redis: with a ticket if there is an inbox. A grant
// that arrives before the reply is taken, and the reply left to the background.
// The outcome has an error only if the waiting is over.
func (a *acquisition) ask(ctx context.Context) outcome {
	q := a.lk.lines.Begin(&a.waiter)
	try := acquireTry{ticketing: a.ticketing(q), alone: q.Alone}
	if q.Expecting {
		return a.askUnlessGranted(ctx, try)
	}
	r, err := a.claim.acquire(ctx, try)
	return a.answered(ctx, r, err)
}

func (a *acquisition) ticketing(q line.Question) (t ticketing) {
	if q.Inbox == "" {
		return t
	}
	t = ticketing{inbox: q.Inbox, ticket: q.Ticket, place: q.Place}
	if t.ticket == "" {
		t.ticket = a.ticket(q.Inbox)
	}
	if q.Stale != "" {
		t.stale = a.ticket(q.Stale)
	}
	return t
}

// askUnlessGranted is a function of its own since its closure costs an
// allocation.
func (a *acquisition) askUnlessGranted(ctx context.Context, try acquireTry) outcome {
	var g *line.Grant
	try.wake = a.waiter.Wake()
	try.enough = func() bool {
		g = a.lk.lines.Take(&a.waiter)
		return g != nil
	}
	r, err := a.claim.acquire(ctx, try)
	if r.overtaken {
		return a.accept(*g)
	}
	return a.answered(ctx, r, err)
}

func (a *acquisition) answered(ctx context.Context, r acquireReply, err error) outcome {
	out := a.outcome(r, err)
	out.err = wire.Ended(ctx, out.err)
	if ctx.Err() != nil {
		return out
	}
	var outage error
	out.err, outage = a.lk.lines.Learned(&a.waiter, line.Answer{
		Sent: r.sent, Granted: out.lock != nil, Queued: r.queued, Remaining: r.left, Server: r.server,
		Err: out.err, Lasting: out.err != nil && !worthRepeating(out.err), Opposed: r.opposed,
	})
	if outage != nil { // one line for each time that Redis fails while we wait
		a.reported = true
		a.lk.reports.warn("redislock: waiting for a lock while Redis does not serve", "key", a.keys.lock, "error", outage)
	}
	return out
}

// gaveUp is the error of one whose ctx ended. Only where the last answer was
// that somebody else holds the lock it is ErrNotAcquired: an outage is not
// contention.
func (a *acquisition) gaveUp(ctx context.Context) error {
	contended, outage := a.lk.lines.LastAnswer(&a.waiter)
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
func (a *acquisition) resume(ctx context.Context, departures int32) (lock *Lock, failure error) {
	defer func() {
		if !a.lk.handles.resumed(a.token.text, departures) && lock != nil {
			lock.endWith(&lock.released)
			lock.leaveKey()
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
	lock := a.lk.newLock(a, line.Grant{Fence: r.fence, Anchor: r.sent})
	if late {
		lock.term.MayBeCutTo(a.ttl)
	}
	a.lk.noteHeld(lock)
	return lock, nil
}
