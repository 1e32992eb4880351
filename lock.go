package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/e2e3f2a3/redislock/internal/lease"
	"github.com/e2e3f2a3/redislock/internal/line"
)

// Locker acquires locks on one Redis, or on several ([NewQuorum]). It is safe
// for concurrent use and needs no closing. A process should share one Locker
// for each Redis. Lockers exclude each other only if they use the same server
// (or Cluster), the same database number and the same prefix.
//
// Only New and NewQuorum make a usable Locker: methods of a nil or zero Locker
// panic, and so do methods that are given a nil ctx.
//
// A Locker has goroutines and connections of its own only for a time: one for
// each renewal and each round trip under way, which may block in the socket
// until the client's time-outs after the callers have left (few requests need
// one on a near server, if the client has ContextTimeoutEnabled, and no hooks,
// OnConnect or provider of credentials); one for each release that continues in
// the background; up to four for each server on which abandoned acquisitions are
// undone; one while there are lines for the logger; and, while a goroutine waits
// and up to 4 seconds longer, one with the connection on which Redis announces
// the next owner (on a Cluster, for each node). While locks are held, and up to
// a second longer, a timer compares the process's clocks once a second.
type Locker struct {
	naming
	backend backend
	opts    *options

	clocks  lease.Clocks
	lines   line.Lines
	handles handles[*Lock]
	doubts  doubts
	reports *reports
}

// New returns a Locker on client. It sends nothing. It panics if client is nil,
// and if it is a [redis.Ring]: a ring moves keys to other shards when one does
// not answer, and then grants a lock that is still held.
//
// A client may be wrapped. Its methods decide whether it is one server, a
// cluster or a ring: a struct that embeds a [redis.ClusterClient] behaves as
// that client, even if the struct embeds an interface such as
// [redis.UniversalClient] which holds it. Requests use the wrapper's own
// methods Process and Pipeline; a cluster's subscriptions are made on its
// nodes. A wrapper that keeps a cluster's client in a named field must have the
// methods ForEachMaster, MasterForKey and ReloadState itself. Otherwise New
// panics if it finds that client. A client that is hidden behind functions
// counts as one server.
func New(client Client, opts ...Option) *Locker {
	if isNil(client) {
		panic("redislock: New(nil): a client is needed")
	}
	d, err := deploymentOf(client)
	if err != nil {
		panic(fmt.Sprintf("redislock: New(%T): the client is %s", client, err))
	}
	o := newOptions(opts)
	s := newSingle(d.engine(client, o), o)
	lk := newLocker(s, d.cluster != nil, o)
	s.undoings.freed, s.undoings.ended = lk.lines.AskHead, lk.doubts.forget
	return lk
}

func newLocker(b backend, clustered bool, opts *options) *Locker {
	lk := &Locker{naming: naming{opts.prefix, clustered}, backend: b, opts: opts, reports: opts.reports}
	lk.lines.Poll, lk.lines.Clustered = opts.pollInterval, clustered
	lk.lines.Inboxes.Config = line.Config{
		Prefix: opts.prefix, Home: b.home, Received: lk.pushed, Changed: lk.lines.Changed,
		Warn: opts.reports.warn, Log: opts.reports,
	}
	return lk
}

// pushed is told what was published to an inbox.
func (lk *Locker) pushed(payload string) {
	token, g, ok := line.ParseGrant(payload)
	if ok && !lk.lines.Pushed(token, g) && g.Fence > 0 {
		lk.backend.pushed(token) // or noise, or given back by now
	}
}

// noteHeld tells those that wait here of a lock that nobody here had to wait
// for.
func (lk *Locker) noteHeld(l *Lock) {
	lk.lines.Held(l.keys.lock, l.token.text)
	l.recheck()
}

