package redislock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// ballot is one request of a quorum, from the first vote to the result.
type ballot struct {
	q     *quorum
	ctx   context.Context // of who asks; when it ends, nobody waits for the result
	r     wire.Request
	claim *claim
	ttl   time.Duration // that is asked for; 0: none
	limit time.Duration // for each node
	end   time.Time     // of all phases together, as long as nodes are silent
	round *round        // of the first phase

	attempt  int            // of an acquisition: its number
	doubtful [][]*wire.Call // of a release: what may take a node yet

	floor time.Duration // see call
	after func()        // what remains to be done when the caller has the result
}

// open sends the requests of the first phase, and does not block.
func (q *quorum) open(ctx context.Context, r wire.Request) *ballot {
	note, _ := r.Note.(claimNote)
	b := &ballot{q: q, ctx: ctx, r: r, claim: note.claim, ttl: note.ttl, limit: nodeLimit(ctx, q.nodeTimeout(note.ttl))}
	b.end = time.Now().Add(2 * b.limit)
	switch r.Script {
	case acquireScript:
		b.limit, b.end = b.claim.budget(b.limit, b.end)
		b.round, b.attempt = b.claim.attempt(ctx, b.limit, r)
	case extendScript:
		b.round = b.claim.extend(ctx, b.limit, r)
	case releaseScript, keepScript:
		b.round, b.doubtful = b.claim.release(ctx, b.limit, r)
	default:
		b.round = q.send(ctx, b.limit, r, q.all())
	}
	return b
}

// nodeLimit leaves time, before ctx ends, to say which nodes have not answered.
func nodeLimit(ctx context.Context, limit time.Duration) time.Duration {
	if deadline, limited := ctx.Deadline(); limited {
		limit = min(limit, max(time.Until(deadline), 0)-time.Millisecond)
	}
	return max(limit, time.Millisecond)
}

func (b *ballot) decide() (string, error) {
	switch b.r.Script {
	case acquireScript:
		return b.acquire()
	case extendScript:
		return b.extend()
	case releaseScript, keepScript:
		return b.release()
	}
	return b.inspect()
}

// judge reads the vote of a node from its reply.
type judge func(node int, reply string) (vote, error)

// count takes votes until they decide, or no more come.
func (b *ballot) count(judge judge) *tally {
	t := newTally(b.q, b.round, b.limit)
	b.countUntil(t.decided, t, judge)
	return t
}

func (b *ballot) countUntil(enough func() bool, t *tally, judge judge) {
	for !enough() {
		node, ok := b.round.next(b.ctx)
		if !ok {
			break
		}
		c := b.round.calls[node]
		v, err := noVote, c.Err
		if err == nil {
			v, err = judge(node, c.Reply)
		}
		t.add(node, v, err)
	}
}

// undecided is why there is no result.
func (b *ballot) undecided(t *tally) error {
	if b.ctx.Err() != nil {
		return b.ctx.Err()
	}
	return t.failure()
}

// --- acquiring ---------------------------------------------------------------

// grants are the answers of the nodes to an acquisition.
type grants struct {
	fences map[int]int64   // of those that granted it
	leases []time.Duration // of those that are taken: what remains
	server int64           // the latest time of a node, us
}

func (g *grants) judge(node int, reply string) (vote, error) {
	r, err := parseAcquire(reply)
	if err != nil {
		return noVote, err
	}
	g.server = max(g.server, r.server)
	if !r.acquired {
		g.leases = append(g.leases, r.left)
		return voteNo, nil
	}
	g.fences[node] = r.fence
	return voteYes, nil
}

// acquire is decided by the nodes that grant their vote, and then by those that hold
// the fence.
func (b *ballot) acquire() (string, error) {
	g := &grants{fences: make(map[int]int64)}
	t := newTally(b.q, b.round, b.limit)
	b.countUntil(func() bool { return t.won() || !t.canWin() }, t, g.judge)
	var err error
	if t.won() {
		var fence int64
		if fence, err = b.writeBack(g.fences); err == nil {
			b.claim.settle(fence)
			return fmt.Sprintf("%d %d", fence, g.server), nil
		}
	}
	if b.ctx.Err() != nil {
		return "", b.ctx.Err() // who has left undoes everything
	}
	return b.fail(t, g, err)
}

// fail hands back what the attempt was granted in vain, and finds out what to say.
func (b *ballot) fail(t *tally, g *grants, err error) (string, error) {
	first := b.handBack(g)
	if err == nil {
		b.countUntil(t.decided, t, g.judge)
	}
	b.await(first)
	b.await(b.handBack(g))
	b.after = b.handBackLate
	switch {
	case b.ctx.Err() != nil:
		return "", b.ctx.Err()
	case err != nil:
		return "", err
	case t.lost():
		return fmt.Sprintf("0 %d %d 0", g.left(b.q.majority()-t.yes), g.server), nil
	}
	return "", t.failure()
}

