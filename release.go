package redislock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/e2e3f2a3/redislock/internal/line"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

const (
	// releaseGrace is how long Release goes on waiting for a reply when ctx has
	// ended: a healthy Redis answers in that time, and the caller gets the
	// truth instead of a context error.
	releaseGrace = 25 * time.Millisecond
	// finishGrace is the same for WithLock, which has nobody to try again. It
	// is also the least that WithLock waits: a lock that is lost a moment later
	// is waited for no less than one that is lost already.
	finishGrace = 750 * time.Millisecond
	// finishLimit is the longest that WithLock waits, however long the lease
	// lasts.
	finishLimit = 5 * time.Second
)

// Release frees the lock, if the key still holds its token. Otherwise it
// returns [ErrNotHeld] and logs a warning, since the work may have run twice.
// On a lost lock it still frees a key that holds its token, and then returns
// nil. The same request gives the lock to the waiter that has waited longest,
// but not before a minimal hold is over ([WithMinHold]).
//
// Renewal stops as soon as Release begins, and Extend returns [ErrReleased]
// from then on, even if Release fails. As soon as a request to release is sent,
// the handle has ended: Done is closed and Err Is ErrReleased, whatever Release
// returns, since another process may have the lock from then on. (If Redis
// answers before the first call of Err or Done, the answer counts: Err Is
// [ErrLost] where nothing was found, and nil where Redis has refused the
// request.) A release that was certainly not sent, because no connection could
// be made, leaves the handle with the rest of its lease.
//
// A request whose reply is lost is made three times, each limited by the
// client's time-outs. If ctx can never end, there is no further try once the
// lease is over. If the reply was lost and a later try finds nothing, the first
// one counts as executed. A key that was deleted by hand at the same time looks
// the same.
//
// The release is made even if ctx ends or has ended before. Release then
// returns within 50 ms, with the result if there is one by then, and otherwise
// with an error that Is ctx.Err() while the release continues in the
// background. In both cases the handle has ended.
//
// A Release that failed can be called again, except after ErrNotHeld, which is
// final. After a Release that succeeded it returns [ErrReleased], and after
// [Lock.Detach] [ErrDetached]. Of several concurrent calls one succeeds.
func (l *Lock) Release(ctx context.Context) error {
	if l.none() {
		return l.failed(opRelease, errNoLock)
	}
	r, done := l.startRelease(ctx, ctx.Done())
	err := l.await(ctx, r, patience{done: done, hurry: ctx.Done(), grace: releaseGrace})
	l.logged(ctx, err)
	return err
}

// logged waits for the line in the log of an error that has one.
func (l *Lock) logged(ctx context.Context, err error) {
	if err == nil {
		return // most often; errors.As would allocate
	}
	var stray *wire.StrayError
	if errors.Is(err, ErrNotHeld) || errors.Is(err, ErrLost) || errors.As(err, &stray) {
		l.lk.reports.wait(ctx)
	}
}

// finish is WithLock's release. It runs in a goroutine of its own where it
// takes longer than a direct request, since WithLock does not wait for longer
// than finishLimit whatever ctx is.
func (l *Lock) finish(ctx context.Context, returned bool) error {
	began, hurry, limit := time.Now(), ctx.Done(), l.finishLimit()
	if !returned {
		hurry = closed
	}
	r, begun := l.beginRelease()
	if begun && !l.runDirectly(ctx, r) {
		go l.runInBackground(context.WithoutCancel(ctx), r)
	}
	err := l.await(ctx, r, patience{done: l.doneWith(r), hurry: hurry, grace: finishGrace, limit: limit - time.Since(began)})
	switch {
	case errors.Is(err, ErrReleased), errors.Is(err, ErrDetached):
		return nil // fn has released it, or given it away
	case err != nil && !errors.Is(err, ErrNotHeld):
		// What goes on in the background releases the lock. No handle of the
		// token may be trusted any more, and none made anew, even where no
		// request was sent yet.
		l.doubt() // while the others are known
		others := l.endOthers()
		l.abandon()
		go l.releaseLater(ctx, others)
	}
	return err
}

// finishLimit is how long WithLock waits for its release: what is left of the
// lease. After that the key is free in any case.
func (l *Lock) finishLimit() time.Duration {
	if errors.Is(l.Err(), ErrLost) {
		return finishGrace
	}
	return min(max(l.term.Remaining(), finishGrace), finishLimit)
}

// releaseLater goes on where a release fails and nobody can try it again.
// others are handles of the same token that have ended with this one.
func (l *Lock) releaseLater(ctx context.Context, others []*Lock) {
	l.mu.Lock()
	r := l.release
	l.mu.Unlock()
	<-l.doneWith(r)
	if !r.final() {
		l.claim.undo(ctx)
	}
	for _, other := range others {
		other.claim.undoLate(ctx)
	}
}

// release is one series of tries to release a lock. It runs by itself, so that
// callers can come and go. Its fields are guarded by the lock's mu; when it is
// over, err does not change any more.
type release struct {
	over    bool
	err     error
	claimed bool          // somebody has been told of the success
	done    chan struct{} // closed when it is over; nil if nobody waits for that
}

