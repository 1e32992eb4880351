package lease

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/clocktest"
)

func TestLeaseIsShorterThanTheServersByTheMargin(t *testing.T) {
	now := time.Now()
	for ttl, want := range map[time.Duration]time.Duration{
		10 * time.Millisecond: 7900 * time.Microsecond,
		time.Second:           988 * time.Millisecond,
		100 * time.Second:     98998 * time.Millisecond,
	} {
		require.Equal(t, want, From(now, ttl).Remaining(now))
	}
}

func TestEndlessLeaseDoesNotOverflow(t *testing.T) {
	now := time.Now()
	require.Positive(t, From(now, math.MaxInt64).Remaining(now))
	require.Positive(t, From(now, 100*365*24*time.Hour).Remaining(now))
}

func TestLeaseNeedsBothClocks(t *testing.T) {
	now := time.Now()
	lease := From(now, time.Minute)
	whole := lease.Until().Sub(now)
	for name, c := range map[string]struct {
		now  time.Time
		want time.Duration
	}{
		"both run":                            {now, whole},
		"machine was suspended for 20 s":      {clocktest.ShiftWall(now, 20*time.Second), whole - 20*time.Second},
		"machine was suspended past the end":  {clocktest.ShiftWall(now, time.Minute), whole - time.Minute},
		"wall clock was set back by an hour":  {clocktest.ShiftWall(now, -time.Hour), whole},
		"set back, and the monotonic ran out": {clocktest.ShiftWall(now.Add(time.Hour), -time.Hour), whole - time.Hour},
	} {
		require.Equal(t, c.want, lease.Remaining(c.now), name)
	}
}
