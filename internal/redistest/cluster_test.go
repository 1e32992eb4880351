package redistest

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestClusterServesEverySlotFromTheStart(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 3, 1)
	require.Len(t, c.Nodes(), 6)
	client := c.Client(t)
	owners := make(map[*Server]bool)
	for i := range 30 {
		key := fmt.Sprint("k", i)
		require.NoError(t, client.Set(testContext(t), key, i, 0).Err())
		owner := c.Primary(t, key)
		require.Equal(t, fmt.Sprint(i), owner.Do(t, "get", key))
		owners[owner] = true
	}
	require.Len(t, owners, 3)
	for owner := range owners {
		require.Contains(t, c.Nodes()[:3], owner)
		require.Len(t, c.Replicas(t, owner), 1)
		require.NoError(t, owner.replicated(1))
	}
	require.Empty(t, c.Replicas(t, c.Nodes()[3]))
}

func TestClusterNeedsNoReplicasAndTakesSettings(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 3, 0, WithConfig("cluster-node-timeout", "1999"))
	for _, s := range c.Nodes() {
		require.Equal(t, []any{"cluster-node-timeout", "1999"}, s.Do(t, "config", "get", "cluster-node-timeout"))
	}
	a := act(t, func(t testing.TB) { c.WaitForPrimary(t, "k", c.Primary(t, "k"), lookTick) })
	require.True(t, a.failed)
	require.Contains(t, a.said, "is still the primary")
	require.Contains(t, a.said, "end of the log of "+c.Nodes()[2].Addr())
	c.Nodes()[2].Kill()
	a = act(t, func(t testing.TB) { c.WaitReady(t, lookTick) })
	require.True(t, a.failed)
	require.Contains(t, a.said, "end of the log of "+c.Nodes()[2].Addr()+" (paused or dead)")
}

func TestClusterClientTakesOptionsAndEndsWithItsTest(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 3, 0, WithConfig("requirepass", "secret"))
	var client *redis.ClusterClient
	a := act(t, func(t testing.TB) {
		client = c.Client(t, func(o *redis.ClusterOptions) { o.MaxRedirects = 7 })
		require.NoError(t, client.Set(testContext(t), "k", "v", 0).Err())
		require.Equal(t, 7, client.Options().MaxRedirects)
	})
	require.Empty(t, a.said)
	require.ErrorIs(t, client.Ping(testContext(t)).Err(), redis.ErrClosed)

	to := another(c, c.Primary(t, "k"))
	c.MoveSlot(t, "k", to) // nodes have to know the password too
	require.Equal(t, "v", to.Do(t, "get", "k"))
}

// another returns a node that is not s; of a cluster without replicas, another
// primary.
func another(c *Cluster, s *Server) *Server {
	for _, node := range c.nodes {
		if node != s {
			return node
		}
	}
	panic("unreachable")
}

func TestSlotMovesUnderLoadAndLosesNothing(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 3, 0)
	const keys = 250 // more than are moved at once
	client := c.Client(t)
	for i := range keys {
		require.NoError(t, client.Set(testContext(t), fmt.Sprint("{slot}", i), i, 0).Err())
	}
	ctx, stop := context.WithCancel(context.Background())
	done := 0
	load := inBackground(func() error {
		for ctx.Err() == nil {
			if err := client.Incr(context.Background(), "{slot}").Err(); err != nil {
				return err
			}
			done++
		}
		return nil
	})
	from := c.Primary(t, "{slot}")
	to := another(c, from)
	c.MoveSlot(t, "{slot}", to)
	require.Same(t, to, c.Primary(t, "{slot}"))
	require.NoError(t, client.Incr(testContext(t), "{slot}").Err())
	stop()
	require.NoError(t, await(t, load))

	slot := c.Slot(t, "{slot}")
	require.Equal(t, int64(keys+1), to.Do(t, "cluster", "countkeysinslot", slot))
	require.Equal(t, int64(0), from.Do(t, "cluster", "countkeysinslot", slot))
	require.Equal(t, fmt.Sprint(done+1), to.Do(t, "get", "{slot}"))
	c.MoveSlot(t, "{slot}", from)
	require.Same(t, from, c.Primary(t, "{slot}"))
}

