package redistest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestSentinelClientFollowsAFailover(t *testing.T) {
	Long(t)
	t.Parallel()
	d := StartSentinel(t, 2, WithConfig("requirepass", "secret"))
	require.Len(t, d.Sentinels(), 3)
	require.Len(t, d.Servers(), 3)
	old := d.Primary(t)
	require.Same(t, d.Servers()[0], old)
	client := d.Client(t, func(o *redis.FailoverOptions) { o.MaxRetries = 5 })
	require.Equal(t, 5, client.Options().MaxRetries)
	require.NoError(t, client.Set(testContext(t), "k", "v", 0).Err())

	promoted := d.Failover(t)
	require.NotSame(t, old, promoted)
	require.Same(t, promoted, d.Primary(t))
	require.Equal(t, "v", promoted.Do(t, "get", "k"))
	setEventually(t, client, promoted, "w")
	d.WaitReady(t, 2*bound)
}

// setEventually returns once what client sets is in s.
func setEventually(t testing.TB, client *redis.Client, s *Server, value string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return client.Set(testContext(t), "k", value, 0).Err() == nil && s.Do(t, "get", "k") == value
	}, 2*bound, lookTick)
}

func TestSentinelsReplaceALostPrimary(t *testing.T) {
	Long(t)
	t.Parallel()
	d := StartSentinel(t, 1)
	for name, fault := range map[string]struct{ lose, find func(*Server) }{
		"killed": {(*Server).Kill, (*Server).Restart},
		"paused": {(*Server).Pause, (*Server).Resume},
	} {
		old := d.Primary(t)
		fault.lose(old)
		promoted := d.WaitForPrimary(t, old, 2*bound)
		require.NotSame(t, old, promoted, name)
		promoted.Do(t, "set", "k", name)
		fault.find(old)
		d.WaitReady(t, 3*bound)
		require.Equal(t, name, old.Do(t, "get", "k"))
	}
}

func TestRestartedServersAndSentinelsAreWhatTheyWere(t *testing.T) {
	Long(t)
	t.Parallel()
	d := StartSentinel(t, 1)
	promoted := d.Failover(t)
	d.WaitReady(t, 2*bound)
	id := d.Sentinels()[0].Do(t, "sentinel", "myid")
	d.Sentinels()[0].Kill()
	d.Sentinels()[0].Restart()
	require.Equal(t, id, d.Sentinels()[0].Do(t, "sentinel", "myid"))
	d.Servers()[0].Restart() // a replica by now
	d.WaitReady(t, 3*bound)
	require.Same(t, promoted, d.Primary(t))
}

func TestSentinelWaitInVainShowsTheLogs(t *testing.T) {
	t.Parallel()
	d := StartSentinel(t, 1)
	a := act(t, func(t testing.TB) { d.WaitForPrimary(t, d.Primary(t), lookTick) })
	require.Contains(t, a.said, "is still the primary")
	for _, s := range d.all() {
		require.Contains(t, a.said, "end of the log of "+s.Addr())
	}
}

func TestSentinelEndsWithItsTest(t *testing.T) {
	t.Parallel()
	Require(t)
	var d *Sentinel
	began := time.Now()
	a := act(t, func(t testing.TB) {
		d = StartSentinel(t, 1)
		d.servers[0].Pause()
		d.sentinels[0].Pause()
		d.sentinels[1].Kill()
	})
	require.Empty(t, a.said)
	require.Less(t, time.Since(began), bound)
	for _, s := range d.all() {
		await(t, s.current().exited)
	}
}
