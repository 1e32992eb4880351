package redislock

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/e2e3f2a3/redislock/internal/poll"
	"github.com/e2e3f2a3/redislock/internal/wire"
)

// quorumRequest is one request of a quorum, from the first vote to the result.
type quorumRequest struct {
	q     *quorum
	ctx   context.Context // of the caller; when it ends, nobody waits for the result
	claim *quorumClaim    // nil if nothing is asked for
	ttl   time.Duration   // that is asked for; 0: none
	limit time.Duration   // for each node
	end   time.Time       // of all phases together, as long as nodes are silent
	round *poll.Round     // of the first phase

	attempt int    // of an acquisition: its number
	after   func() // what remains to be done when the caller has the result
}

func (q *quorum) request(ctx context.Context, c *quorumClaim, ttl time.Duration) *quorumRequest {
	limit := nodeLimit(ctx, q.nodeTimeout(ttl))
	return &quorumRequest{q: q, ctx: ctx, claim: c, ttl: ttl, limit: limit, end: time.Now().Add(2 * limit)}
}

// awaitAnswer has a request decided, and waits for that until ctx ends. It is
// decided in a goroutine of its own, since it goes on when its caller has left.
func awaitAnswer[R any](ctx context.Context, b *quorumRequest, decide func() (R, error)) (reply R, err error) {
	type result struct {
		reply R
		err   error
	}
	decided := make(chan result, 1)
	go func() {
		reply, err := decide()
		decided <- result{reply, err}
		if b.after != nil {
			b.after()
		}
	}()
	var got result
	select {
	case got = <-decided:
	case <-ctx.Done():
		select {
		case got = <-decided: // a reply counts, even if ctx has ended meanwhile
		default:
			return reply, wire.ContextError(ctx)
		}
	}
	if wire.IsContextError(got.err) && ctx.Err() != nil {
		return reply, wire.ContextError(ctx)
	}
	return got.reply, got.err
}

// nodeLimit leaves time, before ctx ends, to say which nodes have not answered.
func nodeLimit(ctx context.Context, limit time.Duration) time.Duration {
	if deadline, limited := ctx.Deadline(); limited {
		limit = min(limit, max(time.Until(deadline), 0)-time.Millisecond)
	}
	return max(limit, time.Millisecond)
}

// count takes votes until they decide, or no more come.
func (b *quorumRequest) count(judge poll.Judge) *poll.Tally {
	t := b.q.nodes.Count(b.round, b.limit, 0)
	t.Until(b.ctx, t.Decided, judge)
	return t
}

// undecided is why there is no result.
func (b *quorumRequest) undecided(t *poll.Tally) error {
	if b.ctx.Err() != nil {
		return b.ctx.Err()
	}
	return t.Failure()
}

// --- acquiring ---------------------------------------------------------------

// grants are the answers of the nodes to an acquisition.
type grants struct {
	fences map[int]int64   // of those that granted it
	leases []time.Duration // of those that are taken: what remains
	server int64           // the latest time of a node, us
}

func (g *grants) judge(node int, reply string) (poll.Vote, error) {
	r, err := parseAcquire(reply)
	if err != nil {
		return poll.NoVote, err
	}
	g.server = max(g.server, r.server)
	if !r.acquired {
		g.leases = append(g.leases, r.left)
		return poll.No, nil
	}
	g.fences[node] = r.fence
	return poll.Yes, nil
}

// acquire is decided by the nodes that grant their vote, and then by those that
// hold the fence.
func (b *quorumRequest) acquire() (acquireReply, error) {
	g := &grants{fences: make(map[int]int64)}
	t := b.q.nodes.Count(b.round, b.limit, 0)
	t.Until(b.ctx, func() bool { return t.Won() || !t.CanWin() }, g.judge)
	var err error
	if t.Won() {
		var fence int64
		if fence, err = b.writeBack(g.fences); err == nil {
			b.claim.setFence(fence)
			return acquireReply{acquired: true, fence: fence, server: g.server}, nil
		}
	}
	if b.ctx.Err() != nil {
		return acquireReply{}, b.ctx.Err() // everything is undone by the caller
	}
	return b.fail(t, g, err)
}

// fail hands back what the attempt was granted in vain, and finds out what to
// say.
func (b *quorumRequest) fail(t *poll.Tally, g *grants, err error) (r acquireReply, failure error) {
	first := b.handBack(g)
	if err == nil {
		t.Until(b.ctx, t.Decided, g.judge)
	}
	b.await(first)
	b.await(b.handBack(g))
	b.after = b.handBackLate
	switch {
	case b.ctx.Err() != nil:
		return r, b.ctx.Err()
	case err != nil:
		return r, err
	case t.Lost():
		return acquireReply{left: g.left(b.q.nodes.Majority() - t.Yes()), server: g.server}, nil
	}
	return r, t.Failure()
}

