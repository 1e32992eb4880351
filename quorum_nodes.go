package redislock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/e2e3f2a3/redislock/internal/poll"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

// quorumClaim is the claim on the nodes of a quorum.
type quorumClaim struct {
	q *quorum
	subject

	mu       sync.Mutex
	over     bool    // a release or undoing has begun: no node may be taken any more
	kept     minHold // of the release
	fence    int64   // that a majority has; 0: not known
	void     int64   // the greatest bound of a hand-back, which may yet be executed
	attempts int
	until    time.Time // when a TryAcquire has to be over; zero: no limit
	deadline time.Time // until when the nodes have to answer what they were asked last
	nodes    []nodeTraces
}

// nodeTraces is what a claim has on one node: stands says whether the token
// stands there, as far as known.
type nodeTraces struct {
	traces
	extensions []extension   // that can yet be executed
	shortest   time.Duration // the shortest TTL of those whose connection was lost; 0: none
}

// extension is a request that sets the lease, to less as well.
type extension struct {
	call *wire.Call
	ttl  time.Duration
}

// budget is how long each node may take in the next attempt of a TryAcquire,
// and until when all of it may: all attempts together may take two node
// time-outs.
func (c *quorumClaim) budget(limit time.Duration, end time.Time) (time.Duration, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.until.IsZero() {
		c.until = time.Now().Add(2 * c.q.nodeTimeout(c.ttl))
	}
	return min(limit, max(time.Until(c.until), time.Millisecond)), c.until
}

// spent tells whether that time is over.
func (c *quorumClaim) spent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !time.Now().Before(c.until)
}

// attempt sends the requests of the next attempt. Nothing of an earlier one is
// handed back from now on: a node may have granted its vote anew.
func (c *quorumClaim) attempt(ctx context.Context, limit time.Duration) (ro *poll.Round, number int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempts++
	args := acquireArgs{token: c.token, value: c.value(), ttl: c.ttl, retention: c.q.opts.retention(c.ttl)}
	return c.take(ctx, limit, args.request(limit, &c.keys), c.q.nodes.All()), c.attempts
}

// take sends requests that can put the token on a node, and keeps them.
func (c *quorumClaim) take(ctx context.Context, limit time.Duration, r wire.Request, nodes []int) *poll.Round {
	c.deadline = time.Now().Add(limit)
	ro := c.q.nodes.Send(ctx, limit, r, nodes)
	for i, call := range ro.Calls {
		if call != nil {
			c.nodes[i].note(call)
		}
	}
	return ro
}

// target is the fence that an attempt has to write to a majority, given the
// greatest it has got.
func (c *quorumClaim) target(greatest int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(greatest, c.void+1)
}

// setFence notes the fence that a majority has.
func (c *quorumClaim) setFence(fence int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fence = max(c.fence, fence)
}

// knownFence is that fence.
func (c *quorumClaim) knownFence() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fence
}

// handBack frees nodes that granted an attempt their votes in vain. It returns
// nil if the next attempt has begun, or an undoing, which will see to them.
// Under the mutex: the next attempt learns the bound before it asks.
func (c *quorumClaim) handBack(ctx context.Context, attempt int, nodes []int, bound int64, limit time.Duration) *poll.Round {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.attempts != attempt || len(nodes) == 0 {
		return nil
	}
	c.void = max(c.void, bound)
	args := handBackArgs{token: c.token, bound: bound}
	return c.q.nodes.Send(ctx, limit, args.request(limit, &c.keys), nodes)
}

// freed notes that a node was freed by a hand-back or release, so that the
// token does not stand there, unless a late request puts it there again.
func (c *quorumClaim) freed(node int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := &c.nodes[node]
	n.update()
	n.stands = false
}

