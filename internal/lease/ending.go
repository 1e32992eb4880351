package lease

import "context"

// ending is the end of a term: it comes once, with a cause. It is guarded by
// the term's mutex.
//
// A request to give up what was granted ends a term at a moment that is not
// known in this process: from when it is written to a connection, somebody else
// may have it. So from then on the term has ended for every caller. Most such
// requests are answered before anybody asks, and then the answer decides: it
// was given up, or had been lost before, or is still held since the server has
// refused.
type ending struct {
	cause error // nil: it has not come
	open  bool  // nobody has been told the cause: an answer may change it

	// ctx ends with it. Most terms end before anybody asks for it.
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// set ends it. The context is cancelled under the mutex: what hangs on it must
// not call the term in the same goroutine.
func (e *ending) set(cause error) {
	e.cause, e.open = cause, false
	if e.ctx != nil {
		e.cancel(cause)
	}
}

// final tells whether the cause does not change any more.
func (e *ending) final() bool { return e.cause != nil && !e.open }

// End ends the term with a cause, and reports false if it has ended before. It
// stops what looks after the term.
func (t *Term) End(cause error) (first bool) {
	t.mu.Lock()
	if first = !t.ending.final(); first {
		t.ending.set(cause)
	}
	t.mu.Unlock()
	t.Retire()
	return first
}

// MayEnd notes that the term may end at any moment, with a cause. If somebody
// has asked for the context, that ends.
func (t *Term) MayEnd(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := &t.ending; {
	case e.cause != nil:
	case e.ctx != nil:
		e.set(cause)
	default:
		e.cause, e.open = cause, true
	}
}

// DidNotEnd takes MayEnd back, unless somebody was told: what was to end the
// term was not done.
func (t *Term) DidNotEnd() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := &t.ending; e.open {
		e.cause, e.open = nil, false
	}
}

// Err is why the term has ended, or nil. What it has returned once does not
// change any more.
func (t *Term) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ending.open = false
	return t.ending.cause
}

// Peek is Err for callers that can stand a change: it may still change unless
// it is final.
func (t *Term) Peek() (cause error, final bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ending.cause, t.ending.final()
}

// Context ends when the term does, with the same cause.
func (t *Term) Context() context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := &t.ending
	if e.ctx == nil {
		e.ctx, e.cancel = context.WithCancelCause(context.Background())
		if e.cause != nil {
			e.set(e.cause)
		}
	}
	return e.ctx
}
