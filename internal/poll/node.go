// Package poll makes one request of several servers at the same time, and
// counts what they say. It knows which of them are silent, so that a server
// that is down costs little, and which are one and the same, so that none votes
// twice. It knows nothing of locks.
package poll

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// Server is one that is asked.
type Server struct {
	Addr   string // for error texts; may be empty
	Client interface {
		Process(ctx context.Context, cmd redis.Cmder) error
	}
	Conn wire.Conn
}

// Nodes are the servers that are asked.
type Nodes struct {
	all     []*node
	log     wire.Log
	servers servers
}

// New returns them. It sends nothing.
func New(all []Server, log wire.Log) *Nodes {
	ns := &Nodes{log: log}
	for i, s := range all {
		ns.all = append(ns.all, &node{of: ns, index: i, Server: s})
	}
	return ns
}

// Len is how many there are.
func (ns *Nodes) Len() int { return len(ns.all) }

// All are the numbers of all of them.
func (ns *Nodes) All() []int {
	all := make([]int, len(ns.all))
	for i := range all {
		all[i] = i
	}
	return all
}

// Majority is how many nodes make a quorum. Of all that are configured: those
// that cannot be reached may have granted the lock to somebody else.
func (ns *Nodes) Majority() int { return len(ns.all)/2 + 1 }

// node is one server.
type node struct {
	of    *Nodes
	index int
	Server

	health  health
	trouble atomic.Pointer[error] // of its last request, if it says more than that time was up
}

func (n *node) String() string {
	if n.Addr == "" {
		return fmt.Sprintf("node %d", n.index+1)
	}
	return fmt.Sprintf("node %d (%s)", n.index+1, n.Addr)
}

// start makes a request of one node, and calls answered when the call is done.
func (n *node) start(ctx context.Context, limit time.Duration, r wire.Request, answered func()) *wire.Call {
	c := wire.NewCall(ctx, r)
	if silent, ok := n.health.ask(limit); !ok {
		c.Finish("", silentFor(silent))
		answered()
		return c
	}
	c.WillFinish()
	go func() {
		defer answered()
		wire.Catch(func() { n.execute(ctx, c) }, func(err *wire.StrayError) {
			err.Log(n.of.log)
			n.remember(err)
			c.Finish("", err)
		})
	}()
	return c
}

// execute makes the request of a call of the node, and finishes the call.
func (n *node) execute(ctx context.Context, c *wire.Call) {
	reply, err := "", n.of.verify(ctx, n)
	if err == nil {
		got := n.Conn.Do(ctx, c.Request)
		reply, err = got.Reply, got.Err
	}
	n.remember(err)
	c.Finish(reply, err)
}

// remember keeps why a node failed, for later failures that have no more to say
// than that it took too long: go-redis dials several times before it says what
// is wrong.
func (n *node) remember(err error) {
	var answer redis.Error
	if err == nil || errors.As(err, &answer) {
		n.health.heard()
	}
	switch {
	case err == nil:
		n.trouble.Store(nil)
	case !wire.IsContextError(err):
		n.trouble.Store(&err)
	}
}

// failure puts the node before what happened to it, and the last trouble behind
// it, if it was not asked or took too long.
func (n *node) failure(err error, c *wire.Call, limit time.Duration) error {
	var unasked *unaskedError
	late := wire.IsContextError(err)
	if late {
		err = c.TimedOut(limit, n.Conn)
	}
	before := n.trouble.Load()
	if before == nil || !late && !errors.As(err, &unasked) || errors.Is(err, *before) {
		return fmt.Errorf("%s: %w", n, err)
	}
	return fmt.Errorf("%s: %w; before that: %w", n, err, *before)
}
