package redislock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/e2e3f2a3/redislock/internal/lease"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

// wait stands in line for the lock until it has it, ctx ends, or Redis refuses for
// good. Where nobody else holds the lock or waits, that takes one question.
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

// accept makes a lock of a grant. If the grant comes too late, asking Redis will
// tell whether the lock is still ours.
func (w *waiter) accept(g grant) outcome {
	lock := w.lockOf(g)
	if lock == nil && g.err == nil {
		w.a.lk.lines.askAgain(w)
	}
	return outcome{lock: lock, err: g.err}
}

// lockOf is the lock of a grant, or nil if it has to be confirmed by asking: its lease
// is over, or replicas have to acknowledge it.
func (w *waiter) lockOf(g grant) *Lock {
	if w.a.lk.opts.replicas > 0 {
		return nil
	}
	if g.err != nil || lease.From(g.anchor, w.a.ttl).Remaining(time.Now()) <= 0 {
		return nil
	}
	return w.a.lk.newLock(w.a, g)
}

// ask puts the question to Redis: with a ticket if there is an inbox. A grant that
// arrives before the reply is taken, and the reply left to the background. The
// outcome has an error only if the waiting is over.
func (w *waiter) ask(ctx context.Context) outcome {
	t, expecting := w.a.lk.lines.begin(w)
	try := acquireTry{ticketing: t, alone: w.apart} // only w's own goroutine writes that
	if expecting {
		return w.askUnlessGranted(ctx, try)
	}
	r, err := w.a.claim.acquire(ctx, try)
	return w.answered(ctx, r, err)
}

// askUnlessGranted is a function of its own since its closure costs an allocation.
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

// gaveUp is the error of one whose ctx ended. Only where the last answer was that
// somebody else holds the lock it is ErrNotAcquired: an outage is not contention.
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
