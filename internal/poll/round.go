package poll

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// Round is one request made of several nodes at the same time.
type Round struct {
	ctx     context.Context // ends when the nodes' time is over, or all have answered
	cancel  context.CancelFunc
	Calls   []*wire.Call // by node; nil: it was not asked
	answers chan int     // the nodes that have answered
	pending int          // how many have not been taken from answers
}

// Send makes a request of some nodes. It does not block. That the caller leaves
// does not end it: most of the nodes would answer in a moment, and it is good
// to know what.
func (ns *Nodes) Send(ctx context.Context, limit time.Duration, r wire.Request, to []int) *Round {
	return ns.SendEach(ctx, limit, to, func(int) wire.Request { return r })
}

// SendEach is Send with a request for each node.
func (ns *Nodes) SendEach(ctx context.Context, limit time.Duration, to []int, r func(node int) wire.Request) *Round {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	ro := &Round{ctx: ctx, cancel: cancel, Calls: make([]*wire.Call, len(ns.all)), answers: make(chan int, len(to)), pending: len(to)}
	left := new(atomic.Int32)
	left.Store(int32(len(to)))
	for _, i := range to {
		ro.Calls[i] = ns.all[i].start(ctx, limit, r(i), func() {
			ro.answers <- i
			if left.Add(-1) == 0 {
				ro.cancel()
			}
		})
	}
	return ro
}

// Pending is how many nodes have not been returned by Next.
func (ro *Round) Pending() int { return ro.pending }

// timedOut tells whether there are nodes that had all their time and did not
// answer.
func (ro *Round) timedOut() bool { return errors.Is(ro.ctx.Err(), context.DeadlineExceeded) }

// Next is the next node that has answered. It waits for one, and reports false
// if there is none in time, or when ctx ends.
func (ro *Round) Next(ctx context.Context) (node int, ok bool) {
	if ro.pending == 0 {
		return 0, false
	}
	select {
	case node = <-ro.answers:
	case <-ctx.Done():
		return 0, false
	case <-ro.ctx.Done():
		select {
		case node = <-ro.answers: // it came before
		default:
			return 0, false
		}
	}
	ro.pending--
	return node, true
}

// Late has judge see the replies of the nodes that have not been returned by
// Next, as they come. Their votes change nothing any more.
func (ro *Round) Late(judge Judge) {
	for {
		node, ok := ro.Next(context.Background())
		if !ok {
			return
		}
		if c := ro.Calls[node]; c.Err == nil {
			_, _ = judge(node, c.Reply)
		}
	}
}
