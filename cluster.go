package redislock

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// cluster is the engine for a Redis Cluster. Routing and redirects are the client's
// matter. What is added: each node has a group commit of its own, so that a slow node
// holds up nobody else, and a subscription of its own, since PUBSUB NUMSUB counts the
// subscribers of one node only; and after a failure the client is told to look at the
// topology, without which it follows a dead primary only once a minute.
//
// All keys of a lock stand in one slot, hence on one node (see keys.go).
type cluster struct {
	client *redis.ClusterClient
	known  atomic.Bool // the client knows the topology: asking it does not block any more

	mu    sync.Mutex
	nodes map[string]*pipeline // by the address of the primary; "" while that is unknown
}

func newCluster(client *redis.ClusterClient) *cluster {
	return &cluster{client: client, nodes: make(map[string]*pipeline)}
}

func (c *cluster) start(ctx context.Context, r request) *call { return c.node(r).start(ctx, r) }

func (c *cluster) do(ctx context.Context, r request) *call { return c.node(r).do(ctx, r) }

// node is the group commit for the node that a request is about. If its slot has
// moved, the client follows the redirect all the same.
func (c *cluster) node(r request) *pipeline {
	addr, _ := c.home(r.key())
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.nodes[addr]
	if p == nil {
		p = &pipeline{client: c.client, after: c.after}
		c.nodes[addr] = p
	}
	return p
}

// home is the primary of a key's slot, as far as the client knows.
func (c *cluster) home(key string) (addr string, on subscriber) {
	if !c.known.Load() {
		return "", nil
	}
	primary, err := c.client.MasterForKey(context.Background(), key)
	if err != nil {
		return "", nil // nobody serves the slot
	}
	return primary.Options().Addr, primary
}

func (c *cluster) after(failure error) {
	if failure == nil {
		c.known.Store(true)
	} else {
		c.suspect()
	}
}

// suspect has the client load the topology anew, in the background. It does so at
// most five times a second.
func (c *cluster) suspect() { c.client.ReloadState(context.Background()) }