func (r *release) underWay() bool { return r != nil && !r.over }

// final tells whether trying again is pointless: it succeeded, or there was
// nothing to release, or the lock was detached.
func (r *release) final() bool {
	return r.over && (r.err == nil || errors.Is(r.err, ErrNotHeld) || errors.Is(r.err, ErrDetached))
}

// freed tells whether Redis has answered: it does not have the token any more.
func (r *release) freed() bool {
	return r.over && (r.err == nil || errors.Is(r.err, ErrNotHeld))
}

// doneWith is closed when a release is over.
func (l *Lock) doneWith(r *release) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.over {
		return closed
	}
	if r.done == nil {
		r.done = make(chan struct{})
	}
	return r.done
}

// startRelease has the lock released, unless that is under way or done. If ctx
// cannot end, the release runs in the caller's goroutine.
func (l *Lock) startRelease(ctx context.Context, hurry <-chan struct{}) (r *release, done <-chan struct{}) {
	r, begun := l.beginRelease()
	switch {
	case !begun:
	case hurry == nil:
		l.run(ctx, r)
	case ctx.Err() == nil && l.runDirectly(ctx, r):
	default:
		go l.runInBackground(context.WithoutCancel(ctx), r)
	}
	return r, l.doneWith(r)
}

// beginRelease stops the watchdog and begins a release, unless one is under way
// or was final.
func (l *Lock) beginRelease() (r *release, begun bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.release != nil && (l.release.underWay() || l.release.final()) {
		return l.release, false
	}
	l.watchdog.stop()
	if l.release == nil {
		l.release = &l.first
	} else {
		l.release = &release{}
	}
	return l.release, true
}

// departing is a Lock that is told when a request to release it is sent. It is
// a type of its own since a Lock's methods are for its users.
type departing Lock

// Departs makes it a [wire.Departure].
func (l *departing) Departs() { (*Lock)(l).departs() }

// departs notes that a request to release is about to be sent, after which
// somebody else may have the lock.
func (l *Lock) departs() {
	l.term.MayEnd(&l.released)
	for _, other := range l.endOthers() {
		l.whenReleased(func() { other.claim.undoLate(context.Background()) })
	}
}

// endOthers ends the other handles with the token of l, and returns those that
// were alive. Their owner has done it on purpose: there is nothing for a
// warning.
func (l *Lock) endOthers() (ended []*Lock) {
	for _, other := range l.lk.handles.depart(l.token.text, l) {
		if other.endWith(other.failed(opHold, errReleasedByOther)) {
			other.leaveKey()
			other.claim.abandon()
			ended = append(ended, other)
		}
	}
	return ended
}

var errReleasedByOther = fmt.Errorf("%w: it was released by another handle with its token", ErrLost)

// await waits for the result of a release. If it takes too long, the handle
// ends: what goes on in the background may be executed at any time.
func (l *Lock) await(ctx context.Context, r *release, w patience) error {
	began := time.Now()
	if !w.over() {
		l.abandon()
		return l.failed(opRelease, unfinished(ctx, time.Since(began)))
	}
	return l.result(r)
}

// abandon ends a handle whose release goes on while nobody waits for it.
func (l *Lock) abandon() {
	l.doubt()
	l.endWith(&l.released)
}

func unfinished(ctx context.Context, waited time.Duration) error {
	if ctx.Err() != nil {
		return wire.ContextError(ctx)
	}
	return wire.NoReply(waited.Round(time.Millisecond))
}

func (l *Lock) result(r *release) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := r.err
	if err == nil && r.claimed {
		err = ErrReleased
	}
	if err == nil {
		r.claimed = true
		return nil
	}
	return l.failed(opRelease, err)
}

// run makes a release, and notes what it came to. Its caller waits, so there is
// no further try once the lease is over.
func (l *Lock) run(ctx context.Context, r *release) {
	err := errInterrupted // until there is a result: a hook of the client may panic
	defer func() { l.conclude(r, err) }()
	err = l.tryToRelease(ctx, true)
}

// runDirectly makes the first try in the caller's goroutine, where that is
// possible. It reports whether that has concluded the release.
func (l *Lock) runDirectly(ctx context.Context, r *release) (over bool) {
	direct := l.lk.backend.direct()
	if direct == nil {
		return false
	}
	err := errInterrupted // until there is a result: a hook of the client may end the goroutine
	defer func() {
		if over = over || errors.Is(err, errInterrupted); over {
			l.conclude(r, err)
		}
	}()
	found, err := l.sendRelease(context.WithoutCancel(ctx), false, direct)
	switch {
	case err == nil:
		err = l.answered(found)
		return true
	case !wire.IsTransient(err):
		return true
	}
	return false
}

// runInBackground is run for a goroutine of the package, in which a panic would
// end the program.
func (l *Lock) runInBackground(ctx context.Context, r *release) {
	err := errInterrupted
	defer func() { l.conclude(r, err) }()
	wire.Catch(func() { err = l.tryToRelease(ctx, false) }, func(stray *wire.StrayError) {
		stray.Log(l.lk.reports)
		err = stray
	})
}

