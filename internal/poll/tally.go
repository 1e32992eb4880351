package poll

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// Error says why a request found no majority, neither for nor against it: which
// nodes did not answer, or refused, and why.
type Error struct {
	Nodes   int // how many were asked, or could not be
	need    int
	yes, no int
	causes  []error // by node, in its words; without those that voted

	refused  bool // so many nodes refuse that trying again at once does not help
	hopeless bool // and that waiting does not help: see wire.IsOutage
	executed bool // on one of the nodes at least
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no quorum (%d of %d needed): %d in favor, %d against", e.need, e.Nodes, e.yes, e.no)
	for _, cause := range e.causes {
		b.WriteString("; ")
		b.WriteString(cause.Error())
	}
	return b.String()
}

// Unwrap gives the causes. None of them is a context error: what a node did not
// answer in the time that it has is a time-out, whatever time the caller has.
func (e *Error) Unwrap() []error { return e.causes }

// MaybeExecuted makes it a [wire.Failure], with the next three.
func (e *Error) MaybeExecuted() bool { return e.executed }

// Transient tells whether so many nodes may serve a moment later that it is
// worth a try.
func (e *Error) Transient() bool { return !e.refused }

// Outage tells whether waiting may help.
func (e *Error) Outage() bool { return !e.hopeless }

// Parts are the failures of the nodes.
func (e *Error) Parts() []error { return e.causes }

// Opposed tells whether some nodes have voted against it, and the others do not
// refuse for good: what fails now may only have been outvoted, together with an
// outage.
func (e *Error) Opposed() bool { return e.no > 0 && !e.refused }

// Vote is what one node says.
type Vote int8

const (
	NoVote   Vote = iota // it was not asked, or has not answered
	Yes                  // done
	No                   // not possible: the lock is somebody else's, or not the caller's
	NoAnswer             // it failed
)

// Tally counts the votes of one request.
type Tally struct {
	of      *Nodes
	round   *Round
	limit   time.Duration
	votes   []Vote
	causes  []error // of NoAnswer
	yes, no int

	refused, hopeless int // of those that failed: see Error
}

// Count begins to count the votes of a round in which each node has limit to
// answer. already is how many nodes that are not asked are in favour.
func (ns *Nodes) Count(ro *Round, limit time.Duration, already int) *Tally {
	return &Tally{of: ns, round: ro, limit: limit, votes: make([]Vote, len(ns.all)), causes: make([]error, len(ns.all)), yes: already}
}

// Judge reads the vote of a node from its reply.
type Judge func(node int, reply string) (Vote, error)

// Until takes votes until there are enough, or no more come before ctx ends.
func (t *Tally) Until(ctx context.Context, enough func() bool, judge Judge) {
	for !enough() {
		node, ok := t.round.Next(ctx)
		if !ok {
			break
		}
		c := t.round.Calls[node]
		v, err := NoVote, c.Err
		if err == nil {
			v, err = judge(node, c.Reply)
		}
		t.add(node, v, err)
	}
}

func (t *Tally) add(node int, v Vote, err error) {
	if err != nil {
		v = NoAnswer
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
	case Yes:
		t.yes++
	case No:
		t.no++
	}
}

// minority is how many nodes can be missing from a majority.
func (t *Tally) minority() int { return len(t.of.all) - t.of.Majority() }

// Yes is how many nodes are in favour.
func (t *Tally) Yes() int { return t.yes }

// Won tells whether a majority is in favour.
func (t *Tally) Won() bool { return t.yes >= t.of.Majority() }

// Lost tells whether so many are against it that no majority can be in favour.
func (t *Tally) Lost() bool { return t.no > t.minority() }

// CanWin tells whether those that have not answered can make a majority of it.
func (t *Tally) CanWin() bool { return t.yes+t.round.pending >= t.of.Majority() }

func (t *Tally) canLose() bool { return t.no+t.round.pending > t.minority() }

// Decided tells whether more answers would change nothing. While a majority is
// out of reach, but it is open whether that is for contention or for an outage,
// it is not.
func (t *Tally) Decided() bool {
	return t.Won() || t.Lost() || !t.CanWin() && !t.canLose()
}

// Voted lists the nodes that voted so.
func (t *Tally) Voted(v Vote) (nodes []int) {
	for i, w := range t.votes {
		if w == v {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// Failure is an [Error] that says which nodes have not voted, and why.
func (t *Tally) Failure() error {
	e := &Error{
		Nodes: len(t.of.all), need: t.of.Majority(), yes: t.yes, no: t.no,
		refused: t.refused > t.minority(), hopeless: t.hopeless > t.minority(),
	}
	for i, v := range t.votes {
		call := t.round.Calls[i]
		switch {
		case v == NoAnswer:
			e.causes = append(e.causes, t.of.all[i].failure(t.causes[i], call, t.limit))
		case v == NoVote && call != nil && t.round.timedOut(): // else nobody has waited for it
			e.causes = append(e.causes, t.of.all[i].failure(context.DeadlineExceeded, call, t.limit))
		}
		e.executed = e.executed || call != nil &&
			(v == Yes || !call.HasReply() || v == NoAnswer && call.Err == nil) // the last: nobody can read what it says
	}
	return e
}
