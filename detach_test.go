package redislock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// requireDetached fails unless the handle answers everything with ErrDetached,
// and sends nothing.
func requireDetached(t *testing.T, lock *Lock) {
	t.Helper()
	require.True(t, isDone(lock))
	requireFailure(t, lock.Err(), opHold, lock.Key(), ErrDetached)
	ctx, cancel := lock.Context(t.Context())
	defer cancel()
	require.ErrorIs(t, context.Cause(ctx), ErrDetached)
	requireFailure(t, lock.Extend(t.Context(), time.Minute), opExtend, lock.Key(), ErrDetached)
	requireFailure(t, lock.Release(t.Context()), opRelease, lock.Key(), ErrDetached)
	_, err := lock.TTL(t.Context())
	requireFailure(t, err, opTTL, lock.Key(), ErrDetached)
	require.Empty(t, lock.Detach(), "once")
}

func TestDetachLeavesTheKeyToItsLease(t *testing.T) {
	for name, opts := range map[string][]AcquireOption{
		"watchdog":    {WithWatchdog(), WithMetadata("me")},
		"max hold":    {WithWatchdog(), WithMaxHold(time.Hour)},
		"no watchdog": nil,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", 30*time.Second, opts...)
				ctx, cancel := lock.Context(t.Context())
				defer cancel()
				time.Sleep(25 * time.Second)
				stands, left := r.value("lock:a"), r.TTL("lock:a")
				r.requireSilence(func() {
					require.Equal(t, lock.Token(), lock.Detach())
					<-ctx.Done()
					require.ErrorIs(t, context.Cause(ctx), ErrDetached)
					requireDetached(t, lock)
					time.Sleep(left - time.Millisecond)
				})
				require.Equal(t, stands, r.value("lock:a"))
				time.Sleep(2 * time.Millisecond)
				require.False(t, r.Exists("lock:a"), "nobody renews it")
				require.Empty(t, r.logged(""))
				requireNoGoroutines(t)
			})
		})
	}
}

func TestDetachedLockIsResumedByAnotherProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", 3*time.Second, WithWatchdog())
		resumed, err := r.locker().Resume(t.Context(), "a", lock.Detach(), 3*time.Second, WithWatchdog())
		require.NoError(t, err)
		require.Equal(t, lock.Fence(), resumed.Fence())
		time.Sleep(time.Minute)
		require.NoError(t, resumed.Err())
		requireDetached(t, lock)
		require.NoError(t, resumed.Release(t.Context()))
		require.False(t, r.Exists("lock:a"))
		require.Empty(t, r.logged(""))
	})
}

func TestDetachOfAHandleThatHasEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		var none *Lock
		require.Empty(t, none.Detach())
		require.Empty(t, new(Lock).Detach())

		released := r.acquire("a", time.Minute)
		require.NoError(t, released.Release(t.Context()))
		require.Empty(t, released.Detach())
		requireFailure(t, released.Err(), opHold, "lock:a", ErrReleased)
		requireFailure(t, released.Release(t.Context()), opRelease, "lock:a", ErrReleased)

		expired := r.acquire("a", time.Second)
		time.Sleep(2 * time.Second)
		require.Empty(t, expired.Detach())
		requireFailure(t, expired.Err(), opHold, "lock:a", ErrLost)
		requireFailure(t, expired.Release(t.Context()), opRelease, "lock:a", ErrNotHeld)
	})
}

func TestDetachWhileReleaseIsUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute)
		arrive := r.net.delay(opRelease)
		released := make(chan error, 1)
		go func() { released <- lock.Release(t.Context()) }()
		synctest.Wait()
		require.Empty(t, lock.Detach())
		arrive()
		require.NoError(t, <-released)
		require.False(t, r.Exists("lock:a"))
	})
}

// No request of this release has left the process.
func TestDetachAfterAReleaseThatWasNotMade(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute)
		r.net.down()
		require.Error(t, lock.Release(t.Context()))
		require.Equal(t, lock.Token(), lock.Detach())
		r.net.up()
		requireDetached(t, lock)
		require.Equal(t, lock.Token(), r.value("lock:a"))
	})
}