// Acquire acquires the lock called name with a lease of ttl, and waits while
// another holder has it, until ctx ends. Waiters are served in order of
// arrival: goroutines of one Locker in the order of their calls, and Lockers
// (processes) in turns. The release hands the lock over, without polling. The
// first in line also asks Redis, to find what a release does not tell (a lock
// that was deleted by hand, a lost message): when the holder's lease ends,
// after pauses as long as it has waited so far, and at least once per poll
// interval ([WithPollInterval]). Where Redis does not allow subscriptions,
// waiting is by polling, after 10 to 500 ms.
//
// ctx limits the waiting, not the holding: the lock stays when ctx ends later.
// Acquire returns within 50 ms of the end of ctx, with an error that Is
// ctx.Err() and, if the last answer was that another holder has the lock, Is
// also [ErrNotAcquired]. A first request that fails in transport is made three
// times, each waiting for at most the TTL (but 1 s at least and 5 s at most) or
// for the client's time-outs. Then its error is returned. Errors of the server
// (wrong type, no permission, out of memory, read-only) are returned at once.
// An Acquire that already waits for a holder also waits until an outage is
// over, or ctx ends. A refused authentication (a password that is being
// rotated) counts as an outage then; as the first answer it is returned at
// once. A ttl below [MinTTL] gives [ErrInvalidTTL] and an empty name
// [ErrInvalidName], without any traffic. A ttl above 100 years (of 365 days)
// counts as 100 years, here and in all other methods.
//
// An acquisition that returns an error leaves no lock behind: what a lost or
// late request may have acquired is released in the background. That takes one
// or two round trips. After an outage it takes about a second, if the outage
// was not longer than 15 seconds.
func (lk *Locker) Acquire(ctx context.Context, name string, ttl time.Duration, opts ...AcquireOption) (*Lock, error) {
	return lk.acquire(ctx, name, ttl, acquireOptions{}.with(opts))
}

func (lk *Locker) acquire(ctx context.Context, name string, ttl time.Duration, opts acquireOptions) (*Lock, error) {
	a, err := lk.newAcquisition(ctx, opAcquire, name, ttl, opts)
	if err != nil {
		return nil, err
	}
	lock, err := a.wait(ctx)
	return a.finish(ctx, lock, err)
}

// TryAcquire acquires the lock called name with a lease of ttl, or returns
// [ErrNotAcquired] if another holder has it or another process has waited for
// it longer. It never waits for a holder, and does not try again when the lock
// is taken: it blocks for one round trip, or three if they fail in transport
// (see Acquire), and returns within 50 ms of the end of ctx. As with Acquire,
// an error means that no lock is left behind.
func (lk *Locker) TryAcquire(ctx context.Context, name string, ttl time.Duration, opts ...AcquireOption) (*Lock, error) {
	a, err := lk.newAcquisition(ctx, opAcquire, name, ttl, acquireOptions{}.with(opts))
	if err != nil {
		return nil, err
	}
	out := a.first(ctx)
	switch {
	case out.lock != nil:
		lk.noteHeld(out.lock)
	case out.err == nil:
		out.err = ErrNotAcquired
	}
	return a.finish(ctx, out.lock, out.err)
}

// Resume adopts a lock that was acquired elsewhere, by its token: for work that
// is handed to another process. It sets the lease to ttl from now, and never
// creates a lock: if the key does not (or no longer) hold the token, it returns
// [ErrNotHeld]. A process that hands a lock over calls [Lock.Detach] first.
// Otherwise its own handle does not learn that the lease was changed, perhaps
// to less, and a watchdog continues to renew it.
//
// If another handle of the token sends a request to release the lock, the
// adopted handle ends at once if both belong to the same Locker (its Err then
// Is [ErrLost], without a warning, even if Redis refuses that request), and
// otherwise at its next request.
//
// If a release of the token by this Locker is under way, or was sent and may
// still be executed, Resume returns [ErrReleased] and sends nothing: the lock
// could end at any moment. It also returns ErrReleased if such a release is
// sent during the call.
//
// It blocks as TryAcquire does, and has its errors for invalid arguments. On
// error the lock is left to its lease, which may have been set to ttl.
func (lk *Locker) Resume(ctx context.Context, name, token string, ttl time.Duration, opts ...AcquireOption) (*Lock, error) {
	a, err := lk.newAcquisition(ctx, opResume, name, ttl, acquireOptions{}.with(opts))
	if err != nil {
		return nil, err
	}
	if !isToken(token) {
		return nil, a.failed(fmt.Errorf("%w: malformed token", ErrNotHeld)) // perhaps one with its metadata
	}
	if lk.doubts.has(token) {
		return nil, a.failed(errResumedTooLate)
	}
	departures, possible := lk.handles.resume(token, a.ttl)
	if !possible {
		return nil, a.failed(errResumedTooLate)
	}
	a.token = newLockToken(token)
	a.claim = lk.backend.claim(a.subject)
	a.claim.adopt()
	return a.resume(ctx, departures)
}

