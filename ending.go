package redislock

import (
	"context"
	"sync"
)

// ending is the end of a lock: it comes once, with a cause.
//
// A request to release ends the lock at a moment that nobody here knows: from when it is
// written to a connection, somebody else may have the lock. So from then on the lock has
// ended for everybody who asks. Most releases are answered before anybody asks, and then
// the answer decides: the lock was released, or had been lost before, or is still held
// since Redis has refused.
type ending struct {
	mu    sync.Mutex
	cause error // nil: it has not come
	open  bool  // nobody has been told the cause: the answer of Redis may change it

	// ctx ends with it. Most locks are released before anybody asks for it.
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// come notes why the lock has ended, and reports false if it has ended before.
func (e *ending) come(cause error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause != nil && !e.open {
		return false
	}
	e.set(cause)
	return true
}

func (e *ending) set(cause error) {
	e.cause, e.open = cause, false
	if e.ctx != nil {
		e.cancel(cause)
	}
}

// draw notes that the lock may end at any moment, with a cause. If somebody has asked for
// ctx, that ends.
func (e *ending) draw(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.cause != nil:
	case e.ctx != nil:
		e.set(cause)
	default:
		e.cause, e.open = cause, true
	}
}

// avert takes draw back, as long as nobody was told: what was to end the lock was not done.
func (e *ending) avert() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.open {
		e.cause, e.open = nil, false
	}
}

// why is nil while the lock is held. What it has said once does not change any more.
func (e *ending) why() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open = false
	return e.cause
}

// peek is why for the package itself: it may still change unless it is final.
func (e *ending) peek() (cause error, final bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cause, e.cause != nil && !e.open
}

// context ends when the lock does, with the same cause.
func (e *ending) context() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx == nil {
		e.ctx, e.cancel = context.WithCancelCause(context.Background())
		if e.cause != nil {
			e.set(e.cause)
		}
	}
	return e.ctx
}
