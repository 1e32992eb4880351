package redislock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// claim is what one token has, or may yet get, on the nodes of a quorum. It lives as
// long as the acquisition and the Lock that share it.
type claim struct {
	q     *quorum
	keys  lockKeys
	token lockToken
	value string // what the lock key holds
	ttl   time.Duration
	until time.Time // when a TryAcquire has to be over; zero: no limit

	mu       sync.Mutex
	over     bool    // a release or undoing has begun: no node may be taken any more
	kept     minHold // of the release
	fence    int64   // that a majority has; 0: not known
	void     int64   // the greatest bound of a hand-back, which may yet be executed
	attempts int
	patience time.Time // until when the nodes have to answer what they were asked last
	stakes   []stake   // by node
}

// stake is what a claim has on one node.
type stake struct {
	held  bool          // the token stands there, as far as known
	since int64         // when the node granted it last, by its own clock, us; 0: not known
	calls []*wire.Call  // that can put the token there, and are not looked at yet
	sets  []setting     // extensions that can yet be executed
	lost  time.Duration // the shortest TTL of those whose connection was lost; 0: none
}

// setting is a request that sets the lease, to less as well.
type setting struct {
	call *wire.Call
	ttl  time.Duration
}

func (lk *Locker) newClaim(a *acquisition) *claim {
	if lk.quorum == nil {
		return nil
	}
	q := lk.quorum
	return &claim{q: q, keys: a.keys, token: a.token, value: a.value(), ttl: a.ttl, stakes: make([]stake, len(q.nodes))}
}

// note is what a quorum has to know of a request that asks for a lease of ttl; 0: it asks
// for none. On one Redis there is nothing to know.
func (c *claim) note(ttl time.Duration) any {
	if c == nil {
		return nil
	}
	return claimNote{c, ttl}
}

type claimNote struct {
	claim *claim
	ttl   time.Duration
}

// adoptedClaim is the claim of a lock that was acquired elsewhere: nobody here knows
// where it stands.
func (lk *Locker) adoptedClaim(a *acquisition) *claim {
	c := lk.newClaim(a)
	if c != nil {
		for i := range c.stakes {
			c.stakes[i].held = true
		}
	}
	return c
}

// limit is for TryAcquire: all its attempts together may take two node time-outs.
func (c *claim) limit(ttl time.Duration) {
	if c != nil {
		c.until = time.Now().Add(2 * c.q.nodeTimeout(ttl))
	}
}

// spent tells whether that time is over.
func (c *claim) spent() bool {
	return c != nil && !time.Now().Before(c.until)
}

// budget is how long each node may take in the next attempt, and until when all of it may.
func (c *claim) budget(limit time.Duration, end time.Time) (time.Duration, time.Time) {
	if c.until.IsZero() {
		return limit, end
	}
	return min(limit, max(time.Until(c.until), time.Millisecond)), c.until
}

// attempt sends the requests of the next attempt. Nothing of an earlier one is handed
// back from now on: a node may have granted its vote anew.
func (c *claim) attempt(ctx context.Context, limit time.Duration, r wire.Request) (ro *round, number int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempts++
	return c.take(ctx, limit, r, c.q.all()), c.attempts
}

// take sends requests that can put the token on a node, and keeps them.
func (c *claim) take(ctx context.Context, limit time.Duration, r wire.Request, nodes []int) *round {
	c.patience = time.Now().Add(limit)
	ro := c.q.send(ctx, limit, r, nodes)
	for i, call := range ro.calls {
		if call != nil {
			s := &c.stakes[i]
			s.look()
			s.calls = withDoubtful(s.calls, call)
		}
	}
	return ro
}

// look takes note of the calls that have been answered.
func (s *stake) look() {
	s.calls = slices.DeleteFunc(s.calls, func(call *wire.Call) bool {
		if !call.HasReply() {
			return false
		}
		s.held = s.held || call.Err == nil && tookNode(call.Reply)
		if call.Request.Script == acquireScript && call.Err == nil {
			if r, err := parseAcquire(call.Reply); err == nil && r.acquired {
				s.since = max(s.since, r.server)
			}
		}
		return true
	})
}

// tookNode reads the reply to a request that can put a token on a node. One that cannot
// be read may mean anything.
func tookNode(reply string) bool {
	var n [4]int64
	_, err := integers(reply, n[:])
	return err != nil || n[0] != 0
}

// target is the fence that an attempt has to write to a majority, given the greatest it
// has got.
func (c *claim) target(greatest int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(greatest, c.void+1)
}

// settle notes the fence that a majority has.
func (c *claim) settle(fence int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fence = max(c.fence, fence)
}

// settled is that fence.
func (c *claim) settled() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fence
}

// handBack frees nodes that granted an attempt their votes in vain. It returns nil if
// the next attempt has begun, or an undoing, which will see to them. Under the mutex:
// the next attempt learns the bound before it asks.
func (c *claim) handBack(ctx context.Context, attempt int, nodes []int, bound int64, limit time.Duration) *round {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.attempts != attempt || len(nodes) == 0 {
		return nil
	}
	c.void = max(c.void, bound)
	return c.q.send(ctx, limit, handBackScript.Request(limit, c.keys.all()[:2], c.token.arg, bound), nodes)
}