// Inspect reports the holder of the lock called name. The result may be
// outdated when it returns: use it for display and debugging only. It
// blocks as TryAcquire does, and has its errors for a bad name, for transport
// and of the server.
func (lk *Locker) Inspect(ctx context.Context, name string) (Info, error) {
	keys, err := lk.keysFor(name)
	if err == nil {
		var r inspectReply
		if r, err = lk.backend.inspect(ctx, keys.all()); err == nil {
			return r.info(), nil
		}
	}
	return Info{}, &Error{Op: opInspect, Key: keys.lock, Err: err}
}

// WithLock runs fn while it holds the lock called name. It waits for the lock
// as Acquire does, renews the lease every ttl/3 unless [WithoutWatchdog] is
// given, and always releases it: when fn returns, fails, panics (the panic
// continues) or calls runtime.Goexit, and when ctx has ended.
//
// Locks are not reentrant. If fn, or a function that it calls, acquires the
// same name again, that call waits for its own caller. While the lock is
// renewed, that ends only with the ctx of the call or with [WithMaxHold]. Pass
// the Lock down instead.
//
// fn's context is a child of ctx. It ends with cause [ErrLost] when the lock is
// lost: fn should stop then, since another process may hold the lock. After
// the process was paused, its Err may be nil for a moment although the lease is
// over. Call [Lock.Err] immediately before an irreversible step.
//
// If the lock cannot be acquired, fn is not called, and the error is Acquire's.
// Otherwise WithLock returns fn's error, joined with the errors of the lock:
// one that Is ErrLost if the lock was lost while fn ran, one that Is
// [ErrNotHeld] if there was nothing left to release. Both mean that the work
// may have run twice, even if fn returned nil. Check for them before context
// errors: an fn that returns ctx.Err() after a loss makes the joined error
// match context.Canceled too. It is not an error if fn released or detached the
// lock itself.
//
// WithLock waits for its release for the rest of the lease (but 750 ms at
// least) and never more than 5 s, whatever Redis and ctx do. It waits for 750
// ms once the lock is lost, ctx has ended or fn panicked. A release that has
// failed or has no answer by then is WithLock's error, and continues in the
// background: for the duration of three tries, and 15 seconds more. WithLock
// panics if fn is nil.
func (lk *Locker) WithLock(ctx context.Context, name string, ttl time.Duration, fn func(ctx context.Context, lock *Lock) error, opts ...AcquireOption) (err error) {
	if fn == nil {
		panic("redislock: WithLock(nil): a function is needed")
	}
	lock, err := lk.acquire(ctx, name, ttl, acquireOptions{watchdog: true}.with(opts))
	if err != nil {
		return err
	}
	held, cancel := lock.Context(ctx)
	returned := false
	defer func() {
		cancel()
		lost := lock.Err()
		if errors.Is(lost, ErrReleased) || errors.Is(lost, ErrDetached) || errors.Is(err, ErrLost) {
			lost = nil // fn released it, gave it away, or has said so itself
		}
		err = join(err, lost, lock.finish(ctx, returned))
		lock.logged(ctx, err)
	}()
	err = fn(held, lock)
	returned = true
	return err
}

// join is errors.Join, but leaves a single error as it is, so that fn's error
// comes out unchanged.
func join(errs ...error) (joined error) {
	for _, err := range errs {
		if joined == nil {
			joined = err
		} else if err != nil {
			joined = errors.Join(joined, err)
		}
	}
	return joined
}