// left is when asking again may be worthwhile: once so many of the leases have
// ended as are missing for a majority.
func (g *grants) left(missing int) time.Duration {
	slices.SortFunc(g.leases, func(a, b time.Duration) int {
		if a < 0 || b < 0 { // without an end: the last
			return cmp.Compare(b, a)
		}
		return cmp.Compare(a, b)
	})
	return g.leases[min(missing, len(g.leases))-1]
}

// writeBack makes the greatest of the fences the record of a majority. A node
// counts if the token still stands there.
func (b *quorumRequest) writeBack(fences map[int]int64) (fence int64, err error) {
	for _, f := range fences {
		fence = max(fence, f)
	}
	fence = b.claim.target(fence)
	var below []int
	for node, f := range fences {
		if f < fence {
			below = append(below, node)
		}
	}
	if len(fences)-len(below) >= b.q.nodes.Majority() {
		return fence, nil
	}
	limit := b.rest()
	args := raiseArgs{token: b.claim.token, fence: fence, retention: b.q.opts.retention(b.ttl)}
	ro := b.q.nodes.Send(b.ctx, limit, args.request(limit, &b.claim.keys), below)
	t := b.q.nodes.Count(ro, limit, len(fences)-len(below))
	t.Until(b.ctx, func() bool { return t.Won() || !t.CanWin() }, func(_ int, reply string) (poll.Vote, error) {
		if done, err := parseDone(reply); !done {
			return poll.No, err
		}
		return poll.Yes, nil
	})
	if !t.Won() {
		return 0, b.undecided(t)
	}
	return fence, nil
}

// rest is how long the nodes have for a further phase.
func (b *quorumRequest) rest() time.Duration {
	return max(min(b.limit, time.Until(b.end)), time.Millisecond)
}

// handBack gives back what an attempt was granted, as far as it is known. It is
// waited for: else two that have failed would be in each other's way.
func (b *quorumRequest) handBack(g *grants) *poll.Round {
	var nodes []int
	var bound int64
	for node, fence := range g.fences {
		nodes = append(nodes, node)
		bound = max(bound, b.claim.target(fence)) // what may have been written back
	}
	clear(g.fences)
	return b.claim.handBack(b.ctx, b.attempt, nodes, bound, b.limit)
}

// await waits for a hand-back: not for long, since it does no harm when it is
// late.
func (b *quorumRequest) await(ro *poll.Round) {
	if ro == nil {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, min(b.limit/2, time.Until(b.end)))
	defer cancel()
	for {
		node, ok := ro.Next(ctx)
		if !ok {
			return
		}
		c := ro.Calls[node]
		if c.Err != nil {
			continue // the token may stand there
		}
		if done, err := parseDone(c.Reply); done && err == nil {
			b.claim.freed(node)
		}
	}
}

// handBackLate does the same for the nodes that answer when the attempt is
// decided.
func (b *quorumRequest) handBackLate() {
	b.round.Late(func(node int, reply string) (poll.Vote, error) {
		if r, err := parseAcquire(reply); err == nil && r.acquired {
			b.claim.handBack(b.ctx, b.attempt, []int{node}, r.fence, b.limit)
		}
		return poll.NoVote, nil
	})
}

// --- extending ---------------------------------------------------------------

// extend succeeds if a majority still holds the token. A node where the lock is
// free does not count, although it could be taken: that it is free can mean
// that somebody else had it, together with others, and has released it. A
// holder that takes it then never hears of the other one.
func (b *quorumRequest) extend(try extendTry) (r extendReply, failure error) {
	fences, free := make(map[int]int64), make(map[int]string)
	judge := func(node int, reply string) (poll.Vote, error) {
		r, err := parseExtend(reply)
		switch {
		case err != nil:
			return poll.NoVote, err
		case r.held:
			fences[node] = r.fence
			return poll.Yes, nil
		case r.free:
			free[node] = r.record
		}
		return poll.No, nil
	}
	t := b.count(judge)
	switch {
	case t.Lost():
		return r, nil
	case !t.Won():
		return r, b.undecided(t)
	}
	floor := b.claim.floor(t.Voted(poll.Yes))
	fence, err := b.fence(try, fences)
	if err != nil {
		return r, err
	}
	b.after = func() { b.repair(judge, free) }
	return extendReply{held: true, fence: fence, floor: floor}, nil
}

// fence is that of the lock that was extended. Of one that was acquired
// elsewhere it is not known: it is at most the greatest record, which is made
// that of a majority.
func (b *quorumRequest) fence(try extendTry, fences map[int]int64) (int64, error) {
	fence := b.claim.knownFence()
	if fence > 0 || try.grow {
		return fence, nil
	}
	fence, err := b.writeBack(fences)
	if err == nil {
		b.claim.setFence(fence)
	}
	return fence, err
}

