package redislock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/e2e3f2a3/redislock/internal/clocktest"
	"github.com/e2e3f2a3/redislock/internal/line"
)

// A machine that was suspended wakes with a lock whose timer has not fired. (In
// real time: a bubble has no monotonic clock.)
func TestSuspendedMachineHasLostItsLock(t *testing.T) {
	for name, notice := range map[string]func(lock *Lock){
		"Err":         func(lock *Lock) { _ = lock.Err() },
		"timer":       func(lock *Lock) { lock.checkLease() },
		"Context":     func(lock *Lock) { _, cancel := lock.Context(context.Background()); cancel() },
		"Extend":      func(lock *Lock) { require.ErrorIs(t, lock.Extend(t.Context(), time.Hour), ErrNotHeld) },
		"next second": func(lock *Lock) { require.True(t, awaitDone(lock, 10*time.Second)) },
	} {
		t.Run(name, func(t *testing.T) {
			lk, machine := suspendable(New(clusterClient(t, neverDial(t))))
			lock := unconnected(t, lk)
			require.False(t, isDone(lock))
			machine.Suspend(time.Hour)
			notice(lock)
			require.True(t, isDone(lock))
			requireFailure(t, lock.Err(), opHold, "lock:a", ErrLost)
		})
	}
}

// suspendable has a Locker, which has no locks yet, look at the clocks of a
// machine.
func suspendable(lk *Locker) (*Locker, *clocktest.Clock) {
	machine := new(clocktest.Clock)
	lk.clocks.Now = machine.Now
	return lk, machine
}

// unconnected is a lock of an hour that no Redis knows of.
func unconnected(t *testing.T, lk *Locker) *Lock {
	a, err := lk.newAcquisition(t.Context(), opAcquire, "a", time.Hour, acquireOptions{})
	require.NoError(t, err)
	lock := lk.newLock(a, line.Grant{Fence: 1, Anchor: time.Now()})
	t.Cleanup(func() { lock.endWith(errInterrupted) })
	return lock
}

func awaitDone(lock *Lock, within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-lock.Done():
		return true
	case <-timer.C:
		return false
	}
}
