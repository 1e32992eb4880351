package redislock

import (
	"context"
	"time"
)

const (
	undoBound   = 15 * time.Second       // beyond every default time-out of go-redis
	undoConfirm = 100 * time.Millisecond // before the last look
)

// undo releases in the background what the unanswered requests of a failed
// acquisition may have brought about. The first try is made at once and not after
// those requests, since their connection may be stuck while others work. But a
// request that is still under way can be executed after that try, so there is a
// second one when all have ended; and one that ended in an error may still lie in
// the socket of a server that stood still, so there is a third a little later.
//
// The goroutine ends after 15 seconds at the latest. What is left then ends with
// its TTL.
func (lk *Locker) undo(ctx context.Context, keys lockKeys, token string, unanswered []*call) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoBound)
	r := lk.releaseRequest(keys, token, time.Second)
	go func() {
		defer cancel()
		lk.undone(ctx, r)
		failed := awaitAll(ctx, unanswered)
		if !lk.undone(ctx, r) && failed && pause(ctx, undoConfirm) {
			lk.undone(ctx, r)
		}
	}()
}

// awaitAll waits until all calls have ended, and reports whether one failed.
func awaitAll(ctx context.Context, calls []*call) (failed bool) {
	for _, c := range calls {
		select {
		case <-c.done:
			failed = failed || c.err != nil
		case <-ctx.Done():
			return true
		}
	}
	return failed
}

// undone tries until Redis answers, and reports whether there was something to
// undo.
func (lk *Locker) undone(ctx context.Context, r request) bool {
	for b := (backoff{}); ctx.Err() == nil; pause(ctx, b.next()) {
		_, reply, err := lk.ask(ctx, r)
		if err == nil {
			released, err := parseRelease(reply)
			return released && err == nil
		}
		if !isTransient(err) {
			return false
		}
	}
	return false
}
