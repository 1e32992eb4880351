package redislock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// quorumError says why a request found no majority, neither for nor against it: which
// nodes did not answer, or refused, and why.
type quorumError struct {
	nodes, need int
	yes, no     int
	causes      []error // by node, in its words; without those that voted

	refused  bool // so many nodes refuse that trying again at once does not help
	hopeless bool // and that waiting does not help: see isOutage
	executed bool // on one of the nodes at least
}

func (e *quorumError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no quorum of %d of %d nodes: %d for it, %d against it", e.need, e.nodes, e.yes, e.no)
	for _, cause := range e.causes {
		b.WriteString("; ")
		b.WriteString(cause.Error())
	}
	return b.String()
}

// Unwrap gives the causes. None of them is a context error: what a node did not answer
// in the time that it has is a time-out, whatever time the caller has.
func (e *quorumError) Unwrap() []error { return e.causes }

// MaybeExecuted, Transient, Outage and Parts make it a [wire.Failure].
func (e *quorumError) MaybeExecuted() bool { return e.executed }

// Transient: so many nodes may serve a moment later that it is worth a try.
func (e *quorumError) Transient() bool { return !e.refused }

// Outage: waiting may help.
func (e *quorumError) Outage() bool { return !e.hopeless }

// Parts are the failures of the nodes.
func (e *quorumError) Parts() []error { return e.causes }

// partlyHeld tells whether an outage leaves no majority to an acquisition because
// somebody else has some of the nodes. Waiting for the holder is worthwhile then.
func partlyHeld(err error) bool {
	var several *quorumError
	return errors.As(err, &several) && several.no > 0 && !several.refused
}

// vote is what one node says.
type vote int8

const (
	noVote   vote = iota // it was not asked, or has not answered
	voteYes              // done
	voteNo               // not possible: the lock is somebody else's, or not the caller's
	noAnswer             // it failed
)

// tally counts the votes of one request.
type tally struct {
	q       *quorum
	round   *round
	limit   time.Duration
	votes   []vote
	causes  []error // of noAnswer
	yes, no int

	refused, hopeless int // of those that failed: see quorumError
}

func newTally(q *quorum, ro *round, limit time.Duration) *tally {
	return &tally{q: q, round: ro, limit: limit, votes: make([]vote, len(q.nodes)), causes: make([]error, len(q.nodes))}
}

func (t *tally) add(node int, v vote, err error) {
	if err != nil {
		v = noAnswer
		t.causes[node] = err
		if !wire.IsTransient(err) {
			t.refused++
		}
		if !wire.IsOutage(err) {
			t.hopeless++
		}
	}
	t.votes[node] = v
	switch v {
	case voteYes:
		t.yes++
	case voteNo:
		t.no++
	}
}

// minority is how many nodes can be missing from a majority.
func (t *tally) minority() int { return len(t.q.nodes) - t.q.majority() }

func (t *tally) won() bool  { return t.yes >= t.q.majority() }
func (t *tally) lost() bool { return t.no > t.minority() }

// canWin and canLose tell what those that have not answered can make of it.
func (t *tally) canWin() bool  { return t.yes+t.round.pending >= t.q.majority() }
func (t *tally) canLose() bool { return t.no+t.round.pending > t.minority() }

// decided tells whether more answers would change nothing. While a majority is out of
// reach, but it is open whether that is for contention or for an outage, it is not.
func (t *tally) decided() bool {
	return t.won() || t.lost() || !t.canWin() && !t.canLose()
}

// voted lists the nodes that voted so.
func (t *tally) voted(v vote) (nodes []int) {
	for i, w := range t.votes {
		if w == v {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

func (t *tally) failure() error {
	e := &quorumError{
		nodes: len(t.q.nodes), need: t.q.majority(), yes: t.yes, no: t.no,
		refused: t.refused > t.minority(), hopeless: t.hopeless > t.minority(),
	}
	for i, v := range t.votes {
		call := t.round.calls[i]
		switch {
		case v == noAnswer:
			e.causes = append(e.causes, t.q.nodes[i].failure(t.causes[i], call, t.limit))
		case v == noVote && call != nil && t.round.timedOut(): // else nobody has waited for it
			e.causes = append(e.causes, t.q.nodes[i].failure(context.DeadlineExceeded, call, t.limit))
		}
		e.executed = e.executed || call != nil &&
			(v == voteYes || !call.HasReply() || v == noAnswer && call.Err == nil) // the last: nobody can read what it says
	}
	return e
}
