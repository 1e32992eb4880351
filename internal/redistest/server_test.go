package redistest

import (
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestServersAreApart(t *testing.T) {
	t.Parallel()
	one, two := Start(t), Start(t)
	require.NotEqual(t, one.Addr(), two.Addr())
	require.NotEqual(t, one.PID(), two.PID())
	require.Equal(t, "OK", one.Do(t, "set", "k", "v"))
	require.Equal(t, "v", one.Do(t, "get", "k"))
	require.Nil(t, two.Do(t, "get", "k"))
}

func TestDoRepliesAsRESP2(t *testing.T) {
	t.Parallel()
	s := Start(t)
	require.Equal(t, int64(1), s.Do(t, "hset", "h", "a", "b"))
	require.Equal(t, []any{"a", "b"}, s.Do(t, "hgetall", "h"))
	a := act(t, func(t testing.TB) { s.Do(t, "incr", "h") })
	require.True(t, a.failed)
	require.Contains(t, a.said, "WRONGTYPE")
}

func TestDoLeavesNoConnection(t *testing.T) {
	t.Parallel()
	s := Start(t)
	c := s.Client(t, NoRetry)
	s.Do(t, "ping")
	require.Eventually(t, func() bool {
		list, err := c.ClientList(testContext(t)).Result()
		return err == nil && len(list) > 0 && list[len(list)-1] == '\n' && countLines(list) == 1
	}, bound, time.Millisecond)
}

func countLines(s string) (n int) {
	for _, c := range s {
		if c == '\n' {
			n++
		}
	}
	return n
}

func TestConfigReachesTheServer(t *testing.T) {
	t.Parallel()
	s := Start(t, WithConfig("maxmemory", "1mb"), WithConfig("client-output-buffer-limit", "pubsub", "1mb", "1mb", "7"))
	require.Equal(t, []any{"maxmemory", "1048576"}, s.Do(t, "config", "get", "maxmemory"))
	require.Contains(t, s.Do(t, "config", "get", "client-output-buffer-limit").([]any)[1], "pubsub 1048576 1048576 7")
}

func TestDebugSleepIsAllowed(t *testing.T) {
	t.Parallel()
	require.Equal(t, "OK", Start(t).Do(t, "debug", "sleep", "0"))
}

func TestPasswordIsUsedByHelpers(t *testing.T) {
	t.Parallel()
	s := Start(t, WithConfig("requirepass", "secret"))
	require.Equal(t, "PONG", s.Do(t, "ping"))
	require.NoError(t, s.Client(t).Ping(testContext(t)).Err())
	require.ErrorContains(t, s.Client(t, func(o *redis.Options) { o.Password = "" }).Ping(testContext(t)).Err(), "NOAUTH")
}

func TestUsersOfTheTestAreLimited(t *testing.T) {
	t.Parallel()
	s := Start(t)
	s.Do(t, "acl", "setuser", "worker", "on", ">pw", "~lock:*", "+get")
	c := s.Client(t, func(o *redis.Options) { o.Username, o.Password = "worker", "pw" })
	require.ErrorIs(t, c.Get(testContext(t), "lock:a").Err(), redis.Nil)
	require.ErrorContains(t, c.Get(testContext(t), "other").Err(), "NOPERM")
	require.Equal(t, "OK", s.Do(t, "set", "other", "1"))
}

func TestPauseStopsAnswersAndResumeBringsThem(t *testing.T) {
	t.Parallel()
	s := Start(t)
	c := s.Client(t, NoRetry)
	require.NoError(t, c.Ping(testContext(t)).Err())
	for range 20 {
		s.Pause()
		require.True(t, stopped(s.PID()))
		s.Pause() // again does no harm
		reply := inBackground(func() error { return c.Ping(testContext(t)).Err() })
		select {
		case <-reply:
			t.Fatal("a paused server answered")
		case <-time.After(5 * time.Millisecond):
		}
		s.Resume()
		require.NoError(t, await(t, reply))
	}
}

func TestKillRefusesAndRestartKeepsAddress(t *testing.T) {
	t.Parallel()
	s := Start(t)
	c := s.Client(t, NoRetry)
	addr, pid := s.Addr(), s.PID()
	require.NoError(t, c.Set(testContext(t), "k", "v", 0).Err())
	s.Kill()
	require.Error(t, c.Ping(testContext(t)).Err())
	_, err := net.Dial("tcp", addr)
	require.Error(t, err)
	s.Kill() // a dead server stays dead
	s.Restart()
	require.Equal(t, addr, s.Addr())
	require.NotEqual(t, pid, s.PID())
	require.ErrorIs(t, c.Get(testContext(t), "k").Err(), redis.Nil)
}

func TestPersistenceSurvivesKillAndRestart(t *testing.T) {
	t.Parallel()
	s := Start(t, WithPersistence())
	s.Do(t, "set", "k", "v")
	s.Kill()
	s.Restart()
	require.Equal(t, "v", s.Do(t, "get", "k"))
	s.Do(t, "set", "k", "w")
	s.Restart() // a running one
	require.Equal(t, "w", s.Do(t, "get", "k"))
}

func TestPausedServerCanBeKilledAndRestarted(t *testing.T) {
	t.Parallel()
	s := Start(t)
	s.Pause()
	s.Kill()
	s.Restart()
	s.Pause()
	s.Restart()
	require.Equal(t, "PONG", s.Do(t, "ping"))
}

func TestTakenPortIsNoticed(t *testing.T) {
	t.Parallel()
	s, other := Start(t), Start(t)
	port := s.port
	s.Kill()
	s.port = other.port
	require.ErrorIs(t, s.boot(), errPortTaken)
	require.Equal(t, "PONG", other.Do(t, "ping"))
	s.port = port
	s.Restart()
}

func TestBadConfigFailsWithTheServersWords(t *testing.T) {
	t.Parallel()
	Require(t)
	a := act(t, func(t testing.TB) { Start(t, WithConfig("no-such-thing", "1")) })
	require.True(t, a.failed)
	require.Contains(t, a.said, "no-such-thing")
}

func TestServerEndsWithItsTest(t *testing.T) {
	t.Parallel()
	Require(t)
	for name, end := range map[string]func(*Server){
		"running": func(*Server) {},
		"paused":  (*Server).Pause,
		"killed":  (*Server).Kill,
		"again":   (*Server).Restart,
	} {
		var s *Server
		a := act(t, func(t testing.TB) {
			s = Start(t)
			end(s)
		})
		require.Empty(t, a.said, name)
		await(t, s.current().exited)
	}
}

func TestFailedTestShowsTheLog(t *testing.T) {
	t.Parallel()
	Require(t)
	var addr string
	a := act(t, func(t testing.TB) {
		s := Start(t, WithConfig("loglevel", "notice"))
		addr = s.Addr()
		t.Errorf("failed on purpose")
	})
	require.Contains(t, a.said, "log of redis-server "+addr)
	require.Contains(t, a.said, "Ready to accept connections")
}

func TestClientEndsWithItsTest(t *testing.T) {
	t.Parallel()
	s := Start(t)
	var c *redis.Client
	a := act(t, func(t testing.TB) {
		c = s.Client(t)
		require.NoError(t, c.Ping(testContext(t)).Err())
	})
	require.Empty(t, a.said)
	require.ErrorIs(t, c.Ping(testContext(t)).Err(), redis.ErrClosed)
}

func TestPortsAreGivenOnceAndClearOfOutgoingConnections(t *testing.T) {
	t.Parallel()
	given := make(map[int]bool)
	for range 1000 {
		port, err := takePort()
		require.NoError(t, err)
		defer leavePort(port)
		require.GreaterOrEqual(t, port, lowestPort)
		require.LessOrEqual(t, port, highestPort)
		require.False(t, given[port])
		given[port] = true
	}
}
