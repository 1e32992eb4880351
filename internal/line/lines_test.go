package line

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/wire"
)

// newLines has lines without an inbox.
func newLines() *Lines {
	ls := &Lines{Poll: time.Second}
	ls.Inboxes.Home = func(string) (string, wire.Subscriber) { return "", nil }
	return ls
}

// An empty line leaves nothing to a timer.
func TestTheAlarmOfALineEndsWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := newLines()
		ls.Held("a", "holder")
		w := &Waiter{Key: "a", Token: "waiter", TTL: time.Minute}
		ls.Join(w)
		alarm := ls.byKey["a"].alarm
		require.NotNil(t, alarm)
		require.Nil(t, ls.Leave(w, false, nil, true))
		ls.Lost("a", "holder")
		lines, expecting := ls.Len()
		require.Zero(t, lines)
		require.Zero(t, expecting)
		require.False(t, alarm.Stop(), "it was stopped")
	})
}

// A loss that a line hears of before the grant, and another token's loss, do
// not make it forget its holder.
func TestALineForgetsItsHolderOnly(t *testing.T) {
	ls := newLines()
	ls.Lost("a", "one")
	ls.Held("a", "one")
	ls.Lost("a", "two")
	lines, _ := ls.Len()
	require.Equal(t, 1, lines)
	ls.Lost("a", "one")
	lines, _ = ls.Len()
	require.Zero(t, lines)
}