// left is when asking again may be worthwhile, in ms: once so many of the leases have
// ended as are missing for a majority.
func (g *grants) left(missing int) int64 {
	slices.SortFunc(g.leases, func(a, b time.Duration) int {
		if a < 0 || b < 0 { // without an end: the last
			return cmp.Compare(b, a)
		}
		return cmp.Compare(a, b)
	})
	last := g.leases[min(missing, len(g.leases))-1]
	if last < 0 {
		return -1
	}
	return last.Milliseconds()
}

// writeBack makes the greatest of the fences the record of a majority. A node counts if
// the token still stands there.
func (b *ballot) writeBack(fences map[int]int64) (fence int64, err error) {
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
	if len(fences)-len(below) >= b.q.majority() {
		return fence, nil
	}
	limit := b.rest()
	retention := b.q.nodes[0].lk.fenceRetention(b.ttl)
	ro := b.q.send(b.ctx, limit, raiseScript.Request(limit, b.r.Keys()[:2], b.claim.token.arg, fence, retention), below)
	t := newTally(b.q, ro, limit)
	t.yes = len(fences) - len(below)
	for !t.won() && t.canWin() {
		node, ok := ro.next(b.ctx)
		if !ok {
			break
		}
		c := ro.calls[node]
		v, err := voteNo, c.Err
		switch {
		case err != nil || c.Reply == "0":
		case c.Reply == "1":
			v = voteYes
		default:
			err = wire.Unexpected(c.Reply)
		}
		t.add(node, v, err)
	}
	if !t.won() {
		return 0, b.undecided(t)
	}
	return fence, nil
}

// rest is how long the nodes have for a further phase.
func (b *ballot) rest() time.Duration {
	return max(min(b.limit, time.Until(b.end)), time.Millisecond)
}

// handBack gives back what an attempt was granted, as far as it is known. It is waited
// for: else two that have failed would be in each other's way.
func (b *ballot) handBack(g *grants) *round {
	var nodes []int
	var bound int64
	for node, fence := range g.fences {
		nodes = append(nodes, node)
		bound = max(bound, b.claim.target(fence)) // what may have been written back
	}
	clear(g.fences)
	return b.claim.handBack(b.ctx, b.attempt, nodes, bound, b.limit)
}

// await waits for a hand-back: not for long, since it does no harm when it is late.
func (b *ballot) await(ro *round) {
	if ro == nil {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, min(b.limit/2, time.Until(b.end)))
	defer cancel()
	for {
		node, ok := ro.next(ctx)
		if !ok {
			return
		}
		if c := ro.calls[node]; c.Err == nil && c.Reply == "1" { // else the token may stand there
			b.claim.freed(node)
		}
	}
}

// handBackLate does the same for the nodes that answer when the attempt is decided.
func (b *ballot) handBackLate() {
	for {
		node, ok := b.round.next(context.WithoutCancel(b.ctx))
		if !ok {
			return
		}
		r, err := parseAcquire(b.round.calls[node].Reply)
		if b.round.calls[node].Err == nil && err == nil && r.acquired {
			b.claim.handBack(b.ctx, b.attempt, []int{node}, r.fence, b.limit)
		}
	}
}

// --- extending ---------------------------------------------------------------

// extend succeeds if a majority still holds the token. A node where the lock is free
// does not count, although it could be taken: that it is free can mean that somebody
// else had it, together with others, and has released it. Who takes it then never hears
// that there was another holder.
func (b *ballot) extend() (string, error) {
	if b.round == nil {
		return "0", nil // a release has begun, and may yet be executed
	}
	fences, free := make(map[int]int64), make(map[int]string)
	judge := func(node int, reply string) (vote, error) {
		r, err := parseExtend(reply)
		switch {
		case err != nil:
			return noVote, err
		case r.held:
			fences[node] = r.fence
			return voteYes, nil
		case r.free:
			free[node] = r.record
		}
		return voteNo, nil
	}
	t := b.count(judge)
	switch {
	case t.lost():
		return "0", nil
	case !t.won():
		return "", b.undecided(t)
	}
	b.floor = b.claim.floor(t.voted(voteYes))
	fence, err := b.fence(fences)
	if err != nil {
		return "", err
	}
	b.after = func() { b.repair(judge, free) }
	return fmt.Sprintf("1 %d", fence), nil
}

// mode is the last argument of an extension.
func mode(r *wire.Request) any {
	args := r.Args()
	return args[len(args)-1]
}

