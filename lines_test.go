package redislock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// refuseSubscriptions makes the server answer as one that lacks channel rights.
func (r *fakeRedis) refuseSubscriptions() {
	r.onCommand(func(cmd string, _ ...string) string {
		if cmd == "SUBSCRIBE" {
			return "NOPERM this user has no permissions to access one of the channels used as arguments"
		}
		return ""
	})
}

// takeTurnsFor has every Locker's goroutines contend for one name, and counts
// the sections of each Locker.
func takeTurnsFor(t *testing.T, d time.Duration, goroutines int, lockers ...*Locker) []int {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	counts := make([]int, len(lockers))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, lk := range lockers {
		for range goroutines {
			wg.Go(func() {
				for {
					lock, err := lk.Acquire(ctx, "a", time.Minute)
					if err != nil {
						return
					}
					mu.Lock()
					counts[i]++
					mu.Unlock()
					time.Sleep(5 * time.Millisecond) // the work
					require.NoError(t, lock.Release(context.Background()))
				}
			})
		}
	}
	wg.Wait()
	return counts
}

// Without pushes processes find the lock by polling. One that always has
// somebody to hand it to does not keep it for ever.
func TestPollingProcessesDoNotStarveEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		r.refuseSubscriptions()
		counts := takeTurnsFor(t, 20*time.Second, 2, r.lockerOn(r.connect()), r.lockerOn(r.connect()))
		for _, n := range counts {
			require.Greater(t, n, (counts[0]+counts[1])/10, counts)
		}
	})
}

func TestProcessesTakeTurns(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		counts := takeTurnsFor(t, 2*time.Second, 2, r.lockerOn(r.connect()), r.lockerOn(r.connect()), r.lockerOn(r.connect()))
		for _, n := range counts {
			require.InDelta(t, counts[0], n, float64(counts[0])/50, counts)
		}
		require.Greater(t, counts[0], 120, "without pauses: %v", counts)
	})
}

func TestLinesAreForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		takeTurnsFor(t, time.Second, 5, lk)
		_, err := lk.TryAcquire(t.Context(), "b", time.Second)
		require.NoError(t, err)
		time.Sleep(time.Minute) // its lease has ended
		lines, expecting := lk.lines.Len()
		require.Zero(t, lines)
		require.Zero(t, expecting)
		require.Empty(t, r.PubSubChannels(""), "nobody listens")
	})
}

// Those who come first are served first, in one process.
func TestGoroutinesAreServedInTheOrderOfTheirCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		holder, err := lk.Acquire(t.Context(), "a", time.Hour)
		require.NoError(t, err)
		var waiters []<-chan acquired
		for range 20 {
			waiters = append(waiters, waitFor(t.Context(), lk, "a", time.Hour))
			time.Sleep(time.Millisecond)
		}
		fence := holder.Fence()
		for _, w := range waiters {
			require.NoError(t, holder.Release(t.Context()))
			got := <-w
			require.NoError(t, got.err)
			require.Greater(t, got.lock.Fence(), fence)
			holder, fence = got.lock, got.lock.Fence()
		}
		require.NoError(t, holder.Release(t.Context()))
	})
}