// Lock is one acquisition of a lock. Its methods are safe for concurrent use.
// Methods of a nil or zero Lock return errors and do not panic; only the
// Locker's methods make one that holds anything.
type Lock struct {
	lk       *Locker
	name     string
	*subject // the claim's
	fence    int64
	claim    claim

	granted int64         // time of the server, us; 0: it is not known
	least   time.Duration // the minimal hold; 0: there is none

	term     lease.Term
	released Error // what it ends with when it is released

	watchdog *watchdog // nil: there is none

	mu         sync.Mutex
	extending  chan struct{} // see extendTurn
	release    *release      // the release under way, or the last one
	first      release       // a place for the first one
	sentInTime bool          // a release was sent while the lease was valid, and its reply is unknown
	afterwards []func()      // what is to be done once it is released
}

// newLock makes the handle of a lock that Redis has granted, and starts what
// looks after it: its term and, if there is to be one, the watchdog.
func (lk *Locker) newLock(a *acquisition, g line.Grant) *Lock {
	l := &Lock{
		lk: lk, name: a.name, subject: a.claim.about(), fence: g.Fence, claim: a.claim,
		granted: g.Server, least: a.opts.minHold,
	}
	l.released = Error{Op: opHold, Key: l.keys.lock, Err: ErrReleased}
	lk.handles.enter(l.token.text, l, a.ttl)
	if !a.opts.watchdog {
		l.term.Start(&lk.clocks, g.Anchor, a.ttl, l.checkLease)
		return l
	}
	l.watchdog = newWatchdog(l, a.opts) // before the term starts, which may be over at once
	l.term.Start(&lk.clocks, g.Anchor, a.ttl, l.checkLease)
	l.watchdog.start()
	return l
}

// errNoLock is what a nil or zero Lock answers.
var errNoLock = fmt.Errorf("%w: the Lock is nil or was not acquired", ErrNotHeld)

func (l *Lock) none() bool { return l == nil || l.lk == nil }

// Name is the name the lock was acquired by.
func (l *Lock) Name() string {
	if l.none() {
		return ""
	}
	return l.name
}

// Key is the Redis key of the lock: prefix + name.
func (l *Lock) Key() string {
	if l.none() {
		return ""
	}
	return l.keys.lock
}

// Token is the random UUIDv4 of this acquisition. Any program that has it can
// release the lock or adopt it with [Locker.Resume]: treat it as a secret.
func (l *Lock) Token() string {
	if l.none() {
		return ""
	}
	return l.token.text
}

// Fence is the fencing token of this acquisition: greater than that of every
// earlier acquisition of the same name. A resource that stores the greatest
// fence it has seen, and refuses smaller ones, is safe from a holder that was
// paused past its lease.
func (l *Lock) Fence() int64 {
	if l.none() {
		return 0
	}
	return l.fence
}

// Until is when the lease ends on this process's clock, unless it is extended
// before. It is earlier than the end of the lease in Redis by 1 % of the TTL
// and 2 ms, counted from before the request was sent; for a lock that was
// handed over, from the time of the hand-over, as far as it can be known. An
// Extend to a shorter TTL brings it forward as soon as it begins. For a lock
// that has ended it is the last value.
func (l *Lock) Until() time.Time {
	if l.none() {
		return time.Time{}
	}
	return l.term.Until()
}

// closed is the Done channel of a Lock that never held anything.
var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Done is closed when the lock is released, detached or lost, or its lease has
// ended on this process's clock. It is closed as soon as a request to release
// is sent, since another process may have the lock from then on, whatever
// Release returns. It is final: a lock never comes back.
func (l *Lock) Done() <-chan struct{} {
	if l.none() {
		return closed
	}
	return l.term.Context().Done()
}

