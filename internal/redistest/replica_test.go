package redistest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestManyServersKnowNothingOfEachOther(t *testing.T) {
	t.Parallel()
	addrs := make(map[string]bool)
	for _, s := range StartMany(t, 7, WithConfig("maxmemory", "7mb")) {
		require.Equal(t, int64(1), s.Do(t, "incr", "k"))
		require.Equal(t, []any{"maxmemory", "7340032"}, s.Do(t, "config", "get", "maxmemory"))
		addrs[s.Addr()] = true
	}
	require.Len(t, addrs, 7)
}

func TestNothingIsStartedWithoutServer(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv(EnvBinary, "")
	t.Setenv(EnvRequire, "")
	for name, start := range map[string]func(testing.TB){
		"many":       func(t testing.TB) { StartMany(t, 3) },
		"replicated": func(t testing.TB) { StartReplicated(t, 1) },
		"cluster":    func(t testing.TB) { StartCluster(t, 3, 1) },
		"sentinel":   func(t testing.TB) { StartSentinel(t, 1) },
	} {
		a := act(t, start)
		require.True(t, a.skipped, name)
		require.False(t, a.failed, name)
	}
}

func TestOneThatCannotStartEndsTheOthers(t *testing.T) {
	t.Parallel()
	Require(t)
	var servers []*Server
	a := act(t, func(t testing.TB) {
		StartMany(t, 3, func(s *Server) {
			servers = append(servers, s)
			if len(servers) == 2 {
				WithConfig("no-such-thing", "1")(s)
			}
		})
	})
	require.True(t, a.failed)
	require.Contains(t, a.said, "no-such-thing")
	for _, s := range servers {
		await(t, s.current().exited)
	}
}

func TestReplicasAcknowledgeFromTheStart(t *testing.T) {
	t.Parallel()
	primary, replicas := StartReplicated(t, 2)
	c := primary.Client(t, NoRetry).Conn()
	defer c.Close()
	require.NoError(t, c.Set(testContext(t), "k", "v", 0).Err())
	acknowledged, err := c.Wait(testContext(t), 2, bound).Result()
	require.NoError(t, err)
	require.EqualValues(t, 2, acknowledged)
	for _, replica := range replicas {
		require.Equal(t, "v", replica.Do(t, "get", "k"))
		a := act(t, func(t testing.TB) { replica.Do(t, "set", "k", "w") })
		require.Contains(t, a.said, "READONLY")
	}
}

func TestRestartedReplicaIsAReplicaAgain(t *testing.T) {
	t.Parallel()
	primary, replicas := StartReplicated(t, 1, WithConfig("requirepass", "secret"))
	primary.Do(t, "set", "k", "v")
	replicas[0].Kill()
	replicas[0].Restart()
	eventually(t, bound, "replica in sync", replicas, func() error { return primary.replicated(1) })
	require.Equal(t, "v", replicas[0].Do(t, "get", "k"))
}

func TestPausedReplicaIsNotUpToDate(t *testing.T) {
	t.Parallel()
	primary, replicas := StartReplicated(t, 1)
	replicas[0].Pause()
	primary.Do(t, "set", "k", "v")
	require.ErrorContains(t, primary.replicated(1), "0 of 1 replicas")
	require.ErrorContains(t, primary.replicated(2), "1 replicas of 2")
	replicas[0].Resume()
	eventually(t, bound, "replica in sync", replicas, func() error { return primary.replicated(1) })
	require.Error(t, replicas[0].replicated(0))
}
