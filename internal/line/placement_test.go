package line

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A subscription that serves some names is not given up for the others, but
// tried anew when it serves none.
func TestASubscriptionThatServesSomeNamesIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p placement
		p.begin()
		require.True(t, p.missed(time.Now()), "at once")
		p.begin()
		for range 100 {
			time.Sleep(time.Second)
			p.missed(time.Now())
			time.Sleep(time.Second)
			p.found(time.Now())
		}
		for range int(misplacedSplit/time.Second) - 1 {
			require.False(t, p.missed(time.Now()))
			time.Sleep(time.Second)
		}
		time.Sleep(2 * time.Second)
		require.True(t, p.missed(time.Now()))
	})
}

// A question that was on its way when the first one was not queued says nothing
// new.
func TestAnAnswerFromBeforeTheDoubtIsNoProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p placement
		p.begin()
		sent := time.Now()
		time.Sleep(time.Millisecond)
		require.True(t, p.missed(time.Now()))
		p.begin()
		require.False(t, p.missed(time.Now()), "a second after the last")
		p.found(sent)
		time.Sleep(misplacedPause)
		require.True(t, p.missed(time.Now()))
		p.begin()
		time.Sleep(misplacedPause)
		require.False(t, p.missed(time.Now()), "the pause grows")
		time.Sleep(misplacedReset + time.Second)
		require.True(t, p.missed(time.Now()))
	})
}
