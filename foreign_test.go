package redislock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// takeForeign has somebody hold the lock who serves no queue: another library,
// for one.
func (r *fakeRedis) takeForeign(ttl time.Duration) {
	require.NoError(r.t, r.Set("lock:a", "foreign"))
	if ttl > 0 {
		r.SetTTL("lock:a", ttl)
	}
}

// Nobody is told when a foreign holder frees the lock. It is noticed within as
// long again as one has waited, and within a poll interval.
func TestAForeignReleaseIsNoticedWithinAsLongAgain(t *testing.T) {
	for _, held := range []time.Duration{
		10 * time.Millisecond, 90 * time.Millisecond, 150 * time.Millisecond, 700 * time.Millisecond,
		2 * time.Second, 4 * time.Second, time.Minute,
	} {
		for _, ttl := range []time.Duration{0, time.Hour} {
			t.Run(fmt.Sprintf("%s of %s", held, ttl), func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					r.takeForeign(ttl)
					waiter := waitFor(t.Context(), r.locker(), "a", time.Hour)
					time.Sleep(held)
					r.Del("lock:a")
					released := time.Now()
					got := <-waiter
					require.NoError(t, got.err)
					require.LessOrEqual(t, got.at.Sub(released), min(max(held, 100*time.Millisecond), defaultPollInterval))
				})
			})
		}
	}
}

// The same for one that becomes the head while a lock of its own Locker is
// before it, which was deleted and is somebody else's by now.
func TestALockTakenFromTheOwnLockerIsNoticedWithinAsLongAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		first, err := lk.Acquire(t.Context(), "a", time.Hour)
		require.NoError(t, err)
		second, third := waitFor(t.Context(), lk, "a", time.Hour), waitFor(t.Context(), lk, "a", time.Hour)
		time.Sleep(50 * time.Millisecond)
		require.NoError(t, first.Release(t.Context()))
		var waiter <-chan acquired
		select {
		case got := <-second:
			require.NoError(t, got.err)
			waiter = third
		case got := <-third:
			require.NoError(t, got.err)
			waiter = second
		}
		time.Sleep(50 * time.Millisecond)
		r.Del("lock:a")
		deleted := time.Now()
		got := <-waiter
		require.NoError(t, got.err)
		require.LessOrEqual(t, got.at.Sub(deleted), 200*time.Millisecond)
	})
}

// The questions of a head get fewer: in the long run there is one per poll
// interval.
func TestTheQuestionsOfAHeadGetFewer(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.takeForeign(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		waiter := waitFor(ctx, r.locker(), "a", time.Hour)
		time.Sleep(2 * defaultPollInterval)
		begin := r.requests(opAcquire)
		require.LessOrEqual(t, begin, 12, "since it came")
		const intervals = 100
		time.Sleep(intervals * defaultPollInterval)
		asked := r.requests(opAcquire) - begin
		require.LessOrEqual(t, asked, intervals*8/7+1, "a pause may be an eighth shorter")
		require.GreaterOrEqual(t, asked, intervals)
		cancel()
		<-waiter
	})
}

// Where many processes contend, the lock goes to others many times while one
// waits. It does not begin to count anew each time, or each turn would cost
// another question.
func TestHeadsOfAHotNameAskSeldom(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		const processes, goroutines, section = 8, 8, 5 * time.Millisecond
		var lockers []*Locker
		for range processes {
			lockers = append(lockers, r.lockerOn(r.connect()))
		}
		counts := takeTurnsFor(t, 20*time.Second, goroutines, lockers...)
		turns := 0
		for _, n := range counts {
			turns += n
		}
		require.Greater(t, turns, 3000)
		each := float64(r.requests(opAcquire)+r.requests(opRelease)) / float64(turns)
		t.Logf("%.3f requests for each of %d turns of %s", each, turns, section)
		require.Less(t, each, 1.1)
	})
}
