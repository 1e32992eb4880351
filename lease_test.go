package redislock

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
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
			lock := suspended(t, time.Hour)
			require.False(t, isDone(lock))
			notice(lock)
			require.True(t, isDone(lock))
			requireFailure(t, lock.Err(), opHold, "lock:a", ErrLost)
		})
	}
}

// suspended is a lock of an hour, since which the wall clock has gained so much on the
// monotonic clock. It is not connected to anything.
func suspended(t *testing.T, gained time.Duration) *Lock {
	return suspendedOn(t, New(clusterClient(t, neverDial(t))), gained)
}

func suspendedOn(t *testing.T, lk *Locker, gained time.Duration) *Lock {
	a, err := lk.newAcquisition(t.Context(), opAcquire, "a", time.Hour, acquireOptions{})
	require.NoError(t, err)
	lock := lk.newLock(a, grant{fence: 1, anchor: time.Now()})
	lock.mu.Lock()
	lock.lease.until = shiftWall(t, lock.lease.until, -int64(gained/time.Second))
	lock.mu.Unlock()
	t.Cleanup(func() { lock.endWith(errInterrupted) })
	return lock
}

// A timer stands still with the machine. Once a second the clocks are compared: a lock
// whose lease has ended by the wall clock ends, and of another the timer is set anew.
func TestClocksThatPart(t *testing.T) {
	const most = 3563 * time.Second // of an hour's validity, which ends a second later
	require.Less(t, validity(time.Hour)-most, time.Second)
	for name, test := range map[string]struct {
		suspended time.Duration
		at        func(lock *Lock) bool // once the clocks were compared
	}{
		"not at all":              {0, func(lock *Lock) bool { return !isDone(lock) }},
		"set back":                {-time.Hour, func(lock *Lock) bool { return !isDone(lock) }},
		"for a part of the lease": {most, func(lock *Lock) bool { return !isDone(lock) && awaitDone(lock, 10*time.Second) }},
		"to the end of the lease": {time.Hour, isDone},
	} {
		t.Run(name, func(t *testing.T) {
			lock := suspended(t, test.suspended)
			require.False(t, isDone(lock))
			lock.lk.clocks.tick(shiftWall(t, time.Now(), int64(test.suspended/time.Second)))
			require.True(t, test.at(lock))
		})
	}
}

func awaitDone(lock *Lock, within time.Duration) bool {
	select {
	case <-lock.Done():
		return true
	case <-time.After(within):
		return false
	}
}

// Once all locks have ended the clocks are left alone, until there is another.
func TestClocksAreComparedWhileLocksAreHeld(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		ticking := func() bool {
			synctest.Wait()
			lk.clocks.mu.Lock()
			defer lk.clocks.mu.Unlock()
			return lk.clocks.ticking
		}
		for range 2 {
			require.False(t, ticking())
			lock, err := lk.TryAcquire(t.Context(), "a", time.Hour)
			require.NoError(t, err)
			time.Sleep(time.Minute)
			require.True(t, ticking())
			require.NoError(t, lock.Release(t.Context()))
			time.Sleep(clockPause)
		}
		require.False(t, ticking())
	})
}

// What the wall clock gains after it was set back counts from there: for a lock that was
// renewed since then, as for one that was acquired a moment after.
func TestSuspensionAfterTheClockWasSetBack(t *testing.T) {
	for name, renewed := range map[string]bool{"renewed": true, "acquired": false} {
		t.Run(name, func(t *testing.T) {
			lock := suspended(t, 0)
			lk := lock.lk
			lk.clocks.mu.Lock()
			lk.clocks.looked = shiftWall(t, time.Now(), 3600)
			lk.clocks.mu.Unlock()
			if renewed {
				lk.clocks.tick(time.Now())
				lock.mu.Lock()
				lock.lease.until = shiftWall(t, lock.lease.until, -3600)
				lock.mu.Unlock()
			} else {
				lock = suspendedOn(t, lk, time.Hour)
			}
			lk.clocks.tick(shiftWall(t, time.Now(), 3600))
			require.True(t, isDone(lock))
		})
	}
}
