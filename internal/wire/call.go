package wire

import (
	"context"
	"sync/atomic"
	"time"
)

// Call is one request on its way to Redis.
type Call struct {
	ctx     context.Context // of the caller, which may leave before the call is done
	alone   [1]*Call        // the call, as a batch by itself
	Request Request
	Sent    time.Time // before anything was written: leases are counted from here

	Done  <-chan struct{}
	Reply string // Reply and Err are set when Done is closed
	Err   error

	finished chan struct{} // is Done; nil if nobody can wait for it
	over     atomic.Bool   // Reply and Err are set, or about to be
	progress atomic.Int32  // towards the server
	watchers atomic.Pointer[watcher]
}

// watcher is called when a call is done. It is one of a list.
type watcher struct {
	f    func()
	next *watcher
}

// closed is the Done of a call that is done when it is made.
var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// nobodyElse stands in the place of the watchers of a call that is done.
var nobodyElse watcher

// NewCall makes a call that its caller finishes.
func NewCall(ctx context.Context, r Request) *Call {
	c := &Call{ctx: ctx, Request: r, Sent: time.Now(), Done: closed}
	c.alone[0] = c
	if c.Request.progress == nil { // else it is a part of another call
		c.Request.progress = &c.progress
	}
	return c
}

// WillFinish makes it one that others do.
func (c *Call) WillFinish() {
	c.finished = make(chan struct{})
	c.Done = c.finished
}

// Finish ends the call, unless it has ended: a reply that comes after a call
// was given up is lost.
func (c *Call) Finish(reply string, err error) {
	if !c.over.CompareAndSwap(false, true) {
		return
	}
	c.Reply, c.Err = reply, err
	if c.finished == nil {
		return
	}
	close(c.finished)
	for w := c.watchers.Swap(&nobodyElse); w != nil; w = w.next {
		w.f()
	}
}

// WhenDone has f called once the call is done: at once if it is. f must not
// block. It takes the place of a goroutine that waits.
func (c *Call) WhenDone(f func()) {
	if c.finished == nil {
		f()
		return
	}
	w := &watcher{f: f}
	for {
		w.next = c.watchers.Load()
		if w.next == &nobodyElse {
			f()
			return
		}
		if c.watchers.CompareAndSwap(w.next, w) {
			return
		}
	}
}

// isTooLate finishes a call whose caller has left before it was sent.
func (c *Call) isTooLate() bool {
	err := c.ctx.Err()
	if err != nil {
		c.Finish("", notSent(err))
	}
	return err != nil
}

// UnderWay tells whether the call is not done.
func (c *Call) UnderWay() bool {
	select {
	case <-c.Done:
		return false
	default:
		return true
	}
}

// HasReply tells whether the server has replied, so that the request cannot be
// executed any more.
func (c *Call) HasReply() bool { return !c.UnderWay() && !MaybeExecuted(c.Err) }

// Finished tells whether Finish was called.
func (c *Call) Finished() bool { return c.over.Load() }

// TimedOut is the error of a call whose time was over, with what is known of
// why.
func (c *Call) TimedOut(limit time.Duration, e Engine) error {
	progress := c.Request.progress.Load()
	return noReply(limit, progress, progress != mayBeWritten && !c.UnderWay(), e.Shortage(c.Request.Key()))
}
