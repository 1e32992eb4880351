// Package wire brings requests to Redis and their replies back: scripts, each
// sent once and never repeated by the client; the group commit by which many
// requests share a round trip; what a cluster and replicas need; and what a
// failed request means. It knows nothing of locks.
package wire

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Engine is how requests travel to Redis, and to how many servers. Requests are
// made of it one by one. The reply it gives is one that the script of the
// request can have given.
type Engine interface {
	// Start makes a request and does not block. When ctx ends the caller is
	// gone, but the request may still be executed.
	Start(ctx context.Context, r Request) *Call
	// Do is Start for a caller whose ctx cannot end: the call is done when it
	// returns.
	Do(ctx context.Context, r Request) *Call
	// Direct reserves a round trip that the caller makes in its own goroutine
	// although its ctx can end; nil: that is not possible now.
	Direct() *Direct
	// Home is the server on which a key stands, and what subscribes there; nil
	// if that is not known, or more than one. It does not block.
	Home(key string) (addr string, on Subscriber)
	// Suspect is told that a request had no reply in time.
	Suspect()
	// Shortage says that there is no free connection to the server of a key, or
	// nothing.
	Shortage(key string) string
	// Travel makes the requests of calls in one round trip to the server with
	// this address, as Home says it, apart from all others. It may change the
	// order of calls. Each call is finished when it returns, unless the client
	// has ended the goroutine.
	Travel(addr string, calls []*Call)
}

// Client is the part of a go-redis client that this package uses.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
	Subscriber
}

// Subscriber is a client's method.
type Subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// Topology is what a client of a Redis Cluster can do that others cannot.
type Topology interface {
	ForEachMaster(ctx context.Context, fn func(ctx context.Context, master *redis.Client) error) error
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ReloadState(ctx context.Context)
}

// Config says what a client stands for, and what is asked of it.
type Config struct {
	Cluster  Topology // nil: no cluster, as far as can be seen
	Single   bool     // it is known to be one server
	Replicas int      // that have to acknowledge some requests; 0: none
	Timeout  time.Duration
	Missing  error // what a request fails with that too few have acknowledged
	Log      Log
}

// NewEngine chooses the engine for a client.
func NewEngine(client Client, config Config) Engine {
	replicas := newAcknowledgement(config)
	if config.Cluster != nil {
		return newCluster(client, config.Cluster, replicas, config.Log)
	}
	plain := &pipeline{client: client, reports: config.Log, redirected: !config.Single}
	if replicas == nil {
		plain.direct.possible = config.Single && obeys(client)
		return plain
	}
	acknowledged := &pipeline{client: client, reports: config.Log, redirected: !config.Single, replicas: replicas, alone: !config.Single}
	return &replicated{pipeline: plain, acknowledged: acknowledged}
}
