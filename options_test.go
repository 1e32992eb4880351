package redislock

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOptionsThatCannotBeMeantPanic(t *testing.T) {
	for _, d := range []time.Duration{0, -1, math.MinInt64} {
		require.PanicsWithValue(t, fmt.Sprintf("redislock: WithFenceRetention(%s): must be positive", d), func() { WithFenceRetention(d) })
		require.PanicsWithValue(t, fmt.Sprintf("redislock: WithPollInterval(%s): must be positive", d), func() { WithPollInterval(d) })
	}
	require.NotPanics(t, func() { WithFenceRetention(1); WithPollInterval(1) })
}

func TestDefaults(t *testing.T) {
	o := newOptions(nil)
	require.Equal(t, "lock:", o.prefix)
	require.Equal(t, time.Hour, o.fenceRetention)
	require.Equal(t, 5*time.Second, o.pollInterval)
	require.False(t, o.logger.Enabled(t.Context(), slog.LevelError), "silent")
}

func TestMaxHoldThatIsNotPositiveIsRefusedWithoutTraffic(t *testing.T) {
	for _, d := range []time.Duration{0, -1, math.MinInt64} {
		for name, acquire := range acquirers {
			t.Run(fmt.Sprintf("%s/%d", name, d), func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *fakeRedis) {
					var err error
					r.requireSilence(func() {
						_, err = acquire(r.locker(), t.Context(), "a", time.Minute, WithWatchdog(), WithMaxHold(d))
					})
					requireFailure(t, err, opAcquire, "lock:a", ErrInvalidTTL)
				})
			})
		}
	}
}

func TestPrefixSeparatesLockers(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		first, err := r.locker(WithPrefix("first:")).TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		second, err := r.locker(WithPrefix("second:")).TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		require.Equal(t, first.Token(), r.value("first:a"))
		require.Equal(t, second.Token(), r.value("second:a"))
		_, err = r.locker(WithPrefix("")).TryAcquire(t.Context(), "first:a", time.Minute)
		require.ErrorIs(t, err, ErrNotAcquired, "the same key is the same lock")
	})
}

func TestFenceRetention(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		_, err := r.locker(WithFenceRetention(10*time.Minute)).TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		require.Equal(t, 10*time.Minute, r.TTL("{lock:a}:fence"))
	})
}

func TestWarningsSayWhatAPersonNeedsAndKeepTheTokenSecret(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("order:42", 3*time.Second, WithWatchdog())
		r.take("lock:order:42")
		awaitEnd(t, lock.Done())
		require.Len(t, r.logged(""), 1)
		require.ErrorIs(t, lock.Release(t.Context()), ErrNotHeld)
		lines := r.logged("")
		require.Len(t, lines, 2)
		for i, want := range []string{"lock lost", "nothing to release"} {
			require.Contains(t, lines[i], want)
			require.Contains(t, lines[i], "WARN")
			require.Contains(t, lines[i], "lock:order:42")
			require.Contains(t, lines[i], fmt.Sprint(lock.Fence()))
			require.Contains(t, lines[i], lock.Token()[:8])
			require.NotContains(t, lines[i], lock.Token())
		}
	})
}

func TestSilentWithoutALogger(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock, err := New(r.client, WithLogger(nil)).TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		r.take("lock:a")
		require.ErrorIs(t, lock.Release(t.Context()), ErrNotHeld)
	})
}

// Fault 48: option values hold no state.
func TestOptionsAreSharedByConcurrentCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		shared := []AcquireOption{WithWatchdog(), WithMaxHold(10 * time.Second), WithMetadata("shared")}
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				name := fmt.Sprint(i)
				lock, err := lk.Acquire(t.Context(), name, 3*time.Second, shared...)
				require.NoError(t, err)
				require.Equal(t, lock.Token()+" shared", r.value("lock:"+name))
				awaitEnd(t, lock.Done())
				require.Greater(t, time.Since(start), 10*time.Second)
				require.NoError(t, lk.WithLock(t.Context(), name, time.Second, func(context.Context, *Lock) error { return nil }, shared...))
			})
		}
		wg.Wait()
		require.Equal(t, "shared", acquireOptions{}.with(shared).metadata)
	})
}

func TestMillisecondsAreRoundedUpAndDoNotOverflow(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		time.Millisecond:             1,
		time.Millisecond + 1:         2,
		10500 * time.Microsecond:     11,
		24 * time.Hour:               86_400_000,
		maxLease:                     maxLease.Milliseconds(),
		math.MaxInt64:                maxLease.Milliseconds(),
		2*time.Millisecond - 1:       2,
		time.Second - 1:              1000,
		time.Hour + time.Microsecond: 3_600_001,
	} {
		require.Equal(t, want, milliseconds(d), d)
	}
}
