package redislock

import (
	"context"
	"sync"
)

// ending is the end of a lock: it comes once, with a cause.
type ending struct {
	mu    sync.Mutex
	cause error // nil: it has not come

	// ctx ends with it. Most locks are released before anybody asks for it.
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// come notes why the lock has ended, and reports false if it has ended before.
func (e *ending) come(cause error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause != nil {
		return false
	}
	e.cause = cause
	if e.ctx != nil {
		e.cancel(cause)
	}
	return true
}

// why is nil while the lock is held.
func (e *ending) why() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cause
}

// context ends when the lock does, with the same cause.
func (e *ending) context() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx == nil {
		e.ctx, e.cancel = context.WithCancelCause(context.Background())
		if e.cause != nil {
			e.cancel(e.cause)
		}
	}
	return e.ctx
}
