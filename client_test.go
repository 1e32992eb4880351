package redislock

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// The ways in which programs wrap a client.
type (
	withRing      struct{ *redis.Ring }
	withCluster   struct{ *redis.ClusterClient }
	withClient    struct{ *redis.Client }
	withUniversal struct{ redis.UniversalClient }
	withPointer   struct{ *withUniversal }
	withValue     struct{ withUniversal }

	// named delegates to a field, as a wrapper does that shows nothing else.
	named struct {
		inner redis.UniversalClient
	}
	// chosen has several, of which one is used.
	chosen struct {
		named
		Locks, Cache redis.UniversalClient
	}
	// function is one in which nothing can be seen.
	function func() redis.UniversalClient
)

func (c *named) Process(ctx context.Context, cmd redis.Cmder) error {
	return c.inner.Process(ctx, cmd)
}
func (c *named) Pipeline() redis.Pipeliner { return c.inner.Pipeline() }
func (c *named) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	return c.inner.Subscribe(ctx, channels...)
}

func (c *chosen) Process(ctx context.Context, cmd redis.Cmder) error {
	return c.Locks.Process(ctx, cmd)
}

func (f function) Process(ctx context.Context, cmd redis.Cmder) error { return f().Process(ctx, cmd) }
func (f function) Pipeline() redis.Pipeliner                          { return f().Pipeline() }
func (f function) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	return f().Subscribe(ctx, channels...)
}

// shownCluster is a wrapper with a field that adds the methods of a cluster.
type shownCluster struct {
	named
	wire.Topology
}

// plainClients are a client of each kind that sends nothing.
func plainClients(t *testing.T) (one *redis.Client, cluster *redis.ClusterClient, ring *redis.Ring) {
	const addr = "127.0.0.1:1"
	one = redis.NewClient(clientOptions(nil))
	cluster = redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}})
	ring = redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr}})
	t.Cleanup(func() { one.Close(); cluster.Close(); ring.Close() })
	return one, cluster, ring
}

func TestARingIsRefusedHoweverItIsWrapped(t *testing.T) {
	one, _, ring := plainClients(t)
	for name, client := range map[string]Client{
		"plain":              ring,
		"embedded":           withRing{ring},
		"pointer":            &withRing{ring},
		"as UniversalClient": withUniversal{ring},
		"through a pointer":  withPointer{&withUniversal{ring}},
		"through a value":    &withValue{withUniversal{ring}},
		"of a wrapper":       withUniversal{withUniversal{&withRing{ring}}},
		"in a field":         &named{inner: ring},
		"in a field of a wrapper": withUniversal{struct {
			redis.UniversalClient
			*testing.T
		}{ring, t}},
		"several": &chosen{Locks: ring, Cache: ring, named: named{inner: ring}},
	} {
		require.Panics(t, func() { New(client) }, name)
		func() {
			defer func() {
				require.Regexp(t, `^redislock: New\(.*\): the client is a \*redis\.Ring, which moves keys`, recover(), name)
			}()
			New(client)
		}()
		_, err := NewQuorum([]Client{one, client})
		require.ErrorContains(t, err, "redislock: NewQuorum: client 2 is a *redis.Ring, which moves keys", name)
	}
}

func TestAClusterIsKnownHoweverItIsWrapped(t *testing.T) {
	one, nodes, _ := plainClients(t)
	for name, client := range map[string]Client{
		"plain":                 nodes,
		"embedded":              withCluster{nodes},
		"pointer":               &withCluster{nodes},
		"as UniversalClient":    withUniversal{nodes},
		"through a pointer":     withPointer{&withUniversal{nodes}},
		"through a value":       &withValue{withUniversal{nodes}},
		"of a wrapper":          withUniversal{withUniversal{&withCluster{nodes}}},
		"that adds the methods": &shownCluster{named{inner: nodes}, nodes},
	} {
		lk := New(client, WithReplicas(1, time.Second))
		require.True(t, lk.clustered, name)
		require.True(t, lk.clustered, name)
		require.Equal(t, "*wire.cluster", fmt.Sprintf("%T", lk.one().conn.Engine), name)
		_, err := lk.keysFor("a}b")
		require.ErrorIs(t, err, ErrInvalidName, name)
		_, err = NewQuorum([]Client{one, client})
		require.ErrorContains(t, err, "redislock: NewQuorum: client 2 is a *redis.ClusterClient", name)
		require.ErrorContains(t, err, "a quorum needs single primaries", name)
	}
}

func TestAClusterWhoseMethodsAreHiddenIsRefused(t *testing.T) {
	one, cluster, _ := plainClients(t)
	for name, client := range map[string]Client{
		"in a field":              &named{inner: cluster},
		"in a field of a wrapper": struct{ *named }{&named{inner: cluster}},
		"pipelining":              pipelining(t, cluster.AutoPipeline),
		"all of them":             &chosen{Locks: cluster, Cache: withUniversal{cluster}, named: named{inner: cluster}},
	} {
		func() {
			defer func() {
				require.Regexp(t, `the client is a wrapper of a \*redis\.ClusterClient, but does not have its methods ForEachMaster, `, recover(), name)
			}()
			New(client)
		}()
		_, err := NewQuorum([]Client{one, client})
		require.ErrorContains(t, err, "client 2 is a wrapper of a *redis.ClusterClient", name)
	}
}

func TestOtherClientsCountAsOneServer(t *testing.T) {
	one, cluster, ring := plainClients(t)
	for name, client := range map[string]Client{
		"plain":              one,
		"embedded":           withClient{one},
		"as UniversalClient": withUniversal{one},
		"in a field":         &named{inner: one},
		"pipelining":         pipelining(t, one.AutoPipeline),
		"one of several":     &chosen{named: named{inner: one}, Locks: one, Cache: ring},
		"beside a cluster": struct {
			*redis.Client
			shards *redis.ClusterClient
		}{one, cluster},
		"nobody can know":     function(func() redis.UniversalClient { return cluster }),
		"a wrapper of itself": itself(),
	} {
		d, err := deploymentOf(client)
		require.NoError(t, err, name)
		require.Nil(t, d.cluster, name)
		require.False(t, New(client).clustered, name)
	}
}

func pipelining(t *testing.T, of func() (*redis.AutoPipeliner, error)) Client {
	c, err := of()
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func itself() Client {
	c := &withUniversal{}
	c.UniversalClient = c
	return c
}

// recording is a wrapper with methods of its own, which requests must pass.
type recording struct {
	redis.UniversalClient
	processed, pipelines atomic.Int64
}

func (c *recording) Process(ctx context.Context, cmd redis.Cmder) error {
	c.processed.Add(1)
	return c.UniversalClient.Process(ctx, cmd)
}

func (c *recording) Pipeline() redis.Pipeliner {
	c.pipelines.Add(1)
	return c.UniversalClient.Pipeline()
}

func TestRequestsPassTheMethodsOfAWrapper(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		for _, inner := range []redis.UniversalClient{r.client, r.cluster()} {
			c := &recording{UniversalClient: inner}
			lk := r.lockerOn(c)
			lock, err := lk.TryAcquire(t.Context(), "a", time.Minute)
			require.NoError(t, err)
			require.NoError(t, lock.Release(t.Context()))
			require.EqualValues(t, 2, c.processed.Load())
			r.delayed()
			together(wire.Trips+3, func(i int) { _, _ = lk.Inspect(t.Context(), "a") })
			require.Positive(t, c.pipelines.Load())
		}
	})
}