// conclude ends a release, and does what is to be done then.
func (l *Lock) conclude(r *release, err error) {
	if _, final := l.term.Peek(); final { // even if Redis has refused the release
		l.term.Retire()
		l.lk.handles.leave(l.token.text, l)
	}
	for _, f := range l.finishRelease(r, err) {
		f()
	}
}

// finishRelease ends a release, and returns what is to be done now.
func (l *Lock) finishRelease(r *release, err error) (afterwards []func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.over, r.err = true, err
	if r.done != nil {
		close(r.done)
	}
	if r.freed() {
		afterwards, l.afterwards = l.afterwards, nil
	}
	return afterwards
}

// whenReleased has f called once the lock is released: at once if it is.
func (l *Lock) whenReleased(f func()) {
	l.mu.Lock()
	released := l.release != nil && l.release.freed()
	if !released {
		l.afterwards = append(l.afterwards, f)
	}
	l.mu.Unlock()
	if released {
		f()
	}
}

func (l *Lock) tryToRelease(ctx context.Context, brief bool) error {
	return wire.Repeat(ctx, func(alone bool) (enough bool, err error) {
		found, err := l.sendRelease(ctx, alone, nil)
		if err == nil {
			return true, l.answered(found)
		}
		return brief && l.term.Expired(), err
	})
}

// mayRelease tells whether nobody else can have the lock before it is released:
// its lease is valid, and nothing has ended it but an earlier try, or a caller
// that did not wait.
func (l *Lock) mayRelease() bool {
	cause, _ := l.term.Peek()
	return (cause == nil || errors.Is(cause, &l.released)) && !l.term.Expired()
}

// sendRelease makes a request, and notes if it may have been executed without a
// reply, also where a panic has come between.
func (l *Lock) sendRelease(ctx context.Context, alone bool, direct *wire.Direct) (found bool, err error) {
	valid := l.mayRelease()
	l.lk.handles.release(l.token.text)
	defer l.lk.handles.released(l.token.text)
	err = errInterrupted
	defer func() {
		switch {
		case err == nil:
		case wire.MaybeExecuted(err):
			l.sentInTime = l.sentInTime || valid
			l.doubt()
			l.endWith(&l.released)
		default:
			l.term.DidNotEnd()
		}
	}()
	return l.requestRelease(ctx, alone, direct)
}

// answered ends the lock after an answer of Redis.
func (l *Lock) answered(found bool) error {
	l.lk.doubts.forget(l.token.text)
	if found || l.sentInTime {
		// If nothing was found, an earlier try did the work. It was sent while
		// the lease was valid, so nobody else can have held the lock before. A
		// record of released tokens in Redis would tell for sure, but every
		// release would pay for it.
		l.endWith(&l.released)
		return nil
	}
	l.lose("there was nothing to release")
	l.lk.warn("redislock: nothing to release; the work may have run twice", l, ErrNotHeld)
	return ErrNotHeld
}

// doubt notes that a release may be executed late, and nobody of this Locker
// may trust in the token until then: see Resume. The lease may be longer than
// this handle's: set by an Extend whose reply was lost, or by another handle of
// the token.
func (l *Lock) doubt() {
	l.lk.doubts.note(l.token.text, max(l.term.TTL(), l.lk.handles.longest(l.token.text)))
}

// requestRelease makes one request to release the lock, and brings along the
// next one that waits in this process. It reports whether there was something
// to release.
func (l *Lock) requestRelease(ctx context.Context, alone bool, direct *wire.Direct) (found bool, err error) {
	next, inbox, ticket := l.lk.lines.Bring(l.keys.lock, l.token.text)
	try := releaseTry{ttl: l.term.TTL(), kept: l.minHold(), alone: alone, departs: (*departing)(l), direct: direct}
	if next != nil {
		try.next = next.Owner.(successor).bringing(inbox, ticket)
	}
	var r releaseReply
	err = errInterrupted // until there is a result: a hook of the client may panic
	defer func() {
		if next != nil {
			l.lk.deliver(ctx, next, r, err)
		}
	}()
	r, err = l.claim.release(ctx, try)
	return r.found, err
}

// deliver tells the next one what became of it. If it is not there any more,
// what has been done for it has to be undone, or the one behind it has to ask.
func (lk *Locker) deliver(ctx context.Context, next *line.Waiter, r releaseReply, err error) {
	gone, served := lk.lines.Brought(next, line.News{
		Next: r.next, Sent: r.sent, Fence: r.fence, Server: r.server, Remaining: r.left, Failed: err != nil,
	})
	switch {
	case !gone:
	case r.next == line.NextNobody && !wire.MaybeExecuted(err):
		lk.lines.AskHead(next.Key)
	case !served:
		next.Owner.(successor).undo(ctx)
	}
}

// minHold is that of l, from the grant. A fence is never below the time at
// which it was minted, and above only if the clock was set back. What else is
// known of the time of the grant may be too late, if the lock was found to be
// granted by asking, or 0, if it was adopted.
func (l *Lock) minHold() minHold {
	granted := l.fence
	if l.granted > 0 {
		granted = min(granted, l.granted)
	}
	return minHold{granted: granted, least: l.least}
}