func TestDetachInsideWithLock(t *testing.T) {
	for name, want := range map[string]error{"nil": nil, "error": errWork} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				var token string
				err := r.locker().WithLock(t.Context(), "a", time.Minute, func(ctx context.Context, lock *Lock) error {
					token = lock.Detach()
					<-ctx.Done()
					require.ErrorIs(t, context.Cause(ctx), ErrDetached)
					return want
				})
				require.Equal(t, want, err)
				require.NotEmpty(t, token)
				require.Zero(t, r.requests(opRelease))
				require.Equal(t, token, r.value("lock:a"))
				require.Empty(t, r.logged(""))
			})
		})
	}
}

func TestRenewalThatIsUnderWayDoesNoHarmToADetachedLock(t *testing.T) {
	for name, keep := range map[string]func(n *network, op string) func(){
		"request": (*network).delay, "reply": (*network).delayReply,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *fakeRedis) {
				lock := r.acquire("a", 30*time.Second, WithWatchdog())
				arrive := keep(r.net, opExtend)
				time.Sleep(11 * time.Second)
				resumed, err := r.lockerOn(r.connect()).Resume(t.Context(), "a", lock.Detach(), time.Hour)
				require.NoError(t, err)
				arrive()
				time.Sleep(30 * time.Second)
				require.Equal(t, time.Hour-30*time.Second, r.TTL("lock:a"), "it does not shorten the lease")
				require.NoError(t, resumed.Release(t.Context()))
				require.Empty(t, r.logged(""))
				requireNoGoroutines(t)
			})
		})
	}
}

func TestRenewalThatIsExecutedAfterADetachedLockWasReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", 30*time.Second, WithWatchdog())
		arrive := r.net.delay(opExtend)
		time.Sleep(11 * time.Second)
		other := r.lockerOn(r.connect())
		resumed, err := other.Resume(t.Context(), "a", lock.Detach(), time.Minute)
		require.NoError(t, err)
		require.NoError(t, resumed.Release(t.Context()))
		next, err := other.TryAcquire(t.Context(), "a", time.Second)
		require.NoError(t, err)
		arrive()
		synctest.Wait()
		require.Equal(t, time.Second, r.TTL("lock:a"))
		require.NoError(t, next.Release(t.Context()))
		require.Empty(t, r.logged(""))
	})
}

func TestExtendThatIsUnderWayWhenTheLockIsDetached(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lock := r.acquire("a", time.Minute)
		arrive := r.net.delayReply(opExtend)
		extended := make(chan error, 1)
		go func() { extended <- lock.Extend(t.Context(), time.Hour) }()
		synctest.Wait()
		require.NotEmpty(t, lock.Detach())
		arrive()
		requireFailure(t, <-extended, opExtend, "lock:a", ErrDetached)
		requireDetached(t, lock)
	})
}

// The line behind a lock of the same Locker relies on its release. Of a
// detached lock there is none.
func TestWaitersBehindADetachedLock(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.lockerOn(r.connect(), WithPollInterval(time.Hour))
		other := r.lockerOn(r.connect(), WithPollInterval(time.Hour))
		lock, err := lk.TryAcquire(t.Context(), "a", 10*time.Minute)
		require.NoError(t, err)
		first := waitFor(t.Context(), lk, "a", time.Hour)
		time.Sleep(time.Minute)
		second := waitFor(t.Context(), lk, "a", time.Hour)
		time.Sleep(time.Minute)

		resumed, err := other.Resume(t.Context(), "a", lock.Detach(), 10*time.Minute)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		released := time.Now()
		require.NoError(t, resumed.Release(t.Context()))
		got := <-first
		require.NoError(t, got.err)
		require.Less(t, got.at.Sub(released), 10*time.Millisecond, "it stands in the queue")

		require.NoError(t, got.lock.Extend(t.Context(), 10*time.Minute))
		detached := time.Now()
		require.NotEmpty(t, got.lock.Detach())
		next := <-second
		require.NoError(t, next.err)
		require.InDelta(t, 10*time.Minute, next.at.Sub(detached), float64(20*time.Millisecond), "when the lease is over")
		require.NoError(t, next.lock.Release(t.Context()))
		require.Empty(t, r.logged(""))
	})
}

