package redislock

import (
	"context"
	"fmt"
	"time"
)

// request is one script with its arguments.
type request struct {
	script *script
	keys   []string
	args   []any
	limit  time.Duration // how long one try waits for its reply
	ttl    time.Duration // that it asks for; 0: it asks for none
	claim  *claim        // of a quorum: what the request's token may have on which node
}

// replyLimit is how long a request about a lock with this TTL waits for its
// reply. Beyond the TTL a reply would be worthless; beyond five seconds (what
// go-redis itself waits by default) a fresh connection is the better bet.
func replyLimit(ttl time.Duration) time.Duration {
	return min(max(ttl, time.Second), 5*time.Second)
}

// replyLimit is the same, but on a quorum it leaves the nodes their time for two phases.
func (lk *Locker) replyLimit(ttl time.Duration) time.Duration {
	if lk.quorum == nil {
		return replyLimit(ttl)
	}
	return max(replyLimit(ttl), 2*lk.quorum.nodeTimeout(ttl)+time.Second)
}

// call is one request on its way to Redis. go-redis does not interrupt a command
// in flight when its ctx ends, so the command runs in a goroutine of its own,
// and whoever waits for it can leave. The goroutine ends when the client gives
// the command up, at the latest after the socket's time-outs.
type call struct {
	of    *script
	sent  time.Time // before anything was written: leases are counted from here
	done  <-chan struct{}
	reply []any // reply and err are set when done is closed
	err   error
	floor time.Duration // of an extension by a quorum: what an earlier one may yet cut the lease to
}

// engine is what stands between a Locker and Redis. Requests are made of it one by
// one; how they travel, and to how many servers, is its matter. The reply it gives
// is one that the script of the request can have given.
type engine interface {
	// start makes a request and does not block. When ctx ends the caller is gone, but
	// the request may still be executed.
	start(ctx context.Context, r request) *call
	// do is start for one who is in no hurry: the call is done when it returns.
	do(ctx context.Context, r request) *call
}

// direct sends every request to one client by itself.
type direct struct{ client Client }

func (d direct) start(ctx context.Context, r request) *call {
	done := make(chan struct{})
	c := &call{of: r.script, sent: time.Now(), done: done}
	go func() {
		defer close(done)
		c.reply, c.err = r.script.run(ctx, d.client, r.keys, r.args)
	}()
	return c
}

func (d direct) do(ctx context.Context, r request) *call {
	c := &call{of: r.script, sent: time.Now(), done: closed}
	c.reply, c.err = r.script.run(ctx, d.client, r.keys, r.args)
	return c
}

// ask sends a request and waits for its reply, for at most its limit and not
// past the end of ctx. When it gives up, the call may still be executed.
//
// Under a ctx that never ends nobody is in a hurry: the time-outs of the client
// are limit enough, and a goroutine is saved.
func (lk *Locker) ask(ctx context.Context, r request) (*call, []any, error) {
	if ctx.Done() == nil {
		c := lk.engine.do(ctx, r)
		return c, c.reply, plainError(ctx, c.err, r.limit)
	}
	bounded, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel() // also frees a command that still waits for a connection
	c := lk.engine.start(bounded, r)
	select {
	case <-c.done:
	case <-bounded.Done():
	}
	reply, err := c.result(ctx, bounded, r.limit)
	return c, reply, err
}

// result is what a call came to for one who waited until it was done or bounded
// ended. A reply counts, also if ctx ended meanwhile.
func (c *call) result(ctx, bounded context.Context, limit time.Duration) ([]any, error) {
	select {
	case <-c.done:
		return c.reply, plainError(ctx, c.err, limit)
	default:
		return nil, plainError(ctx, bounded.Err(), limit)
	}
}

func (c *call) underWay() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// answered tells whether the server has replied, so that the request cannot be
// executed any more.
func (c *call) answered() bool { return !c.underWay() && !maybeExecuted(c.err) }

// askedBefore tells whether the request is a question that is known to have been
// executed before a time of the server.
func (c *call) askedBefore(server int64) bool {
	if c.of != acquireScript || c.err != nil {
		return false
	}
	r, err := parseAcquire(c.reply)
	return err == nil && r.server < server
}

// plainError tells the end of the caller's ctx from the end of our own limit:
// both arrive as a context error of the bounded ctx.
func plainError(ctx context.Context, err error, limit time.Duration) error {
	switch {
	case err == nil || !isContextError(err):
		return err
	case ctx.Err() != nil:
		return contextError(ctx)
	default:
		return &noReplyError{waited: limit}
	}
}

// persist repeats a request that failed in transport a few times. It is for
// requests whose repetition is harmless and whose failure needs no undoing.
func (lk *Locker) persist(ctx context.Context, r request) (c *call, reply []any, err error) {
	for range attempts(ctx) {
		c, reply, err = lk.ask(ctx, r)
		if err == nil || !isTransient(err) {
			break
		}
	}
	return c, reply, ended(ctx, err)
}

// ended makes the last failure of several tries a context error, if it was ctx that
// ended them. (With ContextTimeoutEnabled, a time-out of the socket comes a moment
// before the end of ctx.)
func ended(ctx context.Context, err error) error {
	if deadline, limited := ctx.Deadline(); limited && isTimeout(err) && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	if err == nil || ctx.Err() == nil || isContextError(err) || !isTransient(err) {
		return err
	}
	return fmt.Errorf("%w: %w", contextError(ctx), err)
}