func TestHalfMigratedSlotAsksAndLetsTryAgain(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 3, 0)
	client := c.Client(t)
	for _, key := range []string{"{slot}moved", "{slot}left"} {
		require.NoError(t, client.Set(testContext(t), key, key, 0).Err())
	}
	m := c.BeginMigration(t, "{slot}", another(c, c.Primary(t, "{slot}")))
	m.MoveKeys(t)
	m.MoveKeys(t, "{slot}moved", "{slot}none")
	require.Same(t, m.From, c.Primary(t, "{slot}"))

	from := m.From.Client(t, NoRetry)
	require.NoError(t, from.Get(testContext(t), "{slot}left").Err())
	require.ErrorContains(t, from.Get(testContext(t), "{slot}moved").Err(), fmt.Sprintf("ASK %d %s", c.Slot(t, "{slot}"), m.To.Addr()))
	require.ErrorContains(t, from.MGet(testContext(t), "{slot}left", "{slot}moved").Err(), "TRYAGAIN")
	require.Equal(t, "{slot}moved", client.Get(testContext(t), "{slot}moved").Val())

	m.Finish(t)
	require.Same(t, m.To, c.Primary(t, "{slot}"))
	require.Len(t, client.MGet(testContext(t), "{slot}left", "{slot}moved").Val(), 2)
	require.ErrorContains(t, from.Get(testContext(t), "{slot}left").Err(), "MOVED")
}

func TestFailoverSwapsPrimaryAndReplica(t *testing.T) {
	Long(t)
	t.Parallel()
	c := StartCluster(t, 3, 1)
	old := c.Primary(t, "k")
	replicas := c.Replicas(t, old)
	old.Do(t, "set", "k", "v")
	require.Same(t, replicas[0], c.Failover(t, "k"))
	require.Same(t, replicas[0], c.Primary(t, "k"))
	require.Equal(t, "v", replicas[0].Do(t, "get", "k"))
	require.Same(t, old, c.Failover(t, "k"))
	c.WaitReady(t, bound)
	require.Equal(t, replicas, c.Replicas(t, old))
}

func TestLostPrimaryIsReplacedAndComesBackAsReplica(t *testing.T) {
	Long(t)
	t.Parallel()
	c := StartCluster(t, 3, 1)
	for name, fault := range map[string]struct{ lose, find func(*Server) }{
		"killed": {(*Server).Kill, (*Server).Restart},
		"paused": {(*Server).Pause, (*Server).Resume},
	} {
		old := c.Primary(t, "k")
		id, addr := old.id(t), old.Addr()
		replica := c.Replicas(t, old)[0]
		fault.lose(old)
		require.Same(t, replica, c.WaitForPrimary(t, "k", old, 2*bound), name)
		replica.Do(t, "set", "k", name)
		fault.find(old)
		c.WaitReady(t, 2*bound)
		require.Equal(t, id, old.id(t), name)
		require.Equal(t, addr, old.Addr(), name)
		require.Equal(t, []*Server{old}, c.Replicas(t, replica), name)
	}
}

func TestRestartedNodeKeepsItsPlace(t *testing.T) {
	Long(t)
	t.Parallel()
	c := StartCluster(t, 2, 1)
	for _, s := range c.Nodes() {
		id := s.id(t)
		s.Restart() // too fast for the others to replace it
		c.WaitReady(t, 2*bound)
		require.Equal(t, id, s.id(t))
	}
	l, err := c.layout()
	require.NoError(t, err)
	for i, r := range l {
		require.Equal(t, c.Nodes()[i].Addr(), r.primary)
		require.Equal(t, []string{c.Nodes()[2+i].Addr()}, r.replicas)
	}
}

func TestClusterEndsWithItsTest(t *testing.T) {
	t.Parallel()
	Require(t)
	var c *Cluster
	a := act(t, func(t testing.TB) {
		c = StartCluster(t, 3, 0)
		c.nodes[0].Kill()
		c.nodes[1].Pause()
		t.Fatalf("failed on purpose")
	})
	require.Contains(t, a.said, "failed on purpose")
	for _, s := range c.Nodes() {
		await(t, s.current().exited)
		require.Contains(t, a.said, "log of redis-server "+s.Addr())
	}
}

func TestLayoutTellsWhatIsMissing(t *testing.T) {
	t.Parallel()
	l := layout{{0, 9, "a", []string{"b"}}, {11, slots - 1, "c", nil}}
	require.ErrorContains(t, l.complete(3), "16383 of 16384 slots")
	require.Equal(t, []string{"a", "", "c"}, []string{l.primary(9), l.primary(10), l.primary(11)})
	l[0].last = 10
	require.NoError(t, l.complete(3))
	require.ErrorContains(t, l.complete(4), "3 of 4 nodes")
}

func TestTakenBusPortIsNoticed(t *testing.T) {
	t.Parallel()
	s := Start(t, clusterNode)
	s.Kill()
	bus, err := net.Listen("tcp", loopback(s.port+10000))
	require.NoError(t, err)
	require.ErrorIs(t, s.boot(), errPortTaken)
	require.NoError(t, bus.Close())
	s.Restart()
}