// freed notes that a node was freed by a hand-back or release, so that the token does not
// stand there, unless a late request puts it there again.
func (c *claim) freed(node int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.stakes[node]
	s.look()
	s.held = false
}

// extend sends an extension, and remembers it where it can shorten a lease.
func (c *claim) extend(ctx context.Context, limit time.Duration, r wire.Request) *round {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil
	}
	ro := c.q.send(ctx, limit, r, c.q.all())
	if mode(&r) == "set" {
		note, _ := r.Note.(claimNote)
		for i, call := range ro.calls {
			s := &c.stakes[i]
			s.forget()
			s.sets = append(s.sets, setting{call, note.ttl})
		}
	}
	return ro
}

// forget drops the extensions that cannot be executed any more, and makes one of those
// of which nobody knows.
func (s *stake) forget() {
	s.sets = slices.DeleteFunc(s.sets, func(set setting) bool {
		switch {
		case set.call.UnderWay():
			return false
		case !set.call.HasReply() && (s.lost == 0 || set.ttl < s.lost):
			s.lost = set.ttl
		}
		return true
	})
}

// floor is what the lease can yet be cut down to by extensions that are executed late,
// given the nodes that hold the token: as long as it, a majority of them has its lease.
func (c *claim) floor(held []int) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var floors []time.Duration
	for _, i := range held {
		floors = append(floors, c.stakes[i].floor())
	}
	slices.Sort(floors)
	return floors[len(floors)-c.q.majority()]
}

func (s *stake) floor() time.Duration {
	s.forget()
	floor := maxLease
	if s.lost > 0 {
		floor = min(floor, s.lost)
	}
	for _, set := range s.sets {
		floor = min(floor, set.ttl)
	}
	return floor
}

// retake takes the lock on a node that was seen to be free, unless a release has begun.
func (c *claim) retake(ctx context.Context, node int, record string, ttl time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.fence == 0 {
		return
	}
	limit, retention := c.q.nodeTimeout(ttl), c.q.nodes[node].lk.fenceRetention(ttl)
	r := retakeScript.Request(limit, c.keys.all()[:2],
		c.token.arg, c.value, milliseconds(ttl), retention, c.fence, record)
	r.Departure = wire.Unobserved{}
	c.take(ctx, limit, r, []int{node})
}

// release sends a release, and ends the claim. It returns the nodes that may yet be
// taken by a request whose answer is not known.
func (c *claim) release(ctx context.Context, limit time.Duration, r wire.Request) (ro *round, doubtful [][]*wire.Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	doubtful = make([][]*wire.Call, len(c.stakes))
	for i := range c.stakes {
		c.stakes[i].look()
		doubtful[i] = slices.Clone(c.stakes[i].calls)
	}
	return c.q.sendEach(ctx, limit, c.q.all(), func(node int) wire.Request {
		own := r
		keep(&own, c.keptOn(node))
		return own
	}), doubtful
}

// keeps notes the minimal hold of a release that is about to be made.
func (c *claim) keeps(h minHold) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = h
}

// keptOn is the minimal hold on one node, if the release has one. Clocks of nodes may
// differ, and each counts by its own from when it granted the lock, if that is known.
func (c *claim) keptOn(node int) minHold {
	kept := c.kept
	if since := c.stakes[node].since; since > 0 {
		kept.granted = since
	}
	return kept
}

// abandon ends the claim and leaves what it has where it stands: another process may go on
// with the token. No node is taken any more on its behalf. A request that was sent before
// and takes a node after the other process has released it can do so only if nobody had
// the lock there meanwhile (lua/retake.lua), and leaves it to its lease. A nil claim has
// nothing.
func (c *claim) abandon() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
}

// undo ends the claim, and takes back in the background what it has or may yet get. A
// request that is on its way gets the time that it was given: in most cases nothing has
// to be done then.
func (c *claim) undo(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for i := range c.stakes {
		s := &c.stakes[i]
		s.look()
		if s.held || len(s.calls) > 0 {
			u := c.undoing(ctx, i, s.held, s.calls)
			if slices.ContainsFunc(s.calls, (*wire.Call).UnderWay) {
				u.due = c.patience
			}
			c.q.nodes[i].lk.undo(u)
		}
	}
}

// undoLate takes back, after the lock was released by another claim with its token,
// what requests of this one may yet bring about.
func (c *claim) undoLate(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.stakes {
		c.stakes[i].look()
		if calls := c.stakes[i].calls; len(calls) > 0 {
			c.q.nodes[i].lk.undo(c.undoing(ctx, i, false, calls))
		}
	}
}

func (c *claim) undoing(ctx context.Context, node int, stands bool, doubtful []*wire.Call) *undoing {
	return &undoing{
		ctx: ctx, keys: c.keys, token: c.token, ttl: c.ttl, kept: c.keptOn(node),
		calls: slices.Clone(doubtful), stands: stands,
	}
}

// undoNode takes back what stands on one node after a release, or may yet stand there.
func (c *claim) undoNode(ctx context.Context, node int, stands bool, doubtful []*wire.Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.q.nodes[node].lk.undo(c.undoing(ctx, node, stands, doubtful))
}

// holds tells whether the token stands on a node, as far as known.
func (c *claim) holds(node int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stakes[node].held
}
