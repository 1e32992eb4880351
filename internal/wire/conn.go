package wire

import (
	"context"
	"fmt"
	"time"
)

// Conn asks, and waits for the answer no longer than it is worth.
type Conn struct{ Engine }

// Ask sends a request and waits for its reply, for at most its limit and not
// past the end of ctx. When it gives up, the call may still be executed.
//
// Under a ctx that never ends nobody is in a hurry: the time-outs of the client
// are limit enough, and a goroutine is saved.
func (conn Conn) Ask(ctx context.Context, r Request) (*Call, string, error) {
	c, reply, err := conn.ask(ctx, r)
	if instead, possible := r.WhileMoving(err); possible {
		return conn.ask(ctx, instead)
	}
	return c, reply, err
}

func (conn Conn) ask(ctx context.Context, r Request) (*Call, string, error) {
	if ctx.Done() == nil {
		c := conn.Do(ctx, r)
		return c, c.Reply, conn.plainError(ctx, c.Err, c)
	}
	return conn.AskUnless(ctx, r, nil, nil)
}

// ErrLeft says that nobody waits for a reply any more, see AskUnless.
var ErrLeft error = &failure{text: "the reply was not waited for", executed: true, transient: true, outage: true}

// AskUnless is Ask, but leaves the request to the background, with ErrLeft, as
// soon as enough says so. It is called after each value of wake.
func (conn Conn) AskUnless(ctx context.Context, r Request, wake <-chan struct{}, enough func() bool) (*Call, string, error) {
	bounded, cancel := context.WithTimeout(ctx, r.Limit)
	defer cancel() // also frees a command that still waits for a connection
	c := conn.Start(bounded, r)
	for waiting := true; waiting; {
		select {
		case <-wake:
			if enough() {
				return c, "", ErrLeft
			}
		case <-c.Done:
			waiting = false
		case <-bounded.Done():
			waiting = false
		}
	}
	reply, err := conn.result(ctx, bounded, c)
	return c, reply, err
}

// result is the outcome of a call for a caller that waited until it was done or
// bounded ended. A reply counts, also if ctx ended meanwhile.
func (conn Conn) result(ctx, bounded context.Context, c *Call) (string, error) {
	select {
	case <-c.Done:
		return c.Reply, conn.plainError(ctx, c.Err, c)
	default:
		conn.Suspect()
		return "", conn.plainError(ctx, bounded.Err(), c)
	}
}

// plainError tells the end of the caller's ctx from the end of our own limit:
// both arrive as a context error of the bounded ctx.
func (conn Conn) plainError(ctx context.Context, err error, c *Call) error {
	switch {
	case err == nil || !IsContextError(err):
		return err
	case ctx.Err() != nil:
		return ContextError(ctx)
	default:
		return c.TimedOut(c.Request.Limit, conn)
	}
}

// Persist repeats a request that failed in transport a few times. It is for
// requests whose repetition is harmless and whose failure needs no undoing.
func (conn Conn) Persist(ctx context.Context, r Request) (c *Call, reply string, err error) {
	err = Repeat(ctx, func(alone bool) (enough bool, err error) {
		r.Alone = alone
		c, reply, err = conn.Ask(ctx, r)
		return false, err
	})
	return c, reply, Ended(ctx, err)
}

// awaitDeadline waits for the end of a context whose deadline has come: its
// timer is a moment late. A context that was detached from its parent by hand
// may keep the deadline, and never end.
func awaitDeadline(ctx context.Context) {
	timer := time.NewTimer(5 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Ended makes the last failure of several tries a context error, if it was ctx
// that ended them. (With ContextTimeoutEnabled, a time-out of the socket comes
// a moment before the end of ctx.)
func Ended(ctx context.Context, err error) error {
	if deadline, limited := ctx.Deadline(); limited && IsTimeout(err) && !time.Now().Before(deadline) {
		awaitDeadline(ctx)
	}
	if err == nil || ctx.Err() == nil || IsContextError(err) || !IsTransient(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ContextError(ctx), err)
}
