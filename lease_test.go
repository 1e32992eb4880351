package redislock

import (
	"context"
	"math"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// shiftWall sets the wall clock reading of t by whole seconds and leaves its
// monotonic clock reading as it is. There is no other way to make such a Time
// than to suspend the machine.
func shiftWall(t *testing.T, at time.Time, seconds int64) time.Time {
	t.Helper()
	shifted := at
	(*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&shifted)).wall += uint64(seconds) << 30
	require.Equal(t, time.Duration(0), shifted.Sub(at), "monotonic clock")
	require.Equal(t, time.Duration(seconds)*time.Second, shifted.Round(0).Sub(at.Round(0)), "wall clock")
	return shifted
}

func TestLeaseIsShorterThanTheServersByTheMargin(t *testing.T) {
	now := time.Now()
	for ttl, want := range map[time.Duration]time.Duration{
		MinTTL:            7900 * time.Microsecond,
		time.Second:       988 * time.Millisecond,
		100 * time.Second: 98998 * time.Millisecond,
	} {
		require.Equal(t, want, leaseFrom(now, ttl).left(now))
	}
}

func TestEndlessLeaseDoesNotOverflow(t *testing.T) {
	now := time.Now()
	require.Positive(t, leaseFrom(now, math.MaxInt64).left(now))
	require.Positive(t, leaseFrom(now, maxLease).left(now))
}

func TestLeaseNeedsBothClocks(t *testing.T) {
	now := time.Now()
	until := leaseFrom(now, time.Minute)
	for name, c := range map[string]struct {
		now  time.Time
		want time.Duration
	}{
		"both run":                            {now, until.until.Sub(now)},
		"machine was suspended for 20 s":      {shiftWall(t, now, 20), until.until.Sub(now) - 20*time.Second},
		"machine was suspended past the end":  {shiftWall(t, now, 60), until.until.Sub(now) - time.Minute},
		"wall clock was set back by an hour":  {shiftWall(t, now, -3600), until.until.Sub(now)},
		"set back, and the monotonic ran out": {shiftWall(t, now.Add(time.Hour), -3600), until.until.Sub(now) - time.Hour},
	} {
		require.Equal(t, c.want, until.left(c.now), name)
	}
}

// A machine that was suspended wakes with a lock whose timer has not fired.
func TestSuspendedMachineHasLostItsLock(t *testing.T) {
	for name, notice := range map[string]func(lock *Lock){
		"Err":     func(lock *Lock) { _ = lock.Err() },
		"timer":   func(lock *Lock) { lock.look() },
		"Context": func(lock *Lock) { _, cancel := lock.Context(context.Background()); cancel() },
		"Extend":  func(lock *Lock) { require.ErrorIs(t, lock.Extend(t.Context(), time.Hour), ErrNotHeld) },
	} {
		t.Run(name, func(t *testing.T) {
			lock := suspended(t)
			require.False(t, isDone(lock))
			notice(lock)
			require.True(t, isDone(lock))
			requireFailure(t, lock.Err(), opHold, "lock:a", ErrLost)
		})
	}
}

// suspended is a lock whose lease has ended by the wall clock, while an hour is
// left by the monotonic clock. It is not connected to anything.
func suspended(t *testing.T) *Lock {
	lk := New(clusterClient(t, neverDial(t)))
	a, err := lk.newAcquisition(t.Context(), opAcquire, "a", time.Hour, acquireOptions{})
	require.NoError(t, err)
	lock := lk.newLock(a, grant{fence: 1, anchor: time.Now()})
	lock.mu.Lock()
	lock.lease.until = shiftWall(t, lock.lease.until, -3600)
	lock.mu.Unlock()
	return lock
}

// A timer stands still with the machine. It looks often enough that a loss is
// noticed soon after the machine wakes.
func TestTimerLooksBeforeTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		for ttl, want := range map[time.Duration]time.Duration{
			500 * time.Millisecond: validity(500 * time.Millisecond),
			5 * time.Second:        time.Second,
			time.Minute:            6 * time.Second,
		} {
			lock := r.acquire(ttl.String(), ttl)
			lock.mu.Lock()
			next := lock.untilNextLook()
			lock.mu.Unlock()
			require.Equal(t, want, next)
		}
	})
}
