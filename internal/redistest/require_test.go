package redistest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRequireSkipsWithoutServerAndSaysHowToGetOne(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv(EnvBinary, "")
	t.Setenv(EnvRequire, "")
	a := act(t, func(t testing.TB) { Require(t) })
	require.True(t, a.skipped)
	require.False(t, a.failed)
	require.Regexp(t, `^redistest: no redis-server.*install it.*\n$`, a.said)
}

func TestRequireFailsWithoutServerWhereOneIsDemanded(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv(EnvBinary, "")
	t.Setenv(EnvRequire, "1")
	a := act(t, func(t testing.TB) { Start(t) })
	require.True(t, a.failed)
	require.False(t, a.skipped)
	require.Contains(t, a.said, "install it")
}

func TestRequireTakesTheBinaryFromTheEnvironment(t *testing.T) {
	path := findServer(t)
	t.Setenv("PATH", "")
	t.Setenv(EnvBinary, path)
	require.Equal(t, path, findServer(t))
}

func TestRequirePassesWithServer(t *testing.T) {
	Require(t)
	require.False(t, t.Skipped())
}
