package redislock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/e2e3f2a3/redislock/internal/lease"
	"github.com/e2e3f2a3/redislock/internal/line"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

// single is the backend on one Redis: a single server, a primary with its
// replicas, or a cluster.
type single struct {
	conn     wire.Conn
	opts     *options
	undoings undoings
}

func newSingle(engine wire.Engine, opts *options) *single {
	s := &single{conn: wire.Conn{Engine: engine}, opts: opts}
	s.undoings.conn, s.undoings.opts = s.conn, opts
	return s
}

func (s *single) claim(about subject) claim { return &singleClaim{s: s, subject: about} }

func (s *single) inspect(ctx context.Context, keys []any) (r inspectReply, err error) {
	_, reply, err := s.conn.Persist(ctx, inspectScript.Request(s.replyLimit(0), keys))
	if err != nil {
		return r, err
	}
	return parseInspect(reply)
}

func (s *single) direct() *wire.Direct { return s.conn.Direct() }

func (s *single) home(key string) (addr string, on wire.Subscriber) { return s.conn.Home(key) }

func (s *single) pushed(token string) { s.undoings.pushed(token) }

// replyLimit is how long a request about a lock with this TTL waits for its
// reply. Beyond the TTL a reply would be worthless; beyond five seconds (what
// go-redis itself waits by default) a fresh connection is the better bet.
func replyLimit(ttl time.Duration) time.Duration {
	return min(max(ttl, time.Second), 5*time.Second)
}

// replyLimit leaves replicas the time to acknowledge, also a batch before the
// request's own.
func (s *single) replyLimit(ttl time.Duration) time.Duration {
	return replyLimit(ttl) + 2*s.opts.replicaTimeout
}

// singleClaim is the claim on one Redis.
type singleClaim struct {
	s *single
	subject

	mu sync.Mutex
	traces
	held     bool          // the lock was granted to it, and not released
	freed    bool          // it was released
	ticketed bool          // a ticket of it was sent
	inbox    string        // in the last one; empty if that could not be queued
	kept     minHold       // of the release
	leased   time.Duration // the TTL at the release; that of the ticket does not change
	// over is what it is undone with, once it was released or given up: what
	// comes later has to be taken back at once. It is nil before.
	over context.Context
}

func (c *singleClaim) acquire(ctx context.Context, t acquireTry) (r acquireReply, err error) {
	if t.ticket != "" {
		c.offer(t.inbox)
	}
	args := acquireArgs{
		token: c.token, value: c.value(), ttl: c.ttl, retention: c.s.opts.retention(c.ttl),
		ticketing: t.ticketing, lifetime: c.s.opts.queueLifetime(),
	}
	request := args.request(c.s.replyLimit(c.ttl), &c.keys)
	request.Alone = t.alone
	var call *wire.Call
	err = errInterrupted // until there is a result: a hook of the client may panic
	defer func() {
		if wire.MaybeExecuted(err) {
			c.doubt(call, request)
		}
	}()
	var reply string
	call, reply, err = c.ask(ctx, request, t)
	if errors.Is(err, wire.ErrLeft) {
		c.mayGet(call)
		return acquireReply{overtaken: true}, nil
	}
	if err == nil {
		r, err = parseAcquire(reply)
	}
	r.sent = call.Sent
	switch {
	case errors.Is(err, ErrNotReplicated):
		c.giveBack(ctx)
	case r.acquired && lease.From(r.sent, c.ttl).Remaining(time.Now()) <= 0:
		err = errLate // it stands in Redis, and must not stay
	}
	return r, err
}

// ask makes a request of an acquisition. One that nothing can overtake is tried
// in the caller's goroutine first, where that is possible.
func (c *singleClaim) ask(ctx context.Context, r wire.Request, t acquireTry) (call *wire.Call, reply string, err error) {
	if t.enough != nil {
		return c.s.conn.AskUnless(ctx, r, t.wake, t.enough)
	}
	if ctx.Done() != nil {
		if d := c.s.direct(); d != nil {
			if call, reply, err = d.Ask(ctx, r); !wire.IsNotYet(err) {
				return call, reply, err
			}
			if wire.MaybeExecuted(err) {
				c.mayGet(call)
			}
		}
	}
	return c.s.conn.Ask(ctx, r)
}

// giveBack frees a lock that too few replicas have, so that nothing is left
// when the caller hears of it.
func (c *singleClaim) giveBack(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, undoLimit)
	defer cancel()
	args := releaseArgs{token: c.token, retention: c.s.opts.retention(MinTTL), ticket: c.ticketText()}
	_, _, err := c.s.conn.Ask(bounded, args.request(undoLimit, &c.keys))
	if err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stands = true
}

// ticketText is the ticket that may stand in the queue, or empty.
func (c *singleClaim) ticketText() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inbox == "" {
		return ""
	}
	return c.ticketFor(c.inbox).text(c.s.opts.prefix, &c.keys, c.token)
}

// doubt notes that the outcome of a request is not known. call is nil if it was
// interrupted.
func (c *singleClaim) doubt(call *wire.Call, r wire.Request) {
	if call == nil {
		call = interrupted(r)
	}
	c.mayGet(call)
}

func (c *singleClaim) mayGet(call *wire.Call) { c.lookLater(c.noted(call)) }

