package servertest_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock"
	"github.com/e2e3f2a3/redislock/internal/redistest"
)

// tracedCluster and traced wrap a client, and note that requests pass.
type tracedCluster struct {
	*redis.ClusterClient
	requests *atomic.Int64
}

func (c tracedCluster) Process(ctx context.Context, cmd redis.Cmder) error {
	c.requests.Add(1)
	return c.ClusterClient.Process(ctx, cmd)
}

type traced struct {
	redis.UniversalClient
	requests *atomic.Int64
}

func (c *traced) Process(ctx context.Context, cmd redis.Cmder) error {
	c.requests.Add(1)
	return c.UniversalClient.Process(ctx, cmd)
}

func TestServerWrappedClusterClientIsOneOfACluster(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	c := startShards(t)
	ctx := t.Context()
	var requests atomic.Int64
	kinds := map[string]func(*redis.ClusterClient) redislock.Client{
		"embedded":           func(c *redis.ClusterClient) redislock.Client { return tracedCluster{c, &requests} },
		"as UniversalClient": func(c *redis.ClusterClient) redislock.Client { return &traced{c, &requests} },
		"twice": func(c *redis.ClusterClient) redislock.Client {
			return struct{ redis.UniversalClient }{&traced{c, &requests}}
		},
	}
	for kind, wrap := range kinds {
		c.wrap = wrap
		t.Run(kind, func(t *testing.T) {
			requests.Store(0)
			c.turns(t)
			c.gone(t, "hot")
			for _, s := range c.Nodes()[:3] {
				c.handedOver(t, c.nameOn(t, s, kind), c.asleep(t), c.asleep(t))
			}
			_, err := c.locker(t).TryAcquire(ctx, "a}b", time.Minute)
			require.ErrorIs(t, err, redislock.ErrInvalidName)
			assert.Positive(t, requests.Load(), "requests pass the wrapper")
		})
	}
	followed := c.Nodes()[0]
	for _, s := range c.Nodes()[1:3] {
		for _, replica := range c.Replicas(t, s) {
			replica.Kill()
		}
	}
	for kind, wrap := range kinds {
		c.wrap = wrap
		t.Run(kind+", with replicas", func(t *testing.T) {
			lk := c.locker(t, redislock.WithReplicas(1, 200*time.Millisecond))
			for round := range 5 {
				for _, s := range c.Nodes()[:3] {
					name := c.nameOn(t, s, fmt.Sprint(kind, round))
					lock, err := lk.TryAcquire(ctx, name, time.Minute)
					if s == followed {
						require.NoError(t, err, "it has a replica")
						require.NoError(t, lock.Release(ctx))
						continue
					}
					require.ErrorIs(t, err, redislock.ErrNotReplicated, "it has none")
					assert.Empty(t, c.value(name))
				}
			}
		})
	}
}
