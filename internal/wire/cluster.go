package wire

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// cluster is the engine for a Redis Cluster. Routing and redirects are the
// client's matter. What is added: each node has a group commit of its own, so
// that a slow node holds up nobody else, and a subscription of its own, since
// PUBSUB NUMSUB counts the subscribers of one node only; and after a failure
// the client is told to look at the topology, without which it follows a dead
// primary only once a minute.
//
// All keys of a request stand in one slot, hence on one node.
type cluster struct {
	client  Client   // for requests: it may be a wrapper
	of      Topology // the same client, or what it wraps
	reports Log
	known   atomic.Bool // the client knows the topology: asking it does not block any more

	replicas *acknowledgement // of some requests; nil: of none

	mu       sync.Mutex
	nodes    map[group]*pipeline
	reloads  int       // under way, see reload
	reloaded time.Time // when the last of them began
}

// group is what shares a group commit.
type group struct {
	addr         string // of the primary; "" while that is unknown
	acknowledged bool   // replicas have to acknowledge it, see replicated
}

func newCluster(client Client, of Topology, replicas *acknowledgement, reports Log) *cluster {
	return &cluster{client: client, of: of, replicas: replicas, reports: reports, nodes: make(map[group]*pipeline)}
}

// Start makes the request of the node on which its first key stands.
func (c *cluster) Start(ctx context.Context, r Request) *Call { return c.node(r).Start(ctx, r) }

// Do starts the request all the same: whoever waits in the round trip itself
// could not be told that the slot has got another primary.
func (c *cluster) Do(ctx context.Context, r Request) *Call {
	call := c.Start(ctx, r)
	<-call.Done
	return call
}

// Direct is not possible: see Do.
func (*cluster) Direct() *Direct { return nil }

// node is the group commit for the node that a request is about. If its slot
// has moved, the client follows the redirect all the same.
func (c *cluster) node(r Request) *pipeline {
	return c.group(group{c.place(r.Key()), c.replicas != nil && r.Acknowledged != nil})
}

// Travel makes one round trip to a node.
func (c *cluster) Travel(addr string, calls []*Call) { c.group(group{addr: addr}).venture(calls) }

func (c *cluster) group(g group) *pipeline {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.nodes[g]
	if p == nil {
		p = &pipeline{
			client: c.client, reports: c.reports, redirected: true, after: c.after,
			attend: func(batch []*Call) func() { return c.attend(g.addr, batch) },
		}
		if g.acknowledged {
			p.replicas, p.place, p.relocate, p.alone = c.replicas, c.place, c.reloadNow, g.addr == ""
		}
		c.nodes[g] = p
	}
	return p
}

// place is the address of Home.
func (c *cluster) place(key string) string {
	addr, _ := c.Home(key)
	return addr
}

// Home is the primary of a key's slot, as far as the client knows. It is asked
// by timers and under locks, so a panic is none.
func (c *cluster) Home(key string) (addr string, on Subscriber) {
	if !c.known.Load() {
		return "", nil
	}
	Catch(func() {
		if primary, err := c.of.MasterForKey(context.Background(), key); err == nil { // else nobody serves the slot
			addr, on = primary.Options().Addr, primary
		}
	}, func(err *StrayError) { err.Log(c.reports) })
	return addr, on
}

func (c *cluster) after(failure error) {
	if failure == nil {
		c.known.Store(true)
	} else {
		c.Suspect()
	}
}

// Suspect has the client load the topology anew, in the background. It does so
// at most five times a second.
func (c *cluster) Suspect() {
	Catch(func() { c.of.ReloadState(context.Background()) }, func(err *StrayError) { err.Log(c.reports) })
}

// Shortage is that of the primary.
func (c *cluster) Shortage(key string) string {
	_, primary := c.Home(key)
	return shortageOf(primary)
}

const (
	// silence is how long a node may take over a round trip until the topology
	// is looked at, and again after each silencePause.
	silence      = time.Second
	silencePause = 300 * time.Millisecond
	// reloadsAtOnce bounds how many looks at the topology are under way. Each
	// asks a node at random, and one that asks the silent node takes as long as
	// the client's time-outs: of six nodes, five seconds and a look every
	// silencePause that is three.
	reloadsAtOnce = 10
)

// attend looks after a round trip to a node that may have fallen silent. A
// connection to a machine that is gone, or stands still, gives no error until
// the client's time-out, long after the cluster has replaced it. So when the
// slot of a call has got another primary the call is given up, and can be made
// anew there. The one given up may yet follow a redirect to the new primary,
// should the old one wake up (see MaybeLate).
func (c *cluster) attend(addr string, batch []*Call) (stop func()) {
	t := &attendance{cluster: c, addr: addr, batch: batch}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(silence, t.probe)
	return t.stop
}

type attendance struct {
	cluster *cluster
	addr    string // of the node that was asked; "" if that is unknown, and so may be another

	mu    sync.Mutex
	batch []*Call // nil when it is over
	timer *time.Timer
}

func (t *attendance) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.batch = nil
	t.timer.Stop()
}

func (t *attendance) probe() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.batch == nil {
		return
	}
	for _, call := range t.batch {
		if addr, on := t.cluster.Home(call.Request.Key()); on != nil && addr != t.addr {
			call.Finish("", errReplaced)
		}
	}
	go t.cluster.reload()
	t.timer.Reset(silencePause)
}

// reload looks at the topology while a node is silent, so that one look may be
// stuck there.
func (c *cluster) reload() {
	if !c.mayReload() {
		return
	}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reloads--
	}()
	Catch(c.reloadNow, func(err *StrayError) { err.Log(c.reports) })
}

// reloadNow loads the topology. Unlike Suspect it does so at once:
// ForEachMaster begins with that.
func (c *cluster) reloadNow() {
	err := c.of.ForEachMaster(context.Background(), func(context.Context, *redis.Client) error { return nil })
	if err == nil {
		c.known.Store(true)
	}
}

func (c *cluster) mayReload() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reloads == reloadsAtOnce || time.Since(c.reloaded) < silencePause/2 {
		return false
	}
	c.reloads++
	c.reloaded = time.Now()
	return true
}
