package servertest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/e2e3f2a3/redislock"
	"github.com/stretchr/testify/require"
)

// A detached lock stays taken, is adopted by another process, and goes from
// there to one that waited behind the first handle. Another is left to its
// lease.
func TestServerDetachedLockGoesOnElsewhere(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, locker func(...redislock.Option) *redislock.Locker, log *journal) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		here, there := locker(), locker()

		lock, err := here.Acquire(ctx, "a", 10*time.Second, redislock.WithWatchdog())
		require.NoError(t, err)
		waiter := started(func() (*redislock.Lock, error) { return here.Acquire(ctx, "a", time.Minute) })
		token := lock.Detach()
		require.Equal(t, lock.Token(), token)
		<-lock.Done()
		require.ErrorIs(t, lock.Err(), redislock.ErrDetached)
		_, err = there.TryAcquire(ctx, "a", time.Minute)
		require.ErrorIs(t, err, redislock.ErrNotAcquired)
		resumed, err := there.Resume(ctx, "a", token, time.Minute)
		require.NoError(t, err)
		if strings.HasSuffix(t.Name(), "/quorum") {
			// Of a lock that was acquired elsewhere it is the greatest record
			// of a majority: a node beyond the first one may have minted a
			// greater one later.
			require.GreaterOrEqual(t, resumed.Fence(), lock.Fence())
		} else {
			require.Equal(t, lock.Fence(), resumed.Fence())
		}
		require.ErrorIs(t, lock.Release(ctx), redislock.ErrDetached)
		require.NoError(t, resumed.Release(ctx))
		next, err := waiter(t)
		require.NoError(t, err)
		require.Greater(t, next.Fence(), resumed.Fence())
		require.NoError(t, next.Release(ctx))

		left, err := here.Acquire(ctx, "b", time.Second, redislock.WithWatchdog())
		require.NoError(t, err)
		require.NotEmpty(t, left.Detach())
		free, err := there.Acquire(ctx, "b", time.Minute)
		require.NoError(t, err, "nobody renews it")
		require.NoError(t, free.Release(ctx))
		require.Empty(t, log.about(""))
	})
}
