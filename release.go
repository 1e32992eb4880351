package redislock

import (
	"context"
	"errors"
	"time"
)

const (
	// releaseGrace is how long Release goes on waiting for a reply when ctx has
	// ended: a healthy Redis answers in that time, and the caller gets the truth
	// instead of a context error.
	releaseGrace = 25 * time.Millisecond
	// finishGrace is the same for WithLock, which has nobody to try again.
	finishGrace = 750 * time.Millisecond
)

// Release frees the lock, if the key still holds its token; else it returns
// [ErrNotHeld] and logs a warning, since the work may have run twice. On a lock
// that is lost it still frees a key that is ours, and then returns nil.
//
// The release is made whatever becomes of ctx, also when ctx has ended before:
// Release then returns within 50 ms, with the result if there is one by then, and
// else with an error that Is ctx.Err() while the release goes on in the
// background for 15 seconds at most. A request whose reply is lost is repeated a
// few times.
//
// A Release that failed (not with ErrNotHeld) can be called again. After one that
// succeeded it returns [ErrReleased]. Of several at the same time one succeeds.
func (l *Lock) Release(ctx context.Context) error {
	if l.none() {
		return l.failed(opRelease, errNoLock)
	}
	return l.await(ctx, l.beginRelease(ctx), ctx.Done(), releaseGrace)
}

// finish is WithLock's release. It has until finishGrace after the end of ctx, or
// from now if fn did not return.
func (l *Lock) finish(ctx context.Context, returned bool) error {
	r := l.beginRelease(ctx)
	hurry := ctx.Done()
	if !returned {
		hurry = closed
	}
	if err := l.await(ctx, r, hurry, finishGrace); !errors.Is(err, ErrReleased) {
		return err
	}
	return nil // fn has released it
}

// release is one series of tries to release a lock. It runs by itself, so that
// callers can come and go.
type release struct {
	done    chan struct{}
	err     error // set when done is closed
	claimed bool  // somebody has been told of the success
}

func (r *release) underWay() bool {
	if r == nil {
		return false
	}
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

// final tells whether trying again is pointless: it succeeded, or there was
// nothing to release.
func (r *release) final() bool {
	return !r.underWay() && (r.err == nil || errors.Is(r.err, ErrNotHeld))
}

// beginRelease stops the watchdog and starts releasing, unless that is under way
// or done.
func (l *Lock) beginRelease(ctx context.Context) *release {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.release != nil && (l.release.underWay() || l.release.final()) {
		return l.release
	}
	if l.stopRenewal != nil {
		l.stopRenewal()
	}
	l.release = &release{done: make(chan struct{})}
	go l.run(context.WithoutCancel(ctx), l.release)
	return l.release
}

// await waits for the result, until grace after hurry.
func (l *Lock) await(ctx context.Context, r *release, hurry <-chan struct{}, grace time.Duration) error {
	select {
	case <-r.done:
	case <-hurry:
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-r.done:
		case <-timer.C:
			return l.failed(opRelease, l.unfinished(ctx, grace))
		}
	}
	return l.result(r)
}

func (l *Lock) unfinished(ctx context.Context, grace time.Duration) error {
	if ctx.Err() != nil {
		return contextError(ctx)
	}
	return &noReplyError{waited: grace}
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

// run tries to release the lock.
func (l *Lock) run(ctx context.Context, r *release) {
	defer close(r.done)
	for range attempts(ctx) {
		valid := !l.expired()
		_, reply, err := l.lk.ask(ctx, l.lk.releaseRequest(l.keys, l.token, replyLimit(l.currentTTL())))
		if err == nil {
			r.err = l.released(reply)
			return
		}
		r.err = err
		l.sentInTime = l.sentInTime || valid && maybeExecuted(err)
		if !isTransient(err) {
			return
		}
	}
}

// released ends the lock after an answer of Redis.
func (l *Lock) released(reply []any) error {
	found, err := parseRelease(reply)
	switch {
	case err != nil:
		return err
	case found || l.sentInTime:
		// If nothing was found, an earlier try did the work. It was sent while the
		// lease was valid, so nobody else can have held the lock before. A record of
		// released tokens in Redis would tell for sure, but every release would pay
		// for it.
		l.end(l.failed(opHold, ErrReleased))
		l.expiry.Stop()
		return nil
	}
	l.lose("there was nothing to release")
	l.lk.warn("redislock: nothing to release; the work may have run twice", l, ErrNotHeld)
	return ErrNotHeld
}

func (lk *Locker) releaseRequest(keys lockKeys, token string, limit time.Duration) request {
	return request{script: releaseScript, keys: []string{keys.lock}, args: []any{token}, limit: limit}
}