// Either the handle released the lock or the caller has the token, whoever
// comes first.
func TestDetachAndReleaseAtTheSameTime(t *testing.T) {
	inBubble(t, func(t *testing.T, r *fakeRedis) {
		lk := r.locker()
		for range 200 {
			lock, err := lk.TryAcquire(t.Context(), "a", 30*time.Millisecond, WithWatchdog())
			require.NoError(t, err)
			time.Sleep(9 * time.Millisecond) // until about the renewal
			var token string
			var released, extended error
			var wg sync.WaitGroup
			wg.Go(func() { token = lock.Detach() })
			wg.Go(func() { released = lock.Release(t.Context()) })
			wg.Go(func() { extended = lock.Extend(t.Context(), 40*time.Millisecond) })
			wg.Wait()
			require.Equal(t, token == "", released == nil, "token %q, release: %v", token, released)
			if token != "" {
				require.ErrorIs(t, released, ErrDetached)
				require.True(t, extended == nil || errors.Is(extended, ErrDetached), "%v", extended)
				require.Equal(t, token, r.value("lock:a"))
				resumed, err := lk.Resume(t.Context(), "a", token, time.Minute)
				require.NoError(t, err)
				require.NoError(t, resumed.Release(t.Context()))
			}
			require.False(t, r.Exists("lock:a"))
		}
		require.Empty(t, r.logged(""))
		requireNoGoroutines(t)
	})
}

// --- quorum ---------------------------------------------------------------------------------

func TestQuorumDetach(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", 3*time.Second, WithWatchdog())
		time.Sleep(time.Second + 500*time.Millisecond)
		token := lock.Detach()
		require.Equal(t, lock.Token(), token)
		requireDetached(t, lock)
		q.requireOn("a", token, 0, 1, 2)
		resumed, err := q.locker().Resume(t.Context(), "a", token, 3*time.Second, WithWatchdog())
		require.NoError(t, err)
		require.Equal(t, lock.Fence(), resumed.Fence())
		time.Sleep(time.Minute)
		require.NoError(t, resumed.Err())
		require.NoError(t, resumed.Release(t.Context()))
		synctest.Wait()
		q.requireFree("a")
		require.Empty(t, q.nodes[0].logged(""))
		requireNoGoroutines(t)
	})
}

// A renewal that finds a node free takes it, but not for a handle that was
// detached meanwhile.
func TestQuorumDetachDuringARenewalEndsRepairs(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", 30*time.Second, WithWatchdog())
		q.nodes[2].FlushAll()
		arrive := q.nodes[2].net.delayReply(opExtend)
		time.Sleep(10*time.Second + 10*time.Millisecond) // two of three have answered
		token := lock.Detach()
		require.NotEmpty(t, token)
		arrive()
		time.Sleep(time.Second)
		q.requireOn("a", token, 0, 1)
		require.Zero(t, q.nodes[2].requests(opRetake))
		time.Sleep(30 * time.Second)
		q.requireFree("a")
		require.Empty(t, q.nodes[0].logged(""))
	})
}

// A node that has not answered the acquisition is not looked after: the token
// may be in use.
func TestQuorumDetachUndoesNothing(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		arrive := q.nodes[2].net.delay(opAcquire)
		lock, err := q.TryAcquire(t.Context(), "a", time.Minute)
		require.NoError(t, err)
		token := lock.Detach()
		arrive()
		time.Sleep(20 * time.Second)
		q.requireOn("a", token, 0, 1, 2)
		for _, r := range q.nodes {
			require.Zero(t, r.requests(opRelease))
			require.Zero(t, r.requests(opHandBack))
		}
	})
}

func TestQuorumWaitersBehindADetachedLock(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *fakeQuorum) {
		lock := q.acquire("a", time.Minute)
		waiter := waitFor(t.Context(), q.Locker, "a", time.Minute)
		time.Sleep(time.Second)
		resumed, err := q.locker().Resume(t.Context(), "a", lock.Detach(), time.Minute)
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		require.NoError(t, resumed.Release(t.Context()))
		released := time.Now()
		got := <-waiter
		require.NoError(t, got.err)
		require.LessOrEqual(t, got.at.Sub(released), time.Second)
	})
}