// repair takes the lock on the nodes that turn out to be free. The lock is held
// without them, so nobody waits for it.
func (b *quorumRequest) repair(judge poll.Judge, free map[int]string) {
	b.round.Late(judge)
	for node, record := range free {
		b.claim.retake(context.WithoutCancel(b.ctx), node, record, b.ttl)
	}
}

// --- releasing ---------------------------------------------------------------

// release succeeds if a majority had the token. If an earlier try has freed a
// part of the nodes, its error says that it may have been executed, and its
// caller takes that into account.
func (b *quorumRequest) release(before []traces) (releaseReply, error) {
	answered := make([]bool, b.q.nodes.Len())
	judge := func(node int, reply string) (poll.Vote, error) {
		r, err := parseRelease(reply)
		if err != nil {
			return poll.NoVote, err
		}
		answered[node] = true
		b.claim.freed(node)
		if r.found {
			return poll.Yes, nil
		}
		return poll.No, nil
	}
	t := b.count(judge)
	b.after = func() { b.sweep(judge, before, answered) }
	if t.Won() || t.Lost() {
		return releaseReply{found: t.Won()}, nil
	}
	return releaseReply{}, b.undecided(t)
}

// sweep looks after the nodes that have not answered, and those that a request
// may take which was sent before the release and is executed after it.
func (b *quorumRequest) sweep(judge poll.Judge, before []traces, answered []bool) {
	b.round.Late(judge)
	for node, t := range before {
		t.stands = !answered[node] && b.claim.holds(node)
		if !t.void() {
			b.claim.undoNode(b.ctx, node, t)
		}
	}
}

// --- inspecting --------------------------------------------------------------

// inspect reads what a majority agrees on.
func (q *quorum) inspect(ctx context.Context, keys []any) (reply inspectReply, err error) {
	err = wire.Repeat(ctx, func(bool) (enough bool, err error) {
		r := q.request(ctx, nil, 0)
		r.round = q.nodes.Send(ctx, r.limit, inspectScript.Request(r.limit, keys), q.nodes.All())
		reply, err = awaitAnswer(ctx, r, r.inspect)
		return false, err
	})
	return reply, wire.Ended(ctx, err)
}

func (b *quorumRequest) inspect() (inspectReply, error) {
	seen := &inspectVotes{nodes: b.q.nodes, by: make(map[string][]inspectReply)}
	t := b.q.nodes.Count(b.round, b.limit, 0)
	enough := func() bool { return seen.decided(b.round.Pending() + len(t.Voted(poll.NoAnswer))) }
	t.Until(b.ctx, enough, func(_ int, reply string) (poll.Vote, error) {
		r, err := parseInspect(reply)
		if err == nil {
			seen.add(r)
		}
		return poll.Yes, err
	})
	if holder := seen.holder(); holder != nil {
		return inspectReply{left: holder.left, fence: seen.fence, value: holder.value}, nil
	}
	if seen.decided(b.q.nodes.Len() - t.Yes()) {
		return inspectReply{left: -2, fence: seen.fence}, nil
	}
	return inspectReply{}, b.undecided(t)
}

// inspectVotes are what nodes say of one lock.
type inspectVotes struct {
	nodes *poll.Nodes
	by    map[string][]inspectReply // by token and a space; empty: free
	fence int64
}

func (s *inspectVotes) add(r inspectReply) {
	holder := ""
	if r.left != -2 { // the value may be empty all the same
		token, _, _ := strings.Cut(r.value, " ")
		holder = token + " "
	}
	s.by[holder] = append(s.by[holder], r)
	s.fence = max(s.fence, r.fence)
}

// holder is what a majority holds, or nil. Its lease is that of the majority
// that lasts longest.
func (s *inspectVotes) holder() *inspectReply {
	for holder, replies := range s.by {
		if holder == "" || len(replies) < s.nodes.Majority() {
			continue
		}
		slices.SortFunc(replies, func(a, b inspectReply) int {
			if a.left < 0 || b.left < 0 { // without an end: the first
				return cmp.Compare(a.left, b.left)
			}
			return cmp.Compare(b.left, a.left)
		})
		return &replies[s.nodes.Majority()-1]
	}
	return nil
}

// decided tells whether there is a holder, or cannot be one, whatever the
// others say. A majority has to be heard for that: else the fence is not known.
func (s *inspectVotes) decided(others int) bool {
	if s.nodes.Len()-others < s.nodes.Majority() {
		return false
	}
	most := 0
	for holder, replies := range s.by {
		if holder != "" {
			most = max(most, len(replies))
		}
	}
	return most >= s.nodes.Majority() || most+others < s.nodes.Majority()
}
