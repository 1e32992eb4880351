package line

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/lease"
)

func TestAnchorOfAGrant(t *testing.T) {
	sent := time.Now()
	const registered = int64(1_800_000_000_000_000)
	for name, c := range map[string]struct {
		r       registration
		granted int64
		arrived time.Duration // after sent
		want    time.Duration
	}{
		"granted while waiting":                 {registration{sent, registered}, registered + 3_000_000, 3100 * time.Millisecond, 2997 * time.Millisecond},
		"never later than the arrival":          {registration{sent, registered}, registered + 3_000_000, 2 * time.Second, 2 * time.Second},
		"delayed on its way":                    {registration{sent, registered}, registered + 1_000_000, time.Minute, 999 * time.Millisecond},
		"registration not answered yet":         {registration{sent, 0}, registered + 3_000_000, 3100 * time.Millisecond, 0},
		"the server's clock was set back since": {registration{sent, registered}, registered - 1, time.Second, 0},
	} {
		got := anchorOf(Grant{Server: c.granted}, c.r, sent.Add(c.arrived))
		require.InDelta(t, c.want, got.Sub(sent), float64(time.Microsecond), name)
	}
}

// The monotonic clock stands still while the machine is suspended: a grant that
// waited in the socket is as old as the wall clock says.
func TestAnchorOfAGrantThatOutlivedASuspension(t *testing.T) {
	const registered = int64(1_800_000_000_000_000)
	arrived := time.Now()
	// Registered a minute ago by the wall clock, and a tenth of a second by the
	// other. A time without monotonic reading stands in for it: both
	// differences are then by the wall clock.
	sent := arrived.Round(0).Add(-time.Minute)
	anchor := anchorOf(Grant{Server: registered + 10_000_000}, registration{sent, registered}, arrived)
	require.LessOrEqual(t, lease.From(anchor, 30*time.Second).Remaining(arrived), time.Duration(0))
}

func TestImplausibleGrantsAreNotTrusted(t *testing.T) {
	sent := time.Now()
	arrived := sent.Add(2 * time.Second)
	const registered = int64(1_800_000_000_000_000)
	r := registration{sent, registered}
	for name, c := range map[string]struct {
		g    Grant
		r    registration
		want bool
	}{
		"in order":                {Grant{Fence: registered + 1_000_000, Server: registered + 1_000_000}, r, true},
		"fence above the clock":   {Grant{Fence: registered + 9_000_000, Server: registered + 1_000_000}, r, true},
		"fence below the clock":   {Grant{Fence: 7, Server: registered + 1_000_000}, r, false},
		"before the registration": {Grant{Fence: registered, Server: registered}, r, false},
		"in the future":           {Grant{Fence: registered + 9_000_000, Server: registered + 9_000_000}, r, false},
		"nothing to compare with": {Grant{Fence: registered, Server: registered}, registration{sent, 0}, true},
	} {
		require.Equal(t, c.want, plausible(c.g, c.r, arrived), name)
	}
}

func TestGarbageInTheInboxIsNoGrant(t *testing.T) {
	for _, payload := range []string{"", "x", "a b", "a b c", "a 1 c", "a 1", "a -1 2", "a 1 2 3", "a 99999999999999999999 2"} {
		_, _, ok := ParseGrant(payload)
		require.False(t, ok, payload)
	}
	token, g, ok := ParseGrant("t 12 34")
	require.True(t, ok)
	require.Equal(t, "t", token)
	require.Equal(t, Grant{Fence: 12, Server: 34}, g)
}