// Err is nil while the lock is held. After that it is an error that Is
// [ErrReleased], Is [ErrDetached] or Is [ErrLost], and stays the same. Once a
// request to release is sent it Is ErrReleased; if Redis answers that there was
// nothing to release before the first call of Err, it Is ErrLost. It sends
// nothing. For a nil or zero Lock it Is [ErrNotHeld].
//
// Err reads the wall clock and the monotonic clock. So it reports the end of a
// lease at once after the process or its machine was paused, when Done and
// contexts may be late by up to a second. Call it immediately before an
// irreversible step. A pause after the call is still possible; a resource that
// checks the fence protects against that.
func (l *Lock) Err() error {
	if l.none() {
		return &Error{Op: opHold, Err: errNoLock}
	}
	if cause, _ := l.term.Peek(); cause == nil && l.term.Expired() { // the timer may be late, or stood still with the machine
		l.lose(l.whyExpired())
	}
	return l.term.Err()
}

// Context returns a child of parent that ends when the lock does, with Err() as
// its cause. It ends before the lease can have ended in Redis, if the clocks of
// both run at the same speed within 1 %. (After a process or its machine was
// paused it may end up to a second later; Err reports the end at once.) Call
// cancel when the context is no longer needed.
func (l *Lock) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	if err := l.Err(); err != nil {
		cancel(err)
		return ctx, func() { cancel(nil) }
	}
	stop := context.AfterFunc(l.term.Context(), func() { cancel(l.term.Err()) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// TTL asks Redis for the remaining lease. It returns [ErrNotHeld] if the key
// does not hold this lock's token, [ErrReleased] after Release and
// [ErrDetached] after Detach. A lock that is lost in this process, because its
// validity is over, may still have a lease in Redis. The result is -1 ns if the
// expiry of the key was removed. TTL blocks for one round trip, or three if
// they fail in transport, and returns within 50 ms of the end of ctx.
func (l *Lock) TTL(ctx context.Context) (time.Duration, error) {
	if l.none() {
		return 0, l.failed(opTTL, errNoLock)
	}
	for _, ended := range []error{ErrReleased, ErrDetached} {
		if errors.Is(l.Err(), ended) {
			return 0, l.failed(opTTL, ended)
		}
	}
	r, err := l.lk.backend.inspect(ctx, l.keys.all()[:1])
	if err == nil && !r.heldBy(l.token.text) {
		err = ErrNotHeld
	}
	if err != nil {
		return 0, l.failed(opTTL, err)
	}
	return r.ttl(), nil
}

// checkLease ends the lock if its lease is over.
func (l *Lock) checkLease() {
	if l.term.Check() {
		l.lose(l.whyExpired())
	}
}

func (l *Lock) whyExpired() string {
	if _, _, failure := l.term.Confirmed(); failure != nil {
		return "its lease ended, and renewing it failed: " + failure.Error()
	}
	return "its lease ended"
}

// endWith ends the lock with a cause, and reports false if it has ended before.
func (l *Lock) endWith(cause error) (first bool) {
	first = l.term.End(cause)
	l.lk.handles.leave(l.token.text, l)
	l.watchdog.stop()
	return first
}

// leaveKey tells those that wait here that the lock does not stand in its key
// any more, and has brought nobody along.
func (l *Lock) leaveKey() { l.lk.lines.Lost(l.keys.lock, l.token.text) }

// recheck follows each time that a line was told of a lock: it may have ended,
// or a release may have been sent, before the line knew of it.
func (l *Lock) recheck() {
	if cause, _ := l.term.Peek(); cause != nil {
		l.leaveKey()
	}
}

// lose ends the lock, unless it has ended already.
func (l *Lock) lose(why string) {
	lost := l.failed(opHold, fmt.Errorf("%w: %s", ErrLost, why))
	if !l.endWith(lost) {
		return
	}
	l.leaveKey()
	l.mu.Lock()
	silent := l.release.underWay() // which will have something to say itself
	l.mu.Unlock()
	if silent {
		return
	}
	l.lk.warn("redislock: lock lost", l, lost)
}

// warn logs what a person should look into.
func (lk *Locker) warn(message string, l *Lock, err error) {
	lk.reports.warn(message, "key", l.keys.lock, "token", shortToken(l.token.text), "fence", l.fence, "error", err)
}

func shortToken(token string) string {
	return token[:min(len(token), 8)]
}

func (l *Lock) failed(op string, err error) error {
	return &Error{Op: op, Key: l.Key(), Err: err}
}
