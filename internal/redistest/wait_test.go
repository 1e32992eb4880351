package redistest

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWaitInVainSaysWhyAndShowsTheLogs(t *testing.T) {
	t.Parallel()
	up, down := Start(t, WithConfig("loglevel", "notice")), Start(t)
	down.Pause()
	a := act(t, func(t testing.TB) {
		eventually(t, 3*lookTick, "miracle", []*Server{up, down}, func() error { return errors.New("none yet") })
	})
	require.True(t, a.failed)
	require.Contains(t, a.said, "miracle: not within 30ms: none yet")
	require.Contains(t, a.said, "end of the log of "+up.Addr()+" (running):")
	require.Contains(t, a.said, "Ready to accept connections")
	require.Contains(t, a.said, "end of the log of "+down.Addr()+" (paused or dead):")
}

func TestWaitEndsWithTheLastObjection(t *testing.T) {
	t.Parallel()
	left := 3
	eventually(t, time.Minute, "", nil, func() error {
		if left--; left > 0 {
			return errors.New("not yet")
		}
		return nil
	})
	require.Zero(t, left)
}

func TestServersAgreeIfAllThatRunSayTheSame(t *testing.T) {
	t.Parallel()
	servers := StartMany(t, 3)
	said := map[*Server]string{servers[0]: "a", servers[1]: "a", servers[2]: "b"}
	ask := func(s *Server) (string, error) { return said[s], nil }
	_, err := agreed(servers, ask)
	require.ErrorContains(t, err, servers[2].Addr()+" says b")
	servers[2].Pause()
	answer, err := agreed(servers, ask)
	require.NoError(t, err)
	require.Equal(t, "a", answer)
	servers[2].Resume()
	_, err = agreed(servers, ask)
	require.Error(t, err)
	servers[2].Kill()
	_, err = agreed(servers, ask)
	require.NoError(t, err)
	_, err = agreed(servers[2:], ask)
	require.ErrorContains(t, err, "no server runs")
}
