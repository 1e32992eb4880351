package redislock

import (
	"context"
	"errors"
	"time"

	"github.com/e2e3f2a3/redislock/internal/lease"
	"github.com/e2e3f2a3/redislock/internal/poll"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

func (q *quorum) claim(about subject) claim {
	return &quorumClaim{q: q, subject: about, nodes: make([]nodeTraces, q.nodes.Len())}
}

func (c *quorumClaim) acquire(ctx context.Context, t acquireTry) (acquireReply, error) {
	r := c.q.request(ctx, c, c.ttl)
	if t.brief {
		r.limit, r.end = c.budget(r.limit, r.end)
	}
	sent := time.Now()
	r.round, r.attempt = c.attempt(ctx, r.limit)
	reply, err := awaitAnswer(ctx, r, r.acquire)
	reply.sent, reply.final = sent, t.brief && c.spent()
	if reply.acquired && lease.From(sent, c.ttl).Remaining(time.Now()) <= 0 {
		return acquireReply{final: reply.final}, errLate
	}
	var undecided *poll.Error
	reply.opposed = errors.As(err, &undecided) && undecided.Opposed()
	return reply, err
}

// granted needs nothing: what may yet be executed is looked after with each
// release.
func (c *quorumClaim) granted(int64) {}

func (c *quorumClaim) adopt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.nodes {
		c.nodes[i].stands = true
	}
}

// offer and mayGet do nothing: a release brings nobody along.
func (c *quorumClaim) offer(string) {}

func (c *quorumClaim) mayGet(*wire.Call) {}

func (c *quorumClaim) extend(ctx context.Context, t extendTry) (extendReply, error) {
	bounded := ctx
	if t.limit > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, t.limit)
		defer cancel()
	}
	r := c.q.request(bounded, c, t.ttl)
	sent := time.Now()
	if r.round = c.sendExtension(bounded, r.limit, t); r.round == nil {
		return extendReply{sent: sent}, nil // a release has begun, and may yet be executed
	}
	reply, err := awaitAnswer(bounded, r, func() (extendReply, error) { return r.extend(t) })
	reply.sent = sent
	if wire.IsContextError(err) && ctx.Err() == nil {
		err = wire.NoReply(t.limit)
	}
	return reply, err
}

// release ends the claim. It brings nobody along: the next one asks when it is
// done.
func (c *quorumClaim) release(ctx context.Context, t releaseTry) (releaseReply, error) {
	r := c.q.request(ctx, c, 0)
	sent := time.Now()
	var before []traces
	r.round, before = c.sendRelease(ctx, r.limit, t)
	reply, err := awaitAnswer(ctx, r, func() (releaseReply, error) { return r.release(before) })
	reply.sent = sent
	return reply, err
}

// abandon has no node be taken any more. A request that was sent before and
// takes a node after the other process has released it can do so only if nobody
// had the lock there meanwhile (lua/retake.lua), and leaves it to its lease.
func (c *quorumClaim) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
}

// undo gives a request that is on its way the time that it was given: in most
// cases nothing has to be done then.
func (c *quorumClaim) undo(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for i := range c.nodes {
		n := &c.nodes[i]
		n.update()
		if n.void() {
			continue
		}
		u := c.undoing(ctx, i, n.traces)
		if n.underWay() {
			u.due = c.deadline
		}
		c.q.undoings[i].add(u)
	}
}

func (c *quorumClaim) undoLate(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.nodes {
		c.nodes[i].update()
		if late := c.nodes[i].traces; !late.settled() {
			late.stands = false
			c.q.undoings[i].add(c.undoing(ctx, i, late))
		}
	}
}
