package redislock

import (
	"context"
	"time"
)

// request is one script with its arguments.
type request struct {
	script *script
	keys   []string
	args   []any
	limit  time.Duration // how long one try waits for its reply
}

// replyLimit is how long a request about a lock with this TTL waits for its
// reply. Beyond the TTL a reply would be worthless; beyond five seconds (what
// go-redis itself waits by default) a fresh connection is the better bet.
func replyLimit(ttl time.Duration) time.Duration {
	return min(max(ttl, time.Second), 5*time.Second)
}

// call is one request on its way to Redis. go-redis does not interrupt a command
// in flight when its ctx ends, so the command runs in a goroutine of its own,
// and whoever waits for it can leave. The goroutine ends when the client gives
// the command up, at the latest after the socket's time-outs.
type call struct {
	sent  time.Time // before anything was written: leases are counted from here
	done  chan struct{}
	reply []any // reply and err are set when done is closed
	err   error
}

// start sends a request. It does not block.
func (lk *Locker) start(ctx context.Context, r request) *call {
	c := &call{sent: time.Now(), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.reply, c.err = r.script.run(ctx, lk.client, r.keys, r.args)
	}()
	return c
}

// ask sends a request and waits for its reply, for at most its limit and not
// past the end of ctx. When it gives up, the call may still be executed.
func (lk *Locker) ask(ctx context.Context, r request) (*call, []any, error) {
	bounded, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel() // also frees a command that still waits for a connection
	c := lk.start(bounded, r)
	select {
	case <-c.done:
	case <-bounded.Done():
	}
	select {
	case <-c.done: // a reply counts, also if ctx ended meanwhile
		return c, c.reply, plainError(ctx, c.err, r.limit)
	default:
		return c, nil, plainError(ctx, bounded.Err(), r.limit)
	}
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
	return c, reply, err
}