// sendExtension remembers it where it can shorten a lease.
func (c *quorumClaim) sendExtension(ctx context.Context, limit time.Duration, t extendTry) *poll.Round {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil
	}
	args := extendArgs{token: c.token, ttl: t.ttl, retention: c.q.opts.retention(t.ttl), grow: t.grow}
	ro := c.q.nodes.Send(ctx, limit, args.request(limit, &c.keys), c.q.nodes.All())
	if !t.grow {
		for i, call := range ro.Calls {
			n := &c.nodes[i]
			n.forget()
			n.extensions = append(n.extensions, extension{call, t.ttl})
		}
	}
	return ro
}

// forget drops the extensions that cannot be executed any more, and makes one
// of those of which nobody knows.
func (n *nodeTraces) forget() {
	n.extensions = slices.DeleteFunc(n.extensions, func(e extension) bool {
		switch {
		case e.call.UnderWay():
			return false
		case !e.call.HasReply() && (n.shortest == 0 || e.ttl < n.shortest):
			n.shortest = e.ttl
		}
		return true
	})
}

// floor is what the lease can yet be cut down to by extensions that are
// executed late, given the nodes that hold the token: as long as it, a majority
// of them has its lease.
func (c *quorumClaim) floor(held []int) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var floors []time.Duration
	for _, i := range held {
		floors = append(floors, c.nodes[i].floor())
	}
	slices.Sort(floors)
	return floors[len(floors)-c.q.nodes.Majority()]
}

func (n *nodeTraces) floor() time.Duration {
	n.forget()
	floor := maxLease
	if n.shortest > 0 {
		floor = min(floor, n.shortest)
	}
	for _, e := range n.extensions {
		floor = min(floor, e.ttl)
	}
	return floor
}

// retake takes the lock on a node that was seen to be free, unless a release
// has begun.
func (c *quorumClaim) retake(ctx context.Context, node int, record string, ttl time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.fence == 0 {
		return
	}
	limit := c.q.nodeTimeout(ttl)
	args := retakeArgs{
		token: c.token, value: c.value(), ttl: ttl, retention: c.q.opts.retention(ttl), fence: c.fence, record: record,
	}
	c.take(ctx, limit, args.request(limit, &c.keys), []int{node})
}

// sendRelease returns what each node may yet be taken by: requests whose answer
// is not known.
func (c *quorumClaim) sendRelease(ctx context.Context, limit time.Duration, t releaseTry) (ro *poll.Round, before []traces) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over, c.kept, c.ttl = true, t.kept, t.ttl
	before = make([]traces, len(c.nodes))
	for i := range c.nodes {
		c.nodes[i].update()
		before[i] = traces{lost: c.nodes[i].lost, calls: slices.Clone(c.nodes[i].calls)}
	}
	return c.q.nodes.SendEach(ctx, limit, c.q.nodes.All(), func(node int) wire.Request {
		args := releaseArgs{token: c.token, retention: c.q.opts.retention(MinTTL), kept: c.keptOn(node)}
		r := args.request(limit, &c.keys)
		r.Departure, r.Alone = t.departs, t.alone
		return r
	}), before
}

// keptOn is the minimal hold on one node, if the release has one. Clocks of
// nodes may differ, and each counts by its own from when it granted the lock,
// if that is known.
func (c *quorumClaim) keptOn(node int) minHold {
	kept := c.kept
	if latest := c.nodes[node].latest; latest > 0 {
		kept.granted = latest
	}
	return kept
}

func (c *quorumClaim) undoing(ctx context.Context, node int, t traces) *undoing {
	t.calls = slices.Clone(t.calls)
	return &undoing{ctx: ctx, keys: c.keys, token: c.token, ttl: c.ttl, kept: c.keptOn(node), traces: t}
}

// undoNode takes back what stands on one node after a release, or may yet stand
// there.
func (c *quorumClaim) undoNode(ctx context.Context, node int, t traces) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.q.undoings[node].add(c.undoing(ctx, node, t))
}

// holds tells whether the token stands on a node, as far as known.
func (c *quorumClaim) holds(node int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[node].stands
}
