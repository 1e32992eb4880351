package redislock

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// acquisition is one call of Acquire or TryAcquire: one token, however many
// requests it takes. The token is what makes repeating a request harmless.
type acquisition struct {
	lk    *Locker
	op    string // for errors
	name  string
	keys  lockKeys
	ttl   time.Duration
	opts  acquireOptions
	token string

	// unanswered are the requests that may have been, or may yet be, executed
	// without our having seen the reply.
	unanswered []*call
}

// newAcquisition checks everything that can be checked without traffic.
func (lk *Locker) newAcquisition(ctx context.Context, op, name string, ttl time.Duration, opts acquireOptions) (*acquisition, error) {
	keys, err := lk.keysFor(name)
	a := &acquisition{lk: lk, op: op, name: name, keys: keys, ttl: ttl, opts: opts}
	if err == nil {
		err = checkTTL(ttl)
	}
	if err == nil {
		err = opts.check()
	}
	if err == nil && ctx.Err() != nil {
		err = contextError(ctx)
	}
	if err != nil {
		return nil, a.failed(err)
	}
	a.token = uuid.NewString()
	return a, nil
}

func (a *acquisition) failed(err error) error {
	return &Error{Op: a.op, Key: a.keys.lock, Err: err}
}

// outcome is what one request came to: a lock, or that somebody else holds it,
// or an error.
type outcome struct {
	lock *Lock
	left time.Duration // of the other holder's lease; negative without an end
	err  error
}

// try makes one request.
func (a *acquisition) try(ctx context.Context) outcome {
	c, reply, err := a.lk.ask(ctx, a.request())
	if err == nil {
		return a.read(c, reply)
	}
	if maybeExecuted(err) {
		a.unanswered = append(a.unanswered, c)
	}
	return outcome{err: err}
}

func (a *acquisition) request() request {
	value := a.token
	if a.opts.metadata != "" {
		value += " " + a.opts.metadata
	}
	return request{
		script: acquireScript,
		keys:   []string{a.keys.lock, a.keys.fence},
		args:   []any{a.token, value, milliseconds(a.ttl), a.lk.fenceRetention(a.ttl)},
		limit:  replyLimit(a.ttl),
	}
}

func (a *acquisition) read(c *call, reply []any) outcome {
	r, err := parseAcquire(reply)
	switch {
	case err != nil:
		return outcome{err: err}
	case !r.acquired:
		return outcome{left: time.Duration(r.left) * time.Millisecond}
	}
	if leaseFrom(c.sent, a.ttl).left(time.Now()) <= 0 {
		a.unanswered = append(a.unanswered, c) // it stands in Redis, and must not stay
		return outcome{err: errLate}
	}
	return outcome{lock: a.lk.newLock(a, r.fence, c.sent)}
}

// first tries until there is an answer, or a failure that repeating does not
// mend, or it failed a few times.
func (a *acquisition) first(ctx context.Context) (out outcome) {
	for range attempts(ctx) {
		if out = a.try(ctx); out.err == nil || !worthRepeating(out.err) {
			break
		}
	}
	return out
}

// worthRepeating leaves READONLY out: as the first answer it says that the
// client is connected to a replica, which the caller should hear at once.
func worthRepeating(err error) bool {
	return isTransient(err) && !hasState(err, "READONLY")
}

// finish turns the last outcome into what the caller gets. Whoever gets an error
// gets no lock, also not one that Redis granted in a reply we did not see.
func (a *acquisition) finish(ctx context.Context, lock *Lock, err error) (*Lock, error) {
	if err == nil {
		return lock, nil
	}
	if len(a.unanswered) > 0 {
		a.lk.undo(ctx, a.keys, a.token, a.unanswered)
	}
	return nil, a.failed(err)
}