// fence is that of the lock that was extended. Of one that was acquired elsewhere it is
// not known: it is at most the greatest record, which is made that of a majority.
func (b *ballot) fence(fences map[int]int64) (int64, error) {
	fence := b.claim.settled()
	if fence > 0 || mode(&b.r) != "set" {
		return fence, nil
	}
	fence, err := b.writeBack(fences)
	if err == nil {
		b.claim.settle(fence)
	}
	return fence, err
}

// repair takes the lock on the nodes that turn out to be free. The lock is held without
// them, so nobody waits for it.
func (b *ballot) repair(judge judge, free map[int]string) {
	b.countLate(judge)
	for node, record := range free {
		b.claim.retake(context.WithoutCancel(b.ctx), node, record, b.ttl)
	}
}

// countLate has the judge take note of the nodes that answer when all is decided.
func (b *ballot) countLate(judge judge) {
	for {
		node, ok := b.round.next(context.WithoutCancel(b.ctx))
		if !ok {
			return
		}
		if c := b.round.calls[node]; c.Err == nil {
			_, _ = judge(node, c.Reply) // its vote changes nothing any more
		}
	}
}

// --- releasing ---------------------------------------------------------------

// release succeeds if a majority had the token. If an earlier try has freed a part of
// the nodes, its error says that it may have been executed, and its caller takes that
// into account.
func (b *ballot) release() (string, error) {
	answered := make([]bool, len(b.q.nodes))
	judge := func(node int, reply string) (vote, error) {
		r, err := parseRelease(reply)
		if err != nil {
			return noVote, err
		}
		answered[node] = true
		b.claim.freed(node)
		if r.found {
			return voteYes, nil
		}
		return voteNo, nil
	}
	t := b.count(judge)
	b.after = func() { b.sweep(judge, answered) }
	switch {
	case t.won():
		return wire.ReplyDone, nil
	case t.lost():
		return "0", nil
	}
	return "", b.undecided(t)
}

// sweep looks after the nodes that have not answered, and those that a request may take
// which was sent before the release and is executed after it.
func (b *ballot) sweep(judge judge, answered []bool) {
	b.countLate(judge)
	for node, doubtful := range b.doubtful {
		stands := !answered[node] && b.claim.holds(node)
		if len(doubtful) > 0 || stands {
			b.claim.undoNode(b.ctx, node, stands, doubtful)
		}
	}
}

// --- inspecting --------------------------------------------------------------

// inspect tells what a majority agrees on.
func (b *ballot) inspect() (string, error) {
	seen := &sightings{q: b.q, by: make(map[string][]inspectReply)}
	t := newTally(b.q, b.round, b.limit)
	for !seen.decided(b.round.pending + len(t.voted(noAnswer))) {
		node, ok := b.round.next(b.ctx)
		if !ok {
			break
		}
		c := b.round.calls[node]
		r, err := inspectReply{}, c.Err
		if err == nil {
			r, err = parseInspect(c.Reply)
		}
		if err == nil {
			seen.add(r)
		}
		t.add(node, voteYes, err)
	}
	if holder := seen.holder(); holder != nil {
		return fmt.Sprintf("%d %d 0 %s", holder.left, seen.fence, holder.value), nil
	}
	if seen.decided(len(b.q.nodes) - t.yes) {
		return fmt.Sprintf("-2 %d 0 ", seen.fence), nil
	}
	return "", b.undecided(t)
}

// sightings are what nodes say of one lock.
type sightings struct {
	q     *quorum
	by    map[string][]inspectReply // by token and a space; empty: free
	fence int64
}

func (s *sightings) add(r inspectReply) {
	holder := ""
	if r.left != -2 { // the value may be empty all the same
		token, _, _ := strings.Cut(r.value, " ")
		holder = token + " "
	}
	s.by[holder] = append(s.by[holder], r)
	s.fence = max(s.fence, r.fence)
}

// holder is what a majority holds, or nil. Its lease is that of the majority that lasts
// longest.
func (s *sightings) holder() *inspectReply {
	for holder, replies := range s.by {
		if holder == "" || len(replies) < s.q.majority() {
			continue
		}
		slices.SortFunc(replies, func(a, b inspectReply) int {
			if a.left < 0 || b.left < 0 { // without an end: the first
				return cmp.Compare(a.left, b.left)
			}
			return cmp.Compare(b.left, a.left)
		})
		return &replies[s.q.majority()-1]
	}
	return nil
}

// decided tells whether there is a holder, or cannot be one, whatever the others say.
// A majority has to be heard for that: else the fence is not known.
func (s *sightings) decided(others int) bool {
	if len(s.q.nodes)-others < s.q.majority() {
		return false
	}
	most := 0
	for holder, replies := range s.by {
		if holder != "" {
			most = max(most, len(replies))
		}
	}
	return most >= s.q.majority() || most+others < s.q.majority()
}