// noted returns what is to be waited for, see lookAfter.
func (c *singleClaim) noted(call *wire.Call) []*wire.Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(call)
	if c.over == nil {
		return nil
	}
	return c.lookAfter()
}

func (c *singleClaim) offer(inbox string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ticketed = true
	if inbox != line.None {
		c.inbox = inbox
	}
}

func (c *singleClaim) granted(server int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held, c.before = true, server
	c.update()
	if c.settled() { // no ticket of it can stand in the queue any more
		c.ticketed, c.inbox = false, ""
	}
}

func (c *singleClaim) adopt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = true
}

// While a cluster moves the slot the record of the fence is left alone, unless
// it is asked for.
func (c *singleClaim) extend(ctx context.Context, t extendTry) (r extendReply, err error) {
	limit := c.s.replyLimit(t.ttl)
	if t.limit > 0 {
		limit = min(limit, t.limit)
	}
	args := extendArgs{token: c.token, ttl: t.ttl, retention: c.s.opts.retention(t.ttl), grow: t.grow}
	request := args.request(limit, &c.keys)
	request.Alone, request.FirstKeyWillDo = t.alone, !t.fenced
	call, reply, err := c.s.conn.Ask(ctx, request)
	if err == nil {
		r, err = parseExtend(reply)
	}
	r.sent = call.Sent
	return r, err
}

// release brings along the next one in the same process.
func (c *singleClaim) release(ctx context.Context, t releaseTry) (r releaseReply, err error) {
	c.releases(t)
	args := releaseArgs{token: c.token, retention: c.s.opts.retention(max(MinTTL, t.next.ttl)), next: t.next.ticket, kept: t.kept}
	if t.next.to != nil {
		t.next.to.offer(t.next.inbox)
		if t.next.inbox != line.None { // else nobody could be told: not to be queued
			args.lifetime = c.s.opts.queueLifetime()
		}
	}
	request := args.request(c.s.replyLimit(t.ttl), &c.keys)
	request.Alone, request.Departure = t.alone, t.departs
	var call *wire.Call
	err = errInterrupted // until there is a result: a hook of the client may panic
	defer func() {
		switch {
		case err == nil:
			c.released(ctx)
		case t.next.to != nil && wire.MaybeExecuted(err):
			if call == nil {
				call = interrupted(request)
			}
			t.next.to.mayGet(call)
		}
	}()
	var reply string
	if t.direct != nil {
		call, reply, err = t.direct.Ask(ctx, request)
	} else {
		call, reply, err = c.s.conn.Ask(ctx, request)
	}
	if err == nil {
		r, err = parseRelease(reply)
	}
	r.sent = call.Sent
	return r, err
}

// releases notes that a request to release is about to be made. What was
// executed before it has done nothing while the lock was held, and what stands
// there is freed by it.
func (c *singleClaim) releases(t releaseTry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept, c.leased = t.kept, t.ttl
	c.update()
	c.stands = c.stands && c.inbox != "" // a release does not withdraw a ticket
}

// released looks after requests that were overtaken by the grant. One that is
// executed after the release may take or queue for the lock once more, under a
// token that is nobody's any longer. (A lock that ends otherwise is left alone:
// it may have been handed to another process, which goes on with its token.)
func (c *singleClaim) released(ctx context.Context) { c.lookLater(c.ended(ctx)) }

// ended returns what is to be waited for, see lookAfter.
func (c *singleClaim) ended(ctx context.Context) []*wire.Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held, c.freed, c.over = false, true, ctx
	return c.lookAfter()
}

// lookAfter takes back what is there or may yet come. After a release it
// returns requests that are under way, if there are any, and leaves them their
// time: most often they are questions that were executed before the grant, and
// have left nothing. The caller has locked mu.
func (c *singleClaim) lookAfter() (underWay []*wire.Call) {
	if c.freed && c.underWay() {
		return slices.Clone(c.calls)
	}
	c.takeBack()
	return nil
}

// lookLater looks again when all of these requests have ended.
func (c *singleClaim) lookLater(calls []*wire.Call) {
	if len(calls) == 0 {
		return
	}
	whenAllDone(calls, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.takeBack()
	})
}

// whenAllDone calls f once all calls are done: at once if they are.
func whenAllDone(calls []*wire.Call, f func()) {
	var left atomic.Int32
	left.Store(int32(len(calls)))
	for _, c := range calls {
		c.WhenDone(func() {
			if left.Add(-1) == 0 {
				f()
			}
		})
	}
}

// abandon does nothing: nothing is asked by a claim of its own accord.
func (c *singleClaim) abandon() {}

func (c *singleClaim) undo(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = ctx
	c.stands = c.stands || c.held || c.ticketed
	c.held = false
	c.takeBack()
}

func (c *singleClaim) undoLate(ctx context.Context) { c.released(ctx) }

// takeBack leaves everything to an undoing. The caller has locked mu.
func (c *singleClaim) takeBack() {
	c.update()
	if c.void() {
		return
	}
	u := &undoing{ctx: c.over, keys: c.keys, token: c.token, ttl: max(c.ttl, c.leased), kept: c.kept, traces: c.traces}
	if c.inbox != "" {
		u.ticket = c.ticketFor(c.inbox)
	}
	c.traces = traces{before: c.before}
	c.s.undoings.add(u)
}
